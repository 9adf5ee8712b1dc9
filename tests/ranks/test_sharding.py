"""Tensors that are whole are left alone; shards on two ranks are tested in test_ranks.py."""

import torch

from lib import ranks
from lib.ranks import sharding


def test_a_whole_tensor_is_its_own_part():
    tensor, other = torch.ones(2), torch.zeros(2)
    assert not sharding.is_shard(tensor)
    assert sharding.local(tensor) is sharding.whole(tensor) is tensor
    assert sharding.sharded_like(tensor, other) is other
    assert sharding.on_first({"w": tensor})["w"] is tensor


class Scaler:
    """A loss scaler that notes what it knows of infinite gradients when it is updated."""

    def __init__(self):
        self.mine, self.updates = torch.zeros(1), []

    def is_enabled(self):
        return True

    def _found_inf_per_device(self, optimizer):
        return {"cpu": self.mine}

    def update(self):
        self.updates.append(float(self.mine))


def test_a_gradient_that_is_infinite_on_another_rank_lowers_the_scale_here_too(monkeypatch):
    scaler = Scaler()
    sharding.update_scale(scaler, None, finite=False)
    monkeypatch.setattr(ranks, "_here", ranks._Place(0, 2))
    sharding.update_scale(scaler, None, finite=True)
    sharding.update_scale(scaler, None, finite=False)
    assert scaler.updates == [0, 0, 1]
