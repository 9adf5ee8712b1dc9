"""The families of methods that are tried on each form of rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Family(NamedTuple):
    """Methods; the best one is a row. `strengths`: see `estimator`; the first one that is named is tried first."""

    name: str
    view: str
    how: str
    strengths: tuple[float, ...]
    may_balance: bool = (
        False  # tried with and without equal classes where the metric is a mean over classes
    )


_TEXT = (0.3, 1.0, 3.0)
_OF_VECTORS = (0.01, 0.0001, 0.001, 0.1)
_OF_TABLES = (0.01, 0.1, 1.0, 100.0)
FAMILIES: Mapping[str, Sequence[Family]] = {
    "texts": (
        Family("linear model of words", "words", "margins", _TEXT, True),
        Family(
            "linear model of words and characters", "words and characters", "margins", _TEXT, True
        ),
        Family(
            "linear model of words and the encoder", "words and encoder", "margins", _TEXT, True
        ),
    ),
    "ids": (Family("linear model of words", "ids", "margins", _TEXT, True),),
    "neighbours": (
        Family("commonest tag of the word", "word", "counts", (1.0,)),
        Family("linear model of neighbours", "neighbours", "margins", (0.1, 0.3, 1.0)),
        Family(
            "linear model of neighbours and the encoder",
            "neighbours and encoder",
            "margins",
            (0.1, 0.3, 1.0),
        ),
    ),
    "pooled pixels": (
        Family("linear model of pooled pixels", "pooled pixels", "linear", (0.01, 1.0)),
        Family("linear model of the encoder's features", "encoder", "linear", _OF_VECTORS),
    ),
    "surroundings": (
        Family("linear model of surroundings", "surroundings", "linear", (1.0,)),
        Family("boosting of surroundings", "surroundings", "boosting", (15.0,)),
    ),
    "numbers": (
        Family("linear model of numbers", "numbers", "linear", _OF_TABLES, True),
        Family("boosting of numbers", "numbers", "boosting", (15.0, 6.0), True),
        Family("forest of numbers", "numbers", "forest", (1.0, 3.0, 10.0), True),
    ),
}
