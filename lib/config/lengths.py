"""Lengths in epochs, turned into steps once the number of samples is known."""

import dataclasses
import math
from fractions import Fraction
from typing import Any, TypeVar

from lib.config.reader import length_pairs
from lib.errors import BadInput

Settings = TypeVar("Settings")


def resolve_lengths(config: Settings, samples: int) -> tuple[Settings, list[str]]:
    """Turns every length of a configuration in epochs into steps, for a number of training samples.

    It also returns a line for each. Raises BadInput where there are no samples.
    """
    if samples < 1:
        raise BadInput("There are no training samples. Look at data.dir and at data.subset_ratio.")
    lines: list[str] = []
    return _in_steps(config, "", samples, config.training.effective_batch, lines), lines


def _in_steps(value: Any, path: str, samples: int, batch: int, lines: list[str]) -> Any:
    """Returns a section, or sections in a list or by name, with steps for epochs; any other value as it is."""
    if isinstance(value, tuple):
        return tuple(_in_steps(item, f"{path}[{i}]", samples, batch, lines) for i, item in enumerate(value))
    if isinstance(value, dict):
        return {name: _in_steps(item, f"{path}.{name}", samples, batch, lines) for name, item in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    prefix, changes = f"{path}." if path else "", {}
    for name in (f.name for f in dataclasses.fields(value)):
        inner = getattr(value, name)
        if dataclasses.is_dataclass(inner) or isinstance(inner, tuple | dict):
            changes[name] = _in_steps(inner, prefix + name, samples, batch, lines)
    for epochs, steps in length_pairs(type(value)):
        if length := getattr(value, epochs):
            # A fraction of the decimal digits: in binary 1.1 epochs of 10 samples would be a little more than 11
            changes |= {epochs: 0.0, steps: max(1, math.ceil(Fraction(repr(length)) * samples / batch))}
            lines.append(
                f"{prefix}{epochs} {length:g} -> {prefix}{steps} {changes[steps]:,} "
                f"(samples {samples:,}, effective batch {batch:,})"
            )
    return dataclasses.replace(value, **changes)
