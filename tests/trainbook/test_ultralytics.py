"""`Finish` beside ultralytics' own trainer, on a YOLO of a few thousand weights and pictures of noise."""

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torchvision_cpu", reason="torchvision's compiled half fits no CPU build")
ultralytics = pytest.importorskip("ultralytics")

from lib.training.summary import Summary  # noqa: E402
from trainbook.ultralytics import Finish  # noqa: E402

EPOCHS = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two classes of pictures, in folders."""
    draw = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data")
    for part in ("train", "val"):
        for name in ("dark", "light"):
            (folder / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = draw.integers(0, 128, (32, 32, 3)) + 127 * (name == "light")
                path = folder / part / name / f"{number}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def train(data, folder, stops_at=None, needs=None):
    """Trains in a fresh session, which ends at a batch, or has no time for a further epoch."""
    finish = Finish(folder / "run" / "weights")
    batches = iter(range(1, 1000))
    epochs = []

    def must_stop(needed_seconds=0.0):
        if needed_seconds:
            epochs.append(needed_seconds)
            return len(epochs) == needs
        return next(batches) == stops_at

    finish.must_stop = must_stop
    newest = finish.newest()
    model = finish.watch(ultralytics.YOLO(newest or "yolo11n-cls.yaml"))
    model.train(
        data=str(data),
        epochs=EPOCHS,
        imgsz=32,
        batch=4,
        workers=0,
        device="cpu",
        project=str(folder),
        name="run",
        exist_ok=True,
        plots=False,
        resume=bool(newest),
    )
    return model.trainer


def test_a_session_ends_before_an_epoch_that_does_not_fit_and_the_next_one_goes_on(data, tmp_path):
    with pytest.raises(SystemExit) as stop:
        train(data, tmp_path, needs=1)
    assert stop.value.code == 75
    weights = tmp_path / "run" / "weights"
    assert Summary.read(weights).reason == "deadline"
    trainer = train(data, tmp_path)
    assert trainer.start_epoch == 1
    assert Summary.read(weights).reason == "completed"
    rows = (tmp_path / "run" / "results.csv").read_text().splitlines()
    assert len(rows) == EPOCHS + 1


def test_a_session_that_ends_inside_an_epoch_repeats_that_epoch_from_a_whole_file(data, tmp_path):
    with pytest.raises(SystemExit):
        train(data, tmp_path, stops_at=3)
    last = tmp_path / "run" / "weights" / "last.pt"
    last.write_bytes(last.read_bytes()[:-100])
    assert Finish(last.parent).newest() == str(last.with_name("best.pt"))
    assert train(data, tmp_path).start_epoch > 0
