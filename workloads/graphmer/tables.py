"""Tables of an evaluation: every method by condition, relation and kind of tail, with intervals by file."""

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.text import aligned
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.ranking import Answers, by_file, figures, interval, resolved
from workloads.graphmer.settings import CONDITIONS

FREQUENCY, CUE, RULE, COMBINED, ENCODER = "frequency", "single cue", "rule", "counts combined", "counts + encoder"
RANGE, TRAINED, NAMESAKES = "by range", "of training", "of its name"
_CUES = {"full_text": "text match", "masked": "context words", "name_only": "head name"}
_OTHERS = (COMBINED, CUE)  # over which the encoder's gain is given


def rows(methods: Mapping[str, Answers], corpus: Corpus, structural: np.ndarray) -> list[dict[str, Any]]:
    """Returns every table of the protocol as rows: condition, relations, tails, method, candidates, and figures.

    The methods have answered the same questions. `structural` (relations) is True for relations that a rule on names
    answers. `low` and `high` bound the MRR; gains are paired, question by question, and bounded in the same way.
    """
    ordered = {name: answers[np.lexsort((answers.triple, answers.condition))] for name, answers in methods.items()}
    first = ordered[FREQUENCY]
    files = by_file(corpus, first)
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
