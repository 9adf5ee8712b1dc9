"""Whether a checkpoint holds what a run resumes from. It may be anybody's, so nothing in it is believed before."""

from typing import Any

from torch import Tensor

from lib.checkpoint import Checkpoint, DamagedCheckpoint
from lib.checkpoint.weights import plain
from lib.errors import printable

_TYPES = {
    "identity": dict, "kept_best": list, "pending": dict, "scaler": dict,
    "skipped_steps": int, "skipped_in_a_row": int, "micro_batch": int,
}  # fmt: skip
_BEST = {"step": int, "metric": str, "value": float}


def check(found: Checkpoint) -> None:
    """Raises DamagedCheckpoint where no run can be resumed from a checkpoint, whatever its configuration."""
    state = found.state
    for name, kind in _TYPES.items():
        _expect(_is(state.get(name), kind), f"{name} in state.json is {_shown(state.get(name))}")
    _expect(_is(state.get("rows", 0), int), f"rows in state.json is {_shown(state.get('rows'))}")
    _expect(state["micro_batch"] > 0, f"micro_batch in state.json is {state['micro_batch']}")
    for best in state["kept_best"]:
        fits = isinstance(best, dict) and all(_is(best.get(name), kind) for name, kind in _BEST.items())
        _expect(fits, f"kept_best in state.json has {_shown(best)}")
    for name, value in state["pending"].items():
        _expect(_is_sum(name, value), f"pending in state.json has {_shown({name: value})}")
    check_names(state)
    plateau = state.get("plateau")
    if plateau is not None:
        fits = isinstance(plateau, dict) and _is(plateau.get("lr"), float) and _is(plateau.get("waited"), int)
        fits = fits and "best" in plateau and (plateau["best"] is None or _is(plateau["best"], float))
        _expect(fits, f"plateau in state.json is {_shown(plateau)}")
    _check_options(state)
    _check_tensors(found.tensors)


def _check_options(state: dict[str, Any]) -> None:
    """Raises DamagedCheckpoint for odd facts that only some runs have: groups, players, and an early stop."""
    groups = state.get("groups", [])
    fits = isinstance(groups, list) and all(
        isinstance(one, dict) and _are_names(one.get("parameters")) for one in groups
    )
    _expect(fits, f"groups in state.json is {_shown(groups)}")
    scalers = state.get("scalers", {})
    fits = isinstance(scalers, dict) and all(isinstance(one, dict) for one in scalers.values())
    _expect(fits, f"scalers in state.json is {_shown(scalers)}")
    if "stopping" in state:
        facts = state["stopping"]
        fits = isinstance(facts, dict) and _is(facts.get("waited"), int) and _is(facts.get("best_step"), int)
        fits = fits and "best" in facts and (facts["best"] is None or _is(facts["best"], float))
        _expect(fits, f"stopping in state.json is {_shown(facts)}")


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def check_names(state: dict[str, Any]) -> None:
    """Raises DamagedCheckpoint where what a state says of trained, frozen and published weights is not by their names.

    A checkpoint of an earlier version says nothing of them.
    """
    for name in ("trained", "frozen", "published"):
        named = state.get(name, {})
        kind = dict if name == "published" else str
        fits = isinstance(named, dict) and all(isinstance(value, kind) for value in named.values())
        _expect(fits, f"{name} in state.json is {_shown(named)}")


def _check_tensors(groups: dict[str, dict[str, Tensor]]) -> None:
    """Raises DamagedCheckpoint where optimizer or average are not those of the model."""
    _expect("model" in groups, "it has no model.safetensors")
    shapes = {name: value.shape for name, value in groups["model"].items()}
    for name, value in groups.get("ema", {}).items():
        fits = value.shape == shapes.get(plain(name), value.shape)
        _expect(fits, f"{_shown(name)} of ema.safetensors has not the shape of its weight")
    for key, value in groups.get("optimizer", {}).items():
        kind, _, name = key.partition("/")
        whole = shapes.get(plain(name), value.shape)  # of tied weights one name is in a model
        is_state = name != "" and value.is_floating_point()
        _expect(is_state, f"{_shown(key)} of optimizer.safetensors is no state of an optimizer")
        fits = tuple(value.shape) == _shape_of_state(kind, tuple(whole))
        _expect(fits, f"{_shown(key)} of optimizer.safetensors has not the shape of its weight")
        averaged = "ema" not in groups or name in groups["ema"]
        _expect(averaged, f"{_shown(name)} is in optimizer.safetensors and not in ema.safetensors")


def _shape_of_state(kind: str, weight: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a state of a weight of this shape; adafactor's have one number along an axis."""
    if kind == "step":
        return ()
    if kind in ("row_var", "col_var") and len(weight) > 1:
        return (*weight[:-1], 1) if kind == "row_var" else (*weight[:-2], 1, weight[-1])
    return weight


def _is_sum(name: str, value: Any) -> bool:
    """Whether a value of `pending` is a number, or what "figures", "rested" and "order of terms" are."""
    if name == "order of terms":
        return _are_names(value)
    if name == "rested":
        return isinstance(value, dict) and all(_is(steps, int) for steps in value.values())
    if name != "figures":
        return _is(value, float)
    if isinstance(value, dict):  # of an earlier version
        return all(
            isinstance(pair, list) and len(pair) == 2 and (pair[0] is None or _is(pair[0], float)) and _is(pair[1], int)
            for pair in value.values()
        )
    return isinstance(value, list) and all(
        isinstance(of_rank, dict) and all(map(_is_total, of_rank.values())) for of_rank in value
    )


def _is_total(facts: Any) -> bool:
    """Whether it is [numbers that are added, a number or null, samples]; one that JSON lacks is text."""
    if not (isinstance(facts, list) and len(facts) == 3 and _is(facts[2], int) and facts[2] > 0):
        return False
    exact, own = facts[:2]
    fits = all(_is(one, float) for one in exact) if isinstance(exact, list) else _is_text_of_number(exact)
    return fits and (own is None or _is(own, float) or _is_text_of_number(own))


def _is_text_of_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(value) < 30 and isinstance(float(value), float)
    except ValueError:
        return False


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and abs(value) < 1e300
    return type(value) is kind and (kind is not int or 0 <= value < 10**18)


def _expect(fits: bool, sentence: str) -> None:
    if not fits:
        raise DamagedCheckpoint(sentence)


def _shown(value: object) -> str:
    return printable(repr(value), most=60)
