"""Compares the packages that a notebook imports with those of Kaggle's image, which image.yaml lists."""

import ast
import functools
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from lib.report.findings import Finding
from lib.task.files import imports
from trainbook.kaggle import carried

ADVICE = "The notebook looks there; what is missing it installs where its internet is on (--internet)."


def sentence(names: Collection[str]) -> str:
    return f"Whether Kaggle's image has {', '.join(names)} is not known: no table here names it."


@functools.cache
def _image() -> Mapping[str, frozenset[str]]:
    table = yaml.safe_load(Path(__file__).with_name("image.yaml").read_text("utf-8"))
    return {kind: frozenset(names.split()) for kind, names in table.items()}


def absent(names: Collection[str]) -> list[str]:
    """Returns the imports that Kaggle's image is known to lack."""
    return sorted(_image()["lacks"] & set(names))


def unknown(names: Collection[str]) -> list[str]:
    """Returns the imports of which the list says nothing."""
    return sorted(set(names) - _image()["has"] - _image()["lacks"])


def check(notebook: Mapping[str, Any], files: Mapping[str, str]) -> Finding:
    """Compares the packages that the cells and a user's carried files import with those of Kaggle's image."""
    modules = {name: text for name, text in files.items() if name.startswith("configs/") and name.endswith(".py")}
    nodes = list(carried.syntax(notebook))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names |= {each.dotted for code in modules.values() for each in imports(code) if each.is_needed}
    names = {name.split(".")[0] for name in names}
    beside = {part for name in modules for part in Path(name).with_suffix("").parts}
    names -= {*sys.stdlib_module_names, "lib", "workloads", "trainbook", *beside}
    has_internet = bool(notebook["metadata"].get("kaggle", {}).get("isInternetEnabled"))
    lacking = ", ".join(absent(names))
    if lacking and not has_internet:
        advice = "Switch the internet on, or mount their wheels."
        return Finding("imports", f"Kaggle's image lacks {lacking}", "bad", advice)
    if unlisted := unknown(names):
        return Finding("imports", sentence(unlisted), "warning", ADVICE)
    if lacking:
        return Finding("imports", f"Kaggle's image lacks {lacking}; the notebook's internet is on for them")
    return Finding("imports", f"Kaggle's image has all {len(names)} packages that are imported")
