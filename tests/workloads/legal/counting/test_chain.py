"""The chain beside a sum over every sequence of roles."""

from itertools import pairwise, product

import numpy as np
import pytest

from workloads.legal.counting.chain import Chain, Ordered, forward_backward


def by_hand(emission, transition):
    """log partition, (sentences, classes) marginals and (classes, classes) expected steps of one document."""
    length, classes = emission.shape
    total, marginal, steps = 0.0, np.zeros(emission.shape), np.zeros(transition.shape)
    for roles in product(range(classes), repeat=length):
        score = sum(emission[place, role] for place, role in enumerate(roles))
        pairs = [*pairwise(roles)]
        weight = np.exp(score + sum(transition[pair] for pair in pairs))
        total += weight
        for place, role in enumerate(roles):
            marginal[place, role] += weight
        for pair in pairs:
            steps[pair] += weight
    return np.log(total), marginal / total, steps / total


def test_partition_marginals_and_steps_are_those_of_all_sequences_of_documents_of_any_length():
    draw = np.random.default_rng(0)
    lengths = [3, 1, 5, 3]
    emission, transition = draw.normal(size=(sum(lengths), 3)) * 2, draw.normal(size=(3, 3))
    order = Ordered(lengths)
    partition, marginal, steps = forward_backward(emission[order.rows], transition, order)
    parts = np.split(emission, np.cumsum(lengths)[:-1])
    wanted = [by_hand(part, transition) for part in parts]
    assert partition == pytest.approx(sum(one[0] for one in wanted))
    placed = np.empty_like(marginal)
    placed[order.rows] = marginal
    assert placed == pytest.approx(np.concatenate([one[1] for one in wanted]))
    assert steps == pytest.approx(sum(one[2] for one in wanted))


def test_scores_of_hundreds_and_a_document_of_thousands_stay_finite():
    scores = np.where(np.arange(6000)[:, None] % 2 == [0, 1], 800.0, -800.0)
    found = Chain(np.eye(3, 2), np.array([[5.0, -5.0], [-5.0, 5.0]])).log_marginals(scores, [6000])
    assert np.isfinite(found).all() and found.argmax(1)[:3].tolist() == [0, 1, 0]
