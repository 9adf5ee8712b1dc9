"""Tables of docs/configuration.md: every key with its default and its sentence, profiles, stages and variables."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from lib.config import Config, environment, profiles
from lib.config.reader import described, keys
from lib.machine.facts import CARDS
from lib.task import find_task

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = {"minimum": ">= {:g}", "above": "> {:g}", "maximum": "<= {:g}", "below": "< {:g}"}
SHORT = {
    "a whole number": "integer",
    "a section of key: value lines": "mapping",
    "one of ": "",
    "a ": "",
}


def table(head: list[str], rows: list[list[str]]) -> str:
    first, *lines = (
        " | ".join(cell.replace("|", "\\|") for cell in line) for line in (head, *rows)
    )
    return f"| {first} |\n|{'---|' * len(head)}\n" + "".join(f"| {line} |\n" for line in lines)


def takes(field: dataclasses.Field, expected: Any) -> str:
    """Returns the type of a key where its default does not show it, and bounds other than that of a count."""
    bounds = [
        words.format(field.metadata[name])
        for name, words in BOUNDS.items()
        if field.metadata.get(name, 0)
    ]
    shown = expected in (bool, int, float, str) or default(field).startswith("`[")
    text = "" if shown else described(expected)
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return ", ".join([*filter(None, [text]), *(bound for bound in bounds if bound != ">= 1")])


def default(field: dataclasses.Field) -> str:
    value = (
        field.default_factory()
        if field.default_factory is not dataclasses.MISSING
        else field.default
    )
    if value is dataclasses.MISSING:
        return "must be given"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if value in ("", (), {}, None):
        return "empty"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


def rows(cls: type, prefix: str) -> Iterator[list[str]]:
    """Yields key, default with what else it takes, and sentence, of the sections inside too."""
    hints = get_type_hints(cls)
    for field in keys(cls):
        name, expected = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(expected):
            yield from rows(expected, f"{name}.")
        elif expected is not Any:
            text = " ".join(field.metadata.get("help", "").split())
            value = " ".join(
                [default(field), *(f"({more})" for more in [takes(field, expected)] if more)]
            )
            yield [f"`{name}`", value, text]


HEAD = ["key", "default (takes)", "meaning"]


def all_keys() -> str:
    """Returns a table for each section of a configuration, and one for the keys outside of sections."""
    hints = get_type_hints(Config)
    sections = {
        f.name: hints[f.name] for f in keys(Config) if dataclasses.is_dataclass(hints[f.name])
    }
    top = [row for row in rows(Config, "") if "." not in row[0]]
    parts = ["### At the top\n\n" + table(HEAD, top)]
    for name, cls in sections.items():
        parts.append(f"### {name}\n\n{cls.__doc__}\n\n" + table(HEAD, list(rows(cls, f"{name}."))))
    return "\n" + "\n".join(parts) + "\n"


def workloads() -> str:
    """Returns a table of the `workload:` keys of each workload."""
    names = sorted(path.parent.name for path in ROOT.glob("workloads/*/settings.py"))
    parts = [
        f"### {name}\n\n" + table(HEAD, list(rows(find_task(name).Settings, "workload.")))
        for name in names
    ]
    return "\n" + "\n".join(parts) + "\n"


def memory_profiles() -> str:
    """Returns what each profile sets where there is a GPU."""
    lines = []
    for name in profiles.names():
        settings = profiles.settings(name)
        lines.append(
            [f"`{name}`", ", ".join(f"`{key}: {_yaml(value)}`" for key, value in settings.items())]
        )
    return table(["profile", "sets"], lines)


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return f"{value}".lower()
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def cards() -> str:
    return ", ".join(f"`{name}`" for name in CARDS) + "\n"


def variables() -> str:
    """Returns the environment variables that a person may set, with the comment behind each."""
    text = Path(environment.__file__).read_text("utf-8")
    found = []
    for node in ast.parse(text).body[:4]:  # the first paragraph; this program sets the others
        if isinstance(node, ast.Assign):
            found.append(
                [f"`{node.value.value}`", text.splitlines()[node.lineno - 1].partition("  # ")[2]]
            )
    return table(["variable", "meaning"], found)


TABLES = {
    "keys": all_keys,
    "workloads": workloads,
    "profiles": memory_profiles,
    "card-names": cards,
    "variables": variables,
}
