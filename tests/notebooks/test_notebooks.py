"""Every built notebook runs headlessly from an empty folder, as Kaggle would run it; 01 in test_chain.py."""

import ast
import itertools
import json
import re
import shutil
import tarfile
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.conftest import ROOT
from tests.markup import page_of, unbalanced
from tests.workloads.glacier.files import write_scenes
from trainbook.kaggle import carried
from workloads.chat.generated import pairs
from workloads.legal.generated import judgments
from workloads.legal.settings import Generator
from workloads.vqa import generated as drawn

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

TINY = {
    "workload.tiles.size": 32, "workload.tiles.stride": 0, "workload.split.validation": 0.2,
    "workload.split.test": 0.15, "workload.model.widths": "[4, 4, 4, 4, 4]",
    "workload.model.decoder": "[4, 4, 4, 4, 4]", "workload.baseline.pixels": 2000, "workload.baseline.rounds": 5,
}  # fmt: skip
STEPS = {"training.log_every_steps": 2, "training.evaluate_every_steps": 3}
GLACIER = {**TINY, **STEPS, "training.effective_batch": 4}
PRETRAIN = {**TINY, "data.dir": "embedded", "training.max_steps": 2, "workload.generator.scenes": 6,
            "workload.generator.size": 32}  # fmt: skip
SHORT = {"queue.before_overrides": {key: str(value) for key, value in PRETRAIN.items()}}
OVERRIDES = {
    "01_graphmer": {
        **STEPS, "training.effective_batch": 8, "workload.split.validation": 0.2, "workload.split.test": 0.2,
        "workload.evaluation.validation_triples": 5, "workload.evaluation.test_triples": 10,
        "workload.model.hidden": 16,
        "workload.model.feed_forward": 32, "workload.chain.vocabulary": 600,
    },
    "02_glacier_pretrain": GLACIER,
    "03_glacier_finetune": {**GLACIER, **SHORT, "folds": 2},
    "04_glacier_ensemble": {**GLACIER, **SHORT, "queue.seeds": [42, 123]},
    "05_legal": {
        **STEPS, "training.effective_batch": 8, "workload.context.length": 32, "workload.encoder.hidden": 16,
        "workload.encoder.feed_forward": 32, "workload.encoder.vocabulary": 200, "workload.split.folds": 3,
        "workload.split.validation": 0.3,
    },
    "06_vqa": {
        **STEPS, "training.effective_batch": 8, "training.micro_batch": 8, "workload.pictures.side": 32,
        "workload.image.channels": [8, 8], "workload.decoder.hidden": 16, "workload.decoder.feed_forward": 32,
        "workload.decoder.vocabulary": 200, "workload.decoder.length": 20, "workload.writing.beams": 2,
    },
    "07_your_model": {"workload.size": 16, "training.effective_batch": 8, "data.num_workers": 0},
    "08_chat": {
        **STEPS, "training.effective_batch": 8, "training.micro_batch": 8, "workload.validation_rows": 8,
        "workload.test_rows": 10, "workload.answer": 8, "workload.length": 256, "workload.shots": 1,
    },
}  # fmt: skip
# Small enough for two cores; the names are checked against each notebook's parameters cell.
PARAMETERS = {
    name: {"MAX_STEPS": 6, "SMOKE_STEPS": 2, "OVERRIDES": values}
    for name, values in OVERRIDES.items()
}
PARAMETERS["09_your_script"] = {"EPOCHS": 30, "FIRST_MINUTES": 0.88}
PARAMETERS["00_memory"] = {"CONFIG": "graphmer_small", "BESIDE": ["rtx3050", "abacus"]}
MOUNT = "datasets/someone/the-data"
RUNS = {  # what each leaves behind
    "02_glacier_pretrain": ["glacier_pretrain_small"],
    "03_glacier_finetune": [f"glacier_finetune_small-fold{fold}" for fold in range(2)],
    "04_glacier_ensemble": [f"glacier_ensemble_small-seed{seed}" for seed in (42, 123)],
    "05_legal": ["legal_small"],
    "06_vqa": ["vqa_small"],
    "08_chat": ["chat_small"],
}
# Of the ways whose plans these two compare, which take longer than all the rest of them, one is enough
FEWER = {
    "05_legal": {
        r'\"default\": {\"training.micro_batch\": 16, \"training.precision\": \"fp32\"},': "",
        r'\"ultra-low\": {\"memory.profile\": \"ultra_low\"},': "",
        r'{\"base\": {**ways, **recomputed}, \"large\": ways}': r'{\"base\": ways}',
    },
    "06_vqa": {"rungs.items()": r'[(\"and shorter\", rungs[\"and shorter\"])]'},
}  # fmt: skip
OTHERS = {  # a small pretraining, because none is mounted, and the result of the vote
    "03_glacier_finetune": ["glacier_pretrain_small-short"],
    "04_glacier_ensemble": ["glacier_pretrain_small-short", "glacier_ensemble_small"],
}


