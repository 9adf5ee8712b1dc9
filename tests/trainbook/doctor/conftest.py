"""The doctor's tests see nothing of the machine that they run on, unless a test puts it there."""

import pytest


@pytest.fixture(autouse=True)
def imitated(nothing_of_this_machine):
    """Every test of the doctor runs on an imitated machine."""


def by_name(checks):
    return {check.name: check for check in checks}
