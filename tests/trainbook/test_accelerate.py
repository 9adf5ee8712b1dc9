"""`Finish` beside accelerate's own `prepare` and `save_state`: stopped anywhere, a loop ends in the same weights."""

import pytest
import torch
from torch import nn

accelerate = pytest.importorskip("accelerate")

from lib.training.summary import Summary  # noqa: E402
from trainbook.accelerate import Finish  # noqa: E402

EPOCHS = 3
BATCHES = 4


def train(folder, stops_at=None, every_minutes=10.0, is_seedable=False):
    torch.manual_seed(0)
    options = accelerate.DataLoaderConfiguration(use_seedable_sampler=is_seedable)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=options)
    x = torch.arange(24.0).reshape(8, 3)
    loader = torch.utils.data.DataLoader(x, 2, shuffle=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    finish = Finish(folder, accelerator, every_minutes=every_minutes)
    finish.must_stop = lambda: finish.step == stops_at
    for _ in finish.epochs(EPOCHS):
        for batch in finish.batches(loader):
            loss = model(batch + 0.1 * torch.randn_like(batch)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("is_seedable", [False, True], ids=["plain order", "seedable order"])
@pytest.mark.parametrize("step", [1, 4, 6, 11])
def test_a_loop_that_is_stopped_and_resumed_ends_in_the_same_weights(tmp_path, step, is_seedable):
    whole = train(tmp_path / "whole", is_seedable=is_seedable)
    with pytest.raises(SystemExit) as stop:
        train(tmp_path / "out", step, is_seedable=is_seedable)
    assert stop.value.code == 75
    assert Summary.read(tmp_path / "out").reason == "deadline"
    assert same(train(tmp_path / "out", is_seedable=is_seedable), whole)
    assert Summary.read(tmp_path / "out").reason == "completed"


def test_the_newest_two_states_stay_and_a_torn_one_is_passed_over(tmp_path):
    whole = train(tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(tmp_path / "out", stops_at=6, every_minutes=0)
    found = sorted(path.name for path in (tmp_path / "out").glob("step-*"))
    assert found == ["step-5", "step-6"]
    (tmp_path / "out" / "step-6" / "optimizer.bin").write_bytes(b"torn")
    assert same(train(tmp_path / "out"), whole)
