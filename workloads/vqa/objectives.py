"""What is learned of an answer: its tokens in three parts, and the loss of each, of one forward pass."""

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from lib.errors import BadInput, printable
from lib.task import Batch
from workloads.vqa.records import Record
from workloads.vqa.stages import TERMS
from workloads.vqa.tokens import Tokens

FORMAT, ANSWER, REASONING = (TERMS.index(name) + 1 for name in ("format", "answer", "reasoning"))  # 0: padding


class Target(NamedTuple):
    """What the decoder is to write for a record, `<answer>..</answer><reasoning>[TYPE] ..</reasoning>`."""

    tokens: list[int]
    parts: list[int]  # of each token


def targets(records: Sequence[Record], tokens: Tokens, length: int) -> list[Target]:
    """Returns the targets of records; a reasoning is cut where there is no room. Raises BadInput for a long answer."""
    answers = tokens.numbers([one.answer for one in records])
    reasons = tokens.numbers([one.reasoning for one in records])
    found = []
    for record, answer, reasoning in zip(records, answers, reasons, strict=True):
        kind = [tokens.kinds[record.kind]] if record.kind in tokens.kinds else []
        room = length - len(answer) - len(kind) - 5  # four tags and the end
        if room < 0:
            raise BadInput(
                f"{printable(record.file)}, record {record.number}: the answer takes {len(answer)} tokens, and "
                f"workload.decoder.length {length} has room for {len(answer) + room}. Raise it, or shorten the answer "
                f"({printable(record.answer, most=60)})."
            )
        why = [*kind, *reasoning[:room]]
        numbers = [tokens.answer, *answer, tokens.answer_end, tokens.reasoning, *why, tokens.reasoning_end, tokens.end]
        # Where an answer ends is a part of it: "đỏ" and "đỏ tươi" begin alike
        parts = [FORMAT, *[ANSWER] * (len(answer) + 1), FORMAT, *[REASONING] * len(why), FORMAT, FORMAT]
        found.append(Target(numbers, parts))
    return found


def summed(losses: Tensor, parts: Tensor) -> dict[str, Tensor]:
    """(B, L) losses of tokens -> the sum of each term over its tokens."""
    return {name: losses[parts == number].sum() for number, name in enumerate(TERMS, 1)}


def counted(batch: Batch) -> dict[str, float]:
    """Returns how many tokens each term has."""
    return {name: int((batch["part"] == number).sum()) for number, name in enumerate(TERMS, 1)}


def losses(logits: Tensor, target: Tensor) -> Tensor:
    """(B, L, V), (B, L) -> (B, L) cross-entropies."""
    return F.cross_entropy(logits.float().transpose(1, 2), target, reduction="none")
