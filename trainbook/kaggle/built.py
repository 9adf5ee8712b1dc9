"""The notebook of a configuration, built for Kaggle, and what of a notebook's packages Kaggle's image lacks."""

import ast
import functools
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from lib.errors import BadInput
from lib.machine import disk
from lib.report.findings import Finding
from trainbook.kaggle import carried

_ADVICE = "The notebook looks there; what is missing it installs where its internet is on (--internet)."


@functools.cache
def _image() -> Mapping[str, frozenset[str]]:
    table = yaml.safe_load(Path(__file__).with_name("image.yaml").read_text("utf-8"))
    return {kind: frozenset(names.split()) for kind, names in table.items()}


def _compared(names: Collection[str]) -> tuple[list[str], str]:
    """Returns the imports that Kaggle's image is known to lack, and a sentence on those of which nothing is known."""
    unknown = ", ".join(sorted({*names} - _image()["has"] - _image()["lacks"]))
    sentence = f"Whether Kaggle's image has {unknown} is not known: no table here names it." if unknown else ""
    return sorted(_image()["lacks"] & {*names}), sentence


def build(config: Path, out: Path) -> Path:
    """Writes the notebook of a configuration to `out`, prints what it carries; returns the folder of its files here.

    Raises BadInput.
    """
    from trainbook.notebooks import own  # not at the top: torch takes seconds to import

    if out.suffix != ".ipynb":
        raise BadInput(f"A notebook's name ends in .ipynb; {out} does not.")
    source = own.read(config)
    lacked, unknown = _compared(source.packages)
    text = own.text(source, internet=bool(lacked))
    try:
        disk.make_folders(out.parent)
        with disk.whole(out) as aside:
            aside.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{out} cannot be written ({error.strerror or error}). Give another place.") from None
    size = f"{len(text.encode()) / 1000:,.0f} KB"
    print(f"Built {out} ({size}) from {config}. It carries lib and {', '.join(source.files)}.", *source.notes, sep="\n")
    if lacked:
        image = f"Kaggle's image lacks {', '.join(lacked)}"
        print(f"{image}: the notebook asks for internet, and installs it there.")
    if unknown:
        print(unknown, _ADVICE)
    if not source.has_small:
        small = config.with_name(f"{config.stem}_small.yaml")
        print(f"There is no {small}, so a machine without a GPU trains the same configuration.")
    return source.root


def check_imports(notebook: Mapping[str, Any], files: Mapping[str, str]) -> Finding:
    """Compares the packages that the cells and a user's carried files import with those of Kaggle's image."""
    from lib.task.files import imports  # not at the top: torch takes seconds to import

    modules = {name: text for name, text in files.items() if name.startswith("configs/") and name.endswith(".py")}
    nodes = list(carried.syntax(notebook))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names |= {each.dotted for code in modules.values() for each in imports(code) if each.is_needed}
    names = {name.split(".")[0] for name in names} - {"lib", "workloads", "trainbook", *sys.stdlib_module_names}
    names -= {part for name in modules for part in Path(name).with_suffix("").parts}  # beside the task
    lacked, unknown = _compared(names)
    lacks = f"Kaggle's image lacks {', '.join(lacked)}"
    if lacked and not notebook["metadata"].get("kaggle", {}).get("isInternetEnabled"):
        return Finding("imports", lacks, "bad", "Switch the internet on, or mount their wheels.")
    if unknown:
        return Finding("imports", unknown, "warning", _ADVICE)
    if lacked:
        return Finding("imports", f"{lacks}; the notebook's internet is on for them")
    return Finding("imports", f"Kaggle's image has all {len(names)} packages that are imported")
