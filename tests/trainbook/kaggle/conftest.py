"""Tests of the kaggle commands send the built notebooks as they are, whether or not lib was edited since."""

import pytest

from trainbook.kaggle import carried, client

is_stale = carried.is_stale


@pytest.fixture(autouse=True)
def built_notebooks_are_fresh(monkeypatch):
    monkeypatch.setattr(carried, "is_stale", lambda path: False)


@pytest.fixture
def staleness_counts(monkeypatch):
    monkeypatch.setattr(carried, "is_stale", is_stale)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(client, "PAUSE", 0.05)
