"""Any training command on Kaggle: its repository as a data set, and the notebook around it."""

import gzip
import hashlib
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from lib.errors import BadInput
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.report.findings import Finding
from lib.text import amount
from trainbook.building import script as building
from trainbook.kaggle import carried, dataset, kernel, repository, wheels
from trainbook.kaggle.repository import Repository
from trainbook.run import sent, settings
from trainbook.run.settings import Settings

_LONGEST_SLUG = 50  # of a data set
_ROOM = len("-code")


@dataclass(frozen=True)
class Packed:
    """A built notebook, the data set of its repository, and the folder of that."""

    notebook: Path
    dataset: str
    folder: Path
    settings: Settings
    repository: Repository


def pack(config: Path, owner: str, slug: str) -> Packed:
    """Packs the repository around a command, and builds its notebook; prints both. Raises BadInput."""
    chosen = settings.read(str(config), {}, [])
    if chosen.name == sent.FOLDER:
        raise BadInput(f"A run on Kaggle is not called {sent.FOLDER}. Give another `name`.")
    found = repository.read(config, chosen)
    name = f"{owner}/{slug[: _LONGEST_SLUG - _ROOM].rstrip('-')}-code"
    dataset.check(name)
    folder = kernel.HOME / slug / "code"
    disk.remove_tree(folder)
    disk.make_folders(folder)
    _archive(found, folder / sent.ARCHIVE)
    specs, notes = wheels.wanted(chosen.requirements, found.root / found.inside)
    notes += wheels.download(specs, folder)
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    if len(files) > (most := int(FACTS["kaggle_dataset_files"].value)):
        raise BadInput(
            f"{len(files)} files would be sent, and Kaggle takes {most}: name fewer wheels."
        )
    about = [f"The repository around `{config.name}`, for the notebook {slug}."]
    dataset.describe(folder, name, slug, about, "unknown")
    path = kernel.HOME / slug / f"{config.stem}.ipynb"
    built = building.Script(config, chosen, name, files, found.inside)
    disk.write_text(path, building.text(built))
    wheels_of = f" and wheels ({len(files) - 1})" if len(files) > 1 else ""
    print(
        f"Packed {len(found.files):,} files of {found.root}, {amount(found.size)}{wheels_of}, for "
        f"{name}, and built {path} from {config}."
    )
    for note in [*found.notes, *notes]:
        print(note)
    return Packed(path, name, folder, chosen, found)


def _archive(found: Repository, path: Path) -> None:
    """Writes files into a tar.gz, the same bytes for the same files: an upload is not repeated then."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with path.open("wb") as raw:
        zipped = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="")
        with zipped, tarfile.open(fileobj=zipped, mode="w", dereference=True) as archive:
            for name, file in found.files.items():
                archive.add(file, name, filter=anonymous)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mounted(chosen: Settings) -> tuple[list[str], list[str]]:
    """Returns the data sets and the competitions of the settings' `inputs`."""
    names = list(chosen.inputs.values())
    return [name for name in names if "/" in name], [name for name in names if "/" not in name]


def preflight(packed: Packed) -> dict[str, list[Finding]]:
    """Returns findings on the repository and the command, before quota is spent."""
    chosen = packed.settings
    found = packed.repository
    size = f"{len(found.files):,} files, {amount(found.size)} of {amount(repository.MOST_BYTES)}"
    findings = [Finding("repository", f"{size}; no credential was found in them")]
    findings += [Finding("repository", note, "warning") for note in found.notes]
    findings.append(_imports(packed))
    findings.append(_carried_over(chosen))
    cards = int(FACTS["kaggle_gpus"].value)
    if not chosen.sets and not chosen.torchrun:
        value = f"the command uses one of {cards} cards, unless it takes both by itself"
        advice = f"`two_cards: each` starts one command a card, `torchrun: {cards}` one over both."
        findings.append(Finding("cards", value, "warning", advice))
    return {chosen.name: findings}


def _imports(packed: Packed) -> Finding:
    """Compares the imports of the repository's Python files with the image's packages and the wheels."""
    files = packed.repository.files
    names: set[str] = set()
    for path in files.values():
        names |= _imported(path) if path.suffix == ".py" else set()
    local = {
        part for name in files if name.endswith(".py") for part in Path(name).with_suffix("").parts
    }
    brought = {path.name.partition("-")[0] for path in packed.folder.glob("*.whl")}
    names -= {*sys.stdlib_module_names, *local, *brought}
    lacking = carried.lacking(name for name in names if wheels.plain(name) not in wheels.of_image())
    if not lacking:
        return Finding("imports", f"Kaggle's image, or a wheel, has all {len(names)} packages")
    value = f"Kaggle's image is not known to have {lacking}"
    return Finding(
        "imports", value, "warning", "Name them in `requirements` where they are needed."
    )


def _imported(path: Path) -> set[str]:
    from lib.task.files import imports  # not at the top: torch takes seconds to import

    try:
        found = imports(path.read_bytes())
        return {each.dotted.split(".")[0] for each in found if each.is_needed and not each.level}
    except (SyntaxError, ValueError):  # of another Python, or a template
        return set()


def _carried_over(chosen: Settings) -> Finding:
    if not chosen.keep:
        value = "`keep` is empty: a later session has no checkpoint to resume from"
        return Finding("resume", value, "warning", "Name the folder of the checkpoints.")
    if not chosen.resume:
        value = (
            f"{chosen.keep} is carried over; the command gets no argument that names a checkpoint"
        )
        advice = "Leave it so where it finds its checkpoint by itself, else give `resume`."
        return Finding("resume", value, "warning", advice)
    return Finding("resume", f"{chosen.keep} is carried over; the command gets {chosen.resume}")
