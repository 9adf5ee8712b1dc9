"""Roles of the sentences of new judgments, as JSON lines and as pages that a person reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import counted
from lib.task.batches import in_batches
from lib.training.data import to_device
from workloads.legal import documents, page
from workloads.legal.documents import Document
from workloads.legal.samples import in_order
from workloads.legal.sentences import as_in_corpus

_AT_ONCE = 32  # sentences, where no micro-batch is set
_SUFFIXES = (".txt", ".md", ".text")
_MOST_FILES = 100_000


def predict(task: Any, models: Sequence[nn.Module], source: Path, out: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Returns a row for each sentence, by the name of its file; writes `name.jsonl` and `name.html` into `out`.

    Raises BadInput where there is no text file.
    """
    answers: dict[str, list[dict[str, Any]]] = {}
    for name, path in counted(list(_files(source).items()), "judgments read"):
        document = documents.read_plain(path)
        shares = probabilities(task, models, document)
        answers[name] = rows(document, shares, task.data.classes)
        if out is not None:
            write(answers[name], name, task.data.classes, out)
    return answers


def _files(source: Path) -> dict[str, Path]:
    """Returns the text files by their names below `source`, without suffixes. Raises BadInput."""
    if not source.exists():
        raise BadInput(f"There is no {printable(source)}. Give a text file with a judgment, or a folder of these.")
    if source.is_file():
        return {source.stem: source}
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not 0 < len(paths) <= _MOST_FILES:
        raise BadInput(
            f"{printable(source)} has {len(paths):,} text files ({', '.join(_SUFFIXES)}); 1 to {_MOST_FILES:,} are "
            "predicted at once."
        )
    named = {path.relative_to(source).with_suffix("").as_posix(): path for path in paths}
    if len(named) == len(paths):
        return named
    return {path.relative_to(source).as_posix(): path for path in paths}  # a.txt beside a.md


def probabilities(task: Any, models: Sequence[nn.Module], document: Document) -> np.ndarray:
    """Returns (sentences, classes) the probabilities of the counts times the networks, with the counts' offsets.

    The sentences are read as the training's were, without final full stops where these have none.
    """
    marks = task.learned()["final_marks"]
    document = replace(document, sentences=tuple(as_in_corpus(one, marks) for one in document.sentences))
    samples = task.data.samples([document], "new")
    at_once = task.config.training.micro_batch or _AT_ONCE
    with torch.inference_mode():
        parts = list(in_batches(partial(_network, task, models), [samples[n] for n in range(len(samples))], at_once))
        found, numbers = (torch.cat(one) for one in zip(*parts, strict=True))
    power = float(torch.stack([model.power for model in models]).mean())
    scores = power * (task.data.stack.scores(document) + in_order(found, numbers) + task.data.stack.offsets)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _network(task: Any, models: Sequence[nn.Module], samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (sentences, classes) the mean of weighted log-probabilities over networks, and (sentences) numbers."""
    batch = task.collate(list(samples), torch.Generator())
    found = []
    for model in models:
        logits = model(to_device(batch, model.weight.device))
        found.append(model.weight * F.log_softmax(task.of_roles(logits), -1))
    return torch.stack(found).mean(0).cpu(), batch["number"]


def rows(document: Document, shares: np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Returns number, text, role and probabilities of each sentence."""
    answers = []
    for number, (text, own) in enumerate(zip(document.sentences, shares, strict=True), 1):
        each = {name: round(float(share), 4) for name, share in zip(classes, own, strict=True)}
        role = classes[int(own.argmax())]
        answers.append(
            {"sentence": number, "text": text, "role": role, "probability": each[role], "probabilities": each}
        )
    return answers


def write(answers: Sequence[Mapping[str, Any]], name: str, classes: Sequence[str], out: Path) -> None:
    """Writes a judgment's rows as JSON lines and as a page, each whole or not at all."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in answers)
    for suffix, text in ((".jsonl", lines), (".html", page.of(answers, name, classes))):
        path = out / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(path) as aside:
            aside.write_text(text, "utf-8")
