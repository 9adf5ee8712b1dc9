"""A notebook of one template that trains one configuration, with the files of its task. No notebook carries it."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import cleandoc
from pathlib import Path, PurePosixPath

import yaml

import trainbook
from lib.config import Config
from lib.config.files import absolute
from lib.errors import BadInput, printable
from lib.machine.facts import FACTS
from lib.task import Task, find_task, load_config
from lib.task.files import file_of, is_part, named_paths, own_files
from trainbook.building import carrier
from trainbook.building.source import Source, build, has_tag, libraries, read_source
from trainbook.launch.run import has_queue

TEMPLATE = Path(__file__).resolve().with_name("template.py.in")
_NAME = re.compile(r"\w[\w. -]*")  # of a file: the notebook's cells name it between quotes


@dataclass(frozen=True)
class Own:
    """What a notebook is built from."""

    path: Path
    root: Path  # the folder behind the notebook's `configs`
    name: str  # of the configuration below `configs`, without an ending
    config: Config
    task: type[Task]
    files: Mapping[str, str]  # texts by their paths below the folder with `configs`
    packages: list[str]  # that the task's own files import
    notes: list[str]  # sentences about things missing in the notebook


def read(path: Path) -> Own:
    """Reads a configuration and the files of its task. Raises BadInput."""
    config = _checked(path)
    home = absolute(path).parent
    place = _place_of_task(path, config)
    file = file_of(config.task)
    if place:
        root = Path(os.path.commonpath([home, place.parent]))
    else:
        root = home
    texts = {path.name: path.read_text("utf-8"), **_bases(path)}
    files = {_below(root, home / name): text for name, text in texts.items()}
    packages = []
    notes = []
    if place and file:
        task_files = own_files(file)
        packages = sorted(task_files.packages)
        for each in task_files.files:
            name = _below(root, place.parent / each.relative_to(task_files.folder))
            files[name] = carrier.read(each, path, each.parent)
        for key, named in named_paths(config).items():
            try:
                files |= _named(path, named, home, root)
            except BadInput as error:
                why = f"which the notebook does not carry ({str(error).rstrip('.')})."
                notes.append(f"{key} names {printable(named)}, {why}")
    return Own(
        path=path,
        root=root,
        name=_below(root, home / path.stem).removeprefix("configs/"),
        config=config,
        task=find_task(config.task),
        files=dict(sorted(files.items())),
        packages=packages,
        notes=notes,
    )


def _named(path: Path, file: Path, home: Path, root: Path) -> dict[str, str]:
    place = absolute(file)
    if not is_part(file):
        raise BadInput("it is a folder or large: mount it as a data set, and name that: OWNER/NAME")
    is_absolute_in_text = file.is_absolute() and str(file) in path.read_text("utf-8")
    if is_absolute_in_text or not place.is_relative_to(home):
        raise BadInput("its path does not lead from the configuration's folder to a file in it")
    return {_below(root, place): carrier.read(place, path, home)}


def _checked(path: Path) -> Config:
    if not _NAME.fullmatch(path.stem) or path.suffix != ".yaml":
        raise BadInput(
            "A notebook carries a configuration whose name has letters, digits, points, spaces and hyphens, and .yaml "
            f"at its end: not {path}."
        )
    config = load_config(path)
    if config.queue.before:
        raise BadInput(
            f"{path} names other configurations in queue.before, which such a notebook does not carry. "
            "Train them first, and give the folder of one as run.initial_weights."
        )
    return config


def _place_of_task(path: Path, config: Config) -> Path | None:
    """Returns the place of the task's file from its configuration; None for a task that ships.

    Raises BadInput if the notebook would not find it there.
    """
    file = file_of(config.task)
    if file is None:
        return None
    texts = [path.read_text("utf-8"), *_bases(path).values()]
    tasks = [yaml.safe_load(text).get("task") for text in texts]
    name, _, kind = next(filter(None, tasks)).rpartition(":")
    place = absolute(path.parent / name)
    if Path(name).is_absolute() or place.resolve() != file:
        beside = Path(os.path.relpath(file, path.parent.resolve())).as_posix()
        raise BadInput(
            f"{path}: the task's file is given as {name}, which a notebook on another machine would not find. "
            f"Give the path from the folder of {path.name}: task: {beside}:{kind}"
        )
    return place


def _below(root: Path, path: Path) -> str:
    return f"configs/{path.relative_to(root).as_posix()}"


def _bases(path: Path) -> dict[str, str]:
    names = carrier.BASE.findall(path.read_text("utf-8"))
    return {name: path.with_name(name).read_text("utf-8") for name in names}


def text(own: Own, internet: bool = False) -> str:
    """Returns the text of the notebook, which asks for `internet` on Kaggle or not. Raises BadInput."""
    source = _filled(own, internet)
    codes = [cell.source for cell in source.cells if cell.cell_type == "code"]
    codes += [code for name, code in own.files.items() if name.endswith(".py")]
    house, *task = own.task.__module__.split(".")
    tasks = task[:1] if house == "workloads" else []
    files = carrier.carried_files(own.path, tasks, [], False, codes, trainbook.HOME)
    files.update(own.files)
    notebook = build(
        source, files, made_from=own.path.name, commit=carrier.commit_of(trainbook.HOME)
    )
    _, nbformat = libraries()
    written = nbformat.writes(notebook).rstrip("\n") + "\n"
    size = len(written.encode())
    limit = int(FACTS["kaggle_notebook_bytes"].value)
    if size >= limit:
        raise BadInput(
            f"The notebook of {own.path} would have {size:,} bytes, and Kaggle has refused {limit:,}. Import less in "
            f"the task's file. The largest carried files: {carrier.largest(files)}."
        )
    return written


def _filled(own: Own, internet: bool) -> Source:
    """Returns the filled template; its title and text come from the docstring of the task's class."""
    file = file_of(own.config.task)
    words = cleandoc(own.task.__doc__ or printable(own.config.run.name))
    title, _, about = words.partition("\n\n")
    values = {
        "@TITLE@": " ".join(title.split()).removesuffix("."),
        "@ABOUT@": about,
        "@CLASS@": own.config.task,
        "@CONFIG@": own.path.name,
        "@NAME@": own.name,
        "@FILE@": f"{own.name}.yaml",
        "@COMMAND@": f"`trainbook notebook {own.path.name}`",
    }
    if file:
        values["@CLASS@"] = own.task.__name__
        names = [name for name in own.files if PurePosixPath(name).name == file.name]
        values["@FILE@"] = (names or [f"{own.name}.yaml"])[0].removeprefix("configs/")
    source = read_source(TEMPLATE, "queue" if has_queue(own.path, own.config) else "run")
    for cell in source.cells:
        for placeholder, value in values.items():
            cell.source = cell.source.replace(placeholder, value)
        if own.packages and has_tag(cell, "dependencies"):
            packages = ", ".join(map(json.dumps, own.packages))
            checked = cell.source.replace("ensure()", "ensure(dependencies.with_own(OWN))")
            assigned = f"OWN = [{packages}]  # what the files of this training import\n\nprint("
            cell.source = checked.replace("print(", assigned)
    header = replace(source.header, internet=internet)
    return replace(source, path=Path(f"{own.path.stem}.py"), header=header)
