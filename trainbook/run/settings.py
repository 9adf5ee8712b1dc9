"""The settings of `trainbook run`: a YAML file, the command line, or both; the command line wins."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from lib.config import Session, Tracking, option
from lib.config.files import read_text
from lib.config.reader import BAD, Reader, sentences
from lib.errors import BadInput, printable
from lib.machine import clock, platform
from trainbook.run.figures import name_of

NEWEST = re.compile(r"\{newest(?::([^}]*))?\}")
_SHELLS = {"bash", "dash", "sh", "zsh"}
_RUNNERS = {"accelerate", "python", "python3", "torchrun", "uv"}
SET = "{set}"  # the number of a set of arguments, from 0
CARD = "{card}"  # the number of a command's card, from 0
_FROM_COMMAND_LINE = ("keep", "resume", "done", "name", "output_dir")


@dataclass(frozen=True)
class Settings:
    """A training command, and the place of its checkpoints."""

    command: tuple[str, ...] = option((), "The command and its arguments.")
    keep: str = option("", "The folder of its checkpoints, from the working folder.")
    resume: str = option(
        "", "Arguments with which it resumes; {newest} is its newest checkpoint in `keep`."
    )
    done: str = option("", "A text in its output, or a file, that proves its end.")
    metrics: tuple[str, ...] = option(
        (), r"Patterns of figures in its output, such as val_acc=(\S+)."
    )
    newest: int = option(3, "How many of the newest checkpoints are copied.", minimum=1)
    also: str = option("", "A pattern of names in `keep` that are copied too, such as best*.")
    name: str = option("", "The name of the run; empty: run- and the name of its program.")
    output_dir: str = option("", "The folder for runs; empty: the platform's.")
    two_cards: Literal["", "each"] = option(
        "", "each: the command runs once for each of `sets`, as many at once as there are cards."
    )
    sets: tuple[str, ...] = option(
        (), "Arguments of each command of `two_cards: each`, such as --fold 0; {set} is its number."
    )
    torchrun: int = option(
        0, "Processes of torchrun that train together; 0: no torchrun.", minimum=0
    )
    requirements: tuple[str, ...] = option(
        (), "Packages that a push to Kaggle takes along, such as einops==0.8.1, or files of them."
    )
    inputs: dict[str, str] = option(  # noqa: RUF009 (a factory)
        dict, "Folders of data by their paths here: the OWNER/SLUG that is mounted there on Kaggle."
    )
    session: Session = field(default_factory=Session)
    tracking: Tracking = field(default_factory=Tracking)

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yields the settings that cannot be used, with a sentence on each."""
        for pattern in values.get("metrics", ()):
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                yield "metrics", f"{pattern} is no pattern of Python: {error}. Correct it."
                continue
            if groups != 1:
                yield "metrics", rf"{pattern} needs one group for the figure, such as loss=(\S+)."
        names = [name_of(pattern) for pattern in values.get("metrics", ())]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield (
                "metrics",
                f"has two patterns for {name}, the word that they begin with. Keep one.",
            )
        if values.get("resume") and not values.get("keep"):
            yield "resume", "needs `keep`, the folder of the checkpoints to resume from."
        yield from _mistakes_of_cards(values)


