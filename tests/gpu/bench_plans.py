"""Plans beside what this machine's GPU does in fp16: speed, peak, reserved, what the driver shows.

    python -m tests.gpu.bench_plans [ROW ...]

Rows are the small configurations, graphmer.yaml, and configs/chat.yaml on bases of known sizes with random weights.
Figures go to tests/bench/records/gpu_plans_<card>.json.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from lib import launch
from lib.launch import smoke
from lib.machine import memory
from lib.task import load_config
from tests.bench.record import head, of_card, runs_of, write
from tests.conftest import ROOT
from trainbook.fits.language import settings_of

SMALL = ("graphmer_small", "glacier_pretrain_small", "glacier_finetune_small", "legal_small", "vqa_small")
CHATS = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B")
GOAL = {"speed_within": 1.3, "peak_within": 0.06}
LENGTH = 2048
_TOKENS = 1990  # of an answer's text; the template adds some
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def compare(run: launch.Run) -> dict[str, Any]:
    """Trains the smoke test's steps and returns them beside the prediction."""
    outcome = smoke.few_steps(run)
    option = run.predicted
    fast, slow = (1 / seconds for seconds in option.step_seconds)
    return {
        "precision": outcome.state.precision, "micro_batch": outcome.state.micro_batch,
        "loss_scale": outcome.state.scaler.get_scale(), "skipped_steps": outcome.state.skipped_steps,
        "steps_per_second": outcome.steps_per_second, "predicted": 1 / option.expected_seconds,
        "from": slow, "to": fast, "allocated": outcome.allocated, "moments": option.prediction.moments,
        "peak_bytes": outcome.peak_bytes,
        "predicted_peak_bytes": option.prediction.peak_bytes,
        "predicted_reserved_bytes": option.prediction.reserved_bytes,
        "predicted_driver_bytes": option.prediction.driver_bytes[0],
        "predicted_most_driver_bytes": option.prediction.driver_bytes[1],
    }  # fmt: skip


def base(name: str, folder: Path) -> Path:
    """Writes a model of the sizes that `trainbook fits` knows, of random weights in fp16, with a small tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings_of(name)), dtype=torch.float16)
    model.save_pretrained(folder)
    for file in _FILES:
        shutil.copy(ROOT / "configs" / "chat-base" / file, folder / file)
    return folder


def conversations(folder: Path) -> Path:
    """Writes 64 conversations whose answers are text of nearly `LENGTH` tokens."""
    small = ROOT / "configs" / "chat-base"
    tokenizer = Tokenizer.from_file(str(small / "tokenizer.json"))
    ids = tokenizer.encode((small / "other.txt").read_text("utf-8"), add_special_tokens=False).ids
    rows = [
        {"prompt": f"part {number}", "answer": tokenizer.decode(ids[number * 700 :][:_TOKENS])} for number in range(64)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return folder


def chat(name: str, scratch: Path) -> launch.Run:
    """Prepares QLoRA on a base in nf4, two conversations of 2,048 tokens a micro-batch, as for a T4."""
    changes: Mapping[str, Any] = {
        "workload.base": str(base(name, scratch / name)), "data.dir": str(conversations(scratch / "rows")),
        "data.num_workers": 0, "data.evaluation_batch": 4, "training.micro_batch": 2, "training.effective_batch": 4,
        "workload.answer": 16, "workload.validation_rows": 4, "workload.test_rows": 4,
    }  # fmt: skip
    return launch.prepare(load_config(ROOT / "configs" / "chat.yaml", {**changes, "device.processes": 1}))


def prepared(row: str, scratch: Path) -> launch.Run:
    if row in CHATS:
        return chat(row, scratch)
    changes = {"device.processes": 1, "training.precision": "fp16"}
    if row == "graphmer":
        changes |= {"workload.packages": [], "training.smoke_steps": 40}
    return launch.prepare(load_config(ROOT / "configs" / f"{row}.yaml", changes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=[*SMALL, "graphmer", *CHATS])
    rows = parser.parse_args().rows
    if len(rows) > 1:  # each in a process of its own: the workspaces of one lie beside the next
        for row in rows:
            subprocess.run([sys.executable, "-m", "tests.gpu.bench_plans", row], cwd=ROOT, check=True)
        return
    card, (row,) = torch.cuda.get_device_name(), rows
    with tempfile.TemporaryDirectory() as scratch:
        run = prepared(row, Path(scratch))
        memory.clear_memory()
        memory.reset_peak()
        measured = compare(run) | {"reserved_bytes": torch.cuda.max_memory_reserved()}
    print(json.dumps({row: measured}), flush=True)
    path = of_card("gpu_plans", card)
    runs = runs_of(path) | {row: measured}
    write(path, {**head("torch", gpu=card, cuda=torch.version.cuda), "goal": GOAL, "runs": runs})


if __name__ == "__main__":
    main()
