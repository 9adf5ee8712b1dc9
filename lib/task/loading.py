"""Loads the task that a configuration names, a folder of workloads or file.py:Class, and locates its data."""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from lib.config import Config, read_config, with_changes
from lib.config.files import size_of
from lib.errors import BadInput, printable
from lib.machine import inputs, platform
from lib.task.contract import Task
from lib.task.files import own_files


def find_task(name: str) -> type[Task]:
    """Returns the class behind a configuration's `task:`: a name under `workloads`, or `file.py:Class`.

    Raises BadInput where there is no such task.
    """
    if ":" in name:
        return _from_file(*name.rsplit(":", 1))
    known = sorted(path.parent.name for path in WORKLOADS.glob("*/settings.py"))
    if name not in known:
        shown = printable(repr(name), most=100)
        raise BadInput(
            f"There is no task {shown}. Known tasks: {', '.join(known)}. Your own is named as file.py:Class."
        )
    members = inspect.getmembers(importlib.import_module(f"workloads.{name}"), inspect.isclass)
    tasks = [cls for _, cls in members if issubclass(cls, Task) and cls is not Task]
    if len(tasks) != 1:
        raise BadInput(f"workloads/{name} must hold exactly one Task class in its namespace; it holds {len(tasks)}.")
    return tasks[0]


WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
_MOST_SOURCE_BYTES = 10 * 2**20  # of a task file
_folders: set[str] = set()  # of all task files that were loaded
_added: list[str] = []  # those of them that were put into sys.path, the newest first
_loaded: dict[Path, tuple[tuple[int, int], types.ModuleType]] = {}  # by path: time and size, and the module


def _from_file(file: str, class_name: str) -> type[Task]:
    try:
        path = Path(file).resolve()
        size = size_of(path)
    except (OSError, RuntimeError, ValueError) as error:
        reason = printable(getattr(error, "strerror", None) or error, most=200)
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({reason})"
        advice = "Give its path from the folder of the configuration, or from the one that you start in."
        raise BadInput(f"The task file {printable(file, most=200)} {why}. {advice}") from None
    if size > _MOST_SOURCE_BYTES:
        raise BadInput(f"The task file {printable(file)} has {size:,} bytes, which is no source of a task.")
    found = getattr(_module(path), class_name, None)
    if not (inspect.isclass(found) and issubclass(found, Task)):
        name = f"{printable(file)} has no class {printable(class_name)}"
        raise BadInput(f"{name} that derives from lib.task.Task. Define it there.")
    return found


def _module(path: Path) -> types.ModuleType:
    """Imports a task file, once until it changes. Raises BadInput with the line where it fails.

    It is known to `sys.modules`, where dataclasses and pickle look for it.
    """
    state = path.stat()
    version = (state.st_mtime_ns, state.st_size)
    if path in _loaded and _loaded[path][0] == version:
        return _loaded[path][1]
    name = f"trainbook_task_{path.stem}_{hashlib.sha256(str(path).encode('utf-8', 'replace')).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"The task file {printable(path)} is no Python file. Give its name an ending of .py.")
    module = importlib.util.module_from_spec(spec)
    _enter(path)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadInput(_why_not_imported(path, error)) from error
    _loaded[path] = version, module
    return module


def _enter(path: Path) -> None:
    """Lets a task import the files beside it: after Python's modules, before installed packages and other tasks' files.

    Another machine may have other packages. Raises BadInput where an installed namesake is in use already.
    """
    folder = str(path.parent)
    with contextlib.suppress(ImportError):
        importlib.import_module("workloads")  # ours, whatever lies beside the task
    rest = [entry for entry in sys.path if entry not in _added]
    mine, older = [] if folder in rest else [folder], [entry for entry in _added if entry != folder]
    first = next((n for n, entry in enumerate(rest) if entry.endswith("-packages")), len(rest))
    sys.path[:] = [*rest[:first], *mine, *rest[first:], *older]
    _added[:] = [*mine, *older]
    importlib.invalidate_caches()
    _folders.add(folder)
    for name, module in list(sys.modules.items()):
        if "." not in name and (place := _place(module)) in _folders and place != folder:
            spec = importlib.machinery.PathFinder.find_spec(name)
            if spec and spec.origin not in (None, module.__spec__.origin):  # type: ignore[union-attr]  # a namesake
                for inner in [inner for inner in sys.modules if f"{inner}.".startswith(f"{name}.")]:
                    del sys.modules[inner]
    try:
        others = own_files(path).files[1:]
    except BadInput:  # no Python, which the import says
        return
    for name in {file.relative_to(folder).parts[0].removesuffix(".py") for file in others}:
        if (place := _place(sys.modules.get(name))) and place != folder:
            raise BadInput(
                f"{printable(path.parent / name)} beside the task has the name of the installed package {name}, which "
                f"is in use already ({printable(place)}). Give the file another name."
            )


