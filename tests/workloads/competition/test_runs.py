"""Run lengths of masks: there and back, and refused where they are none."""

import numpy as np
import pytest

from lib.errors import BadInput
from tests.competitions.layouts import run_lengths
from workloads.competition.runs import fault, mask_of, runs_of


def test_masks_come_back_and_are_written_as_another_program_writes_them():
    draw = np.random.default_rng(0)
    for height, width in ((3, 5), (8, 8), (1, 7)):
        mask = (draw.random((height, width)) < 0.4).astype(np.uint8)
        assert runs_of(mask) == run_lengths(mask)
        assert (mask_of(runs_of(mask), height, width) == mask).all()
    assert runs_of(np.zeros((4, 4))) == ""
    assert not mask_of("", 4, 4).any()
    assert mask_of("2 2", 3, 2).tolist() == [[0, 0], [1, 0], [1, 0]]  # down the columns


@pytest.mark.parametrize(
    "runs",
    ["1", "a 2", "0 2", "1 0", "1 3 2 2", "5 2 1 2", "1 17", "16 2", f"1{'0' * 30} 1", "-1 3"],
)
def test_what_is_no_mask_is_refused(runs):
    with pytest.raises(BadInput, match="run lengths"):
        mask_of(runs, 4, 4)


def test_a_run_ends_with_the_last_pixel_at_the_latest():
    assert mask_of("15 2", 4, 4).sum() == 2
    assert fault("15 2", 16) == ""
    assert "one ends at pixel 17 of 16" in fault("15 3", 16)
    assert fault("15 3") == ""  # of a picture of any size
