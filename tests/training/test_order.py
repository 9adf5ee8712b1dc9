"""Which samples a step sees: every one once an epoch, in any slots, by weight."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest

from lib import launch
from lib.config import with_changes
from lib.errors import BadInput
from lib.training import data, identity, workers
from lib.training.order import Order, buckets, mix, permutation, weighted, weights_of
from tests.conftest import ROOT
from tests.toy import Toy
from tests.training.test_loop import StopAfter, fit, newest, same_tensors


def order(samples=10, seed=3, batch=4, slots=1):
    return Order(samples, seed, batch, slots)


def test_every_epoch_sees_every_sample_once_although_batches_cross_its_end():
    seen = list(itertools.chain.from_iterable(order().indices(step, 0) for step in range(5)))  # 20 = two epochs of 10
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_slots_deal_the_same_samples_that_one_slot_has():
    for step in range(6):
        whole = order().indices(step, 0)
        assert [i for slot in range(2) for i in order(slots=2).indices(step, slot)] == whole


def test_an_effective_batch_larger_than_the_data_goes_round():
    assert sorted(order(samples=3, batch=6).indices(0, 0)) == [0, 0, 1, 1, 2, 2]


def test_permutations_differ_by_seed_and_epoch_and_are_stable_over_versions():
    assert permutation(0, 0, 8).tolist() != permutation(0, 1, 8).tolist()
    assert permutation(0, 0, 8).tolist() != permutation(1, 0, 8).tolist()
    # The values themselves are a contract: a checkpoint of today is resumed by tomorrow's version.
    assert mix(1, 2, 3) == PINNED_MIX
    assert permutation(0, 0, 8).tolist() == PINNED_PERMUTATION


def test_permutation_is_unbiased_in_its_first_place():
    firsts = np.bincount([int(permutation(seed, 0, 5)[0]) for seed in range(2000)], minlength=5)
    assert firsts.min() > 330 and firsts.max() < 470  # 400 expected, 4 standard deviations are 71


PINNED_MIX = 2623250113353451629


PINNED_PERMUTATION = [0, 2, 3, 1, 7, 6, 4, 5]


WEIGHTS = np.array([0.5, 2.0, 1.0, 0.0, 1.5, 1.0, 0.25, 1.75])


def counted(seed, epoch, weights=WEIGHTS):
    return np.bincount(weighted(seed, epoch, weights.tobytes()), minlength=len(weights))


def test_a_weighted_epoch_has_each_sample_as_often_as_its_weight_rounded_up_or_down():
    for epoch in range(50):
        times = counted(0, epoch)
        assert times.sum() == 8 and (np.floor(WEIGHTS) <= times).all() and (times <= np.ceil(WEIGHTS)).all()


def test_over_many_epochs_the_mean_is_the_weight():
    mean = np.mean([counted(5, epoch) for epoch in range(4000)], 0)
    assert np.abs(mean - WEIGHTS).max() < 0.04  # 5 standard deviations of a mean of 4000 halves


def test_the_scale_of_the_weights_does_not_matter_and_equal_ones_give_every_sample_once():
    assert np.array_equal(counted(1, 2), counted(1, 2, 64 * WEIGHTS))
    assert (counted(1, 2, np.full(8, 0.3)) == 1).all()


def test_a_weighted_order_is_a_pure_function_of_step_and_slot():
    split = Order(8, 3, 6, 2, WEIGHTS)
    late = Order(8, 3, 6, 2, WEIGHTS.copy())
    assert [late.indices(7, 1), late.indices(2, 0)] == [split.indices(7, 1), split.indices(2, 0)]
    whole = Order(8, 3, 6, 1, WEIGHTS)
    assert whole.indices(4, 0) == split.indices(4, 0) + split.indices(4, 1)
    dealt = [i for step in range(4) for i in whole.indices(step, 0)]  # 24 positions: three epochs of 8
    assert dealt == [int(i) for epoch in range(3) for i in weighted(3, epoch, WEIGHTS.tobytes())]


def test_weights_come_with_the_data_set_and_its_subsets():
    class Weighted(list):
        weights = (1, 2, 3, 4)

    chosen = data.subset(Weighted("abcd"), 0.5, 0)
    assert weights_of(chosen).tolist() == [chosen.indices[0] + 1, chosen.indices[1] + 1]
    assert weights_of(range(4)) is None


def test_every_slot_is_dealt_to_one_rank():
    order = Order(10, 0, 12, 6)
    assert [[*order.share(rank, 3)] for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]


# --- buckets by length ------------------------------------------------------------------------------------------------

LENGTHS = np.random.default_rng(0).integers(1, 200, 203)


def test_buckets_see_every_sample_once_an_epoch_and_are_pure():
    for epoch in range(3):
        order = buckets(LENGTHS, 5, epoch, 8, 4)
        assert sorted(order) == list(range(203)) and np.array_equal(order, buckets(LENGTHS, 5, epoch, 8, 4))
    assert not np.array_equal(buckets(LENGTHS, 5, 0, 8, 4), buckets(LENGTHS, 5, 1, 8, 4))
    assert not np.array_equal(buckets(LENGTHS, 5, 0, 8, 4), buckets(LENGTHS, 6, 0, 8, 4))


def spread(order, steps, slots=1):
    """The difference between the longest and the shortest of a slot, in the mean."""
    dealt = [LENGTHS[order.indices(step, slot)] for step in steps for slot in range(slots)]
    return np.mean([np.ptp(lengths) for lengths in dealt])


class Lengthy(list):
    lengths = LENGTHS


def lengthy(toy, **overrides):
    return Order.of(Lengthy(range(203)), toy({"data.buckets": 4, "training.effective_batch": 16, **overrides}))


def test_a_step_has_samples_of_near_lengths_in_every_epoch(toy):
    """203 samples are no multiple of 16: batches go on from epoch to epoch, and only those where two meet are mixed."""
    order, plain = lengthy(toy), Order(203, 0, 16, 1)
    for epoch in range(4):
        steps = [s for s in range(60) if {s * 16 // 203, (s * 16 + 15) // 203} == {epoch}]
        assert len(steps) >= 11 and spread(order, steps) < 0.4 * spread(plain, steps)
    seen = [i for step in range(203) for i in order.indices(step, 0)]
    assert all(sorted(seen[k * 203 : (k + 1) * 203]) == list(range(203)) for k in range(16))


def test_batches_of_all_lengths_are_mixed_over_the_epoch(toy):
    """Sorted batches that follow each other would be a curriculum."""
    means = [LENGTHS[lengthy(toy).indices(step, 0)].mean() for step in range(12)]
    assert np.abs(np.corrcoef(means, np.arange(12))[0, 1]) < 0.8 and np.diff(means).min() < 0 < np.diff(means).max()


def test_slots_of_a_bucket_are_its_neighbours(toy):
    whole, slots = lengthy(toy), lengthy(toy, **{"training.micro_batch_slots": 2})
    assert [i for slot in range(2) for i in slots.indices(3, slot)] == whole.indices(3, 0)
    assert spread(slots, range(12), 2) < spread(whole, range(12))


@pytest.mark.parametrize("size, batch", [(3, 8), (8, 8), (9, 8), (1, 1)])
def test_buckets_of_little_data_see_every_sample_too(size, batch):
    for epoch in range(5):
        assert sorted(buckets(LENGTHS[:size], 0, epoch, batch, 2)) == list(range(size))


def test_a_part_of_the_data_has_the_lengths_of_its_samples(toy):
    part = data.subset(Lengthy(range(203)), 0.5, 0)
    order = Order.of(part, toy({"data.buckets": 4}))
    assert np.array_equal(order.epochs.lengths, LENGTHS[part.indices])


@pytest.mark.parametrize("lengths", [None, LENGTHS[:9]])
def test_buckets_without_lengths_of_all_samples_are_refused(toy, lengths):
    rows = Lengthy(range(203))
    rows.lengths = lengths
    with pytest.raises(BadInput, match="data.buckets is 4, and the training data set has no attribute `lengths` with"):
        Order.of(rows, toy({"data.buckets": 4}))


# --- an order of one's own --------------------------------------------------------------------------------------------


class Mixture(list):
    """Twice as many samples of the second half as of the first, and never the last; from (seed, epoch) alone."""

    def order(self, seed, epoch):
        generator = np.random.default_rng([seed, epoch])
        half = len(self) // 2
        return generator.permutation([*range(half), *range(half, len(self) - 1), *range(half, len(self) - 1)])


def test_the_order_of_a_data_set_deals_its_epochs_which_flow_into_each_other(toy):
    rows = Mixture(range(10))
    order = Order.of(rows, toy({"seed": 3}))
    assert order.samples == 13 and order.epoch(13) == 8.0  # 13 steps of 8 are 8 epochs of 13
    dealt = [i for step in range(13) for i in order.indices(step, 0)]
    assert dealt == [i for epoch in range(8) for i in rows.order(3, epoch).tolist()]
    late, slots = (Order.of(rows, toy({"seed": 3, "training.micro_batch_slots": n})) for n in (1, 2))
    assert late.indices(9, 0) == order.indices(9, 0) == slots.indices(9, 0) + slots.indices(9, 1)
    text = "Mixture.order leaves out 1 of 10 training samples in the first epoch, which has 13 places."
    assert order.left_out == text
    assert Order.of(range(10), toy()).left_out == ""


def test_an_order_reaches_a_loader_worker_with_its_data_set(toy):
    rows = Mixture(range(10))
    order = Order.of(rows, toy())
    there, sent = pickle.loads(workers._pickled((rows, order), []))
    assert sent.epochs.dataset is there and sent.indices(5, 0) == order.indices(5, 0)


def own(give):
    class Rows(list):
        order = staticmethod(give)

    return Rows(range(10))


@pytest.mark.parametrize(
    "give, sentence",
    [
        (lambda seed, epoch: np.random.permutation(10), "returned two orders for the same seed and epoch"),
        (lambda seed, epoch: [0, 10], "Rows.order returned the index 10 in epoch 0, and there are 10 samples"),
        (lambda seed, epoch: [0, -1], "returned the index -1 in epoch 0"),
        (lambda seed, epoch: [0.0, 1.0], "returned float64 of shape .2,.. Return a row of whole numbers"),
        (lambda seed, epoch: [[0, 1]], "of shape .1, 2.. Return a row"),
        (lambda seed, epoch: None, "Return a row of whole numbers"),
        (lambda seed, epoch: np.arange(0), "gives 0 samples in epoch 0. Return as many in every epoch, and one"),
    ],
)
def test_an_order_that_is_none_is_refused_before_the_first_step(toy, give, sentence):
    with pytest.raises(BadInput, match=sentence):
        Order.of(own(give), toy())


def test_an_epoch_of_another_length_is_refused_where_it_comes(toy):
    order = Order.of(own(lambda seed, epoch: range(10 - epoch)), toy())
    with pytest.raises(BadInput, match="gives 9 samples in epoch 1, and 10 in epoch 0"):
        order.indices(1, 0)


def test_a_part_of_the_data_comes_in_the_order_of_the_whole(toy):
    rows = own(lambda seed, epoch: np.random.default_rng([seed, epoch]).permutation(10))
    part = data.subset(data.subset(rows, 0.8, 0), 0.75, 1)
    order = Order.of(part, toy({"training.effective_batch": 6}))
    chosen = [part.dataset.indices[i] for i in part.indices]
    for epoch in range(3):
        wanted = [i for i in rows.order(0, epoch).tolist() if i in chosen]
        assert [part[i] for i in order.indices(epoch, 0)] == wanted


@pytest.mark.parametrize(
    "has, overrides", [({"weights"}, {"data.buckets": 2}), ({"order"}, {"data.buckets": 2}), ({"order", "weights"}, {})]
)
def test_one_thing_alone_decides_the_order(toy, has, overrides):
    rows = Lengthy(range(203))
    for name in has:
        setattr(rows, name, {"weights": np.ones(203), "order": lambda seed, epoch: range(203)}[name])
    with pytest.raises(BadInput, match="and each alone decides their order"):
        Order.of(rows, toy(overrides))


class Sorted(Toy):
    """The toy with lengths, and with an order where `noise` is 0."""

    def datasets(self):
        rows = Mixture if self.config.workload.noise == 0 else Lengthy
        rows = rows(range(20))
        rows.lengths = LENGTHS[:20]
        return {**super().datasets(), "train": rows}


SORTED = {"task": f"{__file__}:Sorted"}


@pytest.mark.parametrize("overrides", [{"data.buckets": 2}, {"workload.noise": 0}])
def test_a_run_in_another_order_resumes_to_the_same_bytes(toy, tmp_path, overrides):
    config = toy({**SORTED, **overrides, "training.max_steps": 6, "workload.dropout": 0.5})
    fit(config, tmp_path / "whole")
    fit(config, tmp_path / "parts", StopAfter(3))
    fit(config, tmp_path / "parts", resume=newest(tmp_path / "parts"))
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert all(same_tensors(whole.tensors[group], parts.tensors[group]) for group in ("model", "optimizer"))
    plain = fit(with_changes(config, {"task": f"{ROOT}/tests/toy.py:Toy", "data.buckets": 0}), tmp_path / "plain")
    assert not same_tensors(whole.tensors["model"], dict(plain.state.model.named_parameters()))


def test_epochs_are_those_of_the_order(toy):
    run = launch.prepare(toy({**SORTED, "workload.noise": 0, "training.max_steps": 0, "training.epochs": 2}))
    assert run.config.training.max_steps == 7  # 2 * 28 / 8; 20 samples would give 5
    assert run.lengths[-1].startswith("Mixture.order leaves out 1 of 20")


def test_a_run_is_not_resumed_with_other_buckets_and_one_of_an_earlier_version_is(toy):
    facts = identity.facts(toy(SORTED), Sorted(toy(SORTED)))
    assert "data.buckets" not in facts and not identity.check(facts, facts, Path("x"))  # as earlier versions saved
    now = identity.facts(toy({**SORTED, "data.buckets": 2}), Sorted(toy(SORTED)))
    for saved, other in ((facts, now), (now, facts)):
        with pytest.raises(BadInput, match="data.buckets"):
            identity.check(saved, other, Path("x"))
    identity.check_settings(facts, toy(SORTED), Path("x"))
    for saved, config in ((facts, toy({**SORTED, "data.buckets": 2})), (now, toy(SORTED))):
        with pytest.raises(BadInput, match="data.buckets"):
            identity.check_settings(saved, config, Path("x"))
