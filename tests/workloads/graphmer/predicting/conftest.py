"""A model whose probabilities were fitted on a small tree, and a tree that is new to it."""

import pytest
import torch

from tests.workloads.graphmer.conftest import moved
from workloads.codegraph import trees
from workloads.codegraph.graph import build as build_graph
from workloads.graphmer.corpus import build
from workloads.graphmer.predicting.joined import join

NEW = {
    "shop/__init__.py": "",
    "shop/doors.py": '''
class Door:
    def open_slowly(self):
        raise ValueError("stuck")

    def paint(self):
        return "red"


class Gate:
    def paint(self):
        return 1


def outer():
    def hidden():
        return Gate()
    return hidden
''',
    "shop/main.py": '''
import os
from shop.doors import Door
from shop import doors as shut


def visit(thing, other):
    thing.open_slowly()
    thing.nowhere_at_all()
    other.paint()
    os.path.expanduser("~")
    return os.path.join("a", "b")


def local(make):
    hidden = make()
    hidden()
    return hidden or shut.Gate()


class Room(Unknown):
    def enter(self):
        self.leave()
        shut.Door()
        try:
            return Door()
        except ValueError:
            raise

    def leave(self):
        if self.enter():
            raise problem
''',
}  # fmt: skip


def write_new(folder):
    for name, text in NEW.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def new_tree(tmp_path):
    return write_new(tmp_path / "new")


@pytest.fixture(scope="session")
def fitted(shared):
    """The task with its data and a model whose probabilities are fitted; tests change neither."""
    model = moved(shared).eval()
    with torch.inference_mode():
        shared.evaluator.calibration.fit(model)
    return shared, model


@pytest.fixture
def joined(fitted, new_tree):
    """The new tree beside the fitted task's training."""
    task = fitted[0]
    return joined_with(task, tree_of(task, new_tree))


def tree_of(task, folder):
    sources = trees.Sources([trees.folder(folder)])
    text = task.data.corpus.tokenizer.tobytes().decode()
    return build(build_graph(sources), sources, task.settings.chain, task.settings.split, tokenizer=text)


def joined_with(task, tree):
    return join(task.data.corpus, tree, task.data.rules, task.settings, task.learned()["counts"])
