"""What a built notebook carries: its files, its parameters, and the configuration that a session of it would read."""

import ast
import contextlib
import functools
import importlib
import io
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lib.errors import BadInput, printable
from trainbook import HOME
from trainbook.notebooks import carrier

if TYPE_CHECKING:
    from lib.config import Data
    from lib.launch.queue import Entry

ROOT = HOME  # the checkout
_TYPES = {kind.__name__: kind for kind in (bool, int, float, str, dict, list)}
_CONFIG = re.compile(r"configs/(\w[\w. -]*/)*\w[\w. -]*\.yaml")  # no other file, and none outside of it
_KAGGLE = "/kaggle/"  # the folder of files that only a session sees


@dataclass(frozen=True)
class Parameter:
    """A name of the parameters cell."""

    default: object
    kind: type

    def takes(self, value: object) -> bool:
        """Returns whether a value is of its type; a float may be a whole number."""
        kinds = (int, float) if self.kind is float else self.kind
        return isinstance(value, kinds) and isinstance(value, bool) is (self.kind is bool)


@dataclass(frozen=True)
class Training:
    """What a session trains: a carried file, the keys that are overridden, and the runs, of which a queue has many."""

    file: str
    overrides: dict[str, Any]
    entries: "list[Entry]"


def tagged(notebook: Mapping[str, Any], tag: str) -> list[dict[str, Any]]:
    """Returns the cells with a tag."""
    return [cell for cell in notebook["cells"] if tag in cell["metadata"].get("tags", [])]


def carried_files(notebook: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of the files packed into the carrier cell, by path; none where there is no such cell.

    Raises BadInput for a damaged cell.
    """
    for cell in tagged(notebook, "carrier"):
        if 'HOME = library("""' in (code := "".join(cell["source"])):
            return dict(_unpacked(code))
    return {}


@functools.lru_cache(maxsize=2)
def _unpacked(code: str) -> dict[str, str]:
    """Unpacks a cell once: a command asks several times, at a tenth of a second each."""
    try:
        return carrier.unpack(code)
    except BadInput as error:
        raise BadInput(f"The carrier cell is damaged ({error}). Build the notebook again: make notebooks") from None


def text_of(notebook: Mapping[str, Any], *kinds: str) -> str:
    """Returns the text of all cells of some kinds ("code", "markdown") but the carrier's."""
    carrier = tagged(notebook, "carrier")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] in kinds and cell not in carrier]
    return "\n".join("".join(cell["source"]) for cell in cells)


def syntax(notebook: Mapping[str, Any]) -> Iterator[ast.AST]:
    """Yields the nodes of the code in all cells but the carrier's; a cell that is no pure Python is left out."""
    carrier = tagged(notebook, "carrier")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and cell not in carrier:
            with contextlib.suppress(SyntaxError):
                yield from ast.walk(ast.parse("".join(cell["source"])))


def parameters(notebook: Mapping[str, Any]) -> dict[str, Parameter]:
    """Returns the names of the cell that is tagged `parameters`."""
    found: dict[str, Parameter] = {}
    for cell in tagged(notebook, "parameters"):
        for node in ast.parse("".join(cell["source"])).body:
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            if isinstance(target, ast.Name):
                default = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                written = _TYPES.get(ast.unparse(node.annotation)) if isinstance(node, ast.AnnAssign) else None
                found[target.id] = Parameter(default, written or (float if type(default) is int else type(default)))
    return found


def check_values(name: str, notebook: Mapping[str, Any], values: Mapping[str, object]) -> None:
    """Raises BadInput for a name or type that the parameters cell does not have: a misspelt one would do nothing."""
    known = parameters(notebook)
    for parameter, value in values.items():
        if parameter not in known:
            raise BadInput(f"{name} has no parameter {parameter}. It has: {', '.join(known) or 'none'}.")
        if not known[parameter].takes(value):
            kind, default = known[parameter].kind.__name__, known[parameter].default
            raise BadInput(f"{parameter} is of type {kind} in {name} (default {default!r}); it cannot be {value!r}.")


def builder() -> ModuleType | None:
    """Returns the checkout's build_notebooks; None where that or jupytext is missing."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    with contextlib.suppress(ImportError):
        return importlib.import_module("build_notebooks")
    return None


def is_stale(path: Path) -> bool | None:
    """Returns whether a notebook is not what its source, lib and configs give now; None where it has no source here."""
    source, module = ROOT / "notebooks_src" / f"{path.stem}.py", builder()
    if module is None or not source.is_file():
        return None
    return module.notebook_text(source) != path.read_text("utf-8")


def here(data: "Data") -> list[str]:
    """Returns what of a configuration's data.dir is a file or folder of this machine."""
    return [name for name in data.dirs if name != "embedded" and Path(name).expanduser().exists()]


