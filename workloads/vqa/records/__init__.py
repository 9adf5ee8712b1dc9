"""Questions about pictures with their answers, out of whatever form of file they come in."""

from pathlib import Path
from typing import Any

from workloads.vqa.records.record import Collection, Record, fingerprint

__all__ = ["Collection", "Record", "fingerprint", "homes", "read"]


def read(folder: Path, settings: Any) -> Collection:
    """Returns the records of a folder, or of one file, in the order of files and lines. Raises BadInput.

    It is recognised by what it holds: JSON lines of a teacher, lists of question, answer, picture, CSV with a head or
    without, JSON objects in whatever nesting, VQA's questions and annotations. `settings` are the workload's: `source`,
    `pictures.limit_pixels` and `bad_input_limit`.
    """
    from workloads.vqa.records import reading  # which a plan does without

    return reading.read(folder, settings.source, settings.pictures.limit_pixels, settings.bad_input_limit)


def homes(folders: list[Path]) -> list[Path]:
    """Returns those of the folders that hold questions with answers, and not an encoder or other tables."""
    from workloads.vqa.records import reading

    return [folder for folder in folders if reading.looks_asked(folder)]
