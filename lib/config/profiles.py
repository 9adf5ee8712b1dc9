"""Memory profiles: batches, precision, data and saves that go together, as a pure function of the configuration."""

from lib.config import Config, with_changes
from lib.config.reader import flat, other_unit

# What each promises (docs/troubleshooting.md). 0: as the plan for the card says
_PROFILES: dict[str, dict[str, object]] = {
    "auto": {"training.micro_batch": 0, "training.gradient_checkpointing": 0, "training.precision": "auto"},
    "optimized": {
        "training.micro_batch": 8, "training.effective_batch": 16, "training.precision": "fp16",
        "checkpoint.lightweight": True,
    },
    "ultra_low": {
        "training.micro_batch": 4, "training.effective_batch": 16, "training.precision": "fp16",
        "data.num_workers": 0,
    },
    "prototype": {
        "data.subset_ratio": 0.1, "training.epochs": 2.0,
        "checkpoint.keep_last": 0, "checkpoint.keep_best": 0, "checkpoint.every_minutes": 0.0,
    },
    "max_quality": {
        "training.micro_batch": 16, "training.effective_batch": 16, "training.precision": "fp16",
        "checkpoint.lightweight": False,
    },
}  # fmt: skip
_RARELY_MINUTES = 15.0  # between the saves of ultra_low: three times the default


def names() -> tuple[str, ...]:
    """Returns the profiles that there are."""
    return tuple(_PROFILES)


def apply(config: Config, has_gpu: bool) -> tuple[Config, list[str]]:
    """Returns the configuration with its `memory.profile` applied, and a line for every key that it changed or left.

    Overrides win over the profile. The result has an empty profile, so the config.yaml that it becomes means the same
    when it is loaded again. Raises BadInput where the profile contradicts another key.
    """
    profile = config.memory.profile
    if not profile:
        return config, []
    settings = _settings(profile, config)
    left = sorted(key for key in settings if _forms(key) & config.overridden)
    changes = {key: value for key, value in settings.items() if key not in left} | {"memory.profile": ""}
    without_fp16 = changes.get("training.precision") == "fp16" and not has_gpu
    if without_fp16:
        changes["training.precision"] = "auto"
    new = with_changes(config, changes)
    old, values = flat(config), flat(new)
    changed = [key for key in values if old[key] != values[key] and key != "memory.profile"]
    lines = [f"{key} {_shown(old[key])} -> {_shown(values[key])}" for key in changed]
    lines += [f"{key} stays {_shown(values[key])}, which was given as override" for key in left]
    if without_fp16:
        lines.append("precision is auto instead of fp16, because there is no GPU")
    lines = lines or ["the configuration has these numbers already"]
    return new, [f"memory.profile {profile}: {line}" for line in lines]


def _settings(profile: str, config: Config) -> dict[str, object]:
    """Returns what a profile sets in a configuration, the keys that depend on its own values included."""
    settings, saves = dict(_PROFILES[profile]), config.checkpoint
    if profile == "max_quality":  # whole checkpoints, with one in reserve
        settings["checkpoint.keep_last"] = max(2, saves.keep_last)
    if profile == "ultra_low" and (saves.every_minutes or saves.every_steps or saves.every_epochs):
        # By time alone: an epoch of little data ends sooner than any number of minutes
        settings |= {"checkpoint.every_minutes": max(_RARELY_MINUTES, saves.every_minutes)}
        settings |= {"checkpoint.every_steps": 0, "checkpoint.every_epochs": 0.0}
    return settings


def _forms(key: str) -> set[str]:
    """Returns the key, the other form of the same length, and the section around it."""
    section, _, name = key.rpartition(".")
    return {key, f"{section}.{other_unit(name)}", section}


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
