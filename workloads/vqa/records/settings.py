"""The settings of questions and their pictures, one class for each part of the `workload:` section."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lib.config.reader import option


@dataclass(frozen=True)
class Source:
    """Where questions, answers and pictures stand in the files; what is empty is found by its usual names."""

    images: str = option(
        "", "Folder of the pictures, or a mounted input; empty: below the folder of the records.", path=True
    )
    question: str = option("", "Name of the column or key of the question.")
    answer: str = option("", "Name of the column or key of the answer.")
    image: str = option("", "Name of the column or key of the picture: its id, name or path.")
    kind: str = option("", "Name of the column or key of the question's type.")
    reasoning: str = option("", "Name of the column or key of the reasoning behind the answer.")
    kinds: tuple[str, ...] = option((), "The question types that there are; empty: those of the data.")
    missing_limit: int = option(
        0, "Records without their picture that are left out; one more refuses the data.", minimum=0
    )


@dataclass(frozen=True)
class Pictures:
    """How pictures are read and changed."""

    side: int = option(64, "Pixels on a side that every picture is scaled to.", minimum=16, limit=2048)
    limit_pixels: int = option(2**26, "Pixels that a picture may have; a larger one is a bad input.", minimum=1)
    augment: bool = option(True, "Whether training pictures are moved and their light changed, as the question allows.")


@dataclass(frozen=True)
class Split:
    """Which pictures are held out, each with all of its questions."""

    validation: float = option(0.15, "Share of the pictures that validates.", above=0, below=0.9)
    test: float = option(0.15, "Share of the pictures that is tested.", above=0, below=0.9)
    given: bool = option(True, "Whether parts count that files or folders are named for, such as train and test.")

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        held = [values["validation"], values["test"]]
        if all(isinstance(share, float) for share in held) and sum(held) >= 1:
            yield "test", "workload.split leaves nothing to train on. Lower validation or test."


@dataclass(frozen=True)
class Generator:
    """The drawn pictures that are used where no data is given."""

    pictures: int = option(900, "How many.", minimum=12)
    questions: int = option(6, "Questions about each at most.", minimum=1)
    side: int = option(64, "Pixels on a side.", minimum=32, limit=1024)
