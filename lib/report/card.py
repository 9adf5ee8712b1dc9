"""card.json: what a run met on its GPU, beside what its plan predicted."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk

FILE = "card.json"
_MOST_BYTES = 2**20


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
