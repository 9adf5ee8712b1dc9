"""The settings of legal."""

import pytest

from lib.errors import BadInput
from tests.workloads.legal.conftest import load
from workloads.legal.counting.features import POSITIONS
from workloads.legal.settings import POSITIONS as PLANNED


def test_a_plan_knows_how_many_numbers_a_place_has():
    assert PLANNED == POSITIONS


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("workload.classes", "[a, b, a]", "at least two roles, and none twice"),
        ("workload.split.fold", "3", "the 3 folds are numbered 0 to 2"),
    ],
)
def test_contradictions_are_refused(tmp_path, key, value, message):
    with pytest.raises(BadInput, match=message):
        load(tmp_path, {key: value})


def test_roles_are_named_or_bounded(tmp_path):
    assert load(tmp_path, {"workload.classes": "[b, a]"}).settings.names == ("b", "a")
    assert load(tmp_path, {"workload.classes": "9"}).settings.outputs == 9
