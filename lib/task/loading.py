"""Loads the task that a configuration names, and locates its data."""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import get_type_hints

import torch
from torch import nn

from lib.config import Config, read_config, with_changes
from lib.errors import BadInput, NotTraceable, printable
from lib.machine import inputs, platform
from lib.task.contract import Task
from lib.task.files import imports, own_files
from lib.task.place import explained, place_of

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
_OLD_ADDRESSES = ("lib.supervised", "lib.config.option")
# Folders of loaded task files: whether each was put into sys.path for it
_folders: dict[str, bool] = {}
# By path: times and sizes of the task's file and of those beside it that it imports, and the module
_modules: dict[Path, tuple["_Versions", types.ModuleType]] = {}
_Versions = dict[Path, tuple[int, int]]


def find_task(name: str) -> type[Task]:
    """Returns the class of a `task:`, a name under `workloads` or `file.py:Class`.

    Raises BadInput otherwise.
    """
    if ":" in name:
        file, class_name = name.rsplit(":", 1)
        task = getattr(_module(file), class_name, None)
        if not (inspect.isclass(task) and issubclass(task, Task)):
            raise BadInput(
                f"{printable(file)} has no class {printable(class_name)} that derives from lib.task.Task."
            )
        return task
    names = sorted(path.parent.name for path in WORKLOADS.glob("*/settings.py"))
    if name not in names:
        shown = printable(repr(name), most=100)
        raise BadInput(
            f"There is no task {shown}. Known tasks: {', '.join(names)}. "
            "Your own is named as file.py:Class."
        )
    module = importlib.import_module(f"workloads.{name}")
    classes = [cls for cls in vars(module).values() if inspect.isclass(cls)]
    own = [cls for cls in classes if cls.__module__ == module.__name__]
    (task,) = {cls for cls in own if issubclass(cls, Task)}
    return task


def _module(file: str) -> types.ModuleType:
    """Imports a task file, again after a change of it or its imports; pickle finds it.

    Raises BadInput.
    """
    try:
        path = Path(file).resolve()
        is_there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, a circle of links, a NUL
        is_there = False
    if not is_there or path.suffix != ".py":
        raise BadInput(
            f"The task file {printable(file, most=200)} does not exist, or is no .py file. Give its "
            "path from the folder of the configuration, or from the one that you start in."
        )
    if path in _modules:
        versions, module = _modules[path]
        if versions == _versions(versions):
            return module
        _forget({str(file) for file in versions})
    versions = _versions(_files(path))
    _enter(str(path.parent))
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()
    name = f"trainbook_task_{path.stem}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        what = f"The import of the task file {printable(path)}"
        mend = "Correct it there."
        if _is_own_lib(error, path):
            mend = "`lib` is Trainbook's own package: rename the folder lib beside the task."
        raise BadInput(explained(what, error, mend)) from error
    _modules[path] = versions, module
    _advise(path)
    return module


def _is_own_lib(error: BaseException, path: Path) -> bool:
    """Returns whether a task wants a folder `lib` beside it. A process has one module of that name: Trainbook's."""
    is_of_lib = isinstance(error, ImportError) and (error.name or "").split(".")[0] == "lib"
    return is_of_lib and path.with_name("lib").is_dir()


def _advise(path: Path) -> None:
    """Prints one line if a task file imports from addresses of earlier versions, which still work."""
    names = {name.dotted for file in _files(path) for name in imports(file.read_bytes())}
    old = sorted(name for name in names if name.startswith(_OLD_ADDRESSES))
    if old:
        short = ", ".join(name.rpartition(".")[2] for name in old)
        print(
            f"{printable(path.name)} imports {', '.join(old)}. "
            f"The newer address: from trainbook import {short}."
        )


def _files(path: Path) -> tuple[Path, ...]:
    try:
        return own_files(path).files
    except BadInput:  # the import raises the same, with more words
        return (path,)


def _versions(files: Iterable[Path]) -> _Versions:
    """Returns time and size of each file, zeros for one that is gone."""
    versions: _Versions = {}
    for file in files:
        versions[file] = (0, 0)
        if file.is_file():
            status = file.stat()
            versions[file] = (status.st_mtime_ns, status.st_size)
    return versions


def _forget(files: Set[str]) -> None:
    """Removes the modules of these files, so that the next import reads them again."""
    for name, module in list(sys.modules.items()):
        if _origin(module) in files:
            del sys.modules[name]


def _enter(folder: str) -> None:
    """Lets a task import the files beside it, after Python's modules and before packages."""
    entries = [entry for entry in sys.path if not _folders.get(entry)]
    packages = [n for n, entry in enumerate(entries) if entry.endswith("-packages")]
    is_added = folder not in entries
    if is_added:
        entries.insert(min(packages, default=len(entries)), folder)
    older = [other for other, was_added in _folders.items() if was_added and other != folder]
    sys.path[:] = [*entries, *reversed(older)]
    importlib.invalidate_caches()
    _forget_others(folder)
    _folders.pop(folder, None)  # the newest is the last
    _folders[folder] = is_added