@pytest.fixture
def kaggle(tmp_path, monkeypatch):
    """An imitated Kaggle batch session: empty working folder, no checkout in sight, its environment variables."""
    root = tmp_path / "kaggle"
    (root / "working").mkdir(parents=True)
    (root / "input").mkdir()
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_20260901")  # Kaggle sets it too
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(root))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(root / "working")
    return root


def small_graph(folder: Path) -> None:
    """Triples of two dozen files, enough for three splits."""
    folder.mkdir(parents=True)
    triples = []
    entities = {}
    for number in range(24):
        module = f"pack.mod{number}"
        entities[module] = "Module"
        for name in ("load", "save", "check"):
            head = f"{module}.{name}"
            entities[head] = "Function"
            entities[f"name::{name}_all"] = "Name"
            where = {"language": "python", "file": f"pack/mod{number}.py", "module": module}
            triples.append(
                {
                    "head": head,
                    "relation": "calls",
                    "tail": f"name::{name}_all",
                    "qualifiers": where,
                }
            )
    (folder / "triples.jsonl").write_text("".join(json.dumps(t) + "\n" for t in triples))
    lines = (json.dumps({"id": key, "type": kind}) + "\n" for key, kind in entities.items())
    (folder / "entities.jsonl").write_text("".join(lines))


_TAG = r"/?(style|div|span|table|tr|td|th|pre|svg|script)\b"


def markup_in_text(cells: list) -> list[str]:
    """The beginnings of outputs whose text has tags: as text, or escaped in HTML."""
    marked = []
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        data = {
            kind: "".join(text)
            for kind, text in output.get("data", {}).items()
            if kind.startswith("text/")
        }
        html = data.pop("text/html", "")
        texts = [*data.values(), "".join(output.get("text", ""))]
        marked += [text[:100] for text in texts if re.search(f"<{_TAG}", text)]
        marked += [html[:100]] * bool(re.search(f"&lt;{_TAG}", html))
    return marked


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_shipped_notebook_shows_no_markup_as_text(path):
    assert markup_in_text(json.loads(path.read_text("utf-8"))["cells"]) == []


