"""Loads trained models of an untrusted archive or an output folder, and applies them to new data."""

import contextlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from lib import checkpoint, untrusted
from lib.checkpoint import Checkpoint, weights
from lib.config import Config
from lib.config.files import read_text
from lib.config.reader import Reader, child
from lib.errors import BadInput, printable
from lib.machine import memory
from lib.task import Task, find_task, load_config, model_on_meta
from lib.task.files import label
from lib.training.learned import restored
from lib.training.order import INITIALISE, mix
from lib.training.summary import Summary
from trainbook.launch import together
from trainbook.launch.run import CODE
from trainbook.outputs import packing
from trainbook.supervised import kinds, prediction, submission
from trainbook.supervised.expected import Expected
from trainbook.supervised.expected import read as expected_of
from trainbook.supervised.task import Supervised

_MOST_RUNS = 1000
_ROOM = 10**6  # numbers that a model may have beyond twice those saved: tied weights are saved once
# In a run's folder, at the top or one below it.
_WANTED = re.compile(
    r"([^/]{1,200}/)?(config\.yaml|summary\.json|expected\.json"
    r"|named/[\w.]{1,100}/\w[\w. -]{0,100}"  # small files that settings of a task name
    r"|data/\w[\w.-]{0,100}"  # files of what a task learned
    r"|best/step-[0-9]{8,18}/(manifest\.json|state\.json|[a-z_]{1,40}\.safetensors))"
)
# A task's own files
_CODE = re.compile(r"([^/]{1,200}/)?code/([\w-]{1,100}/){0,8}[\w. -]{1,100}\.py")
_MOST_MEMBERS = 20_000
_MOST_RATIO = 100  # weights hardly shrink; text shrinks to a tenth


def run(
    archive: Path,
    source: Path,
    out: Path,
    sample: Path | None = None,
    id_column: str = "",
    answer: str = "",
    **options: Any,
) -> str:
    """Predicts all of `source` with an archive's models, into `out`; returns a line. Options are of `load_members`.

    With a `sample` submission `out` has one in its form; `answer` is "network" or "simple", where a run has both.
    Raises BadInput.
    """
    if sample is not None and not sample.is_file():
        raise BadInput(f"There is no file {printable(sample)}. Give a sample submission.")
    is_trusted = options.get("trusted", False)
    with _runs(archive, is_trusted) as runs:  # a task may import files when it predicts
        task, models = load_members(runs, **{"name": "", **options})
        prediction.choose(task, answer)
        predictions = task.predict(models, source, out)
        of_whom = "one model" if len(models) == 1 else f"{len(models)} models together"
        line = f"{len(predictions)} predictions of {of_whom} are in {out}."
        if sample is None:
            return line
        place = out / submission.FILE
        try:
            about = submission.write(task, predictions, source, sample, place, id_column)
        except BadInput as error:
            raise BadInput(f"{line} No submission was written. {error}") from None
        lines = [line, about]
        if expected := expectation(runs, task.members):
            expected.write(out)  # which `kaggle score` shows beside the score
            lines.append(str(expected))
    return "\n".join(lines)


def expectation(runs: Sequence[Path], members: Sequence[str]) -> Expected | None:
    """Returns what folds and seeds are expected to score together, of the folders `runs` those named `members`.

    None unless they are all runs of a completed queue.
    """
    for run in runs:
        if run.name in members:
            expected = expected_of(together.folder_of(run, _queue_of(run)))
            if expected and {*expected.members} == {*members}:
                return expected
    return None


def load(archive: Path, own_task: str = "", name: str = "") -> tuple[Task, list[nn.Module]]:
    """Returns task and best models of outputs.tar.gz, a run's folder or a folder of runs. Raises BadInput."""
    with contextlib.ExitStack() as unpacked:
        runs = unpacked.enter_context(_runs(archive, False))
        task, models = load_members(runs, own_task, name=name)
        # The data that the run stored is read when it predicts
        weakref.finalize(task, unpacked.pop_all().close)
    return task, models


