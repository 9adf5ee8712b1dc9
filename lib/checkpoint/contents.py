"""Validates the content of an untrusted checkpoint."""

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lib import untrusted
from lib.checkpoint import Checkpoint, DamagedCheckpoint
from lib.errors import BadInput
from lib.untrusted import Natural, shown

# prefixes of DistributedDataParallel and of torch.compile
_PREFIXES = re.compile(r"(^|\.)((module|_orig_mod)\.)+")


@dataclass
class _Best:
    step: Natural
    metric: str
    value: float


@dataclass
class _Plateau:
    lr: float
    waited: Natural
    best: float | None


@dataclass
class _Stopping:
    waited: Natural
    best_step: Natural
    best: float | None


@dataclass(kw_only=True)
class Names:
    """The entries of a state on weights and learned values; earlier versions have none."""

    trained: dict[str, str] = field(default_factory=dict)
    frozen: dict[str, str] = field(default_factory=dict)
    published: dict[str, dict] = field(default_factory=dict)
    learned: dict = field(default_factory=dict)


@dataclass(kw_only=True)
class _State(Names):
    identity: dict
    kept_best: list[_Best]
    pending: dict[str, Any]
    scaler: dict
    skipped_steps: Natural
    skipped_in_a_row: Natural
    micro_batch: Natural
    rows: Natural = 0
    validation_due: bool = False
    plateau: _Plateau | None = None
    stopping: _Stopping = field(default_factory=lambda: _Stopping(0, 0, None))


def plain(name: str) -> str:
    """Returns a weight's name without the prefixes of wrappers, anywhere in the name."""
    return _PREFIXES.sub(r"\1", name)


def check(checkpoint: Checkpoint) -> None:
    """Raises DamagedCheckpoint if no configuration can resume from a checkpoint."""
    state = parsed(checkpoint.state, _State)
    _expect(state.micro_batch > 0, "micro_batch in state.json is 0")
    for name, value in state.pending.items():
        _expect(_is_pending(name, value), f"pending in state.json has {shown({name: value})}")
    _check_tensors(checkpoint.tensors)


def parsed(state: dict[str, Any], kind: type[untrusted.T]) -> untrusted.T:
    """Returns the state of a checkpoint, or a part of it, by type. Raises DamagedCheckpoint."""
    try:
        return untrusted.parse(state, kind)
    except BadInput as error:
        raise DamagedCheckpoint(f"in state.json {error}") from None


def _check_tensors(groups: dict[str, dict[str, Tensor]]) -> None:
    """Raises DamagedCheckpoint if optimizer or average do not fit the model."""
    _expect("model" in groups, "it has no model.safetensors")
    shapes = {name: value.shape for name, value in groups["model"].items()}
    averaged = groups.get("ema", {})
    for name, value in averaged.items():
        expected = shapes.get(plain(name), value.shape)  # tied weights have one name
        fits = value.shape == expected
        _expect(fits, f"{shown(name)} of ema.safetensors has not the shape of its weight")
    for key, value in groups.get("optimizer", {}).items():
        kind, _, name = key.partition("/")
        shape: tuple[int, ...] = shapes.get(plain(name), value.shape)
        if kind == "step":
            shape = ()
        fits = name != "" and value.is_floating_point() and value.shape == shape
        _expect(fits, f"{shown(key)} of optimizer.safetensors is no state of a weight")
        _expect("ema" not in groups or name in averaged, f"{shown(name)} is not in ema.safetensors")


def _is_pending(name: str, value: Any) -> bool:
    """Returns whether a value of `pending` is a number, or has the type of its two other names."""
    if name == "order of terms":
        return untrusted.fits(value, list[str])
    if name != "figures":
        return untrusted.fits(value, float)
    if not untrusted.fits(value, list[dict[str, list]]):
        return False
    return all(_is_sum(figure) for figures in value for figure in figures.values())


def _is_sum(figure: list[Any]) -> bool:
    """Returns whether a figure is [a sum, its samples]; numbers that JSON lacks, such as nan, are text."""
    if len(figure) != 2:
        return False
    total, samples = figure
    if not untrusted.fits(samples, Natural) or samples == 0:
        return False
    if isinstance(total, str) and len(total) < 30:
        with contextlib.suppress(ValueError):
            return isinstance(float(total), float)
    return untrusted.fits(total, float)


def _expect(fits: bool, sentence: str) -> None:
    if not fits:
        raise DamagedCheckpoint(sentence)
