"""A scene: which files its bands and its mask are, and what it belongs to."""

import re
from dataclasses import dataclass
from pathlib import Path

from workloads.glacier.settings import Source


@dataclass(frozen=True)
class Scene:
    """One image: a file for each band or one with all of them; `mask` None where there is no label.

    `part` is train, validation or test where the layout says so, else "". `quality` is
    the file that says which pixels are no data, where one is named.
    """

    name: str
    group: str
    images: tuple[Path, ...]
    mask: Path | None
    part: str = ""
    quality: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (*self.images, self.mask, self.quality) if path)


def group_of(name: str, default: str, source: Source) -> str:
    """Returns what must not be split, by the pattern for it, else `default`."""
    match = re.search(source.group_pattern, name) if source.group_pattern else None
    return match[1] if match else default
