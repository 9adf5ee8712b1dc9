"""What a run costs of a week's quota."""

from lib.planner.table import quota


def test_gpu_time_as_a_share_of_a_week_and_in_sessions():
    assert quota(3 * 3600) == ("10.0%", 1)
    assert [quota(hours * 3600)[1] for hours in (0, 11, 12, 23.1)] == [1, 1, 2, 3]
