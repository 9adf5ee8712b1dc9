"""`Keep` around own loops: stopped anywhere and started again, they end in the same bytes."""

import json
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lib import checkpoint
from lib.errors import BadInput
from trainbook import keep as keeping
from trainbook.keep import Keep

EPOCHS = 3
BATCHES = 5  # of an epoch


class Noisy(Dataset):
    """Samples that draw from all three generators whenever they are read."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        shift = random.random() + np.random.normal() + torch.rand(()).item()
        return torch.full((3,), index + shift), index % 2


def parts():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def update(model, optimizer, scheduler, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    scheduler.step()


def by_epochs(folder, workers=0):
    own = parts()
    keep = Keep(folder, **own)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers)
    for _ in keep.epochs(EPOCHS):
        for x, y in keep.batches(loader):
            update(**own, x=x, y=y)
        keep.values["score"] = keep.values.get("score", 0.0) + random.random()
    return weights(own["model"]), keep.values


def by_steps(folder, workers=0):
    own = parts()
    keep = Keep(folder, **own)
    for _ in keep.steps(EPOCHS * BATCHES):
        update(**own, x=torch.randn(4, 3), y=torch.randint(2, (4,)))
        keep.step()
    return weights(own["model"]), keep.values


def weights(model):
    return b"".join(value.numpy().tobytes() for value in model.state_dict().values())


class Stops:
    """Has the session end at the given checks, counted over all sessions."""

    def __init__(self, monkeypatch, *checks):
        self.checks = set(checks)
        self.count = 0
        monkeypatch.setattr(keeping, "start_session", self.session)

    def session(self, minutes, margin):
        class Session:
            deadline = float("inf")

            def catching_signals(self):
                return self

            def __enter__(self):
                return self

            def record(self, name, seconds):
                pass

        one = Session()
        one.stop_reason = self.reason
        return one

    def reason(self):
        self.count += 1
        return "deadline" if self.count in self.checks else None


def finished(loop, folder, workers=0):
    """Starts the loop until it ends; returns its result and how often it was stopped."""
    stops = 0
    while True:
        try:
            return loop(folder, workers), stops
        except SystemExit as stop:
            assert stop.code == 75
            stops += 1


@pytest.mark.parametrize("loop", [by_epochs, by_steps])
def test_a_loop_that_is_stopped_at_every_check_ends_in_the_same_bytes(tmp_path, monkeypatch, loop):
    Stops(monkeypatch)
    whole = loop(tmp_path / "whole")
    Stops(monkeypatch, *range(1, 100))
    result, stops = finished(loop, tmp_path / "stopped")
    assert stops >= EPOCHS * BATCHES - 1
    assert result == whole


def test_with_workers_the_begun_epoch_is_read_again_to_the_same_bytes(
    tmp_path, monkeypatch, capsys
):
    Stops(monkeypatch)
    whole = by_epochs(tmp_path / "whole", workers=1)
    Stops(monkeypatch, 3, 8)
    result, stops = finished(by_epochs, tmp_path / "stopped", workers=1)
    assert stops == 2
    assert result == whole
    assert "Reading 3 batches of the begun epoch again." in capsys.readouterr().out


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, monkeypatch, capsys):
    Stops(monkeypatch)
    whole = by_steps(tmp_path / "whole")
    Stops(monkeypatch, 4, 8)
    for _ in range(2):
        with pytest.raises(SystemExit):
            by_steps(tmp_path / "run")
    newest = checkpoint.path_of(tmp_path / "run", checkpoint.newest_step(tmp_path / "run"))
    (newest / "state.safetensors").write_bytes(b"torn")
    Stops(monkeypatch)
    assert by_steps(tmp_path / "run") == whole
    assert "is damaged" in capsys.readouterr().out


def test_the_newest_checkpoints_stay_and_older_ones_go(tmp_path, monkeypatch):
    Stops(monkeypatch)
    own = parts()
    keep = Keep(tmp_path / "run", every_minutes=0, keep_last=2, **own)
    for _ in keep.steps(6):
        update(**own, x=torch.randn(4, 3), y=torch.randint(2, (4,)))
    assert checkpoint.steps(tmp_path / "run") == [5, 6]


def test_another_model_or_other_parts_are_refused_with_a_sentence(tmp_path, monkeypatch):
    Stops(monkeypatch)
    by_steps(tmp_path / "run")
    own = parts()
    keep = Keep(tmp_path / "run", every_minutes=0, **own)
    keep.step()
    keep._wait()
    with pytest.raises(BadInput, match="has model, optimizer, scheduler, and Keep was given model"):
        Keep(tmp_path / "run", model=own["model"])
    other = {**parts(), "model": nn.Linear(2, 2)}
    with pytest.raises(BadInput, match="The model of .* does not fit yours"):
        Keep(tmp_path / "run", **other)


def test_a_part_that_no_checkpoint_can_hold_is_named(tmp_path, monkeypatch):
    class Part:
        def state_dict(self):
            return {"function": print}

    Stops(monkeypatch)
    keep = Keep(tmp_path / "run", strange=Part())
    with pytest.raises(BadInput, match="cannot save parts/strange/function, a builtin_function"):
        keep.save()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_values_come_back_as_they_were(value):
    tensors = {}
    plain = keeping.flattened({"value": value, "tensor": torch.ones(2)}, "", tensors)
    text = checkpoint.to_json({"plain": plain})
    back = keeping.unflattened(plain, tensors)
    assert repr(back["value"]) == repr(value)
    assert torch.equal(back["tensor"], torch.ones(2))
    json.loads(text, parse_constant=pytest.fail)  # JSON has neither NaN nor infinity