@contextlib.contextmanager
def _runs(archive: Path, with_code: bool) -> Iterator[list[Path]]:
    """Yields the folders of the runs with best weights; an archive's folders exist until the block ends."""
    if not archive.exists():
        raise BadInput(
            f"There is no {archive}. Give outputs.tar.gz, the folder of a run, or a folder of runs."
        )
    with tempfile.TemporaryDirectory() as place:
        folder = archive if archive.is_dir() else Path(place)
        if folder is not archive:
            unpack(archive, folder, with_code)
        single = (folder / "config.yaml").is_file()
        if single:
            runs = [folder]
        else:
            runs = sorted(path.parent for path in folder.glob("*/config.yaml"))[:_MOST_RUNS]
        trained = [run for run in runs if checkpoint.steps(run / "best")]
        if not trained:
            raise BadInput(
                f"{printable(folder)} holds no run with best weights. Train one to its end first."
            )
        yield trained


def unpack(archive: Path, folder: Path, with_code: bool = False) -> None:
    """Unpacks configurations, summaries, weights and data of runs; `with_code`: tasks too. Raises BadInput."""
    with packing.opened(archive, ratio=_MOST_RATIO) as packed:
        for number, member in enumerate(packed, 1):
            if number > _MOST_MEMBERS:
                raise packing.TooMuch(f"it has more than {_MOST_MEMBERS:,} members")
            name = member.name.removeprefix("./")
            is_wanted = _WANTED.fullmatch(name) or (with_code and _CODE.fullmatch(name))
            if not is_wanted or not member.isreg() or member.issparse():
                continue
            content = packed.extractfile(member)
            if content is not None and all(map(untrusted.is_name, name.split("/"))):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("xb") as file:
                    shutil.copyfileobj(content, file)


def load_members(
    runs: Sequence[Path], own_task: str = "", trusted: bool = False, changes: Mapping[str, object] | None = None,
    name: str | None = None,
) -> tuple[Task, list[nn.Module]]:  # fmt: skip
    """Returns the task and the models of runs with their best weights, on the device. Raises BadInput if they differ.

    Files of tasks are run only if `trusted`; `own_task` gives one. `name` takes a run or a queue's folds and seeds.
    """
    if name:
        runs = _named(runs, name)
    loaded = {}
    for run in runs:
        values = dict(changes or {})
        task_of_run = own_task or (_task_in(run) if trusted else "")
        if task_of_run:
            values["task"] = task_of_run
        loaded[run] = load_config(run / "config.yaml", values, runs_files=bool(task_of_run))
    earlier = {Path(before).stem for config in loaded.values() for before in config.queue.before}
    members = {
        run: config
        for run, config in loaded.items()
        if run.name.removesuffix("-short") not in earlier
    }
    if name is not None:
        _check_together(members)
    first: Any = None  # the task of the first run
    learned: dict[str, Any] = {}
    models: list[nn.Module] = []
    for run, config in members.items():
        saved = _saved(run)
        task = find_task(config.task)(config)
        values = saved.state.get("learned", {})
        task.take_learned(restored(values, run))
        if first is None:
            first = task
            learned = values
        is_alike = task is first or (values == learned and _form(task) == _form(first))
        if not is_alike:
            _check_averaged(first, task)
        model = _model(task, saved, run)
        models.append(model)
        if not is_alike:
            first._owners = {**first._owners, models[-1]: task}
    assert first
    first.members = [run.name for run in members]
    if expected := expectation([*members], first.members):
        first._share = expected.share
    print(f"Models: {', '.join(printable(run.name) for run in members)}.")
    return first, models


def _named(runs: Sequence[Path], name: str) -> Sequence[Path]:
    """Returns the run of a name, otherwise the runs of the queue of that name. Raises BadInput."""
    for wanted in (
        [run for run in runs if run.name == name],
        [run for run in runs if _queue_of(run) == name],
    ):
        if wanted:
            return wanted
    names = ", ".join(run.name for run in runs)
    raise BadInput(f"There is no run {name} with best weights. Choose by --run: {names}.")


def _saved(run: Path) -> Checkpoint:
    """Returns the best weights of a run."""
    step = checkpoint.steps(run / "best")[-1]
    summary = Summary.read(run)
    if summary and summary.best.get("step") in checkpoint.steps(run / "best"):
        step = summary.best["step"]
    return weights.read(checkpoint.path_of(run / "best", step))


