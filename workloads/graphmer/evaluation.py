"""Tail prediction by counts and by the encoder on them: filtered ranks, the gate, tables with intervals.

Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NIPS 2013, section 4.2: other true tails of
the same head and relation do not count against the right one.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from lib.report.result import write_table
from lib.scores import Interval, intervals, resampled
from lib.task import Batch
from lib.text import aligned
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.counts.answering import Answering, Scores
from workloads.graphmer.data import Data
from workloads.graphmer.predicting.calibration import Calibration, as_text
from workloads.graphmer.settings import COMBINED, CONDITIONS, ENCODER, Array

FREQUENCY = "frequency"
METHODS = (FREQUENCY, COMBINED, ENCODER)
RANGE, TRAINED, NAMESAKES = "by range", "of training", "of its name"
COLUMNS = {RANGE: "by_range", TRAINED: "by_training", NAMESAKES: "namesake"}  # of answers, by kinds of candidates
GAIN = tuple(f"gain over {COMBINED}{end}" for end in ("", ", low", ", high"))
OPEN = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of trust and of likeness, which was learned on top of all of trust
GATES = tuple((trust, likeness) for trust, likeness in itertools.product(OPEN, OPEN) if likeness <= trust)
_AT_ONCE = 64  # questions that are scored together
_DRAWS = 2000  # of files, for intervals


# Answered questions: `triple` and `condition`; the ranks `by_range`, among the entities that the ontology lets the
# relation have, and `by_training`, among the tails that training has with it. `namesake` is 1 where the right entity is
# the first of its name, a part where it shares that place, and NaN where no other candidate has the name. `seen` says
# whether training has the tail with the relation.
Answers = pd.DataFrame


class Evaluator:
    """Answers the questions of an evaluation by every method, and measures the probabilities of predictions."""

    def __init__(self, data: Data):
        self.data, self.corpus, self.structural, self.scorer = data, data.corpus, data.structural, data.scorer
        self.calibration = Calibration(data)
        self.answers: dict[str, Answers] = {}  # of the newest evaluation on the test set
        self.measured: list[dict[str, Any]] = []  # of its predictions
        self._candidates: dict[int, tuple[CandidateSet, Array]] = {}

    def evaluate(self, model: nn.Module, loader: Any) -> dict[str, float]:
        """Returns the figures of both protocols. Validation chooses the gate and fits probabilities first."""
        is_test = loader.dataset.split == "test"
        answers = self.answer(model, loader, chooses_gate=not is_test)
        if is_test:
            self.answers, self.measured = {ENCODER: answers}, self.calibration.measured(model)
        else:
            self.calibration.fit(model)
        return self.headline(answers)

    def candidates(self, relation: int) -> tuple[CandidateSet, Array]:
        """Returns the candidates of a relation by range (C), and which of them training has as its tails (C)."""
        if relation not in self._candidates:
            allowed = self.scorer.is_allowed(np.array([relation]), np.arange(len(self.corpus.entity_type)))[0]
            among = CandidateSet(self.corpus, np.flatnonzero(allowed))
            self._candidates[relation] = among, self.scorer.counts.of_tail[relation, among.entities] > 0
        return self._candidates[relation]

    def hide_others(self, asked: Questions, tail: Array, scores: Array) -> Array:
        """Returns the scores (Q, C) without the other true tails of each head; all questions are of one relation."""
        scores = scores.copy()
        scores[self.scorer.other_tails(asked, tail, self.candidates(int(asked.relation[0]))[0])] = -np.inf
        return scores

    def rank(self, triple: Array, asked: Questions, scores: Array) -> Answers:
        """Ranks the tails of Q triples by (Q, C) scores: ties take the mean rank; no candidate is last."""
        tail = self.corpus.tail[triple]
        among, trained = self.candidates(int(asked.relation[0]))
        scores, column = self.hide_others(asked, tail, scores), np.maximum(among.place[tail], 0)
        own, is_there = scores[np.arange(len(triple)), column], among.place[tail] >= 0
        seen = is_there & trained[column]

        def rank(of: Array) -> Array:
            return (of > own[:, None]).sum(1) + ((of == own[:, None]).sum(1) + 1) / 2

        # The first of its name
        question, other = among.by_name.places(self.corpus.name[tail])
        score = scores[question, other]
        possible = np.isfinite(score) & is_there[question]
        question, score = question[possible], score[possible]
        better = np.bincount(question, score > own[question], len(tail))
        equal = np.bincount(question, score == own[question], len(tail))
        first = np.where(better > 0, 0.0, 1 / np.maximum(equal, 1))
        answers = {
            "triple": triple, "condition": asked.condition, "seen": seen,
            "by_range": np.where(is_there, rank(scores), len(among) + 1.0),
            "by_training": np.where(seen, rank(scores[:, trained]), trained.sum() + 1.0),
            "namesake": np.where(np.bincount(question, minlength=len(tail)) > 1, first, np.nan),
        }  # fmt: skip
        return Answers(answers)

    def log_likelihood(self, triple: Array, asked: Questions, scores: Array) -> Array:
        """(Q) the logarithm of each tail's softmax among the candidates; 0 where it is none of them."""
        tail = self.corpus.tail[triple]
        column = self.candidates(int(asked.relation[0]))[0].place[tail]
        scores = self.hide_others(asked, tail, scores)
        most = scores.max(1)
        total = most + np.log(np.exp(scores - most[:, None]).sum(1))
        return np.where(column >= 0, scores[np.arange(len(tail)), np.maximum(column, 0)] - total, 0.0)

    def answer(self, model: nn.Module, loader: Iterable[Batch], chooses_gate: bool) -> Answers:
        """Returns the answers of the model to the questions of a loader, by its gate.

        The gate of each condition can be set first: to that of most likelihood here, so that an encoder that adds
        nothing is shut out. Likelihood tells gates apart with fewer facts than ranks do, which most gates share.
        """
        answering = Answering(self.data, model)
        gates: tuple[Any, ...] = GATES if chooses_gate else (None,)
        parts: dict[Any, list[Answers]] = {gate: [] for gate in gates}
        likelihoods: dict[Any, list[Array]] = {gate: [] for gate in gates}
        for batch in loader:
            added, triples = answering.read(batch), batch["triple"].cpu().numpy()
            for asked, chosen, among in self._alike(triples, batch["condition"][:, 0].cpu().numpy()):
                rows = self.data.collator.of_questions(asked)[1]
                own = {name: value[chosen] for name, value in added.items()}
                encoded = Scores(self.data, asked, among, rows).encoded(own, answering.of(among))
                for gate in gates:
                    scores = encoded(*(gate or answering.gate[int(asked.condition[0])].tolist()))
                    parts[gate].append(self.rank(triples[chosen], asked, scores))
                    if chooses_gate:
                        likelihoods[gate].append(self.log_likelihood(triples[chosen], asked, scores))
        answers = {gate: _joined(of_gate) for gate, of_gate in parts.items()}
        if not chooses_gate:
            return answers[None]
        by_condition, first = [], answers[GATES[0]]
        is_asked = ~self.structural[self.corpus.relation[first.triple]]
        for number in range(len(CONDITIONS)):
            some = is_asked & (first.condition == number)
            total = {gate: float(np.concatenate(of_gate)[some].sum()) for gate, of_gate in likelihoods.items()}
            best = max(GATES, key=lambda gate: (round(total[gate], 3), -sum(gate)))
            answering.gate[number] = answering.gate.new_tensor(best)
            by_condition.append(answers[best][first.condition == number])
        return _joined(by_condition)

    def _alike(self, triples: Array, conditions: Array) -> Iterator[tuple[Questions, Array, CandidateSet]]:
        """Yields questions of one relation and condition each, their places among the triples, and who competes."""
        relation = self.corpus.relation[triples]
        for number, kind in itertools.product(np.unique(conditions), np.unique(relation)):
            of_kind = np.flatnonzero((conditions == number) & (relation == kind))
            for first in range(0, len(of_kind), _AT_ONCE):
                chosen = of_kind[first : first + _AT_ONCE]
                asked = Questions.of_facts(self.corpus, triples[chosen], conditions[chosen])
                yield asked, chosen, self.candidates(int(kind))[0]

    @cached_property
    def counted(self) -> dict[str, Answers]:
        """The answers of every method without a model to the test set."""
        triples, conditions = np.array(self.data.datasets()["test"].queries).T
        frequent, combined = list[Answers](), list[Answers]()
        for asked, chosen, among in self._alike(triples, conditions):
            frequency = self.scorer.counts.count(asked, among, leave_out=False).astype(float)
            rows = self.data.collator.of_questions(asked)[1]
            frequent.append(self.rank(triples[chosen], asked, frequency))
            combined.append(self.rank(triples[chosen], asked, Scores(self.data, asked, among, rows).counted()))
        return {FREQUENCY: _joined(frequent), COMBINED: _joined(combined)}

    def headline(self, answers: Answers) -> dict[str, float]:
        """Returns `mrr_masked`, `hits1_masked`, `mrr_trained_masked`, ... over relations that are not structural.

        Candidates are those by range, and with `trained` the tails that training has. `mrr` is the mean over conditions
        and both kinds of candidates: one number to select weights by, steadier than each of them. `resolved` is the
        share of right entities among those of the right name, with the full text; 0: there are none.
        """
        answers = answers[~self.structural[self.corpus.relation[answers.triple]]]
        scores: dict[str, float] = {}
        for number, condition in enumerate(CONDITIONS):
            own = answers[answers.condition == number]
            scores |= {f"{key}_{condition}": value for key, value in figures(own.by_range).items()}
            scores |= {f"{key}_trained_{condition}": value for key, value in figures(own.by_training).items()}
        mean = sum(scores[f"mrr_{c}"] + scores[f"mrr_trained_{c}"] for c in CONDITIONS) / (2 * len(CONDITIONS))
        known = answers.namesake[answers.condition == 0].dropna().to_numpy()
        return {"mrr": mean, **scores, "resolved": float(known.mean()) if len(known) else 0.0}

    def report(self, folder: Path) -> str:
        """Writes evaluation.csv and predictions.csv; returns what was asked and what the encoder adds."""
        assert self.answers, "evaluate the test set first"
        table = rows({**self.counted, **self.answers}, self.corpus, self.structural)
        for name, lines in (("evaluation", table), ("predictions", self.measured)):
            if lines:
                write_table(folder / f"{name}.csv", [[*lines[0]], *([*line.values()] for line in lines)])
        nothing = "Nothing is predicted of such a graph: it has no unresolved names."
        return f"{headline_text(table)}\n{as_text(self.measured) if self.measured else nothing}"


