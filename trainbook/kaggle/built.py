"""The notebook of a configuration, built for Kaggle: what of its packages the image has and lacks, in sentences."""

from dataclasses import dataclass
from pathlib import Path

from lib.errors import BadInput
from lib.machine import disk


@dataclass(frozen=True)
class Built:
    """A notebook that was written. `root` is the folder here with its own files, `said` is what to print about it."""

    path: Path
    root: Path
    said: str


def build(config: Path, out: Path) -> Built:
    """Writes the notebook of a configuration to `out`. Raises BadInput."""
    from trainbook.kaggle import packages  # not at the top: torch takes seconds to import
    from trainbook.notebooks import own

    if out.suffix != ".ipynb":
        raise BadInput(f"A notebook's name ends in .ipynb; {out} does not.")
    read = own.read(config)
    lacked, unknown = packages.absent(read.packages), packages.unknown(read.packages)
    text = own.text(read, internet=bool(lacked))
    try:
        disk.make_folders(out.parent)
        with disk.whole(out) as aside:
            aside.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{out} cannot be written ({error.strerror or error}). Give another place.") from None
    size = f"{len(text.encode()) / 1000:,.0f} KB"
    lines = [f"Built {out} ({size}) from {config}. It carries lib and {', '.join(read.files)}.", *read.said]
    if lacked:
        image = f"Kaggle's image lacks {', '.join(lacked)}"
        lines.append(f"{image}: the notebook asks for internet, and installs it there.")
    if unknown:
        lines.append(f"{packages.sentence(unknown)} {packages.ADVICE}")
    if not read.has_small:
        small = config.with_name(f"{config.stem}_small.yaml")
        lines.append(f"There is no {small}, so a machine without a GPU trains the same configuration.")
    return Built(out, read.root, "\n".join(lines))
