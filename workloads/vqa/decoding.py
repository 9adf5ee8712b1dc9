"""Answers out of the decoder: a beam search in bounded batches, and what its tokens say."""

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from lib.machine import memory
from lib.ranks import sharding
from lib.task import Batch
from lib.task.batches import in_batches
from workloads.vqa import objectives
from workloads.vqa.model import Network
from workloads.vqa.tokens import Tokens


class Answer(NamedTuple):
    """What was written for a question."""

    text: str
    kind: str
    reasoning: str
    is_valid: bool  # all tags, in their order, around an answer


def parsed(numbers: Sequence[int], tokens: Tokens) -> Answer:
    """Returns what written tokens say. Without the tags it is no valid answer, and what there is counts as its text."""
    written = list(numbers)
    written = written[: written.index(tokens.end)] if tokens.end in written else written
    tags = (tokens.answer, tokens.answer_end, tokens.reasoning, tokens.reasoning_end)
    letters = "".join("<>[]"[tags.index(n)] if n in tags else "." for n in written)
    is_whole = re.fullmatch(r"<\.+>\[\.*\]", letters) is not None
    begin = letters.find("<") + 1
    end = next((place for place in range(begin, len(letters)) if letters[place] != "."), len(letters))
    why = written[letters.find("[") + 1 :] if "[" in letters else []
    names = {number: name for name, number in tokens.kinds.items()}
    kind = next((names[n] for n in why if n in names), "")
    answer = tokens.text(written[begin:end])
    return Answer(answer, kind, tokens.text([n for n in why if n not in names]), is_whole and bool(answer))


class Writer:
    """Writes answers in bounded batches: where memory runs out, it goes on from there with half as many at once."""

    def __init__(self, at_once: int, length: int):
        """`at_once` are the beams of all questions that are computed together, `length` the tokens of an answer."""
        self.at_once, self.length = at_once, length

    def write(self, model: Network, batch: Batch, beams: int) -> tuple[list[list[int]], float, int]:
        """Returns the tokens of each answer, and the sum of the losses of the right ones' tokens with their number."""
        size, most = len(batch["picture"]), max(1, self.at_once // beams)
        work = partial(self._part, model, batch, beams)
        parts = in_batches(work, range(size), most)
        if sharding.is_shard(next(model.parameters())):  # the other ranks wait in the middle of a layer
            parts = map(work, (range(first, min(first + most, size)) for first in range(0, size, most)))
        written, losses, counts = zip(*parts, strict=True)
        return [one for own in written for one in own], sum(losses), sum(counts)

    def _part(self, model: Network, batch: Batch, beams: int, rows: range) -> tuple[list[list[int]], float, int]:
        try:
            part = {name: value[rows.start : rows.stop] for name, value in batch.items()}
            encoded, mask = model.encode(part)
            written = search(model, encoded, mask, beams, self.length)
            kept = part["part"] > 0
            losses = objectives.losses(model.decode(encoded, mask, part["target"]), part["target"])
            return written.tolist(), float(losses[kept].sum()), int(kept.sum())
        except Exception as error:
            if memory.is_oom(error):
                self.at_once = max(1, len(rows) // 2) * beams  # for the batches after this one, too
            raise


def search(model: Network, encoded: Tensor, mask: Tensor, beams: int, length: int, returned: int = 1) -> Tensor:
    """Returns (B * returned, tokens) the likeliest answers of a beam search; one beam takes the likeliest token."""
    written = model.t5.generate(
        encoder_outputs=BaseModelOutput(encoded), attention_mask=mask.long(), num_beams=beams, do_sample=False,
        max_new_tokens=length, num_return_sequences=returned, use_cache=True,
    )  # fmt: skip
    return written[:, 1:]  # without the token that starts it


def candidates(model: Network, batch: Batch, beams: int, length: int, tokens: Tokens) -> list[dict[Answer, float]]:
    """Returns for each question the different answers among its beams, each with its probability."""
    encoded, mask = model.encode(batch)
    written = search(model, encoded, mask, beams, length, beams).tolist()
    probable = shares(model, encoded.repeat_interleave(beams, 0), mask.repeat_interleave(beams, 0), written, tokens)
    answers: list[dict[Answer, float]] = [{} for _ in encoded]
    for number, (one, share) in enumerate(zip(written, probable, strict=True)):
        own, answer = answers[number // beams], parsed(one, tokens)
        if answer.text not in {other.text for other in own}:  # another reasoning for the same
            own[answer] = share
    return answers


def shares(
    model: Network, encoded: Tensor, mask: Tensor, written: Sequence[Sequence[int]], tokens: Tokens
) -> list[float]:
    """Returns how probable the model finds each written answer, up to the tag that ends it."""
    ends = [list(one).index(tokens.answer_end) + 1 if tokens.answer_end in one else len(one) for one in written]
    target = torch.full((len(ends), max(ends)), tokens.pad)
    for row, (one, end) in enumerate(zip(written, ends, strict=True)):
        target[row, :end] = torch.tensor(one[:end])
    target = target.to(encoded.device)
    losses = objectives.losses(model.decode(encoded, mask, target), target).cpu()
    kept = torch.arange(max(ends)) < torch.tensor(ends)[:, None]
    return (-(losses * kept).sum(1)).exp().tolist()
