"""Memory profiles: batches, precision, data and saves that go together, as overlays of a configuration."""

from pathlib import Path

import yaml

from lib.config import Config, with_changes
from lib.config.reader import flat, other_unit

_OVERLAYS = Path(__file__).with_name("overlays")  # what each promises: docs/configuration.md


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _OVERLAYS.glob("*.yaml")))


def settings(profile: str) -> dict[str, object]:
    sections = yaml.safe_load((_OVERLAYS / f"{profile}.yaml").read_text("utf-8"))
    return {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in values.items()
    }


def apply(config: Config, has_gpu: bool) -> tuple[Config, list[str]]:
    """Applies `memory.profile`, which it clears; returns a line for every key changed, too."""
    if not (profile := config.memory.profile):
        return config, []
    changes = {"memory.profile": "", **settings(profile)}
    for key in sorted(
        changes
    ):  # given are the key, the other form of its length, or the section around it
        section, _, name = key.rpartition(".")
        if {
            key,
            f"{section}.{other_unit(name)}",
            section,
        } & config.overridden and name != "profile":
            del changes[key]
    if lacks_fp16 := changes.get("training.precision") == "fp16" and not has_gpu:
        changes["training.precision"] = "auto"
    changed = with_changes(config, changes)
    old, new = (
        {k: f"{v:g}" if isinstance(v, float) else v for k, v in flat(c).items()}
        for c in (config, changed)
    )
    differing = [key for key in new if old[key] != new[key] and key != "memory.profile"]
    lines = [f"{key} {old[key]} -> {new[key]}" for key in differing]
    lines += ["precision is auto instead of fp16, because there is no GPU"] if lacks_fp16 else []
    return changed, [f"memory.profile {profile}: {line}" for line in lines]
