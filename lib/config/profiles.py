"""Memory profiles: batches, precision, data and saves that go together, as a pure function of the configuration."""

from collections.abc import Mapping

from lib.config import Config, with_changes
from lib.config.reader import flat, other_unit

# What each profile sets. None is put in by `_settings`, because it depends on the configuration or on the machine.
_PROFILES: dict[str, dict[str, object]] = {
    # 0: as the plan for the card says
    "auto": {"training.micro_batch": 0, "training.gradient_checkpointing": 0, "training.precision": "auto"},
    "optimized": {"training.micro_batch": 8, "training.effective_batch": 16, "training.precision": "fp16"},
    "ultra_low": {
        "training.micro_batch": 4,
        "training.effective_batch": 16,
        "training.precision": "fp16",
        "data.num_workers": 0,
        "checkpoint.every_epochs": 1.0,
    },
    "prototype": {
        "data.subset_ratio": 0.1,
        "training.epochs": 2.0,
        "checkpoint.keep_last": 0,
        "checkpoint.keep_best": 0,
        "checkpoint.every_minutes": 0.0,
    },
    "max_quality": {
        "training.micro_batch": 16,
        "training.effective_batch": 16,
        "checkpoint.keep_last": None,
        "checkpoint.lightweight": False,
    },
}


def apply(config: Config, has_gpu: bool) -> tuple[Config, list[str]]:
    """The configuration with its `memory.profile` worked in, and a line for every key that it changed or left.

    What a person gave as an override stays. The result has an empty profile, so that the config.yaml that it becomes
    means the same when it is loaded again.
    """
    profile = config.memory.profile
    if not profile:
        return config, []
    wanted = _settings(profile, config, has_gpu)
    kept = {key for key in wanted if _is_overridden(key, config)}
    changes = {key: value for key, value in wanted.items() if key not in kept}
    new = with_changes(config, {**changes, "memory.profile": ""})
    return new, _lines(profile, flat(config), flat(new), sorted(kept), has_gpu)


def _settings(profile: str, config: Config, has_gpu: bool) -> dict[str, object]:
    """The dotted keys of a profile and their values for this configuration, on this machine."""
    wanted = dict(_PROFILES[profile])
    if wanted.get("training.precision") == "fp16" and not has_gpu:
        wanted["training.precision"] = "auto"
    if "checkpoint.keep_last" in wanted and wanted["checkpoint.keep_last"] is None:
        wanted["checkpoint.keep_last"] = max(2, config.checkpoint.keep_last)  # whole checkpoints, with one in reserve
    return wanted


def _is_overridden(key: str, config: Config) -> bool:
    """Whether a person gave the key, the section around it, or the other form of the same length."""
    section, _, name = key.rpartition(".")
    keys = {key, f"{section}.{other_unit(name)}", section}
    return bool(keys & config.overridden)


def _lines(
    profile: str, old: Mapping[str, object], new: Mapping[str, object], kept: list[str], has_gpu: bool
) -> list[str]:
    changed = [key for key in new if old[key] != new[key] and key != "memory.profile"]
    lines = [f"memory.profile {profile}: {key} {_shown(old[key])} -> {_shown(new[key])}" for key in changed]
    lines += [f"memory.profile {profile}: {key} stays {_shown(new[key])}, which was given as override" for key in kept]
    if _PROFILES[profile].get("training.precision") == "fp16" and not has_gpu and "training.precision" not in kept:
        lines.append(f"memory.profile {profile}: precision is auto instead of fp16, because there is no GPU")
    return lines or [f"memory.profile {profile}: the configuration has these numbers already"]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
