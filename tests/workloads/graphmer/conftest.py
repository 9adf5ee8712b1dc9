"""A small tree of sources, and the task on it."""

import shutil

import numpy as np
import pytest
import torch

from lib.task import load_config, load_task

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
  evaluation: {validation_triples: 20, test_triples: 20, structural_test_triples: 10}
"""


def write_tree(home):
    (home / "tree").mkdir()
    for n in range(16):
        (home / "tree" / f"house{n}.py").write_text(MODULE.format(n=n))
        (home / "tree" / f"helper{n}.py").write_text(HELPER)
    (home / "graphmer.yaml").write_text(CONFIG)


def load(home, overrides=None):
    return load_task(load_config(home / "graphmer.yaml", {"data.dir": str(home / "tree"), **(overrides or {})}))


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
    return [corpus.word_list[word] for word in corpus.text[corpus.window_start[window] : corpus.window_stop[window]]]


def pieces_of(corpus, words):
    """The pieces of words, by their numbers."""
    begin = corpus.piece_offsets
    return [piece for word in words for piece in corpus.piece_flat[begin[word] : begin[word + 1]].tolist()]


def everything(corpus):
    return np.arange(len(corpus.entities))
