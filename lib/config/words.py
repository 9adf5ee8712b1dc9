"""Translates other programs' names of keys and values (words.yaml), for advice and a table in docs/own.md."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def table() -> dict[str, Any]:
    """Reads the file: rows with `elsewhere`, `here` and `how` under `keys`, and `values` by dotted key."""
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def _plain(name: str) -> str:
    """Returns the last part of a name without what is only spelling: numTrainEpochs, num-train-epochs."""
    return "".join(filter(str.isalnum, name.rpartition(".")[2].lower()))


def about(name: str) -> str:
    """Returns a sentence on the key here for a name elsewhere; empty for an unknown name."""
    for row in table()["keys"]:
        if _plain(name) in map(_plain, row["elsewhere"].split()):
            keys = " and ".join(row["here"].split())
            return f"It is {f'called {keys}' if keys else 'no key'} here. {row['how']}"
    return ""


def value(key: str, text: str) -> str:
    """Returns the value here for a key's value elsewhere; empty for an unknown one."""
    values = table()["values"].get(key, {}).items()
    return next((here for here, elsewhere in values if text in elsewhere.split()), "")
