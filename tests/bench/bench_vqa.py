"""What answers about pictures reach: real small pictures, drawn ones, without pictures; figures go to records/vqa.json.

    python -m tests.bench.bench_vqa                                 all rows, those that the record has left out
    python -m tests.bench.bench_vqa --rows easy,drawn --seeds 0     some of them
    python -m tests.bench.bench_vqa --rows hard --again             once more

A row and seed is a run of configs/vqa_small.yaml in a fresh process: 5 to 10 minutes on 2 cores. One that was killed
resumes in --scratch. `drawn` takes three seeds, what is compared five: an interval over the pictures of one seed says
nothing about another seed, so differences have one over seeds (Student's t), paired by seed.

Distillation: a teacher learns the right answers to half of the training pictures, and answers the questions about the
other half, which it has not seen. A student two thirds as wide learns 60 labelled pictures (`few`), or with these the
teacher's answers (`hard`).
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.launch import ensemble
from lib.training.evaluation import EvaluationLoader
from tests.bench.record import RECORDS, add_run, head, runs_of
from workloads.vqa import data, evaluation, records
from workloads.vqa.records import Record
from workloads.vqa.samples import Questions
from workloads.vqa.settings import Columns, Settings, Source, Split
from workloads.vqa.showing import Tested

ROOT = Path(__file__).resolve().parents[2]
EASY = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data")) / "easy_vqa_subset"
EASY_FORM = {
    "source.files": "*/questions.json", "source.picture": "{folder}/images/{image}.png",
    "columns.question": "0", "columns.answer": "1", "columns.image": "2",
}  # fmt: skip
RECORD = RECORDS / "vqa.json"
STUDENT = ["workload.image.channels=[16, 32, 64]", "workload.decoder.hidden=64", "workload.decoder.feed_forward=128"]
STUDENT += ["training.max_steps=800", "training.evaluate_every_steps=100"]  # as many, however few the pictures are
# Row -> what it changes; where its data lies below the scratch folder, or easy or drawn
ROWS: dict[str, tuple[str, list[str]]] = {
    "easy": ("easy", []),
    "drawn": ("drawn", []),
    "easy without average": ("easy", ["training.ema_decay=0"]),
    "easy with dropout": ("easy", ["workload.decoder.dropout=0.1"]),
    "easy in one stage": ("easy", ["workload.stages={ALL: {reasoning: 0.3, format: 0.3}}"]),
    "teacher": ("half", []),
    "few": ("few", STUDENT),
    "hard": ("taught", STUDENT),
}
COMPARED = {
    "dropout": ("easy", "easy with dropout"),
    "average": ("easy", "easy without average"),
    "stages": ("easy", "easy in one stage"), "teacher's answers": ("hard", "few"),
}  # fmt: skip
_LABELLED, _SEED = 60, 7


def seeds_of(row: str) -> range:
    return range(1) if row == "teacher" else range(3) if row == "drawn" else range(5)


def trained(row: str, seed: int, scratch: Path) -> Path:
    """Trains in a fresh process, or goes on where one was killed; returns the folder of the run."""
    data, options = ROWS[row]
    where = {"easy": str(EASY), "drawn": "embedded"}.get(data) or str(prepared(data, scratch))
    options = [*options, *(f"workload.{key}={value}" for key, value in EASY_FORM.items() if data == "easy")]
    values = [f"output_dir={scratch / 'runs'}", f"run.name={slug(row, seed)}", f"seed={seed}", f"data.dir={where}"]
    if data not in ("easy", "drawn"):
        values.append(f"workload.source.images={EASY}")
    command = [sys.executable, "-m", "trainbook", "train", "configs/vqa_small.yaml"]
    command += [part for option in [*values, *options] for part in ("--set", option)]
    subprocess.run(command, cwd=ROOT, check=True)
    return scratch / "runs" / slug(row, seed)


def slug(row: str, seed: int) -> str:
    return f"{row.replace(' ', '-')}-{seed}"


# --- data of the distillation -----------------------------------------------------------------------------------------


def prepared(name: str, scratch: Path) -> Path:
    """Writes the data set of a teacher or a student, once, a file of JSON lines a part; returns its folder."""
    folder = scratch / name
    if (folder / "train.jsonl").is_file():
        return folder
    parts = data.split(easy_records(), Split(), 0)
    own, other = halves(parts["train"], _SEED)
    few = sorted({one.picture for one in own})[:_LABELLED]
    rows = [row_of(one) for one in own if name == "half" or one.picture in few]
    if name == "taught":
        rows += taught(other, scratch)
    held = {part: list(map(row_of, parts[name])) for part, name in (("val", "validation"), ("test", "test"))}
    for part, lines in {**held, "train": rows}.items():  # that of training last, by which it is known to be whole
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def easy_records() -> list[Record]:
    source = Source(files=EASY_FORM["source.files"], picture=EASY_FORM["source.picture"])
    return records.read(EASY, Settings(source=source, columns=Columns(question="0", answer="1", image="2"))).records


def halves(train: Sequence[Record], seed: int) -> tuple[list[Record], list[Record]]:
    """Returns the records of half of the pictures, and of the others."""
    names = sorted({one.picture for one in train})
    first = {names[n] for n in np.random.default_rng(seed).permutation(len(names))[: len(names) // 2]}
    return [one for one in train if one.picture in first], [one for one in train if one.picture not in first]


def row_of(record: Record) -> dict[str, Any]:
    return {"question": record.question, "answer": record.answer, "image": within(record.image)}


def within(image: str) -> str:
    return Path(image).relative_to(EASY).as_posix()


def taught(asked: Sequence[Record], scratch: Path) -> list[dict[str, Any]]:
    """Returns what the teacher answers to questions about pictures that it has not seen."""
    out = scratch / "teacher-answers"
    if not (out / "answers.jsonl").is_file():
        teacher = trained("teacher", 0, scratch)
        (scratch / "asked").unlink(missing_ok=True)
        (scratch / "asked").symlink_to(EASY, target_is_directory=True)
        lines = [{"image": f"asked/{within(one.image)}", "question": one.question} for one in asked]
        (scratch / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        ensemble.run(teacher, scratch / "asked.jsonl", out)
    found = [json.loads(line) for line in (out / "answers.jsonl").read_text("utf-8").splitlines()]
    images = [one["image_path"].rpartition("/asked/")[2] for one in found]
    return [
        {"question": one["question"], "answer": one["teacher_answer"], "image": image}
        for one, image in zip(found, images, strict=True)
    ]


# --- what is measured -------------------------------------------------------------------------------------------------


def measured(row: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Trains a row; returns its figures, and what it answers to other pictures or none."""
    begin = time.perf_counter()
    folder = trained(row, seed, scratch)
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "evaluation.csv").open(encoding="utf-8") as file:
        gain = next(float(row["gain_low"]) for row in csv.DictReader(file) if row["method"] == evaluation.MODEL)
    found = {
        **head("torch", "transformers"),
        "seconds": round(time.perf_counter() - begin, 1),
        "steps_per_second": summary["steps_per_second"],
        "metrics": {name: round(value, 4) for name, value in {**summary["metrics"], "gain_low": gain}.items()},
        "baseline": {name: round(value, 4) for name, value in summary["baseline"].items()},
    }
    return found | (unseen(folder, EASY if row == "easy" else None, scratch) if row in ("easy", "drawn") else {})


