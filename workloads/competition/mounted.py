"""The data and settings of a notebook: a mounted competition's, other pictures', or the handwritten digits'."""

from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from lib.errors import BadInput, printable
from lib.machine import disk, inputs
from lib.task import locate_data
from trainbook.supervised.folders import IN_FOLDERS
from workloads.competition import proposal
from workloads.competition.entry import Entry

# A competition is found before other data that is mounted beside it
_SAMPLES = ("*[Ss]ample*.csv", "*[Ss]ubmission*.csv")
_DIGITS = "digits"
_TRAINING = 1700  # of the 1,797 digits; the others are the test
_SIDE = 32  # pixels; scikit-learn's have 8, of which three halvings leave one


def data_dir(given: str, settings: str, home: Path) -> str:
    """Returns the folder of a notebook's data; without any the digits, which are written below `home`.

    `given` counts before the `data.dir` of the settings, and that before the mounted inputs.
    """
    values = yaml.safe_load(settings) or {}
    if given or (values.get("data") or {}).get("dir"):
        return given
    forms = (_SAMPLES, IN_FOLDERS, Entry.sentinels)
    folder = next(filter(None, (locate_data("", form) for form in forms)), None)
    if folder is None:
        folder = home / _DIGITS
        write_digits(folder)
        print(
            "Nothing is mounted. So that the notebook runs as it is, scikit-learn's digits are the data, laid out "
            f"as a competition: {folder}."
        )
    return str(folder)


def settings(folder: str, model: str) -> str:
    """Returns the configuration that the files propose, and prints it with its reasons and questions.

    Pictures without a sample submission are no competition: `model`, of the class in a cell, is theirs.
    Raises BadInput without a folder or tables.
    """
    place = locate_data(folder, Entry.sentinels) or Path(folder)
    if not place.is_dir():
        raise BadInput(
            f"DATA_DIR is {printable(folder)}, which is no folder. Give the folder with the tables and pictures."
        )
    has_pictures = bool(inputs.search([place], IN_FOLDERS))
    if has_pictures and not proposal.has_sample(place):
        print(
            "SETTINGS is empty, and the files are pictures without a sample submission: MY_MODEL is taken."
        )
        return model
    block = proposal.propose(place)
    shown = str(place)
    if place.name == _DIGITS:
        shown = ""  # the next session writes them elsewhere
        block.put("flip", False, "a mirrored digit is another one, or none")
    text = proposal.text(place, shown, block)
    print("SETTINGS is empty, so these are proposed from the files:\n")
    print(text)
    print(*block.questions, sep="\n")
    print(
        "Copy the block into SETTINGS, correct it, and run all again. An edit is a run of its own."
    )
    return text


def write_digits(folder: Path) -> None:
    """Writes the handwritten digits of scikit-learn as a competition: two folders, train.csv and a sample."""
    from sklearn.datasets import load_digits  # slow; with mounted data it is not needed

    pictures, labels = load_digits(return_X_y=True)
    lines: dict[str, list[str]] = {"train": ["id,label"], "test": ["id,label"]}
    for part in lines:
        disk.make_folders(folder / part)
    for number, (pixels, label) in enumerate(zip(pictures, labels, strict=True)):
        part = "train" if number < _TRAINING else "test"
        grey = (pixels.reshape(8, 8) * 15.9).astype(np.uint8)
        picture = Image.fromarray(grey).resize((_SIDE, _SIDE))
        picture.save(folder / part / f"{number:04}.png")
        lines[part].append(f"{number:04},{label if part == 'train' else 0}")
    disk.write_text(folder / "train.csv", "\n".join([*lines["train"], ""]))
    disk.write_text(folder / "sample_submission.csv", "\n".join([*lines["test"], ""]))
