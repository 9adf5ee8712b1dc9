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

_PREFIXES = re.compile(
    r"(^|\.)((module|_orig_mod)\.)+"
)  # DistributedDataParallel's and torch.compile's


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
    """What a state names of weights and of what was learned; nothing in an earlier version."""

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
    """Returns a weight's name without the prefixes of wrappers, wherever and however often they stand."""
    return _PREFIXES.sub(r"\1", name)


def check(checkpoint: Checkpoint) -> None:
    """Raises DamagedCheckpoint where no run can resume from a checkpoint, whatever its configuration."""
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
    """Raises DamagedCheckpoint where optimizer or average are not those of the model."""
    _expect("model" in groups, "it has no model.safetensors")
    shapes = {name: value.shape for name, value in groups["model"].items()}
    averaged = groups.get("ema", {})
    for name, value in averaged.items():
        fits = value.shape == shapes.get(
            plain(name), value.shape
        )  # of tied weights one name is there
        _expect(fits, f"{shown(name)} of ema.safetensors has not the shape of its weight")
    for key, value in groups.get("optimizer", {}).items():
        kind, _, name = key.partition("/")
        if kind == "step":
            shape = ()
        else:
            shape = shapes.get(plain(name), value.shape)
        fits = name != "" and value.is_floating_point() and value.shape == shape
        _expect(fits, f"{shown(key)} of optimizer.safetensors is no state of a weight")
        _expect("ema" not in groups or name in averaged, f"{shown(name)} is not in ema.safetensors")


def _is_pending(name: str, value: Any) -> bool:
    """Returns whether a value of `pending` is a number, or what its two other names hold."""
    if name == "figures":
        return untrusted.fits(value, list[dict[str, list]]) and all(
            _is_sum(f) for each in value for f in each.values()
        )
    return untrusted.fits(value, list[str] if name == "order of terms" else float)


def _is_sum(figure: list[Any]) -> bool:
    """Returns whether it is [a sum, its samples]; a number that JSON lacks is text."""
    if len(figure) != 2 or not untrusted.fits(figure[1], Natural) or figure[1] == 0:
        return False
    if isinstance(figure[0], str) and len(figure[0]) < 30:
        with contextlib.suppress(ValueError):
            return isinstance(float(figure[0]), float)
    return untrusted.fits(figure[0], float)


def _expect(fits: bool, sentence: str) -> None:
    if not fits:
        raise DamagedCheckpoint(sentence)
