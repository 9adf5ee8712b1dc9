"""Notebook sources in percent format: read, checked, and built into notebooks with lib in their carrier cell."""

import ast
import hashlib
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from lib.errors import BadInput
from trainbook.building import carrier

if TYPE_CHECKING:
    from nbformat import NotebookNode

# With comment_magics a comment such as `# rm old runs` would become a shell command.
FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
CELL_KEYS = ("_kg_hide-input", "_kg_hide-output", "cellView", "jupyter", "tags")
# On Kaggle, Colab and JupyterLab
FOLDED = {"_kg_hide-input": True, "cellView": "form", "jupyter": {"source_hidden": True}}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
# Cells that several notebooks have, by their names
SHARED = Path(__file__).resolve().with_name("shared.py.in")
REFERENCE = re.compile(r"^# %% shared: ([\w-]+)$", re.MULTILINE)
HEADER = re.compile(r"# ---\n((?:#.*\n)*?)# ---\n\s*")


@dataclass(frozen=True)
class Header:
    """The header of a source: what its notebook is called, carries and needs."""

    title: str
    tasks: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    carry: Literal["training", "planning"] = "training"
    gpu: bool = False
    internet: bool = False


@dataclass(frozen=True)
class Source:
    path: Path
    header: Header
    cells: "list[NotebookNode]"


def libraries() -> tuple[Any, Any]:
    try:
        import jupytext
        import nbformat
    except ImportError as error:
        raise BadInput(
            f"Building a notebook needs {error.name}, which is not installed here: pip install jupytext nbformat (in "
            "the package: trainbook[notebook])"
        ) from None
    return jupytext, nbformat


def with_shared(text: str) -> str:
    """Fills in the shared cells that a text names, with those that they name in turn."""
    _, *parts = re.split(
        r"^# === ([\w-]+)$", SHARED.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return REFERENCE.sub(lambda match: with_shared(texts[match[1]].strip("\n")), text)


def has_tag(cell: "NotebookNode", *tags: str) -> bool:
    return not set(tags).isdisjoint(cell.metadata.get("tags", []))


def read_source(path: Path, kind: str = "run") -> Source:
    """Reads and checks a source with the shared cells of one run (`kind` "queue": of a queue). Raises BadInput."""
    text = re.sub(
        r"^(# %% shared: \w+)-run$",
        rf"\1-{kind}",
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    match = HEADER.match(text)
    if not match or not text[match.end() :].startswith("# %%"):
        raise BadInput(
            f"{path}:1: not a notebook source: '# ---', '# trainbook:', keys, '# ---', then '# %%'."
        )
    cells = libraries()[0].reads(with_shared(text[match.end() :]), fmt=FORMAT).cells
    for code in (cell.source for cell in cells if cell.cell_type == "code"):
        try:
            ast.parse(code)
        except SyntaxError as error:
            first = code.splitlines()[0]
            raise BadInput(
                f"{path}: no Python, such as a shell command or magic, in the cell that begins with {first!r}: "
                f"line {error.lineno}, {error.msg}."
            ) from None
    header = yaml.safe_load(re.sub(r"^# ?", "", match[1], flags=re.MULTILINE))
    return Source(path, Header(**header["trainbook"]), cells)


def build(
    source: Source, files: dict[str, str], made_from: str = "", commit: str = ""
) -> "NotebookNode":
    """Builds the notebook of a source, with ids by the cells' texts.

    `made_from` and `commit` are as in `carrier.code`.
    """
    nbformat = libraries()[1]
    cells = []
    keys = []
    for cell in source.cells:
        key = f"{cell.cell_type}\n{cell.source}"
        keys.append(key)
        digest = hashlib.sha256(f"{keys.count(key)}\n{key}".encode()).hexdigest()
        metadata = {key: cell.metadata[key] for key in CELL_KEYS if cell.metadata.get(key)}
        new = nbformat.NotebookNode(
            id=digest[:12], cell_type=cell.cell_type, source=cell.source, metadata=metadata
        )
        if cell.cell_type == "code":
            new.update(execution_count=None, outputs=[])
        if has_tag(cell, "carrier"):
            new.source = carrier.code(source.path.stem, files, made_from, commit)
            new.metadata.update(FOLDED)
        cells.append(new)
    kaggle: dict[str, Any] = {
        "accelerator": "nvidiaTeslaT4" if source.header.gpu else "none",
        "dataSources": [],
        "isGpuEnabled": source.header.gpu,
        "isInternetEnabled": source.header.internet,
        "language": "python",
        "sourceType": "notebook",
    }
    whole = {"metadata": {**METADATA, "kaggle": kaggle}, "nbformat": 4, "nbformat_minor": 5}
    notebook = nbformat.from_dict({"cells": cells, **whole})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nbformat only warns of missing or repeated ids
        nbformat.validate(notebook)
    return notebook