def _answers_as_supervised(task: Task) -> TypeGuard[Supervised]:
    return isinstance(task, Supervised) and type(task).predict is Supervised.predict


def _check_averaged(first: Task, task: Task) -> None:
    """Raises BadInput unless a member answers in the same classes or numbers as the first."""
    what = f"{printable(task.config.run.name)} cannot vote together with {printable(first.config.run.name)}"
    if not _answers_as_supervised(first) or not _answers_as_supervised(task):
        raise BadInput(f"{what}: their inputs or answers differ, or what they learned from data.")
    kind, other = kinds.name_of(task), kinds.name_of(first)
    if kind != other:
        raise BadInput(f"{what}: its kind is {kind!r}, and there {other!r}.")
    names = task.names
    others = first.names
    if names != others:
        listed = [", ".join(each) or "none" for each in (others, names)]
        both = " and ".join(printable(each, most=200) for each in listed)
        raise BadInput(
            f"{what}: their classes are {both}. List all classes in a setting `classes`, and train again."
        )


def _model(task: Task, saved: Checkpoint, run: Path) -> nn.Module:
    """Returns the model with a run's weights, on the device. Raises BadInput for a far larger one."""
    left_out = saved.state.get("frozen", {}).keys() - saved.tensors["model"].keys()
    task.published = saved.state.get("published", {})
    model = model_on_meta(task)
    frozen = weights.frozen(model)
    made = sum(frozen[name].numel() for name in frozen if name in left_out)
    described = sum(value.numel() for value in model.state_dict().values()) - made
    stored = sum(value.numel() for value in saved.tensors["model"].values())
    if described > 2 * stored + _ROOM:
        raise BadInput(
            f"config.yaml of {printable(run.name)} describes a model of {described:,} numbers, and its weights have "
            "fewer than half of them. They do not belong together."
        )
    with torch.random.fork_rng(devices=[]):
        seed = mix(INITIALISE, task.config.seed)  # the seed of the run's frozen weights
        torch.default_generator.manual_seed(seed)
        model = task.model()
    weights.restore(model, saved)
    return model.to(memory.device()).eval()


def _form(task: Task) -> tuple[Any, ...]:
    """Returns what models must have in common to predict together: their task, its `source` and the form of a batch."""
    example = task.example_batch(1, torch.device("cpu"))
    forms = {name: (value.dtype, value.shape) for name, value in example.items()}
    return label(task.config.task), getattr(task.config.workload, "source", None), forms


def _queue_of(run: Path) -> str:
    return re.sub(r"(-fold\d+)?(-seed\d+)?$", "", run.name)


def _check_together(members: Mapping[Path, Config]) -> None:
    """Raises BadInput for runs that are neither folds and seeds of one queue nor members of one vote."""
    experiments = set()
    for run, config in members.items():
        is_of_queue = bool(config.folds.number or config.queue.seeds)
        experiments.add((_queue_of(run) if is_of_queue else run.name, is_of_queue))
    names = [run.name for run in members]
    if len(experiments) <= 1 or _voted_together(next(iter(members)).parent, names):
        return
    choices = ", ".join(name for name, _ in sorted(experiments))
    raise BadInput(
        "Only the folds and seeds of one queue predict together, and these are "
        f"{len(experiments)} experiments: {', '.join(names)}. Choose by --run NAME: {choices}."
    )


def _voted_together(folder: Path, names: Sequence[str]) -> bool:
    for path in folder.glob("*/summary.json"):
        summary = Summary.read(path.parent)
        if summary and {*names} <= {*summary.members}:
            return True
    return False


def _task_in(run: Path) -> str:
    """Returns the task of a run, file.py:Class in its folder or "" of lib; runs nothing. Raises BadInput."""
    task = child(Reader({}).root(read_text(run / "config.yaml"), "config.yaml", ""), "task")
    file, colon, name = str(getattr(task, "value", "")).rpartition(":")
    if not colon:
        return ""
    path = run / file
    if not path.resolve().is_relative_to((run / CODE).resolve()) or not path.is_file():
        raise BadInput(
            f"The task of {printable(run.name)} is {printable(file, most=200)}:{printable(name)}, and no such file "
            f"is in its folder {CODE}. Give it here: --task file.py:Class."
        )
    return f"{path}:{name}"
