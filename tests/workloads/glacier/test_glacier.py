"""The task: exact resume, every pixel counted once, contradicting settings refused."""

import pytest
import torch
from sklearn.metrics import matthews_corrcoef

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.machine import platform
from lib.report.progress import Plain
from lib.scores import IGNORE
from lib.task import load_task
from lib.training import loop
from lib.training.evaluation import EvaluationLoader
from lib.training.session import Session
from workloads.glacier import baselines

GENERATED = {"data.dir": "embedded", "workload.generator.scenes": 5, "workload.generator.size": 64}


def train(config, folder, resume=None):
    folder.mkdir(parents=True, exist_ok=True)
    return loop.train(load_task(config), config, folder, Session(None, 0, 0), Plain(), resume)


CROPS = {
    "workload.tiles.size": 64, "workload.tiles.stride": 0, "workload.sampling.crop": 32, "workload.prior": True,
    "workload.sampling.centred": "{lake: 0.5}", "workload.indices": "[[red, nir]]",
}  # fmt: skip


@pytest.mark.parametrize(("options", "workers"), [({}, 2), (CROPS, 0)], ids=["tiles", "crops"])
def test_a_resumed_run_ends_in_the_same_bytes_with_any_number_of_workers(tiny, tmp_path, options, workers):
    train(tiny(options), tmp_path / "whole")
    train(tiny({**options, "training.max_steps": 2}), tmp_path / "cut")
    whole, _ = checkpoint.load_newest(tmp_path / "whole" / "checkpoints")
    found, _ = checkpoint.load_newest(tmp_path / "cut" / "checkpoints")
    assert found.step == 2
    train(tiny({**options, "data.num_workers": workers}), tmp_path / "cut", found)
    end, _ = checkpoint.load_newest(tmp_path / "cut" / "checkpoints")
    assert whole.step == end.step == 6
    for group, named in whole.tensors.items():
        assert all(torch.equal(value, end.tensors[group][name]) for name, value in named.items())
    assert whole.state["plateau"] == end.state["plateau"]


def test_metrics_are_scikit_learns_over_all_valid_pixels_and_do_not_depend_on_the_batch(tiny):
    task = load_task(tiny())
    assert task.model().deviation.eq(1).all(), "without data nothing is normalised"
    part = task.datasets()["test"]
    torch.manual_seed(0)
    model = task.model().eval()
    assert model.mean.flatten().tolist() == pytest.approx([100, 100], rel=0.02), "with the weights"
    loaders = [EvaluationLoader(task, part, size, torch.device("cpu")) for size in (1, 3)]
    with torch.inference_mode():
        alone, scores = (task.evaluate(model, loader) for loader in loaders)
        predicted = torch.cat([model(batch["image"]).argmax(1).flatten() for batch in loaders[1]])
    truth = torch.cat([batch["target"].flatten() for batch in loaders[1]])
    valid = truth != IGNORE
    assert scores["mcc"] == pytest.approx(matthews_corrcoef(truth[valid], predicted[valid]), abs=1e-12)
    assert scores["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_a_whole_run_leaves_tables_figures_and_a_verdict(tiny, capsys):
    summary = launch.train(tiny())
    run = platform.output_dir(tiny()) / "tiny"
    assert summary.reason == "completed" and summary.metrics.keys() == summary.baseline.keys()
    table, methods, scenes = (
        (run / name).read_text().splitlines() for name in ("evaluation.csv", "baselines.csv", "scenes.csv")
    )
    assert table[0] == "true class,background,glacier,debris,lake" and len(table) == 5
    assert [line.split(",")[0] for line in methods] == ["method", *baselines.METHODS, "network"]
    best = max(float(line.split(",")[1]) for line in methods[1:-1])
    assert best == pytest.approx(summary.baseline["mcc"], abs=1e-6)
    assert len(scenes) == 1 + len({line.split(",")[0] for line in scenes[1:]}) > 1
    drawn = {path.name for path in (run / "plots").iterdir()}
    assert {"confusion.png", "predictions.png", "worst.png", "metrics.png"} <= drawn
    said = capsys.readouterr().out
    for words in (
        "Criterion MCC >= 0.99", "Criterion IoU of lake >= 0.99", "missed", "What helps",
        "network less boosting of pixels", "The worst scenes by mean IoU",
    ):  # fmt: skip
        assert words in said


def test_an_example_batch_has_what_training_has(tiny):
    task = load_task(tiny())
    made = task.example_batch(3, torch.device("cpu"))
    part = task.datasets()["train"]
    real = task.collate([part[i] for i in range(3)], torch.Generator())
    assert {k: (v.shape, v.dtype) for k, v in made.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}


@pytest.mark.usefixtures("without_figures", "without_baseline")
def test_weights_of_seven_bands_start_a_run_of_five(tiny, tmp_path, capsys):
    seven = "[blue, green, red, nir, swir1, thermal, swir2]"
    first = {**GENERATED, "workload.source.bands": seven, "run.name": "seven", "training.max_steps": 1}
    launch.train(tiny(first))
    five = {
        **GENERATED, "workload.source.bands": "[blue, green, red, swir1, thermal]", "run.name": "five",
        "training.max_steps": 1, "workload.initial.bands": seven,
        "run.initial_weights": str(tmp_path / "runs" / "seven"),
    }  # fmt: skip
    capsys.readouterr()
    launch.train(tiny(five))
    said = capsys.readouterr().out
    assert "First convolution: 5 of 5 bands by name" in said and "left out: nir, swir2" in said


CONTRADICTIONS = [
    ({"tiles.size": 40}, "40 is no multiple of 32. Write 32"),
    ({"source.codes": "[0, 85, 170]"}, "4 classes have 3 different codes"),
    ({"source.channels": "[1, 2, 3]"}, "2 bands, but channels names 3"),
    ({"source.name_pattern": "img"}, "with one group in parentheses"),
    ({"sampling.target_shares": "[0.5, 0.4, 0.0, 0.0]"}, "add up to 0.9"),
    ({"sampling.target_shares": "[0.5, 0.5]"}, "2 shares for 4 classes"),
    ({"split.folds": 5, "split.fold": 5}, "fold 5 of 5 folds does not exist"),
    ({"sampling.crop": 40}, "crop 40 is no multiple of 32"),
    ({"sampling.centred": "{lake: 0.2}"}, "centred is given without crop"),
    ({"sampling.crop": 96}, "crop 96 is larger than tiles.size 32"),
    ({"sampling.crop": 32, "sampling.centred": "{pond: 0.2}"}, "centred names pond, and the"),
    ({"sampling.crop": 32, "sampling.centred": "{lake: 1.0}"}, "add up to less than 1"),
    ({"indices": "[[red, uv]]"}, "indices names the band uv, and the bands are red, nir"),
    ({"loss.class_weights": "[1, 2]"}, "class_weights has 2 weights for 4 classes"),
    ({"loss": "{focal: 0, dice: 0, mcc: 0, boundary: 0}"}, "Every term of the loss has the weight 0"),
]


def test_settings_that_do_not_go_together_are_refused(tiny):
    for change, sentence in CONTRADICTIONS:
        with pytest.raises(BadInput, match=sentence):
            tiny({f"workload.{key}": value for key, value in change.items()})
