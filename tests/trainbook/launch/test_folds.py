"""Folds of a task of one's own: trained as docs/own.md has it, each with what it learned, and averaged."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from lib import checkpoint
from lib.checkpoint import weights
from lib.errors import BadInput
from tests.conftest import ROOT
from trainbook.commands import main
from trainbook.launch import ensemble, queue
from trainbook.new import made
from trainbook.notebook import looks

pytestmark = pytest.mark.usefixtures("quick")

EXAMPLES = ROOT / "trainbook" / "new" / "examples"
STEPS = {
    "training": {"max_steps": 12, "effective_batch": 8, "evaluate_every_steps": 6, "smoke_steps": 2},
    "workload": {"width": 4, "folds": 2}, "optimizer": {"lr": 0.02}, "data": {"dir": "tabular", "num_workers": 0},
}  # fmt: skip


def page():
    """Returns the class and the keys of the page on folds."""
    text = (ROOT / "docs" / "own.md").read_text("utf-8").partition("<!-- folds -->")[2]
    return [re.search(rf"```{kind}\n(.*?)```", text, re.S)[1] for kind in ("python", "yaml")]


def project(name="house", **changes):
    """Writes the example of tables with the class of the page, its data, and a configuration of two folds."""
    code, keys = page()
    imports, _, rest = (EXAMPLES / "tabular.py").read_text("utf-8").partition("from dataclasses")
    Path("folds_task.py").write_text(f"{imports}from dataclasses{rest}\n{code}")
    config = {
        "task": "folds_task.py:Folded",
        "run": {"name": name},
        **STEPS,
        **yaml.safe_load(keys),
    }
    config["queue"]["folds"] = 2
    for section, values in changes.items():
        config[section] = {**config[section], **values} if isinstance(values, dict) else values
    Path(f"{name}.yaml").write_text(yaml.safe_dump(config))
    if not Path("tabular").is_dir():
        made.tabular(Path("tabular"), number=60)


def answers_of(folder):
    with (Path(folder) / "predictions.csv").open() as file:
        return list(csv.DictReader(file))


def shares_of(name, folder):
    return [float(row[name]) for row in answers_of(folder)]


def predict(run, out, *more):
    return main(["predict", f"runs/{run}", "new.csv", out, "--task", "folds_task.py:Folded", *more])


def test_folds_of_the_page_keep_what_they_learned_and_average_their_answers_into_a_submission(
    capsys,
):
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
    single = [[float(row["prediction"]) for row in answers_of(out)] for out in ("0", "1")]
    mean = np.mean(single, 0)
    assert np.abs(np.subtract(*single)).max() > 1, "the folds differ"
    together = [float(row["prediction"]) for row in answers_of("both")]
    assert together == pytest.approx(mean.tolist(), rel=1e-6)
    with Path("both/submission.csv").open() as file:
        submitted = {row["Id"]: float(row["price"]) for row in csv.DictReader(file)}
    expected = dict(zip(map(str, ids), mean.tolist(), strict=True))
    assert submitted == pytest.approx(expected)
    text = looks.predict_together(
        queue.entries(Path("house.yaml")), "new.csv", "sample.csv"
    )  # as in a notebook
    assert "20 rows joined by the column Id of new.csv" in text
    assert Path("runs/submission.csv").read_bytes() == Path("both/submission.csv").read_bytes()
    held = [
        Path("runs", f"house-fold{k}", "answers.csv").read_text().splitlines()[1:] for k in (0, 1)
    ]
    assert sum(map(len, held)) == 60, (
        "each row is answered once by a model that did not train on it"
    )


def test_folds_of_other_classes_are_refused_by_name_and_probabilities_are_averaged():
    project(
        "kind", task="folds_task.py:Sizes", workload={"target": "size", "features": ["area", "age"]}
    )
    with Path("folds_task.py").open("a") as file:
        file.write("\n\nclass Sizes(Folded):\n    kind, metrics = 'classes', ('accuracy',)\n")
    lines = Path("tabular/flats.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    names = ["large" if float(row[1]) > 70 else "small" for row in rows]
    lines = ["area,age,size"]
    for (_, area, age, *_), name in zip(rows, names, strict=True):
        lines.append(f"{area},{age},{name}")
    Path("tabular/flats.csv").write_text("\n".join(lines))
    shutil.copyfile("tabular/flats.csv", "new.csv")
    assert main(["queue", "kind.yaml"]) == 0
    for run, out in (("kind-fold0", "0"), ("kind-fold1", "1"), ("", "both")):
        assert (
            main(["predict", f"runs/{run}", "new.csv", out, "--task", "folds_task.py:Sizes"]) == 0
        )
    for name in ("large", "small"):
        one, other, both = (shares_of(name, out) for out in ("0", "1", "both"))
        assert both == pytest.approx(np.mean([one, other], 0).tolist(), abs=1e-6)
    rows = answers_of("both")
    assert all(
        row["prediction"] == max(("large", "small"), key=lambda name: float(row[name]))
        for row in rows
    )
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
