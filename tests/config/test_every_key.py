"""Every setting of a task is read by the task; for the keys that all runs share see test_effects.py."""

import ast
import dataclasses
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from lib import launch
from lib.config import Config, with_changes
from lib.config.lengths import resolve_lengths
from lib.config.reader import flat, length_pairs, option
from lib.launch import smoke
from lib.task import load_config
from tests import toy as toys
from tests.conftest import ROOT
from workloads import glacier, legal, vqa
from workloads.graphmer import Settings

pytestmark = pytest.mark.usefixtures("quick")
LIB, WORKLOADS = ROOT / "lib", ROOT / "workloads"
# These walk or copy every field alike; a read by them steers nothing. A profile reads what it is about to change.
GENERIC = {LIB / "config" / name for name in ("__init__.py", "lengths.py", "nodes.py", "profiles.py", "reader.py")}


def sections(cls, prefix=""):
    """Every dataclass below `cls` with its dotted prefix, `cls` itself first."""
    found = [(prefix, cls)]
    for name, kind in get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            found += sections(kind, f"{prefix}{name}.")
    return found


def keys(cls, prefix=""):
    """(section's class, name) -> dotted key, without sections, and without lengths in epochs, which become steps."""
    found = {}
    for path, section in sections(cls, prefix):
        hints = get_type_hints(section)
        epochs = {name for name, _ in length_pairs(section)}
        for name in (field.name for field in dataclasses.fields(section)):
            if name not in epochs and not dataclasses.is_dataclass(hints[name]) and name != "workload":
                found[section, name] = path + name
    return found


