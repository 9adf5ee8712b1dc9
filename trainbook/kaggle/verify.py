"""`trainbook verify`: compares a notebook's carried files with the checkout or the installed package."""

import argparse
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import trainbook
from lib import __version__
from lib.errors import BadInput, printable
from trainbook.building import carrier
from trainbook.kaggle import carried, kernel

PACKAGE = Path(trainbook.__file__).resolve().parent


def run(options: argparse.Namespace) -> int:
    """Prints each carried file that differs; returns 2 if one does, otherwise 0. Raises BadInput."""
    path = kernel.find(options.notebook)
    notebook = kernel.read_json(path)
    files = carried.carried_files(notebook)
    if not files:
        raise BadInput(f"{path} carries no library: there is nothing to compare.")
    code = "".join(carried.tagged(notebook, "carrier")[0]["source"])
    own: Mapping[str, str] = {}
    if options.config:
        from trainbook.building.own import read  # not at the top: torch takes seconds to import

        own = read(Path(options.config)).files
    reasons = differences(files, own)
    if not is_unedited(code):
        reasons["The code of the carrier cell"] = "differs"

    digest = hashlib.sha256(carrier.packed(code)).hexdigest()
    print(f"{path} carries {len(files)} files, sha256 {digest}, {built_from(code)}.")
    for name, reason in reasons.items():
        print(f"{printable(name)}: {reason}")
    if reasons:
        print(f"{len(reasons)} differ from Trainbook {__version__} in {trainbook.HOME}.")
        return 2
    print(f"All are those of Trainbook {__version__} in {trainbook.HOME}.")
    return 0


def built_from(code: str) -> str:
    match = re.search(r'^VERSION = "([^"\n]*)"\nCOMMIT = "([^"\n]*)"$', code, re.MULTILINE)
    if match is None:
        return "of an unknown version"
    return f"of version {printable(match[1])}, commit {printable(match[2])}"


def is_unedited(code: str) -> bool:
    """Returns whether a carrier cell's code is this version's, whatever files it holds."""
    pattern = re.escape(carrier.CELL.read_text(encoding="utf-8").rstrip("\n"))
    pattern = pattern.replace("@PACKED@", '[^"]*')
    pattern = re.sub("@[A-Z]+@", lambda _: r'[^"\\\n]*', pattern)
    return re.fullmatch(pattern, code) is not None


def differences(files: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Returns the reasons by name why files differ from the files of `own` or the installed ones."""
    reasons = {}
    for name, text in files.items():
        house, _, rest = name.partition("/")
        path = PACKAGE / rest if house == "trainbook" else trainbook.HOME / name
        if name in own:
            expected = own[name].encode("utf-8")
        elif path.is_file():
            expected = path.read_bytes()
        else:
            reasons[name] = "there is no such file here"
            continue
        if expected != text.encode("utf-8"):
            reasons[name] = "differs"
    return reasons
