"""A competition, from its files to a submission, by a block of settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainbook.supervised.task import Supervised
from workloads.competition.settings import Settings


class Competition(Supervised):
    """A competition's table, pictures or sounds: learned, tested, and answered in the form of its sample submission.

    The settings name the files and columns. They decide what is learned: columns or texts of a table,
    classes of pictures or sounds, masks in run lengths.
    """

    Settings = Settings
    sentinels = ("*.csv", "*.parquet")

    def __new__(cls, config: Any, source: Path | Sequence[Path] | None = None) -> Any:
        """Returns the task for the files that the settings name."""
        from workloads.competition import tasks  # a plan of another workload does not wait for it

        return tasks.chosen(config.workload)(config, source)
