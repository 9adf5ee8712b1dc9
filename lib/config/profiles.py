"""Memory profiles: overlays with batches, precision, data and saves that go together."""

from pathlib import Path

import yaml

from lib.config import Config, differences, with_changes
from lib.config.reader import other_unit

KEY = "memory.profile"
_OVERLAYS = Path(__file__).with_name("overlays")  # described in docs/configuration.md


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _OVERLAYS.glob("*.yaml")))


def settings(profile: str) -> dict[str, object]:
    overlay = (_OVERLAYS / f"{profile}.yaml").read_text("utf-8")
    changes: dict[str, object] = {}
    for section, values in yaml.safe_load(overlay).items():
        changes |= {f"{section}.{name}": value for name, value in values.items()}
    return changes


def apply(config: Config, has_gpu: bool) -> tuple[Config, list[str]]:
    """Applies `memory.profile`, which it clears; returns a line for every key changed, too."""
    if not (profile := config.memory.profile):
        return config, []
    changes = {KEY: "", **settings(profile)}
    for key in [key for key in changes if _is_given(key, config.overridden)]:
        del changes[key]
    lacks_fp16 = changes.get("training.precision") == "fp16" and not has_gpu
    if lacks_fp16:
        changes["training.precision"] = "auto"
    changed = with_changes(config, changes)
    pairs = differences(config, changed).items()
    lines = [f"{key} {_shown(old)} -> {_shown(new)}" for key, (old, new) in pairs if key != KEY]
    if lacks_fp16:
        lines.append("precision is auto instead of fp16, because there is no GPU")
    return changed, [f"memory.profile {profile}: {line}" for line in lines]


def _is_given(key: str, overridden: frozenset[str]) -> bool:
    """Returns whether a key, the other form of its length, or its section is an override."""
    section, _, name = key.rpartition(".")
    others = {key, f"{section}.{other_unit(name)}", section}
    return name != "profile" and not others.isdisjoint(overridden)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"
