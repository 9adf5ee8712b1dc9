"""Groups go to one part as a whole, with its share of each class, and a leak is refused."""

import itertools

import numpy as np
import pytest

from trainbook.supervised import splits


def uneven(groups=30):
    """(groups, 4) pixels: 70, 25, 5 and 0.05 % on the whole, as in the real data, and the last in few groups."""
    draw = np.random.default_rng(0)
    counts = draw.dirichlet((7, 2.5, 0.5), groups) * 100_000
    rare = np.zeros(groups)
    rare[draw.permutation(groups)[:8]] = draw.uniform(50, 400, 8)
    return np.column_stack([counts, rare]).round()


@pytest.mark.parametrize("shares", [[0.2] * 5, [0.7, 0.15, 0.15]])
def test_every_part_has_its_share_of_each_class(shares):
    counts = uneven()
    part = splits.stratify(counts, shares, 0)
    random = np.random.default_rng(1).choice(len(shares), len(counts), p=shares)

    def worst(part):
        held = np.stack(
            [counts[part == number].sum(0) for number in range(len(shares))]
        ) / counts.sum(0)
        return np.abs(held / np.array(shares)[:, None] - 1)

    assert worst(part)[:, :3].max() < 0.35, "within a third, and no class is absent"
    assert (worst(part)[:, 3] < 1).all(), "within a third, and no class is absent"
    assert worst(part).max() < worst(random).max()


def test_stratifying_is_a_pure_function_and_follows_its_seed():
    counts = uneven(40)
    assert np.array_equal(
        splits.stratify(counts, [0.5, 0.5], 3), splits.stratify(counts, [0.5, 0.5], 3)
    )
    others = [splits.stratify(counts, [0.5, 0.5], seed) for seed in range(4)]
    assert any(not np.array_equal(a, b) for a, b in itertools.pairwise(others))