def execute(
    source: Path, folder: Path, parameters: dict, ends_early: bool = False
) -> tuple[list, str]:
    """Runs a notebook in `folder`; returns its cells with their outputs, and all its text output."""
    defaults = carried.parameters(json.loads(source.read_text("utf-8")))
    assert set(parameters) <= set(defaults), "papermill injects a misspelt parameter without a word"
    out = folder.parent / "executed.ipynb"
    options = {
        "kernel_name": "python3",
        "cwd": folder,
        "execution_timeout": 300,
        "progress_bar": False,
    }
    papermill.execute_notebook(source, out, parameters, **options)
    notebook = nbformat.read(out, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert bool(code[-1].execution_count) != ends_early, "whether the last cell ran"
    assert not unbalanced(page_of(notebook)), "the page of a version on Kaggle"
    shown = [output for cell in code for output in cell.outputs]
    assert markup_in_text(code) == []
    assert ends_early or any("<tr>" in o.get("data", {}).get("text/html", "") for o in shown), (
        "tables are HTML"
    )
    return code, "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in shown)


def small_data(name: str, folder: Path) -> None:
    match name:
        case "05_legal":  # a dozen generated judgments, a sentence and its role a line
            folder.mkdir(parents=True)
            for one in judgments(Generator(documents=12, sentences=20)):
                lines = (
                    f"{sentence}\t{role}\n"
                    for sentence, role in zip(one.sentences, one.roles, strict=True)
                )
                (folder / f"{one.name}.txt").write_text("".join(lines))
        case "06_vqa":
            drawn.write(folder, drawn.Generator(pictures=30, questions=3, side=32))
        case "07_your_model":
            digits = zip(*load_digits(return_X_y=True), strict=True)
            for number, (row, digit) in enumerate(itertools.islice(digits, 1700)):
                (folder / str(digit)).mkdir(parents=True, exist_ok=True)
                picture = Image.fromarray((row.reshape(8, 8) * 15.9).astype(np.uint8))
                picture.save(folder / str(digit) / f"{number:04}.png")
        case "08_chat":
            lines = (
                json.dumps({"prompt": prompt, "answer": answer})
                for prompt, answer in pairs(0, "train", 300)
            )
            folder.mkdir(parents=True)
            (folder / "calls.jsonl").write_text("\n".join(lines))
            base = shutil.copytree(ROOT / "configs" / "chat-base", folder.parent / "chat-base")
            (base / "other.txt").write_text(
                (base / "other.txt").read_text("utf-8")[:5_000], "utf-8"
            )
        case _:
            bands, classes = (7, 3) if name == "02_glacier_pretrain" else (5, 4)
            write_scenes(
                folder, 8, size=(48, 32), bands=bands, classes=classes
            )  # of two tiles each


@pytest.mark.parametrize("name", RUNS)
def test_a_notebook_runs_from_an_empty_folder_and_leaves_its_results_and_nothing_else(name, kaggle):
    small_data(name, kaggle / "input" / MOUNT)
    source = changed(ROOT / "notebooks" / f"{name}.ipynb", FEWER.get(name, {}))
    working = kaggle / "working"
    cells, text = execute(source, working, PARAMETERS[name])
    check_results(cells, text, working, RUNS[name])
    assert {path.name for path in working.iterdir()} == {
        *RUNS[name],
        "outputs.tar.gz",
        *OTHERS.get(name, ()),
    }
    if name == "04_glacier_ensemble":
        assert "the seeds vote alone" in text
        assert "8 masks are in" in text
        assert len(list((working / "glacier_ensemble_small" / "masks").glob("*.tif"))) == 8
        entry = (working / "glacier_ensemble_small" / "maskgeration.py").read_text()
        assert entry.startswith("def maskgeration(")
        assert compile(entry, "maskgeration.py", "exec")


def changed(source: Path, changes: dict[str, str]) -> Path:
    """A copy of a notebook beside the working folder, with pieces of its text replaced, each of which it has once."""
    text = source.read_text("utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    copy = Path.cwd().parent / source.name
    copy.write_text(text, "utf-8")
    return copy


def check_results(cells: list, text: str, working: Path, runs: list[str]) -> None:
    """What a notebook that trains says and leaves, whichever it is."""
    assert re.search(r"ok +platform +kaggle \(batch run\)", text)
    assert re.search(r"warning +GPU +none", text)
    assert f"Data: {working.parent / 'input' / MOUNT}" in text
    assert "embedded default" not in text
    for run in (working / left for left in runs):
        summary = json.loads((run / "summary.json").read_text())
        assert summary["reason"] == "completed"
        assert summary["step"] == 6
        assert summary["baseline"]
        assert summary["baseline"].keys() <= summary["metrics"].keys()
        assert (run / "plots" / "metrics.png").stat().st_size > 10_000
    assert (working / "outputs.tar.gz").stat().st_size > 10_000
    assert any("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs)
    assert "Download: the Output tab of this version, outputs.tar.gz" in text


def test_the_memory_notebook_answers_in_text_and_picture_where_nobody_presses_buttons(kaggle):
    small_graph(kaggle / "input" / MOUNT)
    cells, text = execute(
        ROOT / "notebooks" / "00_memory.ipynb", kaggle / "working", PARAMETERS["00_memory"]
    )
    assert re.search(r"ok +platform +kaggle \(batch run\)", text)
    assert re.search(r"graphmer_small fits on 2 x T4: [\s\S]*[\d.,]+( M)? parameters, fp16", text)
    assert "At the peak, GiB: weights" in text
    assert "A week's 30 GPU hours give about" in text
    assert "OVERRIDES = {" in text
    assert re.search(r"graphmer_small +1 x RTX 3050", text)
    assert "There is no card 'abacus'" in text
    assert re.search(r"peak: +[\d.]+ GiB allocated", text), "one's own model"
    data = [o.data for cell in cells for o in cell.outputs if "data" in o]
    assert [d for d in data if "graphmer_small fits on 2 x T4" in d.get("text/html", "")], "the bar"
    assert not [d for d in data if any("widget" in kind for kind in d)], "a widget would be blank"
    assert not list((kaggle / "working").iterdir()), "it leaves nothing that nobody asked for"


def test_smoke_only_ends_a_batch_run_well_before_training(
    kaggle,
):
    source = changed(ROOT / "notebooks" / "05_legal.ipynb", FEWER["05_legal"])
    # papermill itself would raise for any other end than a completed one
    _, text = execute(
        source, kaggle / "working", {**PARAMETERS["05_legal"], "SMOKE_ONLY": True}, ends_early=True
    )
    assert "The embedded default is used: " in text
    assert "2 steps in micro-batches of" in text
    assert "SMOKE_ONLY is True, so nothing is trained." in text
    assert not list(kaggle.glob("working/*/checkpoints"))
    assert not list(kaggle.glob("working/*/summary.json"))


def test_every_notebook_has_test_parameters_and_the_cell_s_class_is_the_example():
    assert [path.stem for path in NOTEBOOKS] == sorted(PARAMETERS)
    cells = nbformat.read(ROOT / "notebooks" / "07_your_model.ipynb", 4).cells
    task = next(cell.source for cell in cells if "task" in cell.metadata.get("tags", []))
    example = (ROOT / "trainbook" / "new" / "examples" / "images.py").read_text("utf-8")
    # The formatter leaves the sources of notebooks alone: lines may break elsewhere
    assert ast.unparse(ast.parse(task)) == ast.unparse(ast.parse(example))


def test_folds_in_the_settings_are_trained_and_hand_in_what_they_answer_together(kaggle):
    working = kaggle / "working"
    source = ROOT / "notebooks" / "07_your_model.ipynb"
    parameters = PARAMETERS["07_your_model"]
    folds = {"OVERRIDES": {**parameters.get("OVERRIDES", {}), "folds": 2}}
    _, text = execute(source, working, {**parameters, **folds})
    assert re.search(r"\nmy-fold0 +completed .*\nmy-fold1 +completed ", text)
    assert re.search(r"^expected: accuracy 0\.\d+ \[.*\] by folds", text, re.M)
    assert len((working / "submission.csv").read_text().splitlines()) == 98
    assert len((working / "my-together" / "oof.csv").read_text().splitlines()) > 1000
    with tarfile.open(working / "outputs.tar.gz") as archive:
        assert {"my-together/oof.csv", "my-together/submission.csv"} <= {*archive.getnames()}


def test_a_competition_without_a_class_is_handed_in_and_ones_own_class_is_a_run_beside_it(
    kaggle,
):
    working = kaggle / "working"
    source = ROOT / "notebooks" / "07_your_model.ipynb"
    parameters = PARAMETERS["07_your_model"]
    cells, text = execute(source, working, parameters)
    assert "scikit-learn's digits are the data" in text
    assert "workload.metric: no file names it." in text
    assert "  target: [label]  # the columns of sample_submission.csv that train.csv has\n" in text
    assert "Training images: 0 (" in text
    assert "There is one run so far." in text
    pictures = [
        cell.source for cell in cells for o in cell.outputs if "image/png" in o.get("data", {})
    ]
    assert len(pictures) == 4, "a batch, the curves, the confusion matrix, the worst"
    assert "looks.worst" in pictures[-1], "a batch, the curves, the confusion matrix, the worst"
    sample = (working / "submission.csv").read_text().splitlines()
    assert sample[0] == "id,label"
    assert len(sample) == 98
    assert sample[1].split(",")[0] == "1700"
    assert re.search(r"^expected: accuracy 0\.\d+ \[.*\] by test\n", text, re.M)
    small_data("07_your_model", kaggle / "input" / MOUNT)
    renamed = {"class Images(": "class Pets(", "my_task.py:Images": "my_task.py:Pets"}
    cells, text = execute(changed(source, renamed), working, parameters)
    check_results(cells, text, working, ["my", "my-2"])
    assert "The cell of Pets is now the file" in text
    assert "MY_MODEL is taken" in text
    assert "my is a run of another configuration (" in text
    assert re.search(r"\nmy +completed 6/6 .*\nmy-2 +completed 6/6 ", text)
    assert {path.name for path in working.iterdir()} == {
        "my",
        "my-2",
        "outputs.tar.gz",
        "submission.csv",
    }
