"""Packages that a session without internet installs: downloaded here as wheels for the image's Python."""

import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

from lib.errors import BadInput, printable
from lib.machine.facts import FACTS
from trainbook import dependencies
from trainbook.kaggle import carried, client

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLATFORMS = [
    "manylinux_2_17_x86_64", "manylinux_2_24_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64",
    "manylinux_2_31_x86_64", "manylinux_2_34_x86_64", "manylinux2014_x86_64",
]  # fmt: skip
_NEVER = {"torch", "torchvision", "torchaudio", "triton"}  # the image's builds fit its GPUs' driver


def plain(name: str) -> str:
    """Returns the name of a project as pip compares it."""
    match = _NAME.match(name)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def of_image() -> set[str]:
    """Returns the projects that Kaggle's image has, by pip's names."""
    names = {*carried.imports_of_image(), *dependencies.PACKAGES}
    return {plain(dependencies.project_of(name) or name) for name in names}


def wanted(requirements: Sequence[str], working: Path) -> tuple[list[str], list[str]]:
    """Returns the specifications to download, and sentences on those that are not. Raises BadInput.

    What a file of requirements names and the image has is left to the image; what the settings name
    is downloaded.
    """
    specs: list[str] = []
    image: list[str] = []
    for entry in requirements:
        path = working / entry
        if not path.is_file():
            specs.append(entry)
            continue
        lines = [line.partition(" #")[0].strip() for line in path.read_text("utf-8").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        known = of_image()
        image += [line for line in lines if plain(line) in known]
        specs += [line for line in lines if plain(line) not in known]
    for spec in specs:
        _check(spec)
    notes = [f"Kaggle's own versions are taken of: {', '.join(image)}."] if image else []
    return specs, notes


def _check(spec: str) -> None:
    if not _NAME.match(spec) or "://" in spec:
        raise BadInput(
            f"requirements: {printable(spec)} names no package of pip's index, which alone is sent as a "
            "wheel. Put its code into the repository."
        )
    if plain(spec) in _NEVER:
        raise BadInput(
            f"requirements: {printable(spec)} is never sent: the build of Kaggle's image fits its GPUs. "
            "Take it out."
        )


def download(specs: Sequence[str], folder: Path) -> list[str]:
    """Downloads wheels into a folder; returns sentences on their dependencies. Raises BadInput."""
    if not specs:
        return []
    if importlib.util.find_spec("pip") is None:
        raise BadInput("This Python has no pip, which downloads `requirements`. Install it.")
    python = str(FACTS["kaggle_python"].value)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", python, "--dest", str(folder)]
    command += [word for name in _PLATFORMS for word in ("--platform", name)]
    done = subprocess.run([*command, *specs], capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        lines = client.clean(done.stderr).strip().splitlines()[-3:]
        raise BadInput(
            f"requirements: no wheels for Python {python} could be downloaded of {', '.join(specs)}: "
            f"{printable(' '.join(lines), most=500)}"
        )
    return _lacking(sorted(folder.glob("*.whl")))


def _lacking(wheels: Sequence[Path]) -> list[str]:
    """Returns a sentence for each wheel with a dependency that is neither sent nor in the image."""
    known = of_image() | {plain(path.name.partition("-")[0]) for path in wheels}
    notes = []
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            text = wheel.read(names[0]).decode("utf-8", "replace") if names else ""
        needs = HeaderParser().parsestr(text).get_all("Requires-Dist") or []
        always = [need for need in needs if "extra ==" not in need]
        unknown = sorted({plain(need) for need in always} - known)
        if unknown:
            named = f"{path.name} needs {', '.join(unknown)}"
            notes.append(f"{named}, not known to be in Kaggle's image. Name it in `requirements`.")
    return notes
