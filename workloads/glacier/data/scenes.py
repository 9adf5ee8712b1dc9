"""A scene: which files its bands and its mask are, and what it belongs to."""

from dataclasses import dataclass
from pathlib import Path

RASTERS = (".tif", ".tiff", ".jp2", ".img", ".png", ".jpg", ".jpeg")  # never .vrt, which names other files
PARTS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test", "hold": "test", "holdout": "test",
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """One image: a file for each band or one with all of them; `mask` is None without a label.

    `group` is what must not be split. `part` is train, validation or test if a folder says so, else "".
    """

    name: str
    group: str
    images: tuple[Path, ...]
    mask: Path | None
    part: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.images, self.mask) if self.mask else self.images
