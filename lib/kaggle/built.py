"""The notebook of a configuration, built for Kaggle: what of its packages the image has and lacks, in sentences."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from lib.errors import BadInput
from lib.kaggle import image
from lib.machine import disk


@dataclass(frozen=True)
class Built:
    """A notebook that was written. `root` is the folder here with its own files, `said` is what to print about it."""

    path: Path
    root: Path
    said: str


def build(config: Path, out: Path) -> Built:
    """Writes the notebook of a configuration to `out`. Raises BadInput."""
    from lib.notebook import own  # not at the top: torch takes seconds to import

    if out.suffix != ".ipynb":
        raise BadInput(f"A notebook's name ends in .ipynb; {out} does not.")
    read = own.read(config)
    absent, unknown = absent_packages(read.packages), unknown_packages(read.packages)
    text = own.text(read, internet=bool(absent))
    disk.make_folders(out.parent)
    with disk.needed(out, "No notebook was written."), disk.whole(out) as aside:
        aside.write_text(text, "utf-8", newline="\n")
    size = f"{len(text.encode()) / 1000:,.0f} KB"
    lines = [f"Built {out} ({size}) from {config}. It carries lib and {', '.join(read.files)}."]
    if absent:
        lines.append(
            f"Kaggle's image lacks {', '.join(absent)}: the notebook asks for internet, and installs it there."
        )
    if unknown:
        lines.append(f"{unknown_sentence(unknown)} {UNKNOWN_ADVICE}")
    if not read.has_small:
        small = config.with_name(f"{config.stem}_small.yaml")
        lines.append(f"There is no {small}, so a machine without a GPU trains the same configuration.")
    return Built(out, read.root, "\n".join(lines))


UNKNOWN_ADVICE = "The notebook looks there; what is missing it installs where its internet is on (--internet)."


def unknown_sentence(names: Collection[str]) -> str:
    return f"Whether Kaggle's image has {', '.join(names)} is not known: no table here names it."


def absent_packages(names: Collection[str]) -> list[str]:
    """Returns the imports that Kaggle's image is known to lack."""
    return sorted(name for name in names if name in image.PACKAGES and image.PACKAGES[name].version is None)


def unknown_packages(names: Collection[str]) -> list[str]:
    """Returns the imports of which no table says whether Kaggle's image has them."""
    return sorted(set(names) - image.PACKAGES.keys())
