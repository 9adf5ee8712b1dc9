"""The task: generated data by default, exact resume, every pixel counted once, bad settings refused."""

import numpy as np
import pytest
import rasterio
import torch
from sklearn.metrics import matthews_corrcoef

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.machine import platform
from lib.report.progress import Plain
from lib.scores import IGNORE
from lib.task import load_config, load_task
from lib.tasks.glacier.data import terrain
from lib.training import loop
from lib.training.evaluation import EvaluationLoader
from lib.training.order import Order, weights_of
from lib.training.session import Session
from tests.conftest import SAMPLES
from tests.tasks.glacier.files import write_scenes, write_tiff

TINY = """
task: glacier
data: {num_workers: 0}
training: {max_steps: 6, effective_batch: 6, micro_batch: 3, log_every_steps: 2, evaluate_every_steps: 2}
scheduler: {name: plateau, patience: 0}
checkpoint: {every_minutes: 0, every_steps: 2}
workload:
  source: {bands: [red, nir]}
  tiles: {size: 32, stride: 16}
  split: {validation: 0.3, test: 0.2}
  sampling: {target_shares: [0.1, 0.35, 0.4, 0.15], rare_share: 0.3, rare_factor: 2}
  model: {widths: [4, 4, 4, 4, 4], depths: [1, 1, 1, 1], decoder: [4, 4, 4, 4, 4]}
  loss: {focal: 0.25, dice: 0.25, mcc: 0.35, boundary: 0.15, ramp_steps: 4}
  criteria: {mcc: 0.99, class_iou: 0.99}
"""


@pytest.fixture
def tiny(tmp_path):
    """tiny(**overrides) -> the configuration of a tiny network on eight scenes."""
    write_scenes(tmp_path / "scenes", 8)
    (tmp_path / "tiny.yaml").write_text(TINY)

    def make(overrides=None):
        given = {"data.dir": str(tmp_path / "scenes"), "output_dir": str(tmp_path / "runs"), **(overrides or {})}
        return load_config(tmp_path / "tiny.yaml", given)

    return make


GENERATED = {"data.dir": "embedded", "workload.generator.scenes": 5, "workload.generator.size": 64}


