"""What parts share: a chat base of a published model's sizes, and the card for one row at a time."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tests.conftest import ROOT
from trainbook.fits.language import settings_of

BASE = ROOT / "configs" / "chat-base"
LENGTH = 2048  # tokens of a conversation
_TOKENS = 1990  # of an answer's text; the template adds some
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_ROWS = 64


@contextlib.contextmanager
def card_alone() -> Iterator[None]:
    """Holds the card, so that rows which plan or load at the same time are not in the figures."""
    place = Path(os.environ["TRAINBOOK_GPU_SCRATCH"]) / "card.lock"
    with place.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def chat_base(name: str, folder: Path) -> Path:
    """Writes a model of the sizes that `trainbook fits` knows, of random weights in bf16, with a small tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**settings_of(name)), dtype=torch.bfloat16
        )
    model.save_pretrained(folder)
    for file in _FILES:
        shutil.copy(BASE / file, folder / file)
    return folder


def conversations(folder: Path) -> Path:
    """Writes 64 conversations whose answers are text of nearly `LENGTH` tokens."""
    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    ids = tokenizer.encode((BASE / "other.txt").read_text("utf-8"), add_special_tokens=False).ids
    answers = [tokenizer.decode(ids[number * 700 :][:_TOKENS]) for number in range(_ROWS)]
    rows = [{"prompt": f"part {number}", "answer": answer} for number, answer in enumerate(answers)]
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return folder


def chat_changes(name: str, scratch: Path, micro_batch: int) -> Mapping[str, Any]:
    """Returns the keys that train `configs/chat.yaml` on a base of these sizes and on long conversations."""
    return {
        "workload.base": str(chat_base(name, scratch / name)), "data.dir": str(conversations(scratch / "rows")),
        "data.num_workers": 0, "data.evaluation_batch": 4, "training.micro_batch": micro_batch,
        "training.effective_batch": 2 * micro_batch, "workload.answer": 16, "workload.validation_rows": 4,
        "workload.test_rows": 4, "device.processes": 1,
    }  # fmt: skip


def within(measured: float, expected: float, below: float, above: float) -> bool:
    """Says whether `expected` lies at most the shares `below` and `above` beside what was measured."""
    return bool(measured) and -below <= expected / measured - 1 <= above