def _place(module: Any) -> str:
    """Returns the folder in which a module lies, or the package that it is; empty for one of no file."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
    if os.sep not in origin:  # built-in
        return ""
    folder, file = os.path.split(origin)  # a Path of each of a thousand modules would take 50 ms
    return os.path.split(folder)[0] if file == "__init__.py" else folder


def _why_not_imported(path: Path, error: BaseException) -> str:
    """Returns the sentence about a task file that raises: the line of it, or of a file that it imports."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    inner = [frame for frame in frames if Path(frame.filename).parent == path.parent] or frames[-1:]
    where = f"{inner[-1].filename}:{inner[-1].lineno}" if inner else str(path)
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    what = printable(f"{type(error).__name__}: {error}", most=300)
    return f"{printable(where)}: The task file cannot be imported ({what}). Correct it there."


def load_config(path: str | Path, overrides: Mapping[str, object] | None = None, runs_files: bool = True) -> Config:
    """Reads a configuration whose `workload:` section is checked against the settings of the task that it names.

    Without `runs_files`, for one that may be anybody's, a task that is a Python file is refused and not imported.
    """
    return read_config(path, overrides, workload=lambda name: _settings(name, runs_files))


def _settings(name: str, runs_files: bool) -> type:
    """Returns the dataclass of a task's settings. Raises BadInput where it is none that a configuration can fill."""
    if not runs_files and ":" in name:
        raise BadInput(
            f"The task is a Python file, {printable(name, most=200)}, which this configuration cannot make run: it may "
            "be anybody's. Where the task is your own, give it: --task file.py:Class."
        )
    cls = find_task(name)
    why = "it is no dataclass" if not dataclasses.is_dataclass(cls.Settings) else ""
    try:
        get_type_hints(cls.Settings)
    except (NameError, TypeError) as error:  # a name that only a type checker imports
        why = f"its types cannot be read: {error}"
    if why:
        raise BadInput(f"{cls.__name__}.Settings cannot be filled ({why}). See workloads/graphmer/settings.py.")
    return cls.Settings


def with_slots(config: Config, cards: int) -> Config:
    """Gives a configuration without `training.micro_batch_slots` one for each card, as far as the batch divides."""
    if config.training.micro_batch_slots:
        return config
    slots = max((n for n in range(1, cards + 1) if config.training.effective_batch % n == 0), default=1)
    return with_changes(config, {"training.micro_batch_slots": slots})


def load_task(config: Config) -> Task:
    """Returns the task of a configuration with its data located.

    An empty `data.dir` means a mounted input that holds one of the task's sentinels, or the task's embedded default
    where there is none; `describe_data` says which.
    """
    cls = find_task(config.task)
    return cls(config, _locate_all(cls, config.data.dirs))


def _locate_all(cls: type[Task], names: Sequence[str]) -> Path | tuple[Path, ...] | None:
    """Returns where the data lies, several places for a list of several. Raises BadInput."""
    if len(names) < 2:
        return locate_data(names[0] if names else "", cls.sentinels, cls.homes)
    if not cls.several:
        raise BadInput(
            f"data.dir lists {len(names)} folders, and {cls.__name__} reads one. Name that one, or the folder that "
            "holds them all. A task of your own takes several with `several = True`; they are its `sources`."
        )
    found = [locate_data(name, cls.sentinels, cls.homes) for name in names]
    return tuple(path for path in found if path is not None)


def locate_data(
    data_dir: str, sentinels: tuple[str, ...], homes: Callable[[list[Path]], list[Path]] = Task.homes
) -> Path | None:
    """Returns the folder of `data.dir`, else the first mounted one with a sentinel, else None (the embedded data).

    "embedded" means the embedded default, whatever is mounted. In a mounted input it is the folder with the sentinel:
    Kaggle unpacks an archive to a folder of its own.
    """
    if data_dir == "embedded":
        return None
    here = platform.detect()
    if data_dir:
        folder = inputs.find_input(data_dir, here)
        is_mounted = here.input_dir is not None and here.input_dir in folder.parents
        found = inputs.search([folder], sentinels) if is_mounted and folder.is_dir() else []
        return _first(homes(found), data_dir) or (_unpacked(folder) if is_mounted else folder)
    return _first(homes(inputs.search(inputs.mounted(here), sentinels)) if sentinels else [], "the mounted inputs")


def _unpacked(folder: Path) -> Path:
    """Returns the folder `data` in a data set that `kaggle dataset` packed: Kaggle unpacks its archive there."""
    beside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return folder / "data" if beside - {"README.md"} == {"data"} and (folder / "data").is_dir() else folder


def _first(found: list[Path], where: str) -> Path | None:
    if len(found) > 1:
        taken, others = printable(found[0]), ", ".join(map(printable, found[1:6]))
        choice = f"{taken} is taken, not {others}. data.dir names another."
        print(f"{printable(where)}: data lies in {len(found)} folders; {choice}")
    return found[0] if found else None
