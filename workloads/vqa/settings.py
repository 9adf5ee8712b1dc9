"""The settings of vqa: those of its data, and one class for each part of the model and its training."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lib.config.reader import option
from workloads.vqa.records.settings import Generator, Pictures, Source, Split
from workloads.vqa.stages import Stage

_WEIGHTS = (
    "Published weights: a folder, a mounted model or data set, or a name on the Hugging Face hub; empty: from scratch."
)


@dataclass(frozen=True)
class Image:
    """The encoder of pictures: a published one, or convolutions from scratch."""

    weights: str = option("", _WEIGHTS, path=True)
    channels: tuple[int, ...] = option(
        (24, 48, 96),
        "Channels of the stages from scratch. Each halves the picture, and a pooling after them once more.",
        minimum=1,
    )
    lr: float = option(1.0, "Factor on optimizer.lr.", above=0)


@dataclass(frozen=True)
class Text:
    """The encoder of questions: a published one, or layers over the decoder's word vectors."""

    weights: str = option("", _WEIGHTS, path=True)
    layers: int = option(1, "Layers from scratch.", minimum=0)
    length: int = option(40, "Tokens of a question at most; the rest of it is cut off.", minimum=4, limit=4096)
    lr: float = option(1.0, "Factor on optimizer.lr.", above=0)


@dataclass(frozen=True)
class Decoder:
    """The T5 that fuses picture and question in its encoder and writes the answer; its sizes are those from scratch."""

    weights: str = option("", _WEIGHTS, path=True)
    fusion_layers: int = option(1, "Layers of its encoder, of published ones the lowest; 0: none.", minimum=0)
    layers: int = option(2, "Layers of its decoder.", minimum=1)
    hidden: int = option(96, "Its width, a multiple of its heads.", minimum=1)
    heads: int = option(4, "Its attention heads.", minimum=1)
    feed_forward: int = option(192, "The width inside its layers' feed-forward part.", minimum=1)
    dropout: float = option(0.1, "Share of its activations that is dropped in training.", minimum=0, below=1)
    vocabulary: int = option(1000, "Pieces of its own tokenizer at most.", minimum=64)
    length: int = option(160, "Tokens of an answer with its reasoning at most.", minimum=8, limit=4096)


@dataclass(frozen=True)
class Distillation:
    """What is learned from a teacher's answer: the answer itself, or how probable it found several."""

    mode: Literal["hard", "soft"] = option(
        "hard", "hard: the answer of each record alone; soft: the teacher's probabilities too, where records have them."
    )
    weight: float = option(0.5, "Share of the probabilities in the loss of an answer.", minimum=0, maximum=1)
    temperature: float = option(2.0, "What evens the probabilities out; 1: as they are.", above=0)
    candidates: int = option(8, "Tokens that are told apart at a place of the answer at most.", minimum=2, limit=1000)


@dataclass(frozen=True)
class Writing:
    """How answers are written in an evaluation and for new pictures."""

    beams: int = option(4, "Beams of the search in the test and for new pictures; 1: the likeliest token.", minimum=1)
    validation_beams: int = option(1, "Beams in a validation, of which there are many.", minimum=1)
    at_once: int = option(256, "Beams of all questions that are computed at once at most.", minimum=1)


@dataclass(frozen=True)
class Settings:
    """The `workload:` section of a configuration."""

    source: Source = dataclasses.field(default=Source())
    pictures: Pictures = dataclasses.field(default=Pictures())
    split: Split = dataclasses.field(default=Split())
    generator: Generator = dataclasses.field(default=Generator())
    image: Image = Image()
    text: Text = Text()
    decoder: Decoder = Decoder()
    distillation: Distillation = Distillation()
    writing: Writing = Writing()
    stages: dict[str, Stage] = dataclasses.field(
        default_factory=dict,
        metadata={"help": "Parts of the run by name, each with the weights of what it learns; see docs/vqa.md."},
    )
    bad_input_limit: int = option(
        0, "Records that cannot be used and are left out; one more refuses the data.", minimum=0
    )
    smoothing: float = option(0.0, "Label smoothing of the training loss.", minimum=0, below=1)
    together: int = option(
        4, "Questions of a picture that follow each other at most, so that it is encoded once for them.", minimum=1
    )

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        decoder, image, pictures = values["decoder"], values["image"], values["pictures"]
        if isinstance(decoder, Decoder) and decoder.hidden % decoder.heads:
            fits = decoder.hidden // decoder.heads * decoder.heads or decoder.heads
            yield (
                "decoder",
                f"workload.decoder.hidden is {decoder.hidden}, which is no multiple of the {decoder.heads} heads. "
                f"Write {fits}, say.",
            )
        if isinstance(image, Image) and isinstance(pictures, Pictures) and not image.weights:
            shrinks = 2 ** (len(image.channels) + 1)
            if pictures.side % shrinks:
                yield (
                    "pictures",
                    f"workload.pictures.side is {pictures.side}, and {len(image.channels)} stages with a pooling "
                    f"shrink it {shrinks} times. Write {max(1, pictures.side // shrinks) * shrinks}.",
                )
        stages = values["stages"]
        if isinstance(stages, dict) and all(isinstance(stage, Stage) for stage in stages.values()):
            yield from (("stages", sentence) for sentence in Stage.mistakes_of(stages))
