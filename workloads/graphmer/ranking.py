"""Filtered ranks of tails among two sets of candidates, and the figures and tables made of them.

Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NIPS 2013, section 4.2: other true tails of
the same head and relation do not count against the right one.
"""

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lib.text import aligned
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.scoring import Scorer
from workloads.graphmer.settings import CONDITIONS

HITS = (1, 3, 10)
FREQUENCY, CUE, RULE, COMBINED, ENCODER = "frequency", "single cue", "rule", "counts combined", "counts + encoder"
RANGE, TRAINED, NAMESAKES = "by range", "of training", "of its name"
_CUES = {"full_text": "text match", "masked": "context words", "name_only": "head name"}
_OTHERS = (COMBINED, CUE)  # over which the encoder's gain is given


@dataclass(frozen=True)
class Answers:
    """N answered questions: the triple and condition of each, and what became of it.

    `by_range` and `by_training` (N) are the ranks among the entities that the ontology lets the relation have, and
    among the tails that training has with it. `namesake` (N) is 1 where the right entity was the first of its name, a
    part where it shares that place, and NaN where no other candidate has the name. `seen` (N) says whether training has
    the tail with the relation.
    """

    triple: np.ndarray
    condition: np.ndarray
    by_range: np.ndarray
    by_training: np.ndarray
    namesake: np.ndarray
    seen: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> "Answers":
        return Answers(**{name: value[chosen] for name, value in vars(self).items()})

    @classmethod
    def joined(cls, parts: list["Answers"]) -> "Answers":
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})