def _joined(parts: Iterable[Answers]) -> Answers:
    return pd.concat(parts, ignore_index=True)


def figures(ranks: Array) -> dict[str, float]:
    """Returns MRR and Hits@1, 3 and 10 of ranks; zeros where there are none."""
    ranks = np.asarray(ranks)
    means = {"mrr": 1 / ranks, **{f"hits{k}": ranks <= k for k in (1, 3, 10)}}
    return {name: float(values.mean()) if len(ranks) else 0.0 for name, values in means.items()}


def by_file(values: Array, files: Array) -> list[Interval]:
    """(N, M) values and the file of each row -> the M means, each with its interval over draws of whole files."""
    names, file = np.unique(files, return_inverse=True)
    sums = np.zeros((len(names), 1 + values.shape[1]))
    np.add.at(sums, file, np.insert(values, 0, 1.0, axis=1))
    drawn = resampled(sums, _DRAWS)
    return intervals(values.mean(0), drawn[:, 1:] / drawn[:, :1], len(names))


def rows(methods: Mapping[str, Answers], corpus: Corpus, structural: Array) -> list[dict[str, Any]]:
    """Returns every table of the protocol as rows: condition, relations, tails, method, candidates, and figures.

    The methods, METHODS in their order, have answered the same questions. `structural` (relations) is True for
    relations that a rule on names answers. `low` and `high` bound the MRR; gains are paired, question by question. With
    the full text, `hits1` "of its name" is how often a method tells the right entity from others of its name.
    """
    ordered = [answers.sort_values(["condition", "triple"], ignore_index=True) for answers in methods.values()]
    first, table = ordered[0], []
    files = corpus.window_file[corpus.window_of[first.triple]]
    for place, chosen in _groups(first, corpus, structural):
        is_main = [*place.values()] == [CONDITIONS[0], "non-structural", "all"]
        for candidates, column in COLUMNS.items():
            some = chosen & first[column].notna().to_numpy()
            if not some.any() or (candidates == NAMESAKES and not is_main):
                continue
            ranks = [answers[column].to_numpy()[some] for answers in ordered]
            values = np.stack(ranks if candidates == NAMESAKES else [1 / of for of in ranks], 1)
            *scores, gain = by_file(np.column_stack([values, values[:, -1] - values[:, -2]]), files[some])
            for name, score, of in zip(methods, scores, ranks, strict=True):
                row = {**place, "method": name, "candidates": candidates, "triples": len(of), **figures(of)}
                if candidates == NAMESAKES:
                    row |= {"mrr": "", "hits1": score.value, "hits3": "", "hits10": ""}
                gains = gain if name == ENCODER else ("", "", "")
                table.append({**row, "low": score.low, "high": score.high, **dict(zip(GAIN, gains, strict=True))})
    return table


