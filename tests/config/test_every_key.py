"""Every setting of a task is read in its source; for the keys that all runs share see test_effects.py."""

import ast
import dataclasses
from pathlib import Path
from typing import get_type_hints

from lib.config.reader import length_pairs, option
from lib.task import find_task
from tests import toy as toys
from tests.conftest import ROOT

# Parts that a task reads by name, all at once
BY_NAME = {"legal": {"columns.sentence"}, "vqa": {"split.test", "split.validation"}}


def sections(cls, prefix=""):
    """Yields every dataclass below `cls` with its dotted prefix, `cls` itself first."""
    yield prefix, cls
    for name, kind in get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            yield from sections(kind, f"{prefix}{name}.")


def unread(cls, files):
    """Returns the dotted keys whose names these files read nowhere; lengths in epochs are read as steps."""
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    keys = set()
    for prefix, section in sections(cls):
        names_read = names | {name for name, _ in length_pairs(section)}
        hints = get_type_hints(section).items()
        keys |= {
            prefix + name
            for name, kind in hints
            if not dataclasses.is_dataclass(kind) | (name in names_read)
        }
    return keys


def test_every_setting_of_a_task_is_read_and_an_unread_one_is_found():
    for task in ("graphmer", "glacier", "legal", "vqa", "chat"):
        files = (ROOT / "workloads" / task).rglob("*.py")
        assert unread(find_task(task).Settings, files) == BY_NAME.get(task, set())
    fields = [("forgotten", int, option(3, "Nobody asks for this."))]
    larger = dataclasses.make_dataclass("Larger", fields, bases=(toys.Settings,), frozen=True)
    assert unread(larger, [Path(toys.__file__)]) == {"forgotten"}
