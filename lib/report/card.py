"""card.json: what a run met on its GPU, beside what its plan predicted."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.machine.memory import GIB

FILE = "card.json"
_MOST_BYTES = 2**20
_NEAR = 0.1  # of the predicted peak


@dataclass(frozen=True)
class Predicted:
    """What a plan says of a run as it is configured; without one all is 0."""

    micro_batch: int = 0
    peak_bytes: int = 0
    step_seconds: list[float] = field(default_factory=list)  # at best and at worst


@dataclass(frozen=True)
class Card:
    """A GPU, and what a session measured on it. `clocks` are in MHz and degrees, where the driver answers."""

    gpu: str = ""
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    run: str = ""
    world_size: int = 1
    precision: str = ""
    micro_batch: int = 0
    steps: int = 0
    peak_bytes: int = 0
    step_seconds: float = 0.0
    loss_scale: float = 0.0  # 0: none
    skipped_steps: int = 0
    predicted: Predicted = field(default_factory=Predicted)

    def write(self, folder: Path) -> None:
        """Writes `card.json` into a run's folder, whole or not at all. Raises OSError."""
        disk.make_folders(folder)
        disk.write_text(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def read(path: Path) -> Card:
    """Reads a `card.json`, which may be anybody's. Raises BadInput."""
    try:
        return untrusted.parse(untrusted.read(path, _MOST_BYTES), Card)
    except (OSError, BadInput) as error:
        problem = f"is no {FILE} of a run ({printable(getattr(error, 'strerror', None) or error, most=200)})"
        raise BadInput(f"{printable(path)} {problem}. The archive of a run on a GPU has it.") from None


def compared(card: Card) -> str:
    """Returns in lines what was off beside the plan."""
    plan, versions = card.predicted, ", ".join(f"{name} {version}" for name, version in card.versions.items())
    lines = [
        f"{card.run}: {card.steps:,} steps in {card.precision} on {card.world_size} x {card.gpu}",
        f"driver {card.driver or 'unknown'}, {versions}",
    ]
    if not plan.peak_bytes or len(plan.step_seconds) != 2:
        lines.append(f"peak {card.peak_bytes / GIB:.2f} GiB, {card.step_seconds:.3g} s a step; there was no plan")
    else:
        off = card.peak_bytes / plan.peak_bytes - 1
        peak = f"peak {card.peak_bytes / GIB:.2f} GiB, predicted {plan.peak_bytes / GIB:.2f}"
        lines.append(f"{peak}: {off:+.0%}{'' if abs(off) <= _NEAR else ', OFF'}")
        least, most = plan.step_seconds
        nearest = min(max(card.step_seconds, least), most)
        distance = "" if nearest == card.step_seconds else f", OFF by {card.step_seconds / nearest:.2g}"
        lines.append(f"{card.step_seconds:.3g} s a step, predicted {least:.3g} to {most:.3g}{distance}")
        if card.micro_batch != plan.micro_batch:
            lines.append(f"micro-batch {card.micro_batch}, planned {plan.micro_batch}: OFF, memory ran out on the way")
    if card.loss_scale:
        share = card.skipped_steps / max(1, card.steps)
        is_low = card.loss_scale < 64 or share > 0.01  # as a step warns; a scale is found in its first steps
        lines.append(f"loss scale {card.loss_scale:,.0f}, {share:.1%} of steps skipped{', OFF' if is_low else ''}")
    lines += [", ".join(f"{name} {value:,}" for name, value in card.clocks.items())] if card.clocks else []
    return "\n".join(map(printable, lines))
