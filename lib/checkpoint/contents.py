"""Validates the content of an untrusted checkpoint."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lib import untrusted
from lib.checkpoint import Checkpoint, DamagedCheckpoint
from lib.checkpoint.weights import plain
from lib.errors import BadInput
from lib.untrusted import Natural, shown


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
class _Names:
    """What a state names of trained, frozen and published weights; nothing in an earlier version."""

    trained: dict[str, str] = field(default_factory=dict)
    frozen: dict[str, str] = field(default_factory=dict)
    published: dict[str, dict] = field(default_factory=dict)


@dataclass(kw_only=True)
class _State(_Names):
    identity: dict
    kept_best: list[_Best]
    pending: dict[str, Any]
    scaler: dict
    skipped_steps: Natural
    skipped_in_a_row: Natural
    micro_batch: Natural
    rows: Natural = 0
    plateau: _Plateau | None = None
    stopping: _Stopping = field(default_factory=lambda: _Stopping(0, 0, None))


def check(checkpoint: Checkpoint) -> None:
    """Raises DamagedCheckpoint where no run can resume from a checkpoint, whatever its configuration."""
    state = _parsed(checkpoint.state, _State)
    _expect(state.micro_batch > 0, "micro_batch in state.json is 0")
    for name, value in state.pending.items():
        _expect(_is_sum(name, value), f"pending in state.json has {shown({name: value})}")
    _check_tensors(checkpoint.tensors)


def check_names(state: dict[str, Any]) -> None:
    """Raises DamagedCheckpoint where trained, frozen and published weights are not by their names."""
    _parsed(state, _Names)


def _parsed(state: dict[str, Any], kind: type[untrusted.T]) -> untrusted.T:
    try:
        return untrusted.parse(state, kind)
    except BadInput as error:
        raise DamagedCheckpoint(f"in state.json {error}") from None


def _check_tensors(groups: dict[str, dict[str, Tensor]]) -> None:
    """Raises DamagedCheckpoint where optimizer or average are not those of the model."""
    _expect("model" in groups, "it has no model.safetensors")
    shapes = {name: value.shape for name, value in groups["model"].items()}
    for name, value in groups.get("ema", {}).items():
        fits = value.shape == shapes.get(plain(name), value.shape)
        _expect(fits, f"{shown(name)} of ema.safetensors has not the shape of its weight")
    for key, value in groups.get("optimizer", {}).items():
        kind, _, name = key.partition("/")
        whole = shapes.get(plain(name), value.shape)  # of tied weights one name is in a model
        is_state = name != "" and value.is_floating_point()
        _expect(is_state, f"{shown(key)} of optimizer.safetensors is no state of an optimizer")
        fits = tuple(value.shape) == (() if kind == "step" else tuple(whole))
        _expect(fits, f"{shown(key)} of optimizer.safetensors has not the shape of its weight")
        averaged = "ema" not in groups or name in groups["ema"]
        _expect(averaged, f"{shown(name)} is in optimizer.safetensors and not in ema.safetensors")


def _is_sum(name: str, value: Any) -> bool:
    """Returns whether a value of `pending` is a number, or what its three other names hold ("rested": earlier runs)."""
    if name == "order of terms":
        return untrusted.fits(value, list[str])
    if name == "rested":
        return untrusted.fits(value, dict[str, Natural])
    if name != "figures":
        return untrusted.fits(value, float)
    is_by_rank = untrusted.fits(value, list[dict[str, list]])
    return is_by_rank and all(_is_total(facts) for figures in value for facts in figures.values())


def _is_total(facts: list[Any]) -> bool:
    """Returns whether it is [numbers that are added, a number or null, samples]; one that JSON lacks is text."""
    if len(facts) != 3 or not untrusted.fits(facts[2], Natural) or facts[2] == 0:
        return False
    numbers = [*facts[0], facts[1]] if isinstance(facts[0], list) else facts[:2]
    return all(untrusted.fits(number, float | None) or _is_text_of_number(number) for number in numbers)


def _is_text_of_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(value) < 30 and isinstance(float(value), float)
    except ValueError:
        return False


def _expect(fits: bool, sentence: str) -> None:
    if not fits:
        raise DamagedCheckpoint(sentence)
