"""Judgments that are made up, for runs without data: roles come in runs, and words say them only in part."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from workloads.legal.documents import Document
from workloads.legal.settings import Generator

_WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
ROLES = tuple(_WORDS["roles"])
CATEGORIES = tuple(_WORDS["categories"])
_MIDDLES = _WORDS["middles"]
_LAST = len(ROLES) - 1  # the number of the ruling
_SEED = 20_191_109
_STAY = 0.6  # the chance that the next sentence has the same role
_OTHER_WORDS = 0.4  # the share of sentences in the words of a neighbouring role


def judgments(settings: Generator) -> Iterator[Document]:
    """Yields judgments: facts, runs of roles, a ruling; the same ones every time."""
    for number in range(settings.documents):
        draw = np.random.default_rng([_SEED, number])
        least = max(14, settings.sentences * 2 // 3)
        length = int(draw.integers(least, settings.sentences * 4 // 3 + 1))
        roles = [0]
        while len(roles) < length - 1:
            if draw.random() < _STAY:
                roles.append(roles[-1])
            else:
                place = len(roles) / length * _LAST
                role = round(draw.normal(place, 1.2))
                roles.append(int(np.clip(role, 0, _LAST - 1)))
        roles.append(_LAST)
        category = CATEGORIES[number % len(CATEGORIES)]
        sentences = tuple(_sentence(role, draw) for role in roles)
        names = tuple(ROLES[role] for role in roles)
        yield Document(f"generated-{number:03d}", category, sentences, names)


def _sentence(role: int, draw: np.random.Generator) -> str:
    words = role
    if draw.random() < _OTHER_WORDS:
        words = int(np.clip(role + draw.choice([-1, 1]), 0, _LAST))
    opening, ending = _WORDS["roles"][ROLES[words]].values()
    middles = draw.choice(len(_MIDDLES), int(draw.integers(0, 4)), replace=False)
    parts = [opening[draw.integers(len(opening))]]
    parts += [_MIDDLES[number] for number in middles]
    if draw.random() < 0.6:
        parts.append(ending[draw.integers(len(ending))])
    return f"{' '.join(parts)} ."
