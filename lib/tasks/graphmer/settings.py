"""The settings of graphmer, one class for each part of the `workload:` section."""

from dataclasses import dataclass

from lib.config.reader import option

CONDITIONS = ("full_text", "masked", "name_only")  # under which the evaluation asks for each triple


@dataclass(frozen=True)
class Chain:
    """The layout of a sample: positions = roots * (1 + leaves)."""

    roots: int = option(96, "Text tokens of a sample.", minimum=8)
    leaves: int = option(7, "Leaves of each root: pieces of a tail's name that are distinguished.", minimum=2)
    facts: int = option(0, "Facts of a sample at most, each on a root of its own; 0: as many as roots.", minimum=0)
    vocabulary: int = option(8192, "Byte-pair pieces at most.", minimum=300)

    @property
    def most_facts(self) -> int:
        """The number of facts that a sample may hold."""
        return min(self.facts or self.roots, self.roots)


@dataclass(frozen=True)
class Model:
    """The sizes of the encoder."""

    layers: int = option(12, "Transformer layers.", minimum=1)
    hidden: int = option(768, "Width, a multiple of the heads.", minimum=1)
    heads: int = option(12, "Attention heads.", minimum=1)
    feed_forward: int = option(3072, "Width inside a layer's feed-forward part.", minimum=1)
    dropout: float = option(0.1, "Share of activations that is dropped in training.", minimum=0, below=1)
    relations: int = option(16, "Rows of the relation tables; the data may have fewer.", minimum=1)
    relation_rank: int = option(64, "Rank of each relation's matrix in H-GAT.", minimum=1)
    decay: float = option(0.6, "Lambda of the attention's decay with distance; 1 switches it off.", above=0, maximum=1)


@dataclass(frozen=True)
class Objective:
    """What training masks."""

    mlm_ratio: float = option(0.15, "Share of root tokens in masked spans.", minimum=0, maximum=1)
    mlm_weight: float = option(1.0, "Weight of the loss on text beside that on leaves.", minimum=0)
    mlm_longest_span: int = option(7, "Tokens of a span at most; lengths are geometric.", minimum=1)
    leaf_ratio: float = option(0.15, "Share of triples whose whole leaf is masked.", minimum=0, maximum=1)
    name_mask_ratio: float = option(
        0.15, "Share of triples whose tail's name is masked in the text, and the leaf with it.", minimum=0, maximum=1
    )
    structural_ratio: float = option(
        1.0, "Share of the windows that hold structural facts alone, which a prefix rule answers.", minimum=0, maximum=1
    )
    name_only_ratio: float = option(0.05, "Share of samples that come without any text.", minimum=0, maximum=1)


@dataclass(frozen=True)
class Split:
    """The shares of the files that are held out."""

    validation: float = option(0.05, "Share of the files.", above=0, below=0.5)
    test: float = option(0.1, "Share of the files.", above=0, below=0.5)


@dataclass(frozen=True)
class Evaluation:
    """The numbers of triples that an evaluation asks for."""

    validation_triples: int = option(300, "Triples of a validation, each asked under three conditions.", minimum=1)
    test_triples: int = option(2000, "The same in the test.", minimum=1)
    structural_test_triples: int = option(400, "Structural ones in the test, for their own table.", minimum=0)


@dataclass(frozen=True)
class Settings:
    """The `workload:` section of a configuration."""

    chain: Chain = Chain()
    model: Model = Model()
    objective: Objective = Objective()
    split: Split = Split()
    evaluation: Evaluation = Evaluation()
    packages: tuple[str, ...] = option(
        (),
        "Installed packages, as name==version, whose code stands beside the standard library where no data is given.",
    )
    bad_input_limit: int = option(
        0, "Malformed lines or unreadable source files that are left out; one more refuses the data.", minimum=0
    )
