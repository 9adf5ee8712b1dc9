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
    root: Path  # the folder that `configs` of the notebook stands for
    name: str  # of the configuration below `configs`, without an ending
    config: Config
    task: type[Task]
    files: Mapping[str, str]  # texts by their paths below the folder with `configs`
    packages: list[str]  # that the task's own files import
    notes: list[str]  # what the notebook will lack, in sentences


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
    name = _below(root, home / path.stem).removeprefix("configs/")
    return Own(
        path,
        root,
        name,
        config,
        find_task(config.task),
        dict(sorted(files.items())),
        packages,
        notes,
    )


def _named(path: Path, file: Path, home: Path, root: Path) -> dict[str, str]:
    place = absolute(file)
    if not is_part(file):
        raise BadInput("it is a folder or large: mount it as a data set, and name that: OWNER/NAME")
    if not place.is_relative_to(home) or (
        file.is_absolute() and str(file) in path.read_text("utf-8")
    ):
        raise BadInput("its path does not lead from the configuration's folder to a file in it")
    return {_below(root, place): carrier.read(place, path, home)}


def _checked(path: Path) -> Config:
    if not _NAME.fullmatch(path.stem) or path.suffix != ".yaml":
        what = "letters, digits, points, spaces and hyphens"
        raise BadInput(
            f"A notebook carries a configuration whose name has {what}, and .yaml at its end: not {path}."
        )
    config = load_config(path)
    if config.queue.before:
        what = f"{path} names other configurations in queue.before, which such a notebook does not carry"
        raise BadInput(
            f"{what}. Train them first, and give the folder of one as run.initial_weights."
        )
    return config


def _place_of_task(path: Path, config: Config) -> Path | None:
    """Returns where the task's file lies beside its configuration, as in the notebook; None for a task of lib."""
    if (file := file_of(config.task)) is None:
        return None
    texts = [path.read_text("utf-8"), *_bases(path).values()]
    name, _, kind = next(
        task for text in texts if (task := yaml.safe_load(text).get("task"))
    ).rpartition(":")
    place = absolute(path.parent / name)
    if Path(name).is_absolute() or place.resolve() != file:
        beside = Path(os.path.relpath(file, path.parent.resolve())).as_posix()
        what = f"{path}: the task's file is given as {name}, which a notebook on another machine would not find"
        raise BadInput(
            f"{what}. Give the path from the folder of {path.name}: task: {beside}:{kind}"
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
    codes = [code for name, code in own.files.items() if name.endswith(".py")]
    shipped = own.task.__module__.split(".")
    cells = [cell.source for cell in source.cells if cell.cell_type == "code"]
    tasks = shipped[1:2] if shipped[0] == "workloads" else []
    files = {
        **carrier.carried_files(own.path, tasks, [], False, [*cells, *codes], trainbook.HOME),
        **own.files,
    }
    notebook = build(
        source, files, made_from=own.path.name, commit=carrier.commit_of(trainbook.HOME)
    )
    written = libraries()[1].writes(notebook).rstrip("\n") + "\n"
    if (size := len(written.encode())) >= (limit := int(FACTS["kaggle_notebook_bytes"].value)):
        what = f"The notebook of {own.path} would have {size:,} bytes, and Kaggle has refused {limit:,}. Import less in"
        raise BadInput(
            f"{what} the task's file. The largest carried files: {carrier.largest(files)}."
        )
    return written


def _filled(own: Own, internet: bool) -> Source:
    """Returns the filled template; its title and text come from the docstring of the task's class."""
    file = file_of(own.config.task)
    words = cleandoc(own.task.__doc__ or printable(own.config.run.name))
    title, _, about = words.partition("\n\n")
    names = [name for name in own.files if file and PurePosixPath(name).name == file.name]
    values = {
        "@TITLE@": " ".join(title.split()).removesuffix("."), "@ABOUT@": about,
        "@CLASS@": own.task.__name__ if file else own.config.task,
        "@CONFIG@": own.path.name, "@NAME@": own.name,
        "@FILE@": (names or [f"configs/{own.name}.yaml"])[0].removeprefix("configs/"),
        "@COMMAND@": f"`trainbook notebook {own.path.name}`",
    }  # fmt: skip
    source = read_source(TEMPLATE, "queue" if has_queue(own.path, own.config) else "run")
    for cell in source.cells:
        for placeholder, value in values.items():
            cell.source = cell.source.replace(placeholder, value)
        if own.packages and has_tag(cell, "dependencies"):
            packages = ", ".join(map(json.dumps, own.packages))
            checked = cell.source.replace("ensure()", "ensure(dependencies.with_own(OWN))")
            assigned = f"OWN = [{packages}]  # what the files of this training import\n\nprint("
            cell.source = checked.replace("print(", assigned)
    return replace(
        source, path=Path(f"{own.path.stem}.py"), header=replace(source.header, internet=internet)
    )
