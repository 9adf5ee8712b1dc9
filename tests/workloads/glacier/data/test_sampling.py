"""Weights of tiles draw towards wanted shares of the classes, evenly and within a cap."""

import numpy as np
import pytest

from workloads.glacier.data import sampling
from workloads.glacier.settings import Sampling


def test_tilted_weights_reach_the_wanted_shares_where_they_can():
    counts = np.random.default_rng(0).dirichlet((2, 1, 0.5, 0.5), 400) * 1000
    wanted = (0.3, 0.3, 0.25, 0.15)
    weight = sampling.tile_weights(counts, Sampling(target_shares=wanted))
    assert np.allclose(weight.mean(), 1) and weight.min() > 0
    assert np.allclose(sampling.reached(counts, weight), wanted, atol=0.01)


@pytest.mark.parametrize("most", [1.5, 2, 4, 20])
def test_a_wanted_class_that_is_rare_everywhere_leaves_no_even_draw(most):
    """The cap is used up even where a share is so far out of reach that a slight pull on it would pass the cap."""
    draw = np.random.default_rng(0)
    ice = draw.uniform(0, 0.6, 200)
    counts = np.stack([1 - ice, ice * 0.7, ice * 0.3, np.full(200, 0.001)], 1) * 9216
    weight = sampling.tile_weights(counts, Sampling(target_shares=(0.1, 0.35, 0.4, 0.15), most_often=most))
    assert 0.75 * min(most, 2) < weight.max() <= most + 1e-6
    assert sampling.reached(counts, weight)[0] < sampling.reached(counts, None)[0] - 0.03
