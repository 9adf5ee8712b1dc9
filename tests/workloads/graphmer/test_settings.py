"""Numbers that follow from the settings."""

from workloads.graphmer.settings import Chain


def test_a_sample_has_a_position_for_each_root_and_each_fact():
    assert Chain(roots=24, facts=5).positions == 29
