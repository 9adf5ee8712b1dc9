"""Adapters of a chat model whose training is killed at random, in one process and in two ranks: `make faults`, or

    python -m tests.faults.chat

Runs of the shipped base. Each must end in the bytes of the undisturbed one: in one process weights, tables and the
exported adapter, in two ranks weights and the optimizer's state. Figures go to tests/bench/records/faults_chat.json. It
takes some minutes.
"""

import json
import os
import tempfile
from pathlib import Path

import peft  # noqa: F401  once, before runs are forked
import torch
from sklearn.feature_extraction import text  # noqa: F401
from transformers import LlamaForCausalLM  # noqa: F401

from tests.bench.record import RECORDS, head, write
from tests.conftest import ROOT
from tests.faults import ranks, runs

CHAT = {
    "task": "chat", "data.buckets": 4, "workload.base": ROOT / "configs" / "chat-base", "workload.length": 256,
    "workload.answer": 8, "workload.validation_rows": 4, "workload.test_rows": 4, "workload.shots": 1,
    "workload.generated": 64,
}  # fmt: skip


def one_process(base: Path) -> dict:
    return runs.random_kills(base, 8, **CHAT, **{"training.max_steps": 24})["random kills"]


def two_ranks(base: Path) -> dict:
    figures = ranks.deaths(base, count=10, **CHAT)
    return {
        name: figure for name, figure in figures.items() if "goal" not in name
    }  # which the toy task has


def main() -> None:
    torch.set_num_threads(1)  # threads of a parent do not live on in forked runs
    record = {
        **head("torch", "transformers", "peft"),
        "load_average_before": round(os.getloadavg()[0], 2),
    }
    for part in (one_process, two_ranks):
        with tempfile.TemporaryDirectory() as folder:
            record[part.__name__] = part(Path(folder))
        print(json.dumps(record[part.__name__]), flush=True)
        write(RECORDS / "faults_chat.json", record)


if __name__ == "__main__":
    main()
