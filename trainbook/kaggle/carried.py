"""Reads the contents of a built notebook: files, parameters, and the configuration of a session."""

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

# No other file, and none outside of the folder
_CONFIG = re.compile(r"configs/(\w[\w. -]*/)*\w[\w. -]*\.yaml")
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
    defaults = {}
    for cell in tagged(notebook, "parameters"):
        for node in ast.parse("".join(cell["source"])).body:
            if isinstance(node, ast.AnnAssign) and node.value:
                defaults[ast.unparse(node.target)] = ast.literal_eval(node.value)
    return defaults


def builder() -> ModuleType | None:
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    with contextlib.suppress(ImportError):
        return importlib.import_module("build_notebooks")
    return None


def is_stale(path: Path) -> bool | None:
    """Tells whether a notebook differs from a new build of its source; None if it has no source here."""
    source = ROOT / "notebooks_src" / f"{path.stem}.py"
    module = builder()
    if module is None or not source.is_file():
        return None
    text = path.read_text("utf-8")
    return module.notebook_text(source, last=text) != text


def here(data: "Data") -> list[str]:
    """Returns the paths of data.dir that exist on this machine."""
    return [name for name in data.dirs if name != "embedded" and Path(name).expanduser().exists()]


def lacking(names: Iterable[str]) -> str:
    """Returns the imports that image.yaml does not list."""
    return ", ".join(sorted({*names} - imports_of_image()))


def imports_of_image() -> set[str]:
    """Returns the packages of Kaggle's image, by the names that are imported."""
    table = yaml.safe_load(Path(__file__).with_name("image.yaml").read_text("utf-8"))
    return {*table["has"].split()}


def workload(notebook: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the name in the call of `notebook.configure` ("": no call), and whether it is `configure_queue`."""
    for code in codes(notebook):
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            function = node.func.attr
            if function in ("configure", "configure_queue") and node.args:
                name = getattr(node.args[0], "value", None)
                if isinstance(name, str):
                    return name, function == "configure_queue"
    return "", False


def training(
    notebook: Mapping[str, Any],
    values: Mapping[str, object],
    has_gpu: bool,
    root: Path | None = None,
) -> "list[Entry] | None":
    """Returns the runs of a session with these values for its parameters. Raises BadInput as the session would.

    Returns None if only a session has the configuration, on Kaggle or written by a cell tagged `task`.
    `root` is the local folder with the files of a notebook that was built just now; task files of any
    other notebook are never run here.
    """
    name, is_queue = workload(notebook)
    texts = carried_files(notebook)
    if not name:
        return None
    from trainbook.notebook import KEYS, default_config  # not at the top: torch takes seconds

    inputs = parameters(notebook) | dict(values)
    has_small = f"configs/{name}_small.yaml" in texts
    file = str(inputs.get("CONFIG") or default_config(name, has_gpu, has_small)[0])
    if file.startswith(_KAGGLE) or tagged(notebook, "task"):
        return None
    overrides = {}
    for parameter, key in KEYS.items():
        if inputs.get(parameter):
            overrides[key] = inputs[parameter]
    overrides |= inputs.get("OVERRIDES") or {}
    if root is None:
        _refuse_tasks(texts)
    configs = {path: text for path, text in texts.items() if _CONFIG.fullmatch(path)}
    if file not in configs:
        raise BadInput(
            f"The notebook does not carry {file}, but {', '.join(configs) or 'none'}. Correct CONFIG."
        )
    relative = file.removeprefix("configs/")
    if root is not None:
        return _entries(root / relative, overrides, name, is_queue, runs_files=True)
    with tempfile.TemporaryDirectory() as scratch:
        for path, text in configs.items():
            copy = Path(scratch, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, "utf-8")
        folder = Path(scratch, "configs")
        try:
            return _entries(folder / relative, overrides, name, is_queue, runs_files=False)
        except BadInput as refusal:
            message = str(refusal).replace(f"{folder.as_posix()}/", "configs/")
            raise BadInput(message) from None


def _refuse_tasks(files: Iterable[str]) -> None:
    """Raises BadInput for a user's task, which a check would run on this machine."""
    for file in files:
        if file.startswith("configs/") and file.endswith(".py"):
            raise BadInput(
                f"The notebook carries a task of its own ({printable(file)}), which would run on this"
                " machine to be checked. Give the configuration that it was built from, such as"
                " my.yaml."
            )


def _entries(
    path: Path, overrides: dict[str, Any], kind: str, is_queue: bool, runs_files: bool
) -> "list[Entry]":
    from lib.task import load_config
    from trainbook.launch import queue  # not at the top: torch takes seconds to import
    from trainbook.launch.run import has_queue

    config = load_config(path, overrides, runs_files)
    if is_queue:
        # Runs that were completed here are not on Kaggle
        overrides = overrides | {"output_dir": str(path.parent / "none")}
        with contextlib.redirect_stdout(io.StringIO()):  # messages about earlier runs
            return queue.entries(path, overrides)
    if has_queue(path, config):
        raise BadInput(
            f"The notebook trains one run, and {path} with the values given asks for a queue of"
            " several. Take queue.* out, or push a notebook that trains a queue."
        )
    return [queue.Entry(config, kind=kind)]
