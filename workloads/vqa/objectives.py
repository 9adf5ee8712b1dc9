"""What is learned of an answer: its tokens in three parts, and the loss of each, of one forward pass."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.errors import BadInput, printable
from lib.task import Batch
from workloads.vqa.records import Record
from workloads.vqa.settings import Distillation
from workloads.vqa.stages import TERMS
from workloads.vqa.tokens import Tokens

FORMAT, ANSWER, REASONING = (TERMS.index(name) + 1 for name in ("format", "answer", "reasoning"))  # 0: padding

Shares = dict[int, float]  # of tokens


class Target(NamedTuple):
    """What the decoder is to write for a record, `<answer>..</answer><reasoning>[TYPE] ..</reasoning>`."""

    tokens: list[int]
    parts: list[int]  # of each token
    soft: list[Shares]  # what a teacher finds probable at the places of the answer, from the second token on


def targets(records: Sequence[Record], tokens: Tokens, length: int, distillation: Distillation) -> list[Target]:
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
        path = [*answer, tokens.answer_end]
        soft = shares_along(path, record, tokens, distillation) if distillation.mode == "soft" else []
        found.append(Target(numbers, parts, soft))
    return found


def shares_along(path: Sequence[int], record: Record, tokens: Tokens, distillation: Distillation) -> list[Shares]:
    """Returns how probable a teacher finds the tokens at each place of an answer, given those before them.

    They follow from the probabilities of whole answers: of those that begin as this one does, how many go on with which
    token. What the teacher did not name has none; where it names no answer that begins so, nothing is soft.
    """
    texts = [text for text, _ in record.teacher]
    candidates = [[*one, tokens.answer_end] for one in tokens.numbers(texts)]
    found: list[Shares] = []
    for place in range(len(path)) if candidates else ():
        sums: defaultdict[int, float] = defaultdict(float)
        for candidate, (_, probability) in zip(candidates, record.teacher, strict=True):
            if len(candidate) > place and candidate[:place] == list(path[:place]):
                sums[candidate[place]] += probability
        likely = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[: distillation.candidates]
        evened = {token: share ** (1 / distillation.temperature) for token, share in likely if share > 0}
        total = sum(evened.values())
        found.append({token: share / total for token, share in evened.items()})
    return found


def summed(losses: Tensor, parts: Tensor) -> dict[str, Tensor]:
    """(B, L) losses of tokens -> the sum of each term over its tokens."""
    return {name: losses[parts == number].sum() for number, name in enumerate(TERMS, 1)}


def counted(batch: Batch) -> dict[str, float]:
    """Returns how many tokens each term has."""
    return {name: int((batch["part"] == number).sum()) for number, name in enumerate(TERMS, 1)}


def plain_losses(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """(B, L, V), (B, L) -> (B, L) cross-entropies."""
    return F.cross_entropy(logits.float().transpose(1, 2), target, reduction="none", label_smoothing=smoothing)


def losses(logits: Tensor, batch: Batch, smoothing: float, distillation: Distillation) -> Tensor:
    """(B, L, V) -> (B, L) cross-entropies with the target, and where the batch has it with what a teacher found."""
    hard = plain_losses(logits, batch["target"], smoothing)
    if "soft_tokens" not in batch:
        return hard
    heat, weight, shares = distillation.temperature, distillation.weight, batch["soft_shares"]
    scores = torch.log_softmax(logits.float() / heat, -1).gather(-1, batch["soft_tokens"])  # (B, L, K)
    soft = -(shares * scores).sum(-1) * heat**2  # as Hinton et al., arXiv 1503.02531, section 2
    return torch.where(shares.sum(-1) > 0, (1 - weight) * hard + weight * soft, hard)
