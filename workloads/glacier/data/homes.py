"""The data's own folder, where a search by file names stopped at a folder in it, or at what a run has written."""

from collections.abc import Sequence
from pathlib import Path

from lib.machine import inputs
from workloads.glacier.data import layout, naming, scene_folders


def homes(folders: Sequence[Path]) -> list[Path]:
    """Returns the data's own folders, each once, where a search by file names stopped at these.

    One with masks goes before all others; of train and test, both with masks, it is the folder above them, whose split
    they are. What a run has written is no data.
    """
    own = dict.fromkeys(folder.parent if layout.is_part(folder) else folder for folder in folders)
    own = dict.fromkeys(_above_scenes(folder) for folder in own if not _is_written_by_a_run(folder))
    labelled = [folder for folder in own if _is_labelled(folder)]
    parts = [folder for folder in labelled if folder.name.lower() in naming.PARTS]
    beside = {folder for folder in parts if any(folder.parent == other.parent for other in parts if other != folder)}
    return list(dict.fromkeys(folder.parent if folder in beside else folder for folder in labelled)) or list(own)


def _above_scenes(folder: Path) -> Path:
    """Returns the folder above those of single scenes, and above train and test; another folder as it is."""
    if layout.masks_of(folder) or not scene_folders.is_scene(folder, folder.parent):
        return folder
    return folder.parent.parent if folder.parent.name.lower() in naming.PARTS else folder.parent


def _is_labelled(folder: Path) -> bool:
    has_bands = any(layout.BAND.fullmatch(inner.name) for inner in folder.iterdir() if inner.is_dir())
    if any(scene_folders.is_scene(inner, folder) for inner in folder.iterdir() if inner.is_dir()):
        return True
    has_files = has_bands or bool(layout.masks_of(folder) and layout.images_of(folder, labelled=True))
    return bool(layout.patches_of(folder)) or (bool(layout.masks_of(folder)) and has_files)


def _is_written_by_a_run(folder: Path) -> bool:
    """Says whether a folder lies in the output of this program, which has masks and figures but no data."""
    above = (folder, *folder.parents[:3])
    return any(all((place / name).is_file() for name in names) for place in above for names in inputs.WRITTEN_BY_A_RUN)


def home(folder: Path) -> Path:
    """Returns the data's own folder, where a search by file names stopped at one of those in it."""
    if not layout.is_part(folder):
        return folder
    parent = folder.parent  # may be Test, beside Train with the masks
    beside = any(layout.masks_of(other) for other in parent.parent.iterdir() if other.is_dir())
    return parent.parent if beside and not layout.masks_of(parent) else parent
