"""What is predicted of a training step: its peak, who has it, its time, and what no trace can see."""

from dataclasses import dataclass, field

from lib.machine.memory import GIB
from lib.planner.card import CONTEXT_BYTES, FITS
from lib.planner.log import Alive, Layer


@dataclass(frozen=True)
class Prediction:
    """The peak of a training step in bytes; categories and top-level submodules each sum to `peak_bytes`."""

    card: str
    usable_bytes: int
    limit_bytes: int
    peak_bytes: int  # torch.cuda.max_memory_allocated
    reserved_bytes: int  # torch.cuda.max_memory_reserved
    fits: bool
    by_category: dict[str, int]
    by_module: dict[str, int]
    moments: dict[str, int]  # allocated after load, forward, backward and the optimizer's step
    parameters: int
    pass_seconds: tuple[float, float]  # forward and backward of one micro-batch, between two bounds
    rest_seconds: tuple[float, float]  # clipping and the optimizer
    pass_flops: float
    attention: dict[str, int]
    unseen: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    alive: tuple[Alive, ...] = field(default=(), compare=False)  # at the peak, the largest groups first
    # The same where cuDNN sets aside all that it may for convolutions; 0 without any
    most_peak_bytes: int = 0
    most_reserved_bytes: int = 0
    fits_at_most: bool = True

    @property
    def share(self) -> float:
        return self.peak_bytes / self.usable_bytes

    @property
    def driver_bytes(self) -> int:
        """What nvidia-smi shows of the process: what the allocator reserves, and the CUDA context."""
        return self.reserved_bytes + CONTEXT_BYTES

    @property
    def most_driver_bytes(self) -> int:
        """The same where convolutions take all workspaces that they may."""
        return max(self.reserved_bytes, self.most_reserved_bytes) + CONTEXT_BYTES

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return "\n".join([
            *(f"{name:>12}: {size / GIB:6.2f} GiB" for name, size in self.by_category.items()),
            f"{'peak':>12}: {self.peak_bytes / GIB:6.2f} GiB allocated, {self.reserved_bytes / GIB:.2f} GiB reserved",
            f"{'card':>12}: {self.card}, {self.usable_bytes / GIB:.2f} GiB after the context: {verdict} "
            f"({self.share:.0%}, at most {FITS:.0%})",
            f"{'nvidia-smi':>12}: {of_driver(self)}",
            *at_most(self),
            *(f"Not seen: {sentence}" for sentence in self.unseen),
        ])  # fmt: skip


def of_driver(prediction: Prediction) -> str:
    """Returns what nvidia-smi will show, as an interval where cuDNN may set workspaces aside."""
    shown, most = prediction.driver_bytes / GIB, prediction.most_driver_bytes / GIB
    if f"{most:.2f}" == f"{shown:.2f}":
        return f"{shown:.2f} GiB"
    return f"{shown:.2f} to {most:.2f} GiB, by the workspaces that cuDNN sets aside for convolutions"


def at_most(prediction: Prediction) -> list[str]:
    """Returns a sentence where it fits, and would not if convolutions took all workspaces that they may."""
    if prediction.fits_at_most or not prediction.fits:
        return []
    return [
        "It may be tight: with all workspaces that cuDNN may set aside for convolutions the peak is "
        f"{prediction.most_peak_bytes / GIB:.2f} GiB allocated, {prediction.most_reserved_bytes / GIB:.2f} GiB "
        "reserved. Where memory is short PyTorch takes algorithms without them, which are slower."
    ]