def _groups(first: Answers, corpus: Corpus, structural: Array) -> Iterator[tuple[dict[str, str], Array]]:
    relation = corpus.relation[first.triple]
    kinds = {"non-structural": ~structural[relation], "structural": structural[relation]}
    kinds |= {corpus.relations[r]: relation == r for r in np.unique(relation[~structural[relation]])}
    tails = {"all": np.ones(len(first.seen), bool), "seen": first.seen, "unseen": ~first.seen}
    for (number, condition), kind, which in itertools.product(enumerate(CONDITIONS), kinds, tails):
        chosen = (first.condition == number) & kinds[kind] & tails[which]
        if chosen.any() and (which == "all" or kind in ("non-structural", "structural")):
            yield {"condition": condition, "relations": kind, "tails": which}, chosen


def headline_text(table: list[dict[str, Any]]) -> str:
    """Returns sentences on the rows: what was asked, what the methods are, what the encoder adds, with intervals."""
    headline = [row for row in table if (row["relations"], row["tails"]) == ("non-structural", "all")]
    asked = next(row["triples"] for row in headline if row["candidates"] == RANGE)
    lines = [["condition", "candidates", *METHODS, "gain, 95 % by file"]]
    for condition, candidates in [*itertools.product(CONDITIONS, (RANGE, TRAINED)), (CONDITIONS[0], NAMESAKES)]:
        of = {r["method"]: r for r in headline if (r["condition"], r["candidates"]) == (condition, candidates)}
        if of:
            key = "hits1" if candidates == NAMESAKES else "mrr"
            gain = Interval(*(of[ENCODER][name] for name in GAIN))
            lines.append([condition, candidates, *(f"{of[name][key]:.3f}" for name in METHODS), gain.signed])
    return (
        f"Filtered tail prediction on {asked:,} triples of held-out files, non-structural relations. Counts "
        "combined is the baseline: the gain is what the encoder adds to it, with the interval of a paired bootstrap "
        "over files. Full text is mostly copying: the tail's name stands in the text. Candidates by range are all "
        "entities that the ontology allows; of training, the tails that training has, and an unseen tail is last; of "
        "its name, the share of right ones among the entities of the right name. `mrr` alone, by which weights are "
        "selected, is the mean of the six MRRs of the table: three conditions by range and of training. "
        f"evaluation.csv has every table.\n{aligned(lines)}"
    )
