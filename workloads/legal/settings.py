"""The settings of legal, one class for each part of the `workload:` section."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lib.config.reader import option

CATEGORIES = 32  # columns of the head for categories of documents; the data may have fewer
POSITIONS = 23  # numbers that `documents.position_features` has of a sentence


@dataclass(frozen=True)
class Source:
    """Where documents lie."""

    files: str = option("**/*.txt", "Pattern below data.dir: .txt (sentence, tab, role) or tables.")


@dataclass(frozen=True)
class Columns:
    """The columns of tables, by name; by number, from 0, in files without a head."""

    document: str = option("document", "The document; without it each file is one.")
    sentence: str = option("sentence", "The sentence.")
    role: str = option("role", "Its role.")
    category: str = option("category", "The document's category, if there is one.")


@dataclass(frozen=True)
class Context:
    """The encoder's input: a sentence."""

    length: int = option(
        256, "Tokens of a sentence; longer ones keep both ends.", minimum=8, limit=8192
    )


@dataclass(frozen=True)
class Encoder:
    """The encoder: a published one, or one of these sizes from scratch."""

    weights: str = option(
        "", "Published weights: folder, mounted input or hub name; empty: none.", path=True
    )
    layers: int = option(2, "Transformer layers of an encoder from scratch.", minimum=1)
    hidden: int = option(128, "Its width, a multiple of its heads.", minimum=1)
    heads: int = option(4, "Its attention heads.", minimum=1)
    feed_forward: int = option(512, "The width inside its layers' feed-forward part.", minimum=1)
    vocabulary: int = option(8000, "WordPieces of its own tokenizer at most.", minimum=100)
    dropout: float = option(0.1, "Dropout of its activations.", minimum=0, below=1)
    freeze_words: bool = option(False, "Whether published word vectors are frozen.")
    freeze_layers: int = option(0, "Lowest layers of a published encoder to freeze.", minimum=0)
    planned_as: Literal["base", "large"] = option(
        "base", "Size of BERT in a plan without the published weights."
    )


@dataclass(frozen=True)
class Rates:
    """Learning rates, as factors on optimizer.lr."""

    layer_decay: float = option(
        0.85, "Factor from one encoder layer to the one below it.", above=0, maximum=1
    )
    head: float = option(7.0, "Factor of the head.", above=0)


@dataclass(frozen=True)
class Split:
    """Which documents are held out."""

    folds: int = option(5, "Parts of the documents; one is the test.", minimum=2)
    fold: int = option(0, "Which of them is the test.", minimum=0)
    partition: int = option(0, "Which division into folds.", minimum=0)
    validation: float = option(
        0.15, "Share of the other documents that validates.", above=0, below=0.5
    )

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        fold = values["fold"]
        folds = values["folds"]
        are_numbers = isinstance(fold, int) and isinstance(folds, int)
        if are_numbers and fold >= folds:
            sentence = f"workload.split.fold is {fold}, and the {folds} folds are numbered 0 to {folds - 1}."
            yield "fold", sentence


@dataclass(frozen=True)
class Generator:
    """The generated judgments that are used where no data is given."""

    documents: int = option(30, "How many.", minimum=10)
    sentences: int = option(30, "Sentences of each, about.", minimum=14)


@dataclass(frozen=True)
class Settings:
    """The `workload:` section of a configuration."""

    classes: int | tuple[str, ...] = option(
        16, "The roles in their order, or how many at most.", minimum=2, limit=1000
    )
    source: Source = Source()
    columns: Columns = Columns()
    context: Context = Context()
    encoder: Encoder = Encoder()
    rates: Rates = Rates()
    split: Split = Split()
    generator: Generator = Generator()
    copies: Literal["refuse", "drop"] = option(
        "refuse", "Documents in two splits; drop: the test keeps its own."
    )
    bad_input_limit: int = option(
        0, "Bad lines that are left out; one more refuses the data.", minimum=0
    )

    @property
    def outputs(self) -> int:
        """The outputs of the network, of which the data may have fewer roles."""
        if isinstance(self.classes, int):
            return self.classes
        return len(self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """The roles that the configuration names; none where the data says them."""
        if isinstance(self.classes, int):
            return ()
        return self.classes

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        names = values["classes"]
        if isinstance(names, tuple) and len(set(names)) < max(2, len(names)):
            yield "classes", "workload.classes must name at least two roles, and none twice."