def test_without_data_scenes_are_generated_with_bands_and_classes_as_asked(tiny):
    task = load_task(tiny({**GENERATED, "workload.source.bands": "[swir1, blue]"}))
    told = task.describe_data()
    assert "The embedded default is used: 5 generated scenes of 64 x 64 pixels" in told
    image, classes = terrain.scene(0, 0, 64)
    sample = task.data.store.read(0)
    known = ~np.isnan(sample[0][0])
    assert np.array_equal(sample[0][:, known], image[[4, 0], :32, :32][:, known])
    assert np.array_equal(sample[1][known], classes[:32, :32][known])


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({**GENERATED, "workload.source.bands": "[red, uv]"}, "no band uv, only blue"),
        ({**GENERATED, "workload.source.classes": "[background, sea]", "workload.source.codes": "[0, 1]",
          "workload.sampling.target_shares": "[]"}, "no class sea, only background"),
    ],
)  # fmt: skip
def test_what_is_not_generated_is_refused(tiny, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        load_task(tiny(change)).datasets()


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"workload.tiles.size": 40}, "40 is no multiple of 32. Write 32"),
        ({"workload.source.codes": "[0, 85, 170]"}, "4 classes have 3 different codes"),
        ({"workload.source.channels": "[1, 2, 3]"}, "2 bands, but channels names 3"),
        ({"workload.source.name_pattern": "img"}, "with one group in parentheses"),
        ({"workload.sampling.target_shares": "[0.5, 0.4, 0.0, 0.0]"}, "add up to 0.9"),
        ({"workload.sampling.target_shares": "[0.5, 0.5]"}, "2 shares for 4 classes"),
        ({"workload.split.folds": 5, "workload.split.fold": 5}, "fold 5 of 5 folds does not exist"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tiny, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        tiny(change)


def train(config, folder, resume=None):
    folder.mkdir(parents=True, exist_ok=True)
    return loop.train(load_task(config), config, folder, Session(None, 0, 0), Plain(), resume)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_ends_in_the_same_bytes_with_any_number_of_workers(tiny, tmp_path, workers):
    train(tiny(), tmp_path / "whole")
    train(tiny({"training.max_steps": 2}), tmp_path / "cut")
    found, _ = checkpoint.load_newest(tmp_path / "cut" / "checkpoints")
    assert found.step == 2
    train(tiny({"data.num_workers": workers}), tmp_path / "cut", found)
    ends = [checkpoint.load_newest(tmp_path / name / "checkpoints")[0] for name in ("whole", "cut")]
    assert ends[0].step == ends[1].step == 6
    for group in ends[0].tensors:
        assert all(torch.equal(ends[0].tensors[group][n], ends[1].tensors[group][n]) for n in ends[0].tensors[group])
    assert ends[0].state["plateau"] == ends[1].state["plateau"]


def test_weights_of_the_tiles_reach_the_order(tiny):
    task = load_task(tiny({"workload.sampling.target_shares": "[0.0, 0.0, 0.0, 1.0]"}))
    part = task.datasets()["train"]
    order = Order(len(part), 0, 16, 1, weights_of(part))
    drawn = np.concatenate([part.store.table.counts[part.chosen[order.indices(step, 0)]] for step in range(20)])
    before, after = (c.sum(0)[3] / c.sum() for c in (part.store.table.counts[part.chosen], drawn))
    assert after > 1.3 * before


def test_every_held_out_pixel_is_counted_once_though_tiles_overlap(tiny):
    task = load_task(tiny())
    part = task.datasets()["test"]
    scenes = {int(task.data.store.table.scene[i]) for i in task.data.parts.test}
    labelled = sum(int((part[i].target != IGNORE).sum()) for i in range(len(part)))
    assert labelled == len(scenes) * 64 * 64
    assert len(part) == 4 * len(scenes), "tiles side by side are enough"


def test_metrics_are_scikit_learns_over_all_valid_pixels(tiny):
    task = load_task(tiny())
    part = task.datasets()["test"]
    torch.manual_seed(0)
    model = task.model().eval()
    loader = EvaluationLoader(task, part, 3, torch.device("cpu"))
    with torch.inference_mode():
        scores = task.evaluate(model, loader)
        predicted = torch.cat([model(batch["image"]).argmax(1).flatten() for batch in loader])
    truth = torch.cat([batch["target"].flatten() for batch in loader])
    valid = truth != IGNORE
    assert scores["mcc"] == pytest.approx(matthews_corrcoef(truth[valid], predicted[valid]), abs=1e-12)


def test_the_loss_of_an_evaluation_does_not_depend_on_the_batch(tiny):
    task = load_task(tiny())
    part = task.datasets()["validation"]
    model = task.model().eval()
    with torch.inference_mode():
        losses = [
            task.evaluate(model, EvaluationLoader(task, part, size, torch.device("cpu")))["loss"]
            for size in (1, 5)
        ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_normalisation_travels_with_the_weights_and_no_data_is_the_mean(tiny):
    config = tiny()
    task = load_task(config)
    assert task.model().deviation.eq(1).all(), "without data nothing is normalised"
    task.datasets()
    model = task.model().eval()
    assert model.mean.flatten().tolist() == pytest.approx([100, 100], rel=0.02)
    image = torch.randn(1, 2, 32, 32) * 10 + 100
    hole = image.clone()
    hole[:, :, :8] = float("nan")
    filled = image.clone()
    filled[:, :, :8] = model.mean
    with torch.inference_mode():
        assert torch.allclose(model(hole), model(filled), atol=1e-5) and torch.isfinite(model(hole)).all()


def test_a_whole_run_leaves_tables_figures_and_a_verdict(tiny, capsys):
    summary = launch.train(tiny())
    run = platform.output_dir(tiny()) / "tiny"
    assert summary["reason"] == "completed" and summary["metrics"].keys() == summary["baseline"].keys()
    table = (run / "evaluation.csv").read_text().splitlines()
    assert table[0] == "true class,background,glacier,debris,lake" and len(table) == 5
    assert {"confusion.png", "predictions.png", "metrics.png"} <= {p.name for p in (run / "plots").iterdir()}
    said = capsys.readouterr().out
    assert "Criterion MCC >= 0.99" in said and "missed" in said and "What helps" in said
    assert "Criterion IoU of lake >= 0.99" in said


def test_the_fingerprint_follows_content_split_and_generator(tiny, tmp_path):
    def of(change=None):
        return load_task(tiny(change)).fingerprint()

    assert of() == of()
    assert of({"workload.split.seed": 1}) != of() and of({"workload.tiles.stride": 32}) != of()
    assert of(GENERATED) != of({**GENERATED, "workload.generator.seed": 1})
    before = of()
    write_scenes(tmp_path / "scenes", 8, size=(96, 64))
    assert of() != before


def test_an_example_batch_has_what_training_has(tiny):
    task = load_task(tiny())
    made = task.example_batch(3, torch.device("cpu"))
    part = task.datasets()["train"]
    real = task.collate([part[i] for i in range(3)], torch.Generator())
    assert {k: (v.shape, v.dtype) for k, v in made.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}


def test_weights_of_seven_bands_start_a_run_of_five(tiny, tmp_path, capsys):
    seven = "[blue, green, red, nir, swir1, thermal, swir2]"
    first = {**GENERATED, "workload.source.bands": seven, "run.name": "seven", "training.max_steps": 2}
    launch.train(tiny(first))
    five = {
        **GENERATED, "workload.source.bands": "[blue, green, red, swir1, thermal]", "run.name": "five",
        "training.max_steps": 2, "workload.initial.bands": seven,
        "run.initial_weights": str(tmp_path / "runs" / "seven"),
    }  # fmt: skip
    capsys.readouterr()
    launch.train(tiny(five))
    said = capsys.readouterr().out
    assert "First convolution: 5 of 5 bands by name" in said and "left out: nir, swir2" in said


@pytest.mark.skipif(not (SAMPLES / "landsat8_bqa").is_dir(), reason="sample data is not there")
def test_a_real_landsat_scene_trains_on_water_and_cloud(tmp_path, tiny):
    """Masks from the quality band (pre-collection bits: cloud 14-15, water 4-5), split by squares of the map."""
    for number, band in enumerate((2, 3, 4, 6, 10), 1):
        (tmp_path / "real" / f"Band{number}").mkdir(parents=True)
        (tmp_path / "real" / f"Band{number}" / "scene.tif").symlink_to(SAMPLES / "landsat8_bqa" / f"l8_B{band}.tif")
    with rasterio.open(SAMPLES / "landsat8_bqa" / "l8_BQA.tif") as file:
        quality = file.read(1)
        place = (file.transform.c, file.transform.f)
        pixel = file.transform.a
        crs = file.crs
    mask = np.where((quality >> 4 & 3) >= 2, 1, 0)
    mask = np.where((quality >> 14 & 3) >= 2, 2, mask).astype(np.uint8)
    write_tiff(tmp_path / "real" / "label" / "scene.tif", mask, place, crs, pixel=pixel)
    config = tiny(
        {
            "data.dir": str(tmp_path / "real"),
            "workload.source": {
                "bands": ["blue", "green", "red", "swir1", "thermal"],
                "classes": ["land", "water", "cloud"],
                "codes": [0, 1, 2],
            },
            "workload.tiles": {"size": 64},
            "workload.split": {"by": "map", "square": 2, "validation": 0.2, "test": 0.2},
            "workload.sampling": {},
        }
    )
    summary = launch.train(config)
    assert summary["reason"] == "completed" and "iou_water" in summary["metrics"]
    assert summary["baseline"]["mcc"] > 0.3, "the quality band comes from these very bands"
