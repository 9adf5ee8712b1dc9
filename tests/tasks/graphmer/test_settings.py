"""Numbers that follow from the settings."""

from lib.tasks.graphmer.settings import Chain


def test_a_sample_has_at_most_one_fact_a_root():
    assert [Chain(roots=24, facts=facts).most_facts for facts in (0, 5, 99)] == [24, 5, 24]