def read_in(files):
    """The names of all attributes that are read in these files."""
    trees = [ast.parse(path.read_text("utf-8")) for path in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def unread_statically(cls, files, prefix=""):
    names = read_in(files)
    return sorted(key for (_, name), key in keys(cls, prefix).items() if name not in names)


class Recorder:
    """Notes which fields of dataclasses are read by code under `folders` that is not generic."""

    def __init__(self, monkeypatch, *folders):
        self.folders, self.read = [str(folder) for folder in folders], set()
        self.monkeypatch = monkeypatch

    def watch(self, cls):
        names = {field.name for field in dataclasses.fields(cls)}
        original = cls.__getattribute__

        def spy(instance, name):
            if name in names:
                caller = sys._getframe(1).f_code.co_filename
                if Path(caller) not in GENERIC and caller.startswith(tuple(self.folders)):
                    self.read.add((cls, name))
            return original(instance, name)

        self.monkeypatch.setattr(cls, "__getattribute__", spy, raising=False)


def unread_in_a_run(monkeypatch, config, workload_class, folders):
    """The dotted keys that neither a smoke test nor a whole run reads."""
    recorder = Recorder(monkeypatch, *folders)
    wanted = {**keys(Config), **keys(workload_class, "workload.")}
    for cls in {section for section, _ in wanted}:
        recorder.watch(cls)
    run = launch.prepare(config)
    smoke.test(run)
    launch.train(run)
    return sorted(key for place, key in wanted.items() if place not in recorder.read)


def test_a_run_of_graphmer_reads_every_key_of_its_settings(tmp_path, monkeypatch):
    (tmp_path / "tree").mkdir()
    for n in range(16):
        (tmp_path / "tree" / f"house{n}.py").write_text(MODULE.format(n=n))
    (tmp_path / "graphmer.yaml").write_text(GRAPHMER)
    overrides = {"data.dir": str(tmp_path / "tree"), "output_dir": str(tmp_path / "runs"), "data.num_workers": 0}
    config = load_config(tmp_path / "graphmer.yaml", overrides)
    found = unread_in_a_run(monkeypatch, config, Settings, [LIB, WORKLOADS])
    assert [key for key in found if key.startswith("workload.")] == []


def test_runs_of_glacier_read_every_key_of_its_settings(tmp_path, monkeypatch):
    (tmp_path / "glacier.yaml").write_text(GLACIER)
    overrides = {"output_dir": str(tmp_path / "runs"), "data.num_workers": 0}
    config = load_config(tmp_path / "glacier.yaml", overrides)
    found = unread_in_a_run(monkeypatch, config, glacier.Settings, [LIB, WORKLOADS])
    # Those of squares, folds, carried weights, a loss, ensembles and predictions: each has tests of its own
    assert {key for key in found if key.startswith("workload.")} == {
        "workload.split.square", "workload.split.fold", "workload.initial.bands", "workload.initial.classes",
        "workload.criteria.ensemble_mcc", "workload.prediction.views", "workload.prediction.batch",
        "workload.prediction.probabilities", "workload.prediction.uncertainty", "workload.prediction.polygons",
        "workload.prediction.weighted", "workload.prediction.most_behind", "workload.loss.missed",
    }  # fmt: skip


def test_a_run_of_legal_reads_every_key_of_its_settings(tmp_path, monkeypatch):
    (tmp_path / "legal.yaml").write_text(LEGAL)
    for module in ("lib.report.figure", "workloads.legal.figures"):
        monkeypatch.setattr(f"{module}.save", lambda figure, path: path)
    config = load_config(tmp_path / "legal.yaml", {"output_dir": str(tmp_path / "runs"), "data.num_workers": 0})
    found = unread_in_a_run(monkeypatch, config, legal.Settings, [LIB, WORKLOADS])
    # Those of published weights, of plans without them, and of files have tests of their own
    assert {key for key in found if key.startswith("workload.")} == {
        "workload.encoder.freeze_words", "workload.encoder.freeze_layers", "workload.encoder.planned_as",
        "workload.bad_input_limit", "workload.source.files", "workload.columns.document", "workload.columns.sentence",
        "workload.columns.role", "workload.columns.category",
    }  # fmt: skip


def files_of(folder):
    return [path for path in folder.rglob("*.py") if path not in GENERIC]


def test_every_setting_of_a_task_is_read_in_its_source():
    assert unread_statically(Settings, files_of(WORKLOADS / "graphmer"), "workload.") == []
    assert unread_statically(glacier.Settings, files_of(WORKLOADS / "glacier"), "workload.") == []
    by_name = ["workload.split.test", "workload.split.validation"]  # the parts that splits.py deals
    assert unread_statically(vqa.Settings, files_of(WORKLOADS / "vqa"), "workload.") == by_name


def test_a_key_that_nothing_reads_is_found(toy, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Larger(toys.Settings):
        forgotten: int = option(3, "Nobody asks for this.")

    assert unread_statically(Larger, [Path(toys.__file__)], "workload.") == ["workload.forgotten"]
    config = toy()
    larger = dataclasses.replace(config, workload=Larger())
    found = unread_in_a_run(monkeypatch, larger, Larger, [LIB, toys.__file__])
    assert "workload.forgotten" in found and "workload.samples" not in found


def test_lengths_in_epochs_all_become_steps(toy):
    """They are left out above, because only their steps are read."""
    pairs = [(prefix, *pair) for prefix, cls in sections(Config) for pair in length_pairs(cls)]
    assert len(pairs) >= 4
    for prefix, epochs, steps in pairs:
        given = with_changes(toy(), {prefix + epochs: 2.0})
        values = flat(resolve_lengths(given, 40)[0])
        assert (values[prefix + epochs], values[prefix + steps]) == (0, 10)


MODULE = '''
import os

class House{n}(dict):
    """A house."""

    def enter_house(self, guest):
        door = open_door(guest)
        if not door:
            raise ValueError("closed")
        return os.path.join("a", guest)

    def leave_house(self):
        self.enter_house(None)

def open_door(x):
    return x
'''
GRAPHMER = """
task: graphmer
training: {max_steps: 2, effective_batch: 6, smoke_steps: 1}
workload:
  chain: {roots: 24, facts: 3, vocabulary: 400}
  model: {layers: 2, hidden: 8, heads: 2, feed_forward: 16, relation_rank: 4, dropout: 0.1}
  split: {validation: 0.3, test: 0.3}
  objective: {candidates: 60, fitting_steps: 3, mlm_steps: 1}
  evaluation: {validation_triples: 20, test_triples: 20, structural_test_triples: 10}
"""
LEGAL = """
task: legal
training: {max_steps: 2, effective_batch: 8}
workload:
  context: {length: 48}
  encoder: {layers: 1, hidden: 4, heads: 2, feed_forward: 8, vocabulary: 120}
  split: {folds: 3, validation: 0.3}
  generator: {documents: 12, sentences: 14}
"""
GLACIER = """
task: glacier
training: {max_steps: 2, effective_batch: 4, smoke_steps: 1}
workload:
  source: {bands: [red, thermal]}
  generator: {scenes: 6, size: 64}
  tiles: {size: 32}
  split: {validation: 0.3, test: 0.3}
  sampling: {target_shares: [0.1, 0.35, 0.4, 0.15]}
  model: {widths: [4, 4, 4, 4, 4], depths: [1, 1, 1, 1], decoder: [4, 4, 4, 4, 4]}
  loss: {focal: 0.25, dice: 0.25, mcc: 0.35, boundary: 0.15, ramp_epochs: 1}
  baseline: {pixels: 2000, rounds: 3}
"""
