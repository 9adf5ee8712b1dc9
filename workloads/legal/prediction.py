"""Roles of the sentences of new judgments, as JSON lines and as pages of HTML that a person reads."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import counted
from lib.task.batches import in_batches
from lib.training.data import to_device
from workloads.legal.documents import Document, read_plain
from workloads.legal.samples import Sentences
from workloads.legal.sentences import as_in_corpus

_AT_ONCE = 32  # sentences, where no micro-batch is set
_TEMPLATE = Path(__file__).with_name("page.html.in")
# Okabe and Ito's palette, which any kind of colour vision distinguishes; further roles have hues between these
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#666666")
_UNSURE = 0.5  # a role below this probability is marked


def predict(task: Any, models: Sequence[nn.Module], source: Path, out: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Returns a row a sentence, by the name of its file; writes `name.jsonl` and `name.html`. Raises BadInput."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for name, path in counted(list(_files(source).items()), "judgments read"):
        document = read_plain(path)
        answers[name] = rows = []
        shares = probabilities(task, models, document)
        for number, (text, share) in enumerate(zip(document.sentences, shares, strict=True), 1):
            each = dict(zip(task.names, (round(float(p), 4) for p in share), strict=True))
            role = task.names[int(share.argmax())]
            row = {"sentence": number, "text": text, "role": role, "probability": each[role], "probabilities": each}
            rows.append(row)
        if out:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            for suffix, text in ((".jsonl", lines), (".html", page(rows, name, task.names))):
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                with disk.whole(out / f"{name}{suffix}") as aside:
                    aside.write_text(text, "utf-8")
    return answers


def _files(source: Path) -> dict[str, Path]:
    """Returns a text file, or those below a folder, by their names without suffix. Raises BadInput."""
    if source.is_file():
        return {source.stem: source}
    if paths := sorted(path for path in source.rglob("*.txt") if path.is_file()):
        return {path.relative_to(source).with_suffix("").as_posix(): path for path in paths}
    raise BadInput(f"There is no .txt file in {printable(source)}. Give a judgment as text, or a folder of these.")


def probabilities(task: Any, models: Sequence[nn.Module], document: Document) -> np.ndarray:
    """Returns (sentences, classes) of counts times networks; sentences are read as the training's were."""
    marks = task.learned()["final_marks"]
    document = replace(document, sentences=tuple(as_in_corpus(text, marks) for text in document.sentences))
    samples = Sentences(task, [document])
    at_once = task.config.training.micro_batch or _AT_ONCE
    with torch.inference_mode():
        parts = in_batches(partial(_network, task, models), samples, at_once)
        network = torch.cat([*parts]).double().numpy()[np.argsort(samples.places)]
    power = float(torch.stack([model.power for model in models]).mean())
    scores = power * (task.stack.scores(document) + network + task.stack.offsets)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _network(task: Any, models: Sequence[nn.Module], samples: Sequence[Any]) -> torch.Tensor:
    """Returns (sentences, classes) the mean of weighted log-probabilities over networks."""
    batch = to_device(task.labelled(list(samples)), models[0].weight.device)
    return torch.stack([model.weight * F.log_softmax(task.outputs(model, batch), -1) for model in models]).mean(0).cpu()


def page(answers: Sequence[Mapping[str, Any]], name: str, classes: Sequence[str]) -> str:
    """Returns the page of one judgment out of its rows: in colours, and readable without them."""
    hues = [*_COLOURS, *(f"hsl({k * 137 % 360} 60% 38%)" for k in range(len(_COLOURS), len(classes)))]
    colours, number = dict(zip(classes, hues, strict=False)), Counter(row["role"] for row in answers)
    runs = []
    for role, rows in groupby(answers, key=lambda row: row["role"]):
        sentences = []
        for row in rows:
            ranked = sorted(row["probabilities"].items(), key=lambda pair: -pair[1])[:4]
            hover = "\n".join(f"{other}: {share:.0%}" for other, share in ranked)
            sentences.append({"number": row["sentence"], "text": row["text"], "hover": hover,
                              "is_unsure": row["probability"] < _UNSURE})  # fmt: skip
        runs.append({"role": role, "colour": colours[role], "sentences": sentences})
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    legend = [{"role": role, "colour": colours[role], "sentences": number[role]} for role in classes]
    unsure, page = sum(row["probability"] < _UNSURE for row in answers), _TEMPLATE.read_text("utf-8")
    values = {"name": name, "runs": runs, "count": len(answers), "unsure": unsure, "legend": legend}
    return environment.from_string(page).render(**values, below=f"{_UNSURE:.0%}")
