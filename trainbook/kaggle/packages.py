"""The packages that a notebook imports, compared with those of Kaggle's image."""

import ast
import contextlib
import functools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lib.report.findings import Finding
from lib.task.files import imports
from trainbook.kaggle import carried, image

_SWITCHED = ("tensorboard", "wandb")  # packages that are imported only where a key of `tracking` is true
ADVICE = "The notebook looks there; what is missing it installs where its internet is on (--internet)."


def sentence(names: Collection[str]) -> str:
    return f"Whether Kaggle's image has {', '.join(names)} is not known: no table here names it."


def absent(names: Collection[str]) -> list[str]:
    """Returns the imports that Kaggle's image is known to lack."""
    return sorted(name for name in names if name in image.PACKAGES and image.PACKAGES[name].version is None)


def unknown(names: Collection[str]) -> list[str]:
    """Returns the imports of which no table says whether Kaggle's image has them."""
    return sorted(set(names) - image.PACKAGES.keys())


def check(notebook: Mapping[str, Any], files: Mapping[str, str]) -> Finding:
    """Compares the packages that the notebook and the carried files import with those of Kaggle's image."""
    own = {name: text for name, text in files.items() if name.startswith("configs/") and name.endswith(".py")}
    codes = [text for name, text in files.items() if name.endswith(".py") and name not in own]
    names = {name for code in codes for name in _imported(code)} | {*_tops(carried.syntax(notebook))}
    names |= {one.dotted.split(".")[0] for text in own.values() for one in imports(text) if one.is_needed}
    beside = {part for name in own for part in Path(name).with_suffix("").parts}
    names = names.difference(_SWITCHED) | _switched_on(files)
    names -= {*sys.stdlib_module_names, "lib", "workloads", "trainbook", "__future__", *beside}
    has_internet = bool(notebook["metadata"].get("kaggle", {}).get("isInternetEnabled"))
    if (lacked := absent(names)) and not has_internet:
        advice = "Switch the internet on, or mount their wheels."
        return Finding("imports", f"Kaggle's image lacks {', '.join(lacked)}", "bad", advice)
    if unlisted := unknown(names):
        return Finding("imports", sentence(unlisted), "warning", ADVICE)
    if lacked:
        return Finding("imports", f"Kaggle's image lacks {', '.join(lacked)}; the notebook's internet is on for them")
    newest = max((image.PACKAGES[name].checked for name in names), default="-")
    return Finding("imports", f"Kaggle's image has all {len(names)} packages that are imported (checked {newest})")


def _switched_on(files: Mapping[str, str]) -> set[str]:
    """Returns the trackers that a carried configuration asks for."""
    found: set[str] = set()
    for name, text in files.items():
        if name.startswith("configs/") and name.endswith((".yaml", ".yml")):
            with contextlib.suppress(yaml.YAMLError, AttributeError):  # which the check of configurations reports
                tracking = yaml.safe_load(text).get("tracking") or {}
                found |= {one for one in _SWITCHED if tracking.get(one) is True}
    return found


@functools.cache
def _imported(code: str) -> frozenset[str]:
    """Returns the names of the packages that code needs anywhere; only statements are looked through.

    Under `contextlib.suppress` an import may fail.
    """
    found: list[ast.AST] = [ast.parse(code)]
    for node in found:
        if isinstance(node, ast.With) and any("suppress(" in ast.unparse(item) for item in node.items):
            continue
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, part, ())
    return frozenset(_tops(found))


def _tops(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names of the packages that are imported."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
