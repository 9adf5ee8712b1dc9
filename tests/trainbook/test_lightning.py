"""`Finish` beside Lightning's own Trainer: stopped inside an epoch or killed, it ends in the same weights."""

import pytest
import torch
from torch import nn

lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from lib.training.summary import Summary  # noqa: E402
from trainbook.lightning import Finish  # noqa: E402

EPOCHS = 3
BATCHES = 4


class Model(lightning.LightningModule):
    """Everything random that a model may have: dropout, noise, the order of samples."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.fails_at = fails_at

    def training_step(self, batch, number):
        if self.global_step == self.fails_at:
            raise RuntimeError("killed")
        (x,) = batch
        return self.layers(x + 0.1 * torch.randn_like(x)).square().mean()

    def validation_step(self, batch, number):
        self.log("loss", self.layers(batch[0]).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def loader(shuffle):
    x = torch.arange(24.0).reshape(8, 3)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 2, shuffle=shuffle)


def train(folder, stops_at=None, fails_at=None):
    """Trains in a fresh session, which ends after a step or fails there."""
    lightning.seed_everything(0, verbose=False)
    finish = Finish(folder)
    if stops_at is not None:
        finish.must_stop = lambda: trainer.global_step == stops_at
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, save_last=True), finish],
    )
    model = Model(fails_at)
    trainer.fit(model, loader(True), loader(False), ckpt_path=finish.newest(), weights_only=False)
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("step", [1, 3, 6])
def test_a_trainer_that_is_stopped_inside_an_epoch_ends_in_the_same_weights(tmp_path, whole, step):
    with pytest.raises(SystemExit) as stop:
        train(tmp_path, stops_at=step)
    assert stop.value.code == 75
    assert Finish(tmp_path).newest().endswith(f"stopped-step={step}.ckpt")
    assert Summary.read(tmp_path).reason == "deadline"
    assert same(train(tmp_path), whole)
    assert Summary.read(tmp_path).reason == "completed"


def test_a_trainer_that_is_stopped_twice_in_one_epoch_ends_in_the_same_weights(tmp_path, whole):
    for step in (5, 6):
        with pytest.raises(SystemExit):
            train(tmp_path, stops_at=step)
    assert same(train(tmp_path), whole)


@pytest.mark.parametrize("step", [4, 6, 11])
def test_a_trainer_that_is_killed_ends_in_the_same_weights(tmp_path, whole, step):
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path, fails_at=step)
    assert same(train(tmp_path), whole)


def test_a_torn_newest_checkpoint_is_passed_over(tmp_path, whole):
    with pytest.raises(SystemExit):
        train(tmp_path, stops_at=6)
    torn = tmp_path / "stopped-step=6.ckpt"
    torn.write_bytes(torn.read_bytes()[:-200])
    assert not Finish(tmp_path).newest().endswith(torn.name)
    assert same(train(tmp_path), whole)
