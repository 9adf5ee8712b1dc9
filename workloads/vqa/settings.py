"""The settings of vqa: data, one class for each part of the model, and stages of training."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lib.config.reader import option

TERMS = ("format", "answer", "reasoning")  # the parts of a written answer, each a term of the loss
_WEIGHTS = "Published weights: folder, mounted input or hub name; empty: from scratch."


@dataclass(frozen=True)
class Source:
    """Paths of tables and pictures."""

    files: str = option("**/*.jsonl", "Pattern of the tables below data.dir.")
    images: str = option(
        "", "Folder of the pictures, or a mounted input; empty: data.dir.", path=True
    )
    picture: str = option(
        "{image}", "A row's picture there: {image}, {name}, {stem}, {split}, {folder}."
    )


@dataclass(frozen=True)
class Columns:
    """The columns of the tables, by name; by number, from 0, in files without a head."""

    question: str = option("question", "The question.")
    answer: str = option("answer", "The right answer.")
    image: str = option("image", "The picture: its path, name or id.")
    kind: str = option("kind", "The question's type, if given.")
    reasoning: str = option("reasoning", "The reasoning, if given.")
    split: str = option("split", "train, val or test, if given.")


@dataclass(frozen=True)
class Pictures:
    """How pictures are read and changed."""

    side: int = option(64, "Pixels on a side of every picture.", minimum=16, limit=2048)


@dataclass(frozen=True)
class Split:
    """The held-out pictures, each with all of its questions."""

    validation: float = option(0.15, "Share of the pictures that validates.", above=0, below=0.5)
    test: float = option(0.15, "Share of the pictures that is tested.", above=0, below=0.5)


@dataclass(frozen=True)
class Generator:
    """The drawn pictures that replace missing data."""

    pictures: int = option(900, "How many.", minimum=12)
    questions: int = option(6, "Questions about each at most.", minimum=1)
    side: int = option(64, "Pixels on a side.", minimum=32, limit=1024)


@dataclass(frozen=True)
class Image:
    """The encoder of pictures: a published one, or convolutions from scratch."""

    weights: str = option("", _WEIGHTS, path=True)
    encoder: str = option(
        "",
        "Without weights: a frozen encoder of photographs; empty: one at hand; none: from scratch.",
        path=True,
    )
    channels: tuple[int, ...] = option(
        (24, 48, 96), "Channels of the stages from scratch; each halves.", minimum=1
    )
    lr: float = option(1.0, "Factor on optimizer.lr.", above=0)


@dataclass(frozen=True)
class Text:
    """The encoder of questions: a published one, or layers over the decoder's word vectors."""

    weights: str = option("", _WEIGHTS, path=True)
    layers: int = option(1, "Layers from scratch.", minimum=0)
    length: int = option(40, "Most tokens of a question.", minimum=4, limit=4096)
    lr: float = option(1.0, "Factor on optimizer.lr.", above=0)


@dataclass(frozen=True)
class Decoder:
    """The T5 that fuses picture and question in its encoder and writes the answer; its sizes are those from scratch."""

    weights: str = option("", _WEIGHTS, path=True)
    fusion_layers: int = option(1, "Number of lowest encoder layers; may be 0.", minimum=0)
    layers: int = option(2, "Layers of its decoder.", minimum=1)
    hidden: int = option(96, "Its width, a multiple of its heads.", minimum=1)
    heads: int = option(4, "Its attention heads.", minimum=1)
    feed_forward: int = option(192, "The width inside its layers' feed-forward part.", minimum=1)
    dropout: float = option(0.1, "Dropout of its activations.", minimum=0, below=1)
    vocabulary: int = option(1000, "Most pieces of its trained tokenizer.", minimum=64)
    length: int = option(160, "Most tokens of an answer with its reasoning.", minimum=8, limit=4096)

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if values["hidden"] % values["heads"]:
            heads = values["heads"]
            yield "hidden", f"workload.decoder.hidden is not a multiple of the {heads} heads."


@dataclass(frozen=True)
class Writing:
    """How answers are written in an evaluation and for new pictures."""

    beams: int = option(4, "Beams in the test and for new pictures; 1: greedy.", minimum=1)
    validation_beams: int = option(1, "Beams in a validation.", minimum=1)
    at_once: int = option(256, "Most beams computed at once.", minimum=1)


@dataclass(frozen=True)
class Stage:
    """A stretch of the run, which lasts until the next one begins."""

    from_epochs: float = option(0.0, "The epoch with which it begins.", minimum=0)
    from_steps: int = option(0, "The same in steps.", minimum=0)
    answer: float = option(1.0, "Weight of the answer.", minimum=0)
    reasoning: float = option(1.0, "Weight of the reasoning behind it.", minimum=0)
    format: float = option(1.0, "Weight of the tags around both.", minimum=0)

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if not any(values[term] for term in TERMS):
            yield "answer", "The stage learns nothing: all of its weights are 0."


def stage_at(stages: Mapping[str, Stage], step: int) -> tuple[str, Stage]:
    """Returns name and stage of a step; without stages the name is ""."""
    name = ""
    begin = (0, 0.0)
    for other, stage in stages.items():
        other_begin = (stage.from_steps, stage.from_epochs)
        if stage.from_steps <= step and (not name or other_begin > begin):
            name = other
            begin = other_begin
    return name, stages.get(name, Stage())


@dataclass(frozen=True)
class Settings:
    """The `workload:` section of a configuration."""

    source: Source = Source()
    columns: Columns = Columns()
    pictures: Pictures = Pictures()
    split: Split = Split()
    generator: Generator = Generator()
    image: Image = Image()
    text: Text = Text()
    decoder: Decoder = Decoder()
    writing: Writing = Writing()
    stages: dict[str, Stage] = field(
        default_factory=dict, metadata={"help": "Parts of the run; see docs/vqa.md."}
    )
    bad_input_limit: int = option(
        0, "Bad rows that are left out; one more refuses the data.", minimum=0
    )
    together: int = option(4, "Most questions of a picture in a row, to encode it once.", minimum=1)

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        begins = [(stage.from_epochs, stage.from_steps) for stage in values["stages"].values()]
        if begins and min(begins) != (0, 0):
            sentence = (
                "The first of workload.stages must begin with epoch 0: write no from_epochs there."
            )
            yield "stages", sentence
