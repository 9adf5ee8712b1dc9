"""Judgments that are made up, for runs without data: roles come in runs, and words say them only in part."""

from collections.abc import Iterator

import numpy as np

from workloads.legal.settings import Generator

ROLES = ("Facts", "Ruling by Lower Court", "Argument", "Statute", "Precedent", "Ratio of the decision",
         "Ruling by Present Court")  # fmt: skip
CATEGORIES = ("Civil", "Criminal", "Labour")
_SEED = 20_191_109
_STAY = 0.6  # the chance that the next sentence has the same role
_OTHER_WORDS = 0.4  # the share of sentences in the words of a neighbouring role

# Words that a role has more often than others do; a sentence takes some of them, and the rest of it says nothing.
_OPENINGS = {
    "Facts": ("The appellant was employed as a clerk", "On the said date the deceased left the house", "The plaintiff"),
    "Ruling by Lower Court": ("The High Court dismissed the petition", "The trial court convicted the accused", "The"),
    "Argument": ("Learned counsel for the appellant submitted", "It was contended", "Counsel"),
    "Statute": ("Section 34 of the Act provides", "Article 14 of the Constitution reads", "Under the rules"),
    "Precedent": ("In the earlier decision this Court held", "The ratio of that case was", "This Court"),
    "Ratio of the decision": ("In our opinion the view", "We find that the evidence", "The view"),
    "Ruling by Present Court": ("The appeal is allowed", "We set aside the order", "Appeal dismissed"),
}
_ENDINGS = {"Facts": ("and a complaint was lodged with the police", "in the year 1987 at the village"),
            "Ruling by Lower Court": ("and sentenced him to imprisonment", "against which an appeal was preferred"),
            "Argument": ("that the order was without jurisdiction", "that the witnesses cannot be relied upon"),
            "Statute": ("that every person shall be liable", "as it stood before the amendment"),
            "Precedent": ("that mere delay is no ground", "and that decision was followed since"),
            "Ratio of the decision": ("does not stand the test of reason", "is sufficient to sustain the charge"),
            "Ruling by Present Court": ("with costs throughout", "and the matter is remanded")}  # fmt: skip
_MIDDLES = ("in respect of the land", "as regards the notice", "on the question of title",
            "with reference to the contract", "in the matter of wages", "for the purposes of the inquiry",
            "having regard to the record", "at the relevant time", "of the suit property", "in the course of business",
            "by the said firm", "during the pendency of the case")  # fmt: skip


def judgments(settings: Generator) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Yields name, category, sentences and their roles: facts, runs of roles, a ruling; the same ones every time."""
    for number in range(settings.documents):
        draw = np.random.default_rng([_SEED, number])
        length = int(draw.integers(max(14, settings.sentences * 2 // 3), settings.sentences * 4 // 3 + 1))
        roles = [0]
        while len(roles) < length - 1:
            if draw.random() < _STAY:
                roles.append(roles[-1])
            else:
                place = len(roles) / length * (len(ROLES) - 1)
                roles.append(int(np.clip(round(draw.normal(place, 1.2)), 0, len(ROLES) - 2)))
        roles.append(len(ROLES) - 1)
        category = CATEGORIES[number % len(CATEGORIES)]
        sentences = [_sentence(role, draw) for role in roles]
        yield f"generated-{number:03d}", category, sentences, [ROLES[role] for role in roles]


def _sentence(role: int, draw: np.random.Generator) -> str:
    words = role
    if draw.random() < _OTHER_WORDS:
        words = int(np.clip(role + draw.choice([-1, 1]), 0, len(ROLES) - 1))
    opening, ending = _OPENINGS[ROLES[words]], _ENDINGS[ROLES[words]]
    middles = draw.choice(len(_MIDDLES), int(draw.integers(0, 4)), replace=False)
    parts = [opening[draw.integers(len(opening))], *(_MIDDLES[one] for one in middles)]
    if draw.random() < 0.6:
        parts.append(ending[draw.integers(len(ending))])
    return f"{' '.join(parts)} ."