def _forget_others(folder: str) -> None:
    """Removes modules beside other tasks whose name is another file's from this folder."""
    others = tuple(f"{other}{os.sep}" for other in _folders if other != folder)
    for name, module in list(sys.modules.items()):
        origin = _origin(module) or ""
        if "." in name or not origin.startswith(others):
            continue
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is None or spec.origin in (None, origin):
            continue
        for inner in list(sys.modules):
            if f"{inner}.".startswith(f"{name}."):
                del sys.modules[inner]


def _origin(module: types.ModuleType) -> str | None:
    return getattr(getattr(module, "__spec__", None), "origin", None)


def load_config(
    path: str | Path, overrides: Mapping[str, object] | None = None, runs_files: bool = True
) -> Config:
    """Reads a configuration with its task's settings.

    Without `runs_files` a task in a Python file is refused.
    """

    def settings(name: str) -> type:
        if not runs_files and ":" in name:
            raise BadInput(
                f"The task is a Python file, {printable(name, most=200)}, which an untrusted "
                "configuration cannot run. If the task is your own, give it: --task file.py:Class, "
                "or --trust to run what the archive has."
            )
        cls = find_task(name)
        try:
            get_type_hints(cls.Settings)
        except (NameError, TypeError) as error:  # a name that only a type checker imports
            raise BadInput(
                f"{cls.__name__}.Settings has types that cannot be read: {error}. Import them."
            ) from None
        return cls.Settings

    return read_config(path, overrides, workload=settings)


def with_slots(config: Config, cards: int) -> Config:
    """Sets `training.micro_batch_slots`, if 0, to the most cards that divide the batch."""
    if config.training.micro_batch_slots:
        return config
    batch = config.training.effective_batch
    divisors = [number for number in range(1, cards + 1) if batch % number == 0]
    slots = max(divisors, default=1)
    return with_changes(config, {"training.micro_batch_slots": slots})


def load_task(config: Config) -> Task:
    cls = find_task(config.task)
    names = config.data.dirs
    if len(names) > 1 and not cls.several:
        raise BadInput(
            f"data.dir lists {len(names)} folders, and {cls.__name__} reads one. Name one, or their "
            "parent; a task of your own takes them with `several = True`."
        )
    if config.training.start_from_baseline and not hasattr(cls, "features"):
        raise BadInput(
            f"training.start_from_baseline is for tasks on Supervised, and {cls.__name__} is none."
        )
    paths = [locate_data(name, cls.sentinels) for name in names or [""]]
    if len(paths) == 1:
        return cls(config, paths[0])
    return cls(config, [path for path in paths if path is not None])


def locate_data(data_dir: str, sentinels: tuple[str, ...]) -> Path | None:
    """Returns the folder of `data.dir`, the first mounted one with a sentinel, or None (embedded).

    "embedded" means the embedded default, whatever is mounted. In a mounted input it is the folder
    with the sentinel, or the folder `data` of one that `kaggle dataset` packed: Kaggle unpacks an
    archive to a folder of its own.
    """
    if data_dir == "embedded":
        return None
    here = platform.detect()
    if not data_dir:
        return _first_match(inputs.mounted(here), sentinels)
    folder = inputs.find_input(data_dir, here)
    is_mounted = here.input_dir in folder.parents and folder.is_dir()
    if not is_mounted:
        return folder
    if match := _first_match([folder], sentinels):
        return match
    names = {path.name for path in folder.iterdir()} - {"README.md"}
    if names == {"data"} and (folder / "data").is_dir():
        return folder / "data"
    return folder


def _first_match(places: list[Path], sentinels: tuple[str, ...]) -> Path | None:
    """Returns the first folder in `places` with a sentinel, and prints the other ones."""
    matches = inputs.search(places, sentinels) if sentinels else []
    if len(matches) > 1:
        others = ", ".join(map(printable, matches[1:6]))
        print(
            f"Data in several folders: {printable(matches[0])} is taken, not {others}. "
            "data.dir names another."
        )
    return matches[0] if matches else None


def model_on_meta(task: Task) -> nn.Module:
    """Builds a task's model without memory.

    Raises NotTraceable if it loads published weights by itself.
    """
    try:
        with torch.device("meta"):
            return task.model()
    except RuntimeError as error:
        if "`from_pretrained` with a meta device" not in str(error):
            raise
        raise NotTraceable(
            f"{type(task).__name__}.model() calls from_pretrained ({place_of(error)}) where shapes "
            "alone are needed. Write self.pretrained(FOLDER_OR_NAME, AutoModel), with your own class."
        ) from None