def workload(notebook: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the name of the configuration that a notebook trains, "" for none, and whether its queue is run.

    It stands in the call `notebook.configure("graphmer", ...)` or `notebook.configure_queue(...)`.
    """
    for node in syntax(notebook):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            name = getattr(node.args[0], "value", None)
            if node.func.attr in ("configure", "configure_queue") and isinstance(name, str):
                return name, node.func.attr == "configure_queue"
    return "", False


def training(
    notebook: Mapping[str, Any], values: Mapping[str, object], has_gpu: bool, root: Path | None = None
) -> Training | None:
    """Reads the configuration that a session reads, with the values given for its parameters.

    Returns None for a notebook that trains nothing, or whose configuration only a session sees: a file on Kaggle, or
    one that its cells write, as a cell tagged `task` does with the task. `root` is the folder here with the files of a
    notebook that was built just now from a configuration of one's own; of any other a task's file is never run here.
    Raises BadInput for a file that the notebook does not carry, and for all that the session itself would refuse.
    """
    from lib.notebook import KEYS, default_config  # not at the top: torch takes seconds to import

    name, is_queue = workload(notebook)
    given = {key: parameter.default for key, parameter in parameters(notebook).items()} | dict(values)
    small = f"configs/{name}_small.yaml" in carried_files(notebook)
    file = str(given.get("CONFIG") or default_config(name, has_gpu, small)[0])
    if not name or file.startswith(_KAGGLE) or tagged(notebook, "task"):
        return None
    overrides = {key: given[parameter] for parameter, key in KEYS.items() if given.get(parameter)}
    overrides |= given.get("OVERRIDES") or {}  # type: ignore[operator]
    with _configs(notebook, root) as places:
        if file not in places:
            raise BadInput(
                f"The notebook does not carry {file}. It carries: {', '.join(places) or 'none'}. Correct CONFIG."
            )
        entries = _entries(places[file], file, overrides, name, is_queue, runs_files=root is not None)
    return Training(file, overrides, entries)


def _entries(
    path: Path, file: str, overrides: dict[str, Any], kind: str, is_queue: bool, runs_files: bool
) -> "list[Entry]":
    """Returns the runs of a configuration, which the notebook calls `file`. Raises BadInput."""
    from lib.launch import queue  # not at the top: torch takes seconds to import
    from lib.task import load_config

    config = load_config(path, overrides, runs_files)
    if is_queue:
        nowhere = {"output_dir": str(path.parent / "none")}  # runs that were completed here are not on Kaggle
        with contextlib.redirect_stdout(io.StringIO()):  # the session says of its own earlier runs what this prints
            return queue.entries(path, overrides | nowhere)
    if queue.is_for(path, config):
        raise BadInput(
            f"The notebook trains one run, and {file} with the values given asks for a queue of several. "
            "Take queue.* out, or push a notebook that trains a queue."
        )
    return [queue.Entry(config, kind=kind)]


@contextlib.contextmanager
def _configs(notebook: Mapping[str, Any], root: Path | None) -> Iterator[dict[str, Path]]:
    """Yields where the carried configurations lie here, by name; a refusal inside names them as the notebook does.

    Raises BadInput for a task's file of a notebook that was not built just now: checking would run it.
    """
    texts = carried_files(notebook)
    names = [name for name in texts if _CONFIG.fullmatch(name)]  # another name could lie outside of the folder
    if own := [name for name in texts if root is None and name.startswith("configs/") and name.endswith(".py")]:
        raise BadInput(
            f"The notebook carries a task of its own ({printable(own[0])}), which would run on this machine to be "
            "checked. Give the configuration that it was built from, such as my.yaml, and it is built again."
        )
    with tempfile.TemporaryDirectory() as folder:
        home = (root or Path(folder) / "configs").as_posix()
        places = {name: Path(home, name.removeprefix("configs/")) for name in names}
        for name in names if root is None else ():
            places[name].parent.mkdir(parents=True, exist_ok=True)
            places[name].write_text(texts[name], "utf-8")
        try:
            yield places
        except BadInput as refusal:
            raise BadInput(str(refusal).replace(f"{home}/", "configs/" if root is None else f"{home}/")) from None
