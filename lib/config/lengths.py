"""Turns lengths in epochs into steps, once the number of samples is known."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

from lib.config import Config
from lib.config.reader import length_pairs
from lib.errors import BadInput


def resolve_lengths(config: Config, samples: int) -> tuple[Config, list[str]]:
    """Returns a configuration with every length in steps, and a line for each. Raises BadInput without samples."""
    if samples < 1:
        raise BadInput("There are no training samples. Look at data.dir and at data.subset_ratio.")
    batch, lines = config.training.effective_batch, list[str]()

    def in_steps(value: Any, path: str) -> Any:
        if isinstance(value, tuple):
            return tuple(in_steps(item, f"{path}[{i}]") for i, item in enumerate(value))
        if isinstance(value, dict):
            return {name: in_steps(item, f"{path}.{name}") for name, item in value.items()}
        if not dataclasses.is_dataclass(value):
            return value
        prefix = f"{path}." if path else ""
        changes = {f.name: in_steps(getattr(value, f.name), prefix + f.name) for f in dataclasses.fields(value)}
        for epochs, steps in length_pairs(type(value)):  # type: ignore[arg-type]
            if length := getattr(value, epochs):
                # A fraction of the decimal digits: in binary 1.1 epochs of 10 samples would be a little more than 11
                changes |= {epochs: 0.0, steps: max(1, math.ceil(Fraction(repr(length)) * samples / batch))}
                count = f"{prefix}{steps} {changes[steps]:,} (samples {samples:,}, effective batch {batch:,})"
                lines.append(f"{prefix}{epochs} {length:g} -> {count}")
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]

    return in_steps(config, ""), lines
