"""Which samples a step sees: every one once an epoch, in any slots, by weight."""

import itertools

import numpy as np

from lib.training import data
from lib.training.order import Order, mix, permutation, weighted, weights_of


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
