"""YAML nodes: places, and changes by name."""

from pathlib import Path

import pytest
import yaml
from yaml import Mark, ScalarNode

from lib.config.nodes import child, is_empty, place, position, put, read_text
from lib.errors import BadInput


def test_keys_are_read_and_replaced():
    root = yaml.compose("a: 1\nb:\n")
    assert child(root, "a").value == "1" and child(root, "c") is None
    assert is_empty(child(root, "b")) and not is_empty(child(root, "a"))
    mark = Mark("other.yaml", 0, 4, 2, None, None)
    node = put(root, "a", mark, ScalarNode("", "2", mark))
    assert child(root, "a") is node and [key.value for key, _ in root.value] == ["b", "a"]
    assert place(node.start_mark) == "other.yaml:5:3"
    assert place(Mark("override a", 0, -1, -1, None, None)) == "override a"


def test_a_position_is_a_line_and_a_column():
    assert [position(text) for text in ("", "ab", "ab\n", "ab\nc")] == [(0, 0), (0, 2), (1, 0), (1, 1)]


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    (tmp_path / "x.yaml").write_bytes(b"a\n\xff")
    with pytest.raises(BadInput, match=r"x\.yaml:2:1: The file is not UTF-8"):
        read_text(tmp_path / "x.yaml")
