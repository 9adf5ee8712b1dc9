"""Names that data and model share, and the settings: a class for each part of the `workload:` section."""

from dataclasses import dataclass

import numpy as np

from lib.config.reader import option

Array = np.ndarray
PAD, MASK, NAME, SEP, UNKNOWN = range(5)
SPECIALS = ["[PAD]", "[MASK]", "[NAME]", "[SEP]", "[UNK]"]
LONGEST_WORD = 8  # pieces of a word whose place in it is told apart
IGNORE = -100  # the target of a position that is not predicted
COMBINED = "counts combined"
ENCODER = "counts + encoder"  # the baseline, and the method
CONDITIONS = ("full_text", "masked", "name_only")  # under which the evaluation asks for each triple
FEATURES = (  # counted for a question and a candidate
    "frequency", "unseen", "same file", "same parent", "child of the head", "same package", "same folder", "same name",
    "head's name", "words of the head's name", "parent's name", "package", "folder", "context",
    "words shared with the head's name", "owner before", "self before",
)  # fmt: skip
# The features that depend only on the head and the candidate
NEAR = ("same file", "same parent", "child of the head", "same package", "same folder")
# Features behind the probabilities of predictions, see `predicting`: of an answer, and of "none is right"
OF_REFERENCES = [
    "counts", "trust", "likeness", "dotted function", "owner before", "own class", "imported", "same file",
    "out of sight", "none", "none of an object's",
]  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """The layout of a sample: roots with its text, and a leaf for each fact that is asked for."""

    roots: int = option(96, "Text tokens of a sample.", minimum=8)
    facts: int = option(4, "Facts of a sample asked at once, drawn anew from more.", minimum=1)
    vocabulary: int = option(8192, "Byte-pair pieces at most.", minimum=300)


@dataclass(frozen=True)
class Model:
    """The sizes of the encoder."""

    layers: int = option(12, "Transformer layers.", minimum=1)
    hidden: int = option(768, "Width, a multiple of the heads.", minimum=1)
    heads: int = option(12, "Attention heads.", minimum=1)
    feed_forward: int = option(3072, "Width inside a layer's feed-forward part.", minimum=1)
    dropout: float = option(0.1, "Dropout of activations.", minimum=0, below=1)
    token_dropout: float = option(
        0.2, "Share of the text's pieces that training masks.", minimum=0, below=1
    )
    relations: int = option(16, "Rows of the relation tables.", minimum=1)
    types: int = option(16, "Rows of the table of entity types.", minimum=1)
    relation_rank: int = option(64, "Rank of each relation's matrix in H-GAT.", minimum=1)
    own_vectors: int = option(
        4096, "Most tails with vectors of their own; three files must have them.", minimum=0
    )
    decay: float = option(0.6, "Attention's decay with distance; 1: none.", above=0, maximum=1)


@dataclass(frozen=True)
class Objective:
    """What training asks for."""

    candidates: int = option(1024, "Most entities that compete in a training batch.", minimum=16)
    masked_ratio: float = option(
        0.6, "Share of samples with text that hide names of tails.", minimum=0, maximum=1
    )
    name_only_ratio: float = option(
        0.33, "Share of the heads whose facts are asked without text.", minimum=0, maximum=1
    )
    same_name_weight: float = option(
        0.3, "Weight of the softmax over the entities of one name.", minimum=0
    )
    path_dropout: float = option(
        0.5, "Share of samples with a shortened path of the head.", minimum=0, maximum=1
    )
    mlm_ratio: float = option(0.15, "Share of root tokens in masked spans.", minimum=0, maximum=1)
    mlm_steps: int = option(0, "First steps, which learn text alone by masked spans.", minimum=0)
    fitting_steps: int = option(200, "Steps that fit the weights of the counts.", minimum=1)


@dataclass(frozen=True)
class Split:
    """The shares of the files that are held out."""

    validation: float = option(0.05, "Share of the files.", above=0, below=0.5)
    test: float = option(0.1, "Share of the files.", above=0, below=0.5)


@dataclass(frozen=True)
class Evaluation:
    """The numbers of triples that an evaluation asks for."""

    validation_triples: int = option(
        400, "Triples of a validation, each asked under three conditions.", minimum=1
    )
    test_triples: int = option(0, "The same in the test; 0: all of them.", minimum=0)


@dataclass(frozen=True)
class Settings:
    """The `workload:` section of a configuration."""

    chain: Chain = Chain()
    model: Model = Model()
    objective: Objective = Objective()
    split: Split = Split()
    evaluation: Evaluation = Evaluation()
    packages: tuple[str, ...] = option(
        (), "Installed packages (name==version) beside the standard library."
    )
    bad_input_limit: int = option(
        0, "Bad lines or files that are left out; one more refuses the data.", minimum=0
    )