class Candidates:
    """The entities that compete for each relation: by range, and the part of them that training has seen."""

    def __init__(self, corpus: Corpus, scorer: Scorer):
        self.corpus, self.scorer = corpus, scorer
        self._of: dict[int, tuple[CandidateSet, np.ndarray]] = {}

    def of(self, relation: int) -> tuple[CandidateSet, np.ndarray]:
        """Returns the candidates of a relation (C), and which of them training has as its tails (C)."""
        if relation not in self._of:
            everything = np.arange(len(self.corpus.entity_type))
            allowed = self.scorer.is_allowed(np.array([relation]), everything)[0]
            among = CandidateSet(self.corpus, np.flatnonzero(allowed))
            self._of[relation] = among, self.scorer.counts.of_tail[relation, among.entities] > 0
        return self._of[relation]

    def hide_others(self, asked: Questions, tail: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Returns the scores (Q, C) without the other true tails of each head; all questions are of one relation."""
        among, _ = self.of(int(asked.relation[0]))
        scores = scores.copy()
        scores[self.scorer.other_tails(asked, tail, among)] = -np.inf
        return scores

    def rank(self, triple: np.ndarray, asked: Questions, scores: np.ndarray) -> Answers:
        """Ranks the tails of Q triples of one relation by the scores (Q, C). Ties take the mean rank.

        A tail that is no candidate is last.
        """
        tail = self.corpus.tail[triple]
        among, trained = self.of(int(asked.relation[0]))
        scores, column = self.hide_others(asked, tail, scores), among.place[tail]
        own = scores[np.arange(len(triple)), np.maximum(column, 0)]
        seen = (column >= 0) & trained[np.maximum(column, 0)]

        def rank(of: np.ndarray) -> np.ndarray:
            return (of > own[:, None]).sum(1) + ((of == own[:, None]).sum(1) + 1) / 2

        # The first of its name
        question, other = among.by_name.places(self.corpus.name[tail])
        score = scores[question, other]
        possible = np.isfinite(score) & (column >= 0)[question]
        question, score = question[possible], score[possible]
        better = np.bincount(question, score > own[question], len(tail))
        equal = np.bincount(question, score == own[question], len(tail))
        first = np.where(better > 0, 0.0, 1 / np.maximum(equal, 1))
        return Answers(
            triple,
            asked.condition,
            np.where(column >= 0, rank(scores), len(among) + 1.0),
            np.where(seen, rank(scores[:, trained]), trained.sum() + 1.0),
            np.where(np.bincount(question, minlength=len(tail)) > 1, first, np.nan),
            seen,
        )

    def log_likelihood(self, triple: np.ndarray, asked: Questions, scores: np.ndarray) -> np.ndarray:
        """(Q) the logarithm of each tail's softmax among the candidates; 0 where it is none of them."""
        tail = self.corpus.tail[triple]
        among, _ = self.of(int(asked.relation[0]))
        scores, column = self.hide_others(asked, tail, scores), among.place[tail]
        most = scores.max(1)
        total = most + np.log(np.exp(scores - most[:, None]).sum(1))
        return np.where(column >= 0, scores[np.arange(len(tail)), np.maximum(column, 0)] - total, 0.0)


def figures(ranks: np.ndarray) -> dict[str, float]:
    """Returns MRR and Hits@1, 3 and 10 of ranks; zeros where there are none."""
    if not len(ranks):
        return dict.fromkeys(("mrr", *(f"hits{k}" for k in HITS)), 0.0)
    return {"mrr": float((1 / ranks).mean()), **{f"hits{k}": float((ranks <= k).mean()) for k in HITS}}


def headline(answers: Answers, structural: np.ndarray, relation: np.ndarray) -> dict[str, float]:
    """Returns `mrr_masked`, `hits1_masked`, `mrr_trained_masked`, ... over relations that are not structural.

    `structural` (relations) is True for those that a rule on names answers, `relation` (triples) the relation of each.
    Candidates are those by range, and with `trained` the tails that training has. `mrr` is the mean over conditions and
    both kinds of candidates: one number to select weights by, steadier than each of them. `resolved` is the share of
    right entities among those of the right name, with the full text.
    """
    answers = answers[~structural[relation[answers.triple]]]
    found: dict[str, float] = {}
    for number, condition in enumerate(CONDITIONS):
        own = answers[answers.condition == number]
        found |= {f"{key}_{condition}": value for key, value in figures(own.by_range).items()}
        found |= {f"{key}_trained_{condition}": value for key, value in figures(own.by_training).items()}
    mean = sum(found[f"mrr_{c}"] + found[f"mrr_trained_{c}"] for c in CONDITIONS) / (2 * len(CONDITIONS))
    return {"mrr": mean, **found, "resolved": resolved(answers)}


def resolved(answers: Answers) -> float:
    """Returns the share of entities that were told from others of their name, with the full text; 0: there are none."""
    known = ~np.isnan(answers.namesake) & (answers.condition == 0)
    return float(answers.namesake[known].mean()) if known.any() else 0.0


def interval(values: np.ndarray, files: np.ndarray, draws: int = 1000) -> tuple[float, float]:
    """(N) values and the file of each -> the 95 % interval of their mean, over draws of whole files.

    A file's facts are alike, so a draw of single facts would make the interval too small.
    """
    _, file = np.unique(files, return_inverse=True)
    total, number = np.bincount(file, values), np.bincount(file)
    chosen = np.random.default_rng(0).multinomial(len(total), np.full(len(total), 1 / len(total)), size=draws)
    low, high = np.percentile((chosen @ total) / (chosen @ number), [2.5, 97.5])
    return float(low), float(high)


def rows(methods: Mapping[str, Answers], corpus: Corpus, structural: np.ndarray) -> list[dict[str, Any]]:
    """Returns every table of the protocol as rows: condition, relations, tails, method, candidates, and figures.

    The methods have answered the same questions. `structural` (relations) is True for relations that a rule on names
    answers. `low` and `high` bound the MRR; gains are paired, question by question, and bounded in the same way.
    """
    ordered = {name: answers[np.lexsort((answers.triple, answers.condition))] for name, answers in methods.items()}
    first = ordered[FREQUENCY]
    files = corpus.window_file[corpus.window_of[first.triple]]
    found = []
    for place, chosen in _groups(first, corpus, structural):
        for candidates, name in itertools.product((RANGE, TRAINED), (FREQUENCY, CUE, COMBINED, ENCODER)):
            if name not in ordered:
                continue
            ranks = {n: (a.by_range if candidates == RANGE else a.by_training)[chosen] for n, a in ordered.items()}
            values = {n: 1 / of for n, of in ranks.items()}
            low, high = interval(values[name], files[chosen])
            numbers = {"triples": int(chosen.sum()), **figures(ranks[name]), "low": low, "high": high}
            row = {**place, "method": name, "candidates": candidates, **numbers}
            found.append(row | _gains(name, values, files[chosen]))
    return found + _resolved(ordered, first, files, structural[corpus.relation[first.triple]])


def _groups(first: Answers, corpus: Corpus, structural: np.ndarray) -> Iterator[tuple[dict[str, str], np.ndarray]]:
    relation = corpus.relation[first.triple]
    kinds = {"non-structural": ~structural[relation], "structural": structural[relation]}
    kinds |= {corpus.relations[r]: relation == r for r in np.unique(relation[~structural[relation]])}
    tails = {"all": np.ones(len(first.seen), bool), "seen": first.seen, "unseen": ~first.seen}
    for (number, condition), kind, which in itertools.product(enumerate(CONDITIONS), kinds, tails):
        if which == "all" or kind in ("non-structural", "structural"):
            chosen = (first.condition == number) & kinds[kind] & tails[which]
            if chosen.any():
                yield {"condition": condition, "relations": kind, "tails": which}, chosen


def _gains(name: str, values: Mapping[str, np.ndarray], files: np.ndarray) -> dict[str, Any]:
    """Returns what the encoder gains over other methods, by (N) values of each; empty cells for another method."""
    row: dict[str, Any] = {}
    for other in _OTHERS:
        gain = values[name] - values[other]
        low, high = interval(gain, files) if name == ENCODER else ("", "")
        mean = float(gain.mean()) if name == ENCODER else ""
        row |= {f"gain over {other}": mean, f"gain over {other}, low": low, f"gain over {other}, high": high}
    return row


def _resolved(
    ordered: Mapping[str, Answers], first: Answers, files: np.ndarray, structural: np.ndarray
) -> list[dict[str, Any]]:
    """Returns how often each method tells the right entity from others of its name, as hits1 with the full text."""
    chosen = ~np.isnan(first.namesake) & (first.condition == 0) & ~structural
    values = {name: answers.namesake[chosen] for name, answers in ordered.items()}
    found = []
    for name, answers in ordered.items() if chosen.any() else ():
        low, high = interval(values[name], files[chosen])
        row = {"condition": CONDITIONS[0], "relations": "non-structural", "tails": "all", "method": name}
        row |= {"candidates": NAMESAKES, "triples": int(chosen.sum()), "mrr": "", "hits1": resolved(answers[chosen])}
        row |= {"hits3": "", "hits10": "", "low": low, "high": high}
        found.append(row | _gains(name, values, files[chosen]))
    return found


def write(path: Path, found: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def headline_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns sentences on the rows: what was asked, what the methods are, what the encoder adds, with intervals."""
    headline = [row for row in found if (row["relations"], row["tails"]) == ("non-structural", "all")]
    asked = next(row["triples"] for row in headline if row["candidates"] == RANGE)
    cues = ", ".join(f"{_CUES[condition]} in {condition}" for condition in CONDITIONS)
    lines = [["condition", "candidates", *(name for name in (FREQUENCY, CUE, COMBINED, ENCODER)), "gain, 95 % by file"]]
    for condition, candidates in [*itertools.product(CONDITIONS, (RANGE, TRAINED)), (CONDITIONS[0], NAMESAKES)]:
        of = {r["method"]: r for r in headline if (r["condition"], r["candidates"]) == (condition, candidates)}
        if ENCODER in of:
            key = "hits1" if candidates == NAMESAKES else "mrr"
            gain = of[ENCODER]
            bounds = f"[{gain[f'gain over {COMBINED}, low']:+.3f}, {gain[f'gain over {COMBINED}, high']:+.3f}]"
            values = [f"{of[name][key]:.3f}" for name in (FREQUENCY, CUE, COMBINED, ENCODER)]
            lines.append([condition, candidates, *values, f"{gain[f'gain over {COMBINED}']:+.3f} {bounds}"])
    return (
        f"Filtered tail prediction on {asked:,} triples of held-out files, non-structural relations. The single cue is "
        f"{cues}. Counts combined is the baseline: the gain is what the encoder adds to it, with the interval of a "
        "paired bootstrap over files. Full text is mostly copying: the tail's name stands in the text. Candidates by "
        "range are all entities that the ontology allows; of training, the tails that training has, and an unseen tail "
        "is last; of its name, the share of right ones among the entities of the right name. `mrr` alone, by which "
        "weights are selected, is the mean of the six MRRs of the table: three conditions by range and of training. "
        f"evaluation.csv has every table.\n{aligned(lines)}"
    )