def _mistakes_of_cards(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sets = values.get("sets", ())
    if bool(sets) != bool(values.get("two_cards")):
        yield "two_cards", "`two_cards: each` and `sets`, a list of arguments, need each other."
    if sets and SET not in values.get("keep", ""):
        yield (
            "keep",
            f"needs {SET}: commands at the same time have a folder each, such as checkpoints/{SET}.",
        )
    if values.get("torchrun") and sets:
        yield "torchrun", "takes all cards, and `two_cards: each` gives one to a command. Keep one."
    program = Path(next(iter(values.get("command", ())), "python")).name
    if values.get("torchrun") and not program.startswith("python"):
        yield "torchrun", f"starts Python programs, and the command begins with {program}."


def read(
    config: str,
    given: Mapping[str, Any],
    command: Sequence[str],
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads the settings of a YAML file, if any, and of the command line. Raises BadInput.

    `overrides` are by dotted keys, such as session.minutes.
    """
    reader = Reader({})
    name = config or "the command line"
    text = read_text(Path(config)) if config else "{}"
    root = reader.root(text, name, "Give at least a command.")
    changes = {key: given[key] for key in _FROM_COMMAND_LINE if given.get(key)}
    if given.get("metrics"):
        changes["metrics"] = tuple(given["metrics"])
    if command:
        changes["command"] = tuple(command)
    changes |= overrides or {}
    for key, value in changes.items():
        reader.override(root, key, value)
    reader.known = [*sentences(Settings)]
    settings = reader.section(Settings, root, "")
    if settings is not BAD and not settings.command:
        reader.report(
            root, "There is no command. Write it behind --: trainbook run -- python train.py"
        )
    reader.finish()
    return replace(settings, name=settings.name or _name(config, settings.command))


def _name(config: str, command: Sequence[str]) -> str:
    """Returns the name of a run: its file's, otherwise its program's."""
    if config:
        return Path(config).stem
    words = [
        Path(word).stem
        for word in command
        if not word.startswith("-") and Path(word).name not in _SHELLS | _RUNNERS
    ]
    program = words[0] if words else Path(command[0]).stem
    return f"run-{re.sub(r'[^A-Za-z0-9_.-]+', '-', program).strip('-.')}"


def as_yaml(chosen: Settings) -> str:
    values = asdict(chosen)
    lists = {key: [*value] for key, value in values.items() if isinstance(value, tuple)}
    return yaml.safe_dump({**values, **lists}, sort_keys=False)


def deadline_of(chosen: Settings) -> float:
    """Returns the Unix time at which the session is over; infinity without a limit."""
    limit = chosen.session.minutes or platform.detect().session_minutes
    start = clock.session_start(chosen.session.minutes)
    return start + 60 * limit if limit else float("inf")


def parts(chosen: Settings) -> list[Settings]:
    """Returns the commands of `two_cards: each`, each a separate run; {card} is filled at its start."""
    runs = []
    for number, arguments in enumerate(chosen.sets):

        def filled(text: str, number: int = number) -> str:
            return text.replace(SET, str(number))

        command = (*map(filled, chosen.command), *_words(filled(arguments), "sets"))
        run = replace(
            chosen,
            name=f"{chosen.name}-{number}",
            command=command,
            keep=filled(chosen.keep),
            done=filled(chosen.done),
            resume=filled(chosen.resume),
            two_cards="",
            sets=(),
        )
        runs.append(run)
    return runs


def resume_arguments(resume: str, keep: Path, newest: Mapping[str, str | None]) -> list[str]:
    """Returns the arguments with which the command resumes; none without a checkpoint.

    `newest` has the newest checkpoint in `keep` by the pattern of each {newest}.
    """
    if not resume or any(newest[pattern] is None for pattern in patterns_of(resume)):
        return []

    def path(match: re.Match[str]) -> str:
        return str(keep / str(newest[match[1] or ""]))

    return [NEWEST.sub(path, word) for word in _words(resume)]


def patterns_of(resume: str) -> list[str]:
    return [match[1] or "" for match in NEWEST.finditer(resume)] or [""]


def _words(text: str, key: str = "resume") -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadInput(
            f"{key} cannot be read ({printable(error)}): {printable(text)}. Close its quotes."
        ) from None


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments before `--` and the command behind it.

    An option takes what follows as its value even if that begins with a dash: --resume "--resume".
    """
    own, command = arguments, []
    if "--" in arguments:
        place = arguments.index("--")
        own, command = arguments[:place], arguments[place + 1 :]
    joined: list[str] = []
    waiting = ""
    for argument in own:
        if waiting:
            joined.append(f"{waiting}={argument}")
            waiting = ""
        elif argument.startswith("--") and "=" not in argument and argument != "--help":
            waiting = argument
        else:
            joined.append(argument)
    return [*joined, *([waiting] if waiting else [])], command
