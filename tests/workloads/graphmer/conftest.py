"""A small tree of sources with the task on it, and a tree that is new to its model."""

import shutil
from typing import NamedTuple

import numpy as np
import pytest
import torch

from lib.task import load_config, load_task
from workloads.codegraph import trees
from workloads.codegraph.graph import build as build_graph
from workloads.graphmer.data import Data
from workloads.graphmer.predicting import Calibration, join

MODULE = '''
import os
from helper{n} import open_door, close_door

class House{n}(Base{n}):
    """A house."""

    def enter_house(self, guest):
        door = open_door(guest)
        if not door:
            raise ValueError("closed")
        close_door(door)
        return os.path.join("a", guest)

    def leave_house(self):
        self.enter_house(None)
        close_door(None)
'''
HELPER = "def open_door(x):\n    return x\n\n\ndef close_door(x):\n    return None\n"
CONFIG = """
task: graphmer
training: {max_steps: 2, effective_batch: 6}
workload:
  chain: {roots: 24, facts: 3, vocabulary: 400}
  model: {layers: 2, hidden: 8, heads: 2, feed_forward: 16, relation_rank: 4, own_vectors: 16, dropout: 0.0}
  split: {validation: 0.3, test: 0.3}
  objective: {candidates: 60, fitting_steps: 3}
  evaluation: {validation_triples: 20, test_triples: 20}
"""


def write_tree(home):
    (home / "tree").mkdir()
    for n in range(16):
        (home / "tree" / f"house{n}.py").write_text(MODULE.format(n=n))
        (home / "tree" / f"helper{n}.py").write_text(HELPER)
    (home / "graphmer.yaml").write_text(CONFIG)


def load(home, overrides=None):
    overrides = {"data.dir": str(home / "tree"), **(overrides or {})}
    return load_task(load_config(home / "graphmer.yaml", overrides))


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A cache with the graph and the arrays of the tree, which most tests only read."""
    home = tmp_path_factory.mktemp("built")
    write_tree(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINBOOK_CACHE", str(home / "cache"))
        load(home).data.corpus  # noqa: B018
    return home / "cache"


@pytest.fixture(scope="session")
def shared(tmp_path_factory, built):
    """The task on the small tree with its data and fitted counts, which tests only read."""
    home = tmp_path_factory.mktemp("shared")
    write_tree(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINBOOK_CACHE", str(built))
        task = load(home)
        task.data.use(task.learned()["counts"])
    return task


@pytest.fixture
def graphmer(tmp_path, built):
    """graphmer(**overrides) -> the task on a small tree of sources."""
    write_tree(tmp_path)
    shutil.copytree(built, tmp_path / "cache", dirs_exist_ok=True)
    return lambda overrides=None: load(tmp_path, overrides)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batch_of(task, items, seed=0):
    """A training batch of the samples with these numbers."""
    return task.collate([task.parts["train"][item] for item in items], generator(seed))


def moved(task, seed=0):
    """A model whose encoder adds something."""
    torch.manual_seed(seed)
    model = task.model()
    torch.nn.init.constant_(model.strength, 3.0)
    torch.nn.init.constant_(model.strength_of_places, 3.0)
    torch.nn.init.constant_(model.strength_of_meaning, 3.0)
    torch.nn.init.normal_(model.trust.weight, std=0.2)
    torch.nn.init.normal_(model.meant.weight, std=0.2)
    return model


def words_of(corpus, window):
    """The words of a window's text."""
    text = corpus.text[corpus.window_start[window] : corpus.window_stop[window]]
    return [corpus.word_list[word] for word in text]


def pieces_of(corpus, words):
    """The pieces of words, by their numbers."""
    begin = corpus.piece_offsets
    pieces = []
    for word in words:
        pieces += corpus.piece_flat[begin[word] : begin[word + 1]].tolist()
    return pieces


def everything(corpus):
    return np.arange(len(corpus.entities))


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
        Calibration(shared.data).fit(model)
    return shared, model


@pytest.fixture
def joined(fitted, new_tree):
    """The new tree beside the fitted task's training."""
    task = fitted[0]
    return joined_with(task, new_tree)


class Joined(NamedTuple):
    """The data of both, and the triples of the tree in it."""

    data: Data
    triples: np.ndarray


def joined_with(task, folder):
    """A tree beside training."""
    sources = trees.Sources([trees.folder(folder)])
    graph = build_graph(sources)
    counts = task.learned()["counts"]
    return Joined(*join(task.data.corpus, graph, sources, task.settings, counts))
