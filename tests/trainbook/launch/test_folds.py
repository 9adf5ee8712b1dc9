"""Folds of a task of one's own: trained by `folds: 2`, judged over all samples, and averaged, wherever they are cut."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn import metrics

from lib import checkpoint
from lib.checkpoint import weights
from lib.errors import BadInput
from lib.task import load_config
from lib.training import loop
from tests.conftest import ROOT, TOY
from trainbook import launch
from trainbook.commands import main
from trainbook.launch import beside, ensemble, queue
from trainbook.new import made
from trainbook.notebook import looks
from trainbook.supervised import expected
from trainbook.supervised.simple.families import FAMILIES

pytestmark = pytest.mark.usefixtures("quick", "linear")

EXAMPLES = ROOT / "trainbook" / "new" / "examples"
STEPS = {
    "folds": 2,
    "training": {"max_steps": 12, "effective_batch": 8, "evaluate_every_steps": 6, "smoke_steps": 2},
    "workload": {"width": 4}, "optimizer": {"lr": 0.02}, "data": {"dir": "tabular", "num_workers": 0},
}  # fmt: skip


@pytest.fixture
def linear(monkeypatch):
    """Simple methods without trees, which take most of the time."""
    monkeypatch.setitem(FAMILIES, "numbers", FAMILIES["numbers"][:1])


def project(name="house", **changes):
    """Writes the example of tables, its data, and a configuration of two folds."""
    shutil.copyfile(EXAMPLES / "tabular.py", "folds_task.py")
    config = {"task": "folds_task.py:Tabular", "run": {"name": name}, **STEPS}
    for section, values in changes.items():
        is_section = isinstance(values, dict) and isinstance(config.get(section), dict)
        config[section] = {**config[section], **values} if is_section else values
    Path(f"{name}.yaml").write_text(yaml.safe_dump(config))
    if not Path("tabular").is_dir():
        made.tabular(Path("tabular"), number=60)


def rows_of(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def column(path, name):
    return [float(row[name]) for row in rows_of(path)]


def predict(run, out, *more, task="Tabular"):
    return main(
        ["predict", f"runs/{run}", "new.csv", out, "--task", f"folds_task.py:{task}", *more]
    )


def sizes():
    """Makes the table one of classes, which a task `Sizes` reads."""
    with Path("folds_task.py").open("a") as file:
        file.write("\n\nclass Sizes(Tabular):\n    kind, metrics = 'classes', ('accuracy',)\n")
    rows = [line.split(",") for line in Path("tabular/flats.csv").read_text().splitlines()[1:]]
    names = ["large" if float(row[1]) > 70 else "small" for row in rows]
    lines = ["area,age,size"]
    for (_, area, age, *_), name in zip(rows, names, strict=True):
        lines.append(f"{area},{age},{name}")
    Path("tabular/flats.csv").write_text("\n".join(lines))
    shutil.copyfile("tabular/flats.csv", "new.csv")


def test_folds_keep_what_they_learned_and_average_their_answers_into_a_submission(capsys):
    project()
    assert main(["queue", "house.yaml"]) == 0
    rows = [row.split(",") for row in Path("tabular/flats.csv").read_text().splitlines()[1:21]]
    ids = np.random.default_rng(0).permutation(20).tolist()
    lines = [f"{number},{','.join(row[:4])}" for number, row in zip(ids, rows, strict=True)]
    Path("new.csv").write_text("\n".join(["Id,rooms,area,age,district", *lines]))
    Path("sample.csv").write_text("Id,price\n" + "".join(f"{number},0\n" for number in range(20)))
    printed = capsys.readouterr().out
    assert printed.count("on the validation data: the same samples chose the step") == 2
    assert "held-out" not in printed
    states = []
    for fold in (0, 1):
        path = next(Path("runs", f"house-fold{fold}").glob("best/*/state.json"))
        states.append(json.loads(path.read_text()))
    assert states[0]["learned"] != states[1]["learned"]
    assert predict("house-fold0", "0") == 0
    assert predict("house-fold1", "1") == 0
    assert predict("", "both", "--sample", "sample.csv") == 0
    single = [column(f"{out}/predictions.csv", "prediction") for out in ("0", "1")]
    mean = np.mean(single, 0)
    assert np.abs(np.subtract(*single)).max() > 1, "the folds differ"
    assert column("both/predictions.csv", "prediction") == pytest.approx(mean.tolist(), rel=1e-6)
    submitted = {row["Id"]: float(row["price"]) for row in rows_of("both/submission.csv")}
    assert submitted == pytest.approx(dict(zip(map(str, ids), mean.tolist(), strict=True)))
    text = looks.predict_together(
        queue.entries(Path("house.yaml")), "new.csv", "sample.csv"
    )  # as in a notebook
    assert "20 rows joined by the column Id of new.csv" in text
    assert Path("runs/submission.csv").read_bytes() == Path("both/submission.csv").read_bytes()
    held = rows_of("runs/house-together/oof.csv")
    assert [int(row["sample"]) for row in held] == [*range(60)], "each row is answered once"
    prices = [
        float(line.split(",")[4]) for line in Path("tabular/flats.csv").read_text().splitlines()[1:]
    ]
    assert [float(row["target"]) for row in held] == prices
    assert sorted(row["fold"] for row in held) == ["0"] * 30 + ["1"] * 30
    guesses = [float(row["prediction"]) for row in held]
    of_all = metrics.root_mean_squared_error(prices, guesses)
    by_folds = expected.read(Path("runs/house-together"))
    assert by_folds.value == pytest.approx(of_all, rel=1e-5)
    assert by_folds.low < by_folds.value < by_folds.high
    assert by_folds.members == ["house-fold0", "house-fold1"]
    for out in (capsys.readouterr().out, text, printed):
        assert str(by_folds) in out
    assert "The same samples chose the step of each run: the scores are slightly high." in printed
    assert expected.read(Path("both")) == by_folds, "beside the submission, for `kaggle submit`"


def test_folds_of_other_classes_are_refused_by_name_and_probabilities_are_averaged():
    project(
        "kind", task="folds_task.py:Sizes", workload={"target": "size", "features": ["area", "age"]}
    )
    sizes()
    assert main(["queue", "kind.yaml"]) == 0
    for run, out in (("kind-fold0", "0"), ("kind-fold1", "1"), ("", "both")):
        assert predict(run, out, task="Sizes") == 0
    for name in ("large", "small"):
        one, other, both = (column(f"{out}/predictions.csv", name) for out in ("0", "1", "both"))
        assert both == pytest.approx(np.mean([one, other], 0).tolist(), abs=1e-6)
    for row in [*rows_of("both/predictions.csv"), *rows_of("runs/kind-together/oof.csv")]:
        assert row["prediction"] == max(("large", "small"), key=lambda name: float(row[name]))
    held = rows_of("runs/kind-together/oof.csv")
    right = [row["prediction"] == row["target"] for row in held]
    assert expected.read(Path("runs/kind-together")).value == pytest.approx(np.mean(right))
    counts = [sum(row["target"] == "large" and row["fold"] == k for row in held) for k in "01"]
    assert abs(counts[0] - counts[1]) <= 1, "each fold has its share of a class"
    (best,) = Path("runs/kind-fold1/best").iterdir()
    forge(best, lambda learned: learned | {"classes": ["huge", "small"]})
    with pytest.raises(
        BadInput,
        match="kind-fold1 cannot vote together with kind-fold0: their classes are large, small and",
    ):
        ensemble.load(Path("runs"), "folds_task.py:Sizes")


def forge(folder, change):
    """Changes what a run learned in its saved weights, with the hash of it."""
    saved = weights.read(folder)
    learned = change(saved.state["learned"])
    shutil.rmtree(folder)
    checkpoint.save(
        folder.parent, int(folder.name[5:]), saved.tensors, {**saved.state, "learned": learned}
    )


class Killed(BaseException):
    """What a kill is to the code."""


def test_simple_methods_are_members_and_a_queue_killed_in_a_fold_ends_in_the_same_bytes(
    monkeypatch, capsys
):
    project(
        "start", training={"start_from_baseline": True}, folds={"number": 2, "nested": True},
        queue={"seeds": [1, 2]}, workload={"features": ["area", "age"]},
    )  # fmt: skip
    real = loop.optimizer_step

    def step(state, task, config, slots, number, *rest):
        if config.run.name == "start-fold1-seed1" and number == 7:
            raise Killed
        return real(state, task, config, slots, number, *rest)

    assert main(["queue", "start.yaml", "--set", "output_dir=whole"]) == 0
    printed = capsys.readouterr().out
    assert "4 runs together, 60 samples" in printed
    assert "the same samples chose" not in printed.lower(), "an inner part chose it"
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(loop, "optimizer_step", step)
        patched.setattr(launch, "_write_failure", lambda *_: None)
        main(["queue", "start.yaml"])
    assert not Path("runs/start-together").exists()
    assert main(["queue", "start.yaml"]) == 0
    for name in ("oof.csv", "expected.json", "summary.json"):
        same = [Path(folder, "start-together", name).read_bytes() for folder in ("whole", "runs")]
        assert same[0] == same[1], name
    shutil.copyfile("tabular/flats.csv", "new.csv")
    for share in (0.0, 0.25, 1.0):
        put = expected.read(Path("runs/start-together"))
        assert put.share is not None and len(put.members) == 4
        expected.Expected(**{**vars(put), "share": share}).write(Path("runs/start-together"))
        assert predict("", f"share{share}") == 0
    parts = {
        share: column(f"share{share}/predictions.csv", "prediction") for share in (0.0, 0.25, 1.0)
    }
    mixed = 0.75 * np.array(parts[0.0]) + 0.25 * np.array(parts[1.0])
    assert parts[0.25] == pytest.approx(mixed.tolist(), rel=1e-4)
    assert parts[0.0] != parts[1.0]


ALONE = """
import json, os, sys, time
from pathlib import Path
import yaml