def unseen(folder: Path, data: Path | None, scratch: Path) -> dict[str, Any]:
    """Returns how many right answers of the test a model loses without a look, and which it has with one."""
    task, models = ensemble.load(folder)
    task.source = data  # a model is loaded without what it was trained on
    test = task.data.parts["test"]  # type: ignore[attr-defined]
    values = exact(task, models[0], test)
    found: dict[str, Any] = {"right": "".join(str(int(one)) for one in values)}
    for how, changed in (("shuffled", shuffled(test)), ("blank", blank(test, task, scratch))):
        other = exact(task, models[0], changed)
        lost = evaluation.judge((values - other)[:, None], test)[0].signed
        found[how] = {"exact": round(float(other.mean()), 4), "lost": lost}
    return found


def exact(task: Any, model: Any, asked: Sequence[Record]) -> np.ndarray:
    """(records) whether each is answered exactly."""
    samples = Questions("test", asked, task.settings, task.reader, task.writer)
    found = Tested(task, samples)
    with torch.inference_mode():
        for batch in EvaluationLoader(task, samples, task.config.data.evaluation_batch, torch.device("cpu")):
            found.add(model, batch)
    judged = dict(zip(map(id, found.judged[0]), evaluation.scores(*found.judged)[:, 0], strict=True))
    return np.array([judged[id(one)] for one in asked])


