"""Every key of the general configuration has a use that ships: no option is kept for its own sake."""

import re

import pytest
import yaml

from lib.config import REMOVED, Config
from lib.config.reader import sentences
from lib.task import load_config
from tests.conftest import ROOT

# Keys that answer a moment of one run, by the reason why no file that ships sets them.
UNSET = {
    "run.accept_changes": "a file that sets it would accept every later edit without a word",
    "training.compile": "it takes minutes, which no shipped size was measured to earn back",
    "training.deterministic": "it costs speed, and serves to compare two runs on a GPU",
}
CONFIGURATIONS = [
    *(ROOT / "configs").glob("*.yaml"),
    *(ROOT / "trainbook" / "new" / "examples").glob("*.yaml"),
    *(ROOT / "lib" / "config" / "overlays").glob("*.yaml"),  # the memory profiles
]
# Programs, scripts and notebooks, which name dotted keys
PROGRAMS = [
    *(ROOT / "notebooks_src").glob("*.py"),
    *(ROOT / "trainbook" / "notebook").glob("*.py"),
    *(ROOT / "configs" / "cluster").iterdir(),
]
REFERENCE = ROOT / "docs" / "configuration.md"
PAGES = [ROOT / "README.md", *({*(ROOT / "docs").glob("*.md")} - {REFERENCE})]
INSIDE = re.compile(r'"""\n(task: .*?)"""', re.DOTALL)  # a notebook's own configuration
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def dotted(values, prefix=""):
    """Yields the dotted keys of nested mappings."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{name}.")


def is_set(key, text):
    """Whether `text` sets a key: in quotes as an override, as `--set key=value`, or in a grid."""
    return re.search(rf"[\"{{ =]{re.escape(key)}[\"=:]", text) is not None


def test_only_what_sets_a_key_counts_as_a_use():
    assert [*dotted({"a": {"b": 1}, "c": 2})] == ["a", "a.b", "c"]
    for text in ('{"a.b": 1}', "--set a.b=1", '--set "queue.grid={a.b: [1]}"'):
        assert is_set("a.b", text)
    assert not is_set("a.b", "config.a.b, a.bc=1 and Raise a.b.")


def test_every_key_is_set_by_a_configuration_an_example_or_a_notebook():
    used = set()
    programs = "".join(path.read_text() for path in PROGRAMS)
    texts = [path.read_text() for path in CONFIGURATIONS] + INSIDE.findall(programs)
    for text in texts:
        used.update(dotted(yaml.safe_load(text)))
    for page in PAGES:
        for language, code in BLOCK.findall(page.read_text()):
            if language == "yaml":
                used.update(dotted(yaml.safe_load(code)))
            programs += code
    keys = {key for key in sentences(Config) if not key.startswith("workload")}
    keys -= {key.partition(".")[0] for key in keys if "." in key}  # sections
    unset = {key for key in keys - used if not is_set(key, programs)}
    assert unset == {*UNSET}
    assert len(UNSET) <= 3


@pytest.mark.parametrize("key", ["data.prefetch_factor", "data.pin_memory"])
def test_a_configuration_that_sets_a_key_without_a_use_is_told_what_to_do(tmp_path, capsys, key):
    section, name = key.split(".")
    (tmp_path / "old.yaml").write_text(
        f"task: graphmer\ntraining: {{max_steps: 1, effective_batch: 1}}\n{section}:\n  {name}: 3\n"
    )
    load_config(tmp_path / "old.yaml")
    warning = capsys.readouterr().err
    assert f"old.yaml:4:3: {key} is no longer a key and is ignored. {REMOVED[key]}" in warning
