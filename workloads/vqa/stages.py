"""Stages of a run: what each learns most, and which encoders rest in it. All follows from the step alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from lib.config.reader import option

TERMS = ("format", "answer", "reasoning")  # the parts of a written answer, each a term of the loss
Part = Literal["image", "text"]
PARTS: tuple[Part, ...] = get_args(Part)  # the encoders


@dataclass(frozen=True)
class Stage:
    """A part of the run, which lasts until the next one begins."""

    from_epochs: float = option(0.0, "The epoch with which it begins.", minimum=0)
    from_steps: int = option(0, "The same in steps.", minimum=0)
    answer: float = option(1.0, "Weight of the answer.", minimum=0)
    reasoning: float = option(1.0, "Weight of the reasoning behind it.", minimum=0)
    format: float = option(1.0, "Weight of the tags around both.", minimum=0)
    rests: tuple[Part, ...] = option((), "Encoders that are not trained in it: image, text, or both.")

    @property
    def begin(self) -> tuple[float, int]:
        return self.from_epochs, self.from_steps  # one of the two is 0

    @staticmethod
    def mistakes_of(stages: Mapping[str, "Stage"]) -> Iterator[str]:
        """Yields what is wrong with stages together."""
        begins = sorted(stage.begin for stage in stages.values())
        if begins and begins[0] != (0, 0):
            yield "The first of workload.stages must begin with epoch 0: write no from_epochs there."
        if any(epochs for epochs, _ in begins) and any(steps for _, steps in begins):
            yield "Begins of workload.stages stand in epochs and in steps. Give all of them in one form."
        elif len({*begins}) < len(begins) and not any(steps for _, steps in begins):  # of little data in one step
            yield "Two of workload.stages begin at the same time. Give each a from_epochs of its own."
        for name, stage in stages.items():
            if not (stage.answer or stage.reasoning or stage.format):
                yield f"The stage {name} learns nothing: all of its weights are 0."
        for part in PARTS:
            trained = [part not in stages[name].rests for name in ordered(stages)]
            if sum(now and not before for before, now in zip([False, *trained], trained, strict=False)) > 1:
                yield f"workload.stages train the {part} encoder, rest it and train it again. It can rest only once."


def ordered(stages: Mapping[str, Stage]) -> list[str]:
    """Returns the names of stages in the order in which they follow each other."""
    return sorted(stages, key=lambda name: stages[name].begin)


def name_at(stages: Mapping[str, Stage], step: int) -> str:
    """Returns the name of the stage that a step is in; "" where a run has none."""
    return next((name for name in reversed(ordered(stages)) if stages[name].from_steps <= step), "")


def weights_at(stages: Mapping[str, Stage], step: int) -> dict[str, float]:
    """Returns the weight of each loss term in a step."""
    stage = stages.get(name_at(stages, step), Stage())
    return {term: getattr(stage, term) for term in TERMS}


def trained(stages: Mapping[str, Stage], part: Part) -> tuple[int, int | None] | None:
    """Returns the step from which an encoder is trained, and the one from which it rests again; None: never trained."""
    names = ordered(stages)
    awake = [part not in stages[name].rests for name in names]
    if not names or all(awake):
        return 0, None
    if not any(awake):
        return None
    first = awake.index(True)
    last = next((n for n in range(first, len(names)) if not awake[n]), None)
    return stages[names[first]].from_steps, None if last is None else stages[names[last]].from_steps
