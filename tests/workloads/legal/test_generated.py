"""The judgments that are made up."""

from itertools import pairwise

from workloads.legal.generated import ROLES, judgments
from workloads.legal.settings import Generator


def test_they_are_the_same_every_time_and_more_of_them_begin_alike():
    few, many = (list(judgments(Generator(documents=number))) for number in (10, 12))
    assert few == many[:10] and len({name for name, *_ in many}) == 12


def test_every_role_comes_in_runs_facts_first_and_a_ruling_last():
    roles = [roles for *_, roles in judgments(Generator())]
    assert {role for own in roles for role in own} == {*ROLES}
    assert all(own[0] == "Facts" and own[-1] == "Ruling by Present Court" for own in roles)
    changes = sum(one != other for own in roles for one, other in pairwise(own))
    assert changes < 0.4 * sum(map(len, roles))


def test_words_alone_do_not_say_the_role():
    """The same opening stands in sentences of several roles."""
    seen = {}
    for _, _, sentences, roles in judgments(Generator()):
        for sentence, role in zip(sentences, roles, strict=True):
            seen.setdefault(sentence.split()[0], set()).add(role)
    assert max(map(len, seen.values())) >= 4
