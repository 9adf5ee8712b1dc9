"""A published encoder beside boosting: its components, its steps of the gate, and runs with and without it."""

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from lib.machine import platform
from lib.task import load_config, load_task
from tests.workloads.glacier.conftest import TINY
from tests.workloads.glacier.files import write_scenes
from tests.workloads.glacier.test_gate import rows_of
from tests.workloads.glacier.test_glacier import train
from trainbook import launch
from trainbook.launch import ensemble
from trainbook.published import rebuilt
from trainbook.published.families import CONFIG, LITE0
from workloads import glacier
from workloads.glacier.baselines import EVERYWHERE, HELD, METHODS, ON_ENCODER, Boosted
from workloads.glacier.encoded import Encoded, composites
from workloads.glacier.judging import MIXED, Gate, about_gate
from workloads.glacier.settings import Source

BANDS = ("green", "red", "nir")
FACTS = {"family": LITE0, "config": CONFIG, "sha256": "0" * 64}


def stand_in(name="", without=""):
    """The published encoder with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = rebuilt(FACTS)
    encoder.about = f"Encoder: a stand-in. Without it: {without}."
    return encoder


@pytest.fixture
def at_hand(monkeypatch):
    monkeypatch.setattr(glacier.encoders, "encoder", stand_in)


@pytest.mark.parametrize(
    ("bands", "expected"),
    [
        pytest.param(("blue", "green", "red", "nir", "swir1"), [(2, 1, 0), (4, 3, 1)], id="both"),
        pytest.param(("blue", "green", "red", "swir1"), [(2, 1, 0), (3, 2, 1)], id="without nir"),
        pytest.param(BANDS, [(2, 1, 0)], id="without blue"),
        pytest.param(("elevation", "temperature", "red"), [], id="none"),
    ],
)
def test_composites_follow_the_bands(bands, expected):
    assert composites(bands) == expected


def test_components_are_white_on_the_pixels_they_are_fitted_to_and_alike_for_whole_tiles():
    draw = np.random.default_rng(0)
    tiles = []
    for _ in range(4):
        image = draw.normal(size=(3, 32, 32)).cumsum(1).cumsum(2).astype(np.float32)
        image[:, :2, :2] = np.nan
        tiles.append((image, None))
    places = np.stack([np.repeat(np.arange(4), 256), np.tile(np.arange(0, 1024, 4), 4)], 1)
    values = np.stack([tiles[tile][0].reshape(3, -1)[:, pixel] for tile, pixel in places])
    encoded = Encoded(BANDS, stand_in())
    fitted = encoded.fit(tiles, places, values)
    assert fitted.shape == (1024, 60)
    assert fitted.mean(0) == pytest.approx(np.zeros(60), abs=0.01)
    first = fitted[:, :30:10]  # of three stages; later ones of a random encoder hardly vary
    assert first.std(0) == pytest.approx(np.ones(3), abs=0.02)
    whole = torch.stack([encoded(torch.from_numpy(image)) for image, _ in tiles])
    at = whole.flatten(2)[places[:, 0], :, places[:, 1]].numpy()
    assert at[:, :30:10] == pytest.approx(first, abs=0.05), "sampled in fp16"
    assert not [*encoded.parameters()], "nothing is trained"
    stretched = encoded.ends[0, :, 0].tolist()
    assert stretched == pytest.approx(np.nanpercentile(values[:, 2], (1, 99)).tolist(), rel=1e-5)


def chosen(better, noise=0.0, groups=8):
    """Lets a gate choose where boosting on encoder is right in so much larger shares; a Gaussian takes noise away."""
    draw = np.random.default_rng(0)
    target = torch.from_numpy(draw.integers(0, 2, (8, 24, 24)).astype(np.int16))
    boosted = Boosted(2, 1, (), Encoded(BANDS, stand_in()))

    def scores(share):
        is_right = torch.from_numpy(draw.random(target.shape) < share)
        classes = [(target == k) == is_right for k in (0, 1)]
        return torch.stack(classes, 1).float().log_softmax(1)

    plain = scores(0.6)
    options = [plain, plain]
    for share, sigma in MIXED:
        options.append(scores(0.6 + better * share + (noise if sigma else 0.0)))
    boosted.answers = lambda image, places: torch.stack(options)[..., *places]
    gate = Gate(boosted, [str(tile % groups) for tile in range(8)], {})
    gate.add({"image": target, "labels": target}, scores(0.5))
    gate.choose()
    return boosted


@pytest.mark.parametrize(
    ("better", "noise", "share", "is_smooth"),
    [
        pytest.param(-0.1, 0.0, 0.0, False, id="encoder worse"),
        pytest.param(0.2, -0.1, 1.0, False, id="encoder better, Gaussian worse"),
        pytest.param(0.2, 0.1, 1.0, True, id="both better"),
    ],
)
def test_the_gate_takes_the_encoders_best_share_and_a_sure_gaussian(
    better, noise, share, is_smooth
):
    boosted = chosen(better, noise)
    assert boosted.mixture[0] == share
    assert (boosted.mixture[1] > 0) == is_smooth
    assert float(boosted.weight) == 0
    assert ("Gaussian" in about_gate(boosted)) == is_smooth


def test_a_gaussian_that_one_scene_alone_shows_is_not_taken():
    assert chosen(0.2, 0.1, groups=1).mixture == (1.0, 0.0)


@pytest.fixture
def seen(tmp_path, without_figures):
    """seen(**overrides) -> the configuration of a tiny gated run on scenes with a composite."""
    write_scenes(tmp_path / "scenes", 8, bands=3)
    (tmp_path / "tiny.yaml").write_text(TINY.replace("[red, nir]", "[green, red, nir]"))
    fixed = {
        "workload.baseline.gate": True, "workload.tiles.stride": 32, "data.dir": str(tmp_path / "scenes"),
        "output_dir": str(tmp_path / "runs"), "training.max_steps": 2,
    }  # fmt: skip
    return lambda **options: load_config(tmp_path / "tiny.yaml", {**fixed, **options})


def folder_of(config):
    return platform.output_dir(config.output_dir) / config.run.name


def test_a_run_with_an_encoder_answers_alike_from_its_archive_without_it(
    seen, at_hand, monkeypatch, capsys
):
    config = seen()
    launch.train(config)
    task = load_task(config)
    assert "a stand-in. Without it: boosting of bands" in task.describe_data()
    folder = folder_of(config)
    methods = [row["method"] for row in rows_of(folder / "evaluation.csv")]
    assert methods == [*METHODS, ON_ENCODER, "network alone", "answer"]
    assert "oosting on encoder" in capsys.readouterr().out.split("The gate is")[1]

    monkeypatch.setattr(glacier.encoders, "encoder", lambda *_, **__: None)
    _, (model,) = ensemble.load(folder)
    names = model.state_dict().keys()
    assert any(name.startswith("boosted.encoded.encoder") for name in names)
    image = torch.from_numpy(task.datasets()["test"][0].sample.image)[None]
    boosted = model.boosted
    places = slice(3, 20), slice(10, 30)
    whole = boosted.answers(image, EVERYWHERE)
    every = boosted.answers(image, places)
    assert torch.allclose(every, whole[..., *places], atol=1e-5), "a Gaussian sees all it reaches"
    for method in (0, 1, 2, 3, boosted.number - 1):
        boosted.method.fill_(method)
        answer = boosted.answer(image, torch.zeros(1, 4, 17, 20), places)
        assert torch.allclose(answer, every[method], atol=1e-6)
    rough, smoother = (whole[len(HELD) + place].exp().diff(dim=2).abs().mean() for place in (6, 8))
    assert MIXED[6] == (1.0, 0.0)
    assert smoother < rough
    with pytest.raises(BadInput, match="began with a published encoder, and none is at hand"):
        load_task(config).describe_data()


def test_a_run_that_began_without_an_encoder_resumes_without(seen, monkeypatch):
    monkeypatch.setattr(glacier.encoders, "encoder", lambda *_, **__: None)
    config = seen()
    assert "No published encoder of pictures is at hand" in load_task(config).describe_data()
    train(config, folder_of(config))
    monkeypatch.setattr(glacier.encoders, "encoder", stand_in)
    resumed = load_task(seen(**{"training.max_steps": 4}))
    resumed.datasets()
    assert resumed.pixel_encoder is None
    assert resumed.model().boosted.encoded is None
    other = load_task(seen(**{"run.name": "other"}))
    assert other.pixel_encoder is not None


def test_bands_without_a_composite_take_no_encoder(tiny, at_hand):
    task = load_task(tiny({"workload.baseline.gate": True}))
    assert task.settings.source == Source(bands=("red", "nir"))
    assert task.pixel_encoder is None
    assert "it needs bands called red and green" in task.describe_data()
