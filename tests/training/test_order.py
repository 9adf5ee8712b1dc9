"""Which samples a step sees: every one once an epoch, in any slots, by weight, by length, or in a given order."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.config import with_changes
from lib.errors import BadInput
from lib.training import data, identity
from lib.training.order import Order, buckets, mix, permutation, weighted, weights_of
from tests.conftest import ROOT
from tests.toy import Toy
from tests.training.test_loop import check_resume, fit, same_tensors
from trainbook import launch

cheap = settings(derandomize=True, max_examples=40, deadline=None)
seeds = st.integers(0, 2**40)
counts = st.integers(1, 60)
LENGTHS = np.random.default_rng(0).integers(1, 200, 203)


@cheap
@given(counts, seeds, st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_slots_deal_epochs_in_which_every_sample_comes_once(
    samples, seed, slots, slot_size, by_weight
):
    """Batches cross the end of an epoch, slots are pieces of the step, and ranks have all slots between them."""
    batch = slots * slot_size
    make = partial(weighted, seed, weights=np.ones(samples)) if by_weight else None
    order = Order(samples, seed, batch, slots, make)
    dealt = [
        i for step in range(samples) for slot in range(slots) for i in order.indices(step, slot)
    ]
    assert dealt == [
        i for step in range(samples) for i in Order(samples, seed, batch, 1, make).indices(step, 0)
    ]
    assert all(
        sorted(dealt[k * samples : (k + 1) * samples]) == list(range(samples)) for k in range(batch)
    )
    for ranks in (n for n in range(1, slots + 1) if slots % n == 0):
        assert [slot for rank in range(ranks) for slot in order.share(rank, ranks)] == list(
            range(slots)
        )


def test_permutations_differ_by_seed_and_epoch_and_are_stable_over_versions():
    assert (
        permutation(0, 0, 8).tolist()
        != permutation(0, 1, 8).tolist()
        != permutation(1, 0, 8).tolist()
    )
    # The values themselves are a contract: a checkpoint of today is resumed by tomorrow's version.
    assert mix(1, 2, 3) == 2623250113353451629
    assert permutation(0, 0, 8).tolist() == [0, 2, 3, 1, 7, 6, 4, 5]
    firsts = np.bincount([int(permutation(seed, 0, 5)[0]) for seed in range(2000)], minlength=5)
    assert firsts.min() > 330
    assert firsts.max() < 470  # 400 expected, 4 standard deviations are 71


@cheap
@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), seeds, st.integers(0, 1000))
def test_a_weighted_epoch_has_each_sample_as_often_as_its_weight_rounded_up_or_down(
    whole, seed, epoch
):
    weights = np.array(whole, float)
    times = np.bincount(weighted(seed, epoch, weights), minlength=len(weights))
    expected = weights * len(weights) / weights.sum()
    assert times.sum() == len(weights)
    assert (np.floor(expected - 1e-9) <= times).all()
    assert (times <= np.ceil(expected + 1e-9)).all()


@cheap
@given(st.integers(1, 203), seeds, st.integers(0, 20), st.integers(1, 16), st.integers(1, 8))
def test_buckets_see_every_sample_once_an_epoch_and_are_pure(size, seed, epoch, batch, pool):
    order = buckets(LENGTHS[:size], seed, epoch, batch, pool)
    assert sorted(order) == list(range(size))
    assert np.array_equal(order, buckets(LENGTHS[:size], seed, epoch, batch, pool))


class Lengthy(list):
    lengths = LENGTHS


def test_a_step_has_samples_of_near_lengths_in_every_epoch(toy):
    """203 samples are no multiple of 16: batches go on from epoch to epoch, and only those where two meet are mixed."""

    def spread(order, steps):
        return np.mean([np.ptp(LENGTHS[order.indices(step, 0)]) for step in steps])

    order = Order.of(Lengthy(range(203)), toy({"data.buckets": 4, "training.effective_batch": 16}))
    plain = Order(203, 0, 16, 1)
    for epoch in range(4):
        steps = [s for s in range(60) if {s * 16 // 203, (s * 16 + 15) // 203} == {epoch}]
        assert len(steps) >= 11
        assert spread(order, steps) < 0.4 * spread(plain, steps)
    means = [
        LENGTHS[order.indices(step, 0)].mean() for step in range(12)
    ]  # sorted batches would be a curriculum
    assert np.abs(np.corrcoef(means, np.arange(12))[0, 1]) < 0.8
    assert np.diff(means).min() < 0 < np.diff(means).max()


def test_weights_and_lengths_are_those_of_a_subset_and_lengths_must_be_there(toy):
    rows = Lengthy(range(203))
    rows.weights = range(1, 204)
    part = data.subset(rows, 0.5, 0)
    assert weights_of(part).tolist() == [index + 1 for index in part.indices]
    assert weights_of(range(4)) is None
    rows.weights = None
    assert np.array_equal(
        Order.of(part, toy({"data.buckets": 4})).make.args[0], LENGTHS[part.indices]
    )
    rows.lengths = None
    with pytest.raises(
        BadInput, match="data.buckets is 4, and the training data set has no attribute `lengths`"
    ):
        Order.of(rows, toy({"data.buckets": 4}))


class Mixture(list):
    """Twice as many samples of the second half as of the first, and never the last; from (seed, epoch) alone."""

    def order(self, seed, epoch):
        half = len(self) // 2
        places = [*range(half), *range(half, len(self) - 1), *range(half, len(self) - 1)]
        return np.random.default_rng([seed, epoch]).permutation(places)


def test_the_order_of_a_data_set_deals_its_epochs_which_flow_into_each_other(toy):
    rows = Mixture(range(10))
    order = Order.of(rows, toy({"seed": 3}))
    assert order.samples == 13
    assert order.epoch(13) == 8.0  # 13 steps of 8 are 8 epochs of 13
    dealt = [i for step in range(13) for i in order.indices(step, 0)]
    assert dealt == [i for epoch in range(8) for i in rows.order(3, epoch).tolist()]
    late, slots = (
        Order.of(rows, toy({"seed": 3, "training.micro_batch_slots": n})) for n in (1, 2)
    )
    assert late.indices(9, 0) == order.indices(9, 0) == slots.indices(9, 0) + slots.indices(9, 1)


def test_an_order_that_is_none_is_refused(toy):
    mistakes = {
        "two orders for the same seed and epoch": lambda seed, epoch: np.random.permutation(10),
        "the index 10 in epoch 0": lambda seed, epoch: [0, 10],
    }
    for sentence, give in mistakes.items():
        with pytest.raises(BadInput, match=f"Rows.order .*{sentence}"):
            Order.of(
                type("Rows", (list,), {"order": staticmethod(give)})(range(10)), toy()
            ).indices(1, 0)


class Sorted(Toy):
    """The toy with lengths, and with an order where `noise` is 0."""

    def datasets(self):
        rows = (Mixture if self.config.workload.noise == 0 else Lengthy)(range(20))
        rows.lengths = LENGTHS[:20]
        return {**super().datasets(), "train": rows}


SORTED = {"task": f"{__file__}:Sorted"}


@pytest.mark.parametrize("overrides", [{"data.buckets": 2}, {"workload.noise": 0}])
def test_a_run_in_another_order_resumes_to_the_same_bytes(toy, tmp_path, overrides):
    config = toy({**SORTED, **overrides, "training.max_steps": 6, "workload.dropout": 0.5})
    whole = check_resume(config, tmp_path, 3)
    plain = fit(
        with_changes(config, {"task": f"{ROOT}/tests/toy.py:Toy", "data.buckets": 0}),
        tmp_path / "plain",
    )
    assert not same_tensors(whole.tensors["model"], dict(plain.state.model.named_parameters()))


def test_epochs_are_those_of_the_order_and_other_buckets_are_another_run(toy):
    run = launch.prepare(
        toy({**SORTED, "workload.noise": 0, "training.max_steps": 0, "training.epochs": 2})
    )
    assert run.config.training.max_steps == 7  # 2 * 28 / 8; 20 samples would give 5
    saved, now = (
        identity.facts(toy({**SORTED, "data.buckets": number}), Sorted(toy(SORTED)))
        for number in (0, 2)
    )
    with pytest.raises(BadInput, match="data.buckets"):
        identity.check(saved, now, Path("x"))
