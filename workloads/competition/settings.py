"""The block of settings of a competition: where its files are, and what they mean."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lib.config import option


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The files of a competition and their columns.

    `trainbook new NAME --like competition --data FOLDER` proposes them.
    """

    table: str = option("", "The table of the training samples, such as train.csv.")
    key: str = option("", "Its column of the ids, or of the files' names.")
    target: tuple[str, ...] = option((), "Its columns that are predicted.")
    metric: str = option(
        "", "The metric, in the competition's words: RMSLE, mean AUC, MAP@5, Dice."
    )
    folder: str = option("", "The training files, as train_images/*.png; empty: a table alone.")
    test: str = option("", "The table to predict, or its files as test_images/*.png.")
    sample: str = option("", "The sample submission.")
    group: str = option("", "The column whose rows of one value stay in one split; empty: none.")
    text: tuple[str, ...] = option(
        (), "The columns that are read as text, and nothing else; empty: all."
    )
    words: tuple[str, ...] = option((), "Columns whose cells are names, even if they are digits.")
    size: int = option(0, "Pixels a side of pictures; 0: by the training files.", minimum=0)
    flip: bool = option(
        True, "Whether training mirrors half of the pictures; false where left and right differ."
    )
    encoder: str = option(
        "",
        "A published encoder of pictures or texts; empty: one at hand; none: scratch.",
        path=True,
    )

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in ("table", "key", "target", "metric"):
            if not values[name]:
                yield name, f"workload.{name} is empty, and a competition needs it. Name it."
        if values["folder"] and values["text"]:
            yield (
                "text",
                "workload.text is for a table alone, and workload.folder names files. Leave one out.",
            )
