"""Roles of the sentences of new judgments, as JSON lines."""

import json
from collections.abc import Sequence
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
from workloads.legal.counting.stack import log_softmax
from workloads.legal.documents import Document, read_plain
from workloads.legal.samples import Sentences

_AT_ONCE = 32  # sentences, where no micro-batch is set


def predict(task: Any, models: Sequence[nn.Module], source: Path, out: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Returns a row a sentence, by the name of its file; writes `name.jsonl` into `out`. Raises BadInput."""
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*.txt") if path.is_file())
    if not paths:
        raise BadInput(f"There is no .txt file in {printable(source)}. Give a judgment as text, or a folder of these.")
    base, answers = source.parent if source.is_file() else source, dict[str, list[dict[str, Any]]]()
    for path in counted(paths, "judgments read"):
        document, name = read_plain(path), path.relative_to(base).with_suffix("").as_posix()
        answers[name] = rows = []
        shares = probabilities(task, models, document)
        for number, (text, share) in enumerate(zip(document.sentences, shares, strict=True), 1):
            each = dict(zip(task.names, (round(float(p), 4) for p in share), strict=True))
            role = task.names[int(share.argmax())]
            row = {"sentence": number, "text": text, "role": role, "probability": each[role], "probabilities": each}
            rows.append(row)
        if out:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            disk.write_text(out / f"{name}.jsonl", lines)
    return answers


def probabilities(task: Any, models: Sequence[nn.Module], document: Document) -> np.ndarray:
    """Returns (sentences, classes) of counts times networks."""

    def network(some: Sequence[Any]) -> torch.Tensor:
        """Returns (sentences, classes) the mean of weighted log-probabilities over networks."""
        batch = to_device(task.labelled(list(some)), models[0].weight.device)
        each = [model.weight * F.log_softmax(task.outputs(model, batch), -1) for model in models]
        return torch.stack(each).mean(0).cpu()

    samples = Sentences(task, [document])
    with torch.inference_mode():
        parts = in_batches(network, samples, task.config.training.micro_batch or _AT_ONCE)
        scores = torch.cat([*parts]).double().numpy()[np.argsort(samples.places)]
    power = float(torch.stack([model.power for model in models]).mean())
    scores = power * (task.stack.scores(document) + scores + task.stack.offsets)
    return np.exp(log_softmax(scores))
