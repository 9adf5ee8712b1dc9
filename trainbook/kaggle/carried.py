"""Reads what a built notebook carries: files, parameters, and the configuration that a session of it would read."""

import ast
import contextlib
import importlib
import io
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml

from lib.errors import BadInput, printable
from trainbook import HOME as ROOT
from trainbook.building import carrier

if TYPE_CHECKING:
    from lib.config import Data
    from trainbook.launch.queue import Entry

_CONFIG = re.compile(
    r"configs/(\w[\w. -]*/)*\w[\w. -]*\.yaml"
)  # no other file, and none outside of it
_KAGGLE = "/kaggle/"  # the folder of files that only a session sees


def tagged(notebook: Mapping[str, Any], tag: str) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if tag in cell["metadata"].get("tags", [])]


def carried_files(notebook: Mapping[str, Any]) -> dict[str, str]:
    codes = ["".join(cell["source"]) for cell in tagged(notebook, "carrier")]
    try:
        return next((carrier.unpack(code) for code in codes if "HOME = library(" in code), {})
    except BadInput as error:
        raise BadInput(
            f"The carrier cell is damaged ({error}). Build the notebook again: make notebooks"
        ) from None


def codes(notebook: Mapping[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "carrier" not in cell["metadata"].get("tags", []):
            with contextlib.suppress(SyntaxError):
                ast.parse(code := "".join(cell["source"]))
                yield code


def parameters(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults of the annotated names in the parameters cell."""
    nodes = [
        node
        for cell in tagged(notebook, "parameters")
        for node in ast.parse("".join(cell["source"])).body
    ]
    given = [node for node in nodes if isinstance(node, ast.AnnAssign) and node.value]
    return {ast.unparse(node.target): ast.literal_eval(node.value) for node in given}


def builder() -> ModuleType | None:
    sys.path += [] if str(ROOT) in sys.path else [str(ROOT)]
    with contextlib.suppress(ImportError):
        return importlib.import_module("build_notebooks")
    return None


def is_stale(path: Path) -> bool | None:
    """Returns whether a notebook is not what its source, lib and configs give now; None where it has no source here."""
    source = ROOT / "notebooks_src" / f"{path.stem}.py"
    module = builder()
    if module is None or not source.is_file():
        return None
    text = path.read_text("utf-8")
    return module.notebook_text(source, last=text) != text


def here(data: "Data") -> list[str]:
    """Returns what of data.dir is on this machine."""
    return [name for name in data.dirs if name != "embedded" and Path(name).expanduser().exists()]


def lacking(names: Iterable[str]) -> str:
    """Returns the imports that Kaggle's image is not known to have."""
    table = yaml.safe_load(Path(__file__).with_name("image.yaml").read_text("utf-8"))
    return ", ".join(sorted({*names} - {*table["has"].split()}))


def workload(notebook: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the name in the call of `notebook.configure`, "" for none, and whether it is `configure_queue`."""
    for node in (node for code in codes(notebook) for node in ast.walk(ast.parse(code))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            name = getattr(node.args[0], "value", None)
            if node.func.attr in ("configure", "configure_queue") and isinstance(name, str):
                return name, node.func.attr == "configure_queue"
    return "", False


def training(
    notebook: Mapping[str, Any],
    values: Mapping[str, object],
    has_gpu: bool,
    root: Path | None = None,
) -> "list[Entry] | None":
    """Returns the runs of a session with these values for its parameters. Raises BadInput as the session would.

    Returns None where only a session sees it, on Kaggle or written by a cell tagged `task`. `root` is the folder here
    with the files of a notebook that was built just now; of any other a task's file is never run here.
    """
    from trainbook.notebook import (
        KEYS,
        default_config,
    )  # not at the top: torch takes seconds to import

    (name, is_queue), texts = workload(notebook), carried_files(notebook)
    inputs = parameters(notebook) | dict(values)
    file = str(
        inputs.get("CONFIG")
        or default_config(name, has_gpu, f"configs/{name}_small.yaml" in texts)[0]
    )
    if not name or file.startswith(_KAGGLE) or tagged(notebook, "task"):
        return None
    overrides = {key: inputs[parameter] for parameter, key in KEYS.items() if inputs.get(parameter)}
    overrides |= inputs.get("OVERRIDES") or {}
    names = [
        name for name in texts if _CONFIG.fullmatch(name)
    ]  # another name could lie outside of the folder
    if tasks := [
        name
        for name in texts
        if root is None and name.startswith("configs/") and name.endswith(".py")
    ]:
        what = f"The notebook carries a task of its own ({printable(tasks[0])}), which would run on this machine to be"
        raise BadInput(
            f"{what} checked. Give the configuration that it was built from, such as my.yaml."
        )
    if file not in names:
        raise BadInput(
            f"The notebook does not carry {file}, but {', '.join(names) or 'none'}. Correct CONFIG."
        )
    with tempfile.TemporaryDirectory() as scratch:
        folder = (root or Path(scratch) / "configs").as_posix()
        for carried in names if root is None else ():
            place = Path(folder, carried.removeprefix("configs/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(texts[carried], "utf-8")
        try:
            path = Path(folder, file.removeprefix("configs/"))
            return _entries(path, overrides, name, is_queue, root is not None)
        except BadInput as refusal:  # in the names of the notebook
            raise BadInput(
                str(refusal).replace(f"{folder}/", "configs/") if root is None else refusal
            ) from None


def _entries(
    path: Path, overrides: dict[str, Any], kind: str, is_queue: bool, runs_files: bool
) -> "list[Entry]":
    from lib.task import load_config
    from trainbook.launch import queue  # not at the top: torch takes seconds to import
    from trainbook.launch.run import has_queue

    config = load_config(path, overrides, runs_files)
    if is_queue:
        nowhere = {
            "output_dir": str(path.parent / "none")
        }  # runs that were completed here are not on Kaggle
        with contextlib.redirect_stdout(
            io.StringIO()
        ):  # the session says of its own earlier runs what this prints
            return queue.entries(path, overrides | nowhere)
    if has_queue(path, config):
        what = f"The notebook trains one run, and {path} with the values given asks for a queue of several"
        raise BadInput(f"{what}. Take queue.* out, or push a notebook that trains a queue.")
    return [queue.Entry(config, kind=kind)]