def shuffled(asked: Sequence[Record], seed: int = _SEED) -> list[Record]:
    """Returns the questions about another picture each, the same one for those of a picture."""
    images = {one.picture: one.image for one in asked}
    names = sorted(images)
    order = np.random.default_rng(seed).permutation(len(names))
    other = {names[a]: names[b] for a, b in zip(order, np.roll(order, 1), strict=True)}
    return [replace(one, picture=other[one.picture], image=images[other[one.picture]]) for one in asked]


def blank(asked: Sequence[Record], task: Any, scratch: Path) -> list[Record]:
    """Returns the questions about a picture of the mean colour of all."""
    from PIL import Image

    images = sorted({one.image for one in asked})
    mean = np.mean([task.album.load(image).mean((0, 1)) for image in images], 0)
    path = scratch / "blank.png"
    Image.new("RGB", (task.settings.pictures.side,) * 2, tuple(mean.round().astype(int).tolist())).save(path)
    return [replace(one, picture="blank", image=str(path)) for one in asked]


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns means over seeds of each row, and differences of rows with intervals over seeds."""
    by_row: dict[str, dict[int, Mapping[str, Any]]] = {}
    for name, run in runs.items():
        row, _, seed = name.rpartition(", seed ")
        by_row.setdefault(row, {})[int(seed)] = run
    tables: dict[str, Any] = {}
    for row, own in by_row.items():
        values = [run["metrics"]["exact"] for run in own.values()]
        lows = [run["metrics"]["gain_low"] for run in own.values()]
        types = [value for run in own.values() for key, value in run["metrics"].items() if is_type(key)]
        tables[row] = {
            "seeds": len(own), "exact, mean": round(float(np.mean(values)), 4), "exact, least": min(values),
            "least of a type": min(types, default=None), "least lower end of the gain": min(lows, default=None),
        }  # fmt: skip
    for name, (one, other) in COMPARED.items():
        both = sorted(by_row.get(one, {}).keys() & by_row.get(other, {}).keys())
        pairs = [by_row[one][seed]["metrics"]["exact"] - by_row[other][seed]["metrics"]["exact"] for seed in both]
        if len(pairs) > 1:
            tables[f"{one} above {other}"] = {"of": name, "seeds": len(pairs), "exact": over_seeds(pairs)}
    return tables


def is_type(key: str) -> bool:
    return key.startswith("exact_") and key not in ("exact_low", "exact_high")


def over_seeds(differences: Sequence[float]) -> str:
    """Returns the mean of differences, with Student's 95 % interval."""
    from scipy.stats import t

    values = np.asarray(differences)
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():+.4f} [{values.mean() - half:+.4f}, {values.mean() + half:+.4f}]"


def keep(name: str, run: Mapping[str, Any]) -> None:
    """Adds a run to the record, and prints the table that it belongs to."""
    tables = add_run(RECORD, name, run, summed_up, "torch", "transformers")
    print(name, json.dumps(tables[name.rpartition(", seed ")[0]], indent=1), flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), type=lambda text: text.split(","))
    parser.add_argument("--seeds", default="0,1,2,3,4", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--again", action="store_true", help="measure what the record has, too")
    parser.add_argument("--scratch", default=Path(tempfile.gettempdir()) / "trainbook-bench-vqa", type=Path)
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - ROWS.keys():
        raise SystemExit(f"There are no rows {sorted(unknown)}. Known are {list(ROWS)}.")
    options.scratch.mkdir(parents=True, exist_ok=True)
    for row in options.rows:
        for seed in (seed for seed in options.seeds if seed in seeds_of(row)):
            name = f"{row}, seed {seed}"
            if options.again:
                shutil.rmtree(options.scratch / "runs" / slug(row, seed), ignore_errors=True)
            if options.again or name not in runs_of(RECORD):
                keep(name, measured(row, seed, options.scratch))


if __name__ == "__main__":
    main(sys.argv[1:])