config = yaml.safe_load(Path(sys.argv[2]).read_text())
name, seed = config["run"]["name"], config["seed"]
assert Path(sys.argv[2]).parent.name == name, "or it would be a queue"
folder = Path(config["output_dir"]) / name
folder.mkdir(parents=True)
print("trains on", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while seed < 3 and not folder.with_name(f"toy-seed{3 - seed}").is_dir():
    time.sleep(0.01)
reason = "failed" if seed == 4 else "completed"
(folder / "summary.json").write_text(json.dumps({"reason": reason}))
sys.exit(seed == 4)
"""


def test_each_card_trains_a_run_of_its_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "alone.py").write_text(ALONE)
    (tmp_path / "toy.yaml").write_text(
        f"{TOY}queue: {{seeds: [1, 2, 3, 4]}}\noutput_dir: {tmp_path}/runs\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(beside, "_MODULE", "alone")
    monkeypatch.setattr(beside, "cards", lambda: ["5", "7"])
    runs = queue.entries(tmp_path / "toy.yaml")
    assert queue.run_queue(runs) == 1
    out = capsys.readouterr().out
    assert "4 runs on 2 cards, one on each at a time." in out
    assert "toy-seed1: trains on 5" in out and "toy-seed2: trains on 7" in out, "both at once"
    assert "Failed, as the lines above say: toy-seed4." in out
    reasons = [queue.newest(entry).reason for entry in runs]
    assert reasons == ["completed", "completed", "completed", "failed"]
    monkeypatch.setattr(queue, "_may_begin", lambda entry: False)
    monkeypatch.setattr(queue, "_write_unstarted", lambda entry: None)
    assert queue.run_queue(runs[3:]) == 75, "one run alone takes all cards, and no time is left"


def test_a_task_without_folds_is_refused(tmp_path):
    (tmp_path / "own.py").write_text("from lib.task import Task\n\n\nclass Own(Task):\n    pass\n")
    (tmp_path / "own.yaml").write_text(
        "task: own.py:Own\nfolds: 2\ntraining: {max_steps: 2, effective_batch: 2}\n"
    )
    with pytest.raises(BadInput, match="folds is 2, and Own deals no folds"):
        queue.entries(tmp_path / "own.yaml")
    single = load_config(tmp_path / "own.yaml", {"folds.fold": 1})
    assert not launch.run.has_queue(tmp_path / "own.yaml", single)
