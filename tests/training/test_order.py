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
    """Batches cross the end of an epoch, and slots are pieces of the step."""
    batch = slots * slot_size
    make = partial(weighted, seed, weights=np.ones(samples)) if by_weight else None
    order = Order(samples, seed, batch, slots, make)
    in_one_slot = Order(samples, seed, batch, 1, make)
    dealt = []
    for step in range(samples):
        indices = [index for slot in range(slots) for index in order.indices(step, slot)]
        assert indices == in_one_slot.indices(step, 0)
        dealt += indices
    for epoch in range(batch):
        seen = dealt[epoch * samples : (epoch + 1) * samples]
        assert sorted(seen) == list(range(samples))


@pytest.mark.parametrize(("ranks", "slots"), [(1, 1), (1, 4), (2, 4), (4, 4), (3, 6)])
def test_ranks_share_all_slots(ranks, slots):
    order = Order(9, 0, slots, slots)
    shares = [slot for rank in range(ranks) for slot in order.share(rank, ranks)]
    assert shares == list(range(slots))


def test_permutations_differ_by_seed_and_epoch_and_are_stable_over_versions():
    orders = [permutation(seed, epoch, 8).tolist() for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    assert orders[0] != orders[1] != orders[2]
    # The values themselves are a contract: tomorrow's version resumes a checkpoint of today.
    assert mix(1, 2, 3) == 2623250113353451629
    assert orders[0] == [0, 2, 3, 1, 7, 6, 4, 5]


def test_each_sample_comes_first_equally_often():
    firsts = [int(permutation(seed, 0, 5)[0]) for seed in range(2000)]
    counts = np.bincount(firsts, minlength=5)
    assert counts.min() > 330
    assert counts.max() < 470  # 400 expected, 4 standard deviations are 71


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
    """203 samples are no multiple of 16: batches cross epochs, and only those in which two meet are mixed."""

    def spread(order, steps):
        lengths = [LENGTHS[order.indices(step, 0)] for step in steps]
        return np.mean([np.ptp(each) for each in lengths])

    order = Order.of(Lengthy(range(203)), toy({"data.buckets": 4, "training.effective_batch": 16}))
    plain = Order(203, 0, 16, 1)
    first = np.arange(60) * 16 // 203  # epochs of a step's first and last sample
    last = (np.arange(60) * 16 + 15) // 203
    for epoch in range(4):
        steps = np.flatnonzero((first == epoch) & (last == epoch)).tolist()
        assert len(steps) >= 11
        assert spread(order, steps) < 0.4 * spread(plain, steps)
    # sorted batches would be a curriculum
    means = [LENGTHS[order.indices(step, 0)].mean() for step in range(12)]
    correlation = np.corrcoef(means, np.arange(12))[0, 1]
    assert np.abs(correlation) < 0.8
    assert np.diff(means).min() < 0 < np.diff(means).max()


def test_weights_and_lengths_are_those_of_a_subset_and_lengths_must_be_there(toy):
    rows = Lengthy(range(203))
    rows.weights = range(1, 204)
    part = data.subset(rows, 0.5, 0)
    assert weights_of(part).tolist() == [index + 1 for index in part.indices]
    assert weights_of(range(4)) is None
    rows.weights = None
    lengths = Order.of(part, toy({"data.buckets": 4})).make.args[0]
    assert np.array_equal(lengths, LENGTHS[part.indices])
    rows.lengths = None
    with pytest.raises(
        BadInput, match="data.buckets is 4, and the training data set has no attribute `lengths`"
    ):
        Order.of(rows, toy({"data.buckets": 4}))


class Mixture(list):
    """Twice as many samples of the second half as of the first, and never the last; from (seed, epoch) alone."""

    def order(self, seed, epoch):
        half = len(self) // 2
        second = [*range(half, len(self) - 1)]
        places = [*range(half), *second, *second]
        return np.random.default_rng([seed, epoch]).permutation(places)


def test_the_order_of_a_data_set_deals_its_epochs_which_flow_into_each_other(toy):
    rows = Mixture(range(10))
    order = Order.of(rows, toy({"seed": 3}))
    assert order.samples == 13
    assert order.epoch(13) == 8.0  # 13 steps of 8 are 8 epochs of 13
    dealt = [i for step in range(13) for i in order.indices(step, 0)]
    assert dealt == [i for epoch in range(8) for i in rows.order(3, epoch).tolist()]
    late = Order.of(rows, toy({"seed": 3}))
    slots = Order.of(rows, toy({"seed": 3, "training.micro_batch_slots": 2}))
    indices = order.indices(9, 0)
    assert late.indices(9, 0) == indices
    assert slots.indices(9, 0) + slots.indices(9, 1) == indices


@pytest.mark.parametrize(
    ("give", "sentence"),
    [
        (lambda: np.random.permutation(10), "two orders for the same seed and epoch"),
        (lambda: [0, 10], "the index 10 in epoch 0"),
    ],
)
def test_a_malformed_order_is_refused(toy, give, sentence):
    class Rows(list):
        def order(self, seed, epoch):
            return give()

    with pytest.raises(BadInput, match=f"Rows.order .*{sentence}"):
        Order.of(Rows(range(10)), toy())


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
    task = Sorted(toy(SORTED))
    saved = identity.facts(toy({**SORTED, "data.buckets": 0}), task)
    now = identity.facts(toy({**SORTED, "data.buckets": 2}), task)
    with pytest.raises(BadInput, match="data.buckets"):
        identity.check(saved, now, Path("x"))
