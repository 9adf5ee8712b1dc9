"""Tiny made-up judgments: facts, then arguments, then a ruling, each role with words of its own among common ones."""

import os
from pathlib import Path

import numpy as np

from tests.conftest import ROOT
from workloads.legal.documents import Document

# The real ones, where they are there
CORPUS = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data")) / "legal_rr_lawai"
ROLES = ("Facts", "Argument", "Ruling")
_WORDS = {
    "Facts": "accident police night house witness",
    "Argument": "counsel submits contends urged learned",
    "Ruling": "appeal dismissed allowed accordingly costs",
}
_COMMON = "the of court and in that case was it by"


def judgment(number: int, category: str = "", length: int = 12, noise: float = 0.5) -> Document:
    """Returns a judgment whose sentences are told by their words only in part; the rest their neighbours tell."""
    draw = np.random.default_rng(number)
    bounds = sorted(draw.integers(2, length - 1, 2).tolist())
    roles = [ROLES[(place >= bounds[0]) + (place >= bounds[1])] for place in range(length)]
    sentences = []
    for role in roles:
        own = _WORDS[ROLES[draw.integers(3)] if draw.random() < noise else role].split()
        words = [*draw.choice(_COMMON.split(), 4), *draw.choice(own, 2), f"n{draw.integers(50)}"]
        sentences.append(" ".join(draw.permutation(words).tolist()))
    return Document(f"j{number:02}", category, tuple(sentences), tuple(roles), f"j{number:02}.txt")


def judgments(count: int, categories: tuple[str, ...] = ("",), **kind) -> list[Document]:
    return [judgment(number, categories[number % len(categories)], **kind) for number in range(count)]


def as_lines(document: Document) -> str:
    """Returns a judgment as the lines of its file."""
    return "".join(f"{s}\t{role}\n" for s, role in zip(document.sentences, document.roles, strict=True))
