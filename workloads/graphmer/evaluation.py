"""Tail prediction by counts and by the encoder on them: answers, the gate, tables with intervals, and examples."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lib.task import Batch
from lib.training.order import mix, permutation
from workloads.graphmer import ranking
from workloads.graphmer.answering import Answering, Scores, read
from workloads.graphmer.chains import Queries
from workloads.graphmer.counts import FULL_TEXT, MASKED, CandidateSet, Counts, Questions
from workloads.graphmer.data import Data
from workloads.graphmer.ragged import expand
from workloads.graphmer.ranking import COMBINED, CUE, ENCODER, FREQUENCY, RULE, Answers, Candidates
from workloads.graphmer.settings import CONDITIONS

OPEN = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of trust and of likeness, which was learned on top of all of trust
GATES = tuple((trust, likeness) for trust, likeness in itertools.product(OPEN, OPEN) if likeness <= trust)
_AT_ONCE = 64  # questions that are scored together
_EXAMPLES, _GUESSES = 10, 3
_SMOOTHING = 0.3  # chosen on the validation split among 0.03, 0.1, 0.3, 1


class Baselines:
    """Scores candidates (Q, C) by single counts over the training triples; all questions are of one kind."""

    def __init__(self, counts: Counts):
        self.corpus, self.counts = counts.corpus, counts

    def frequency(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        return self.counts.count(asked, among, leave_out=False).astype(float)

    def cue(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        """Text match with the full text, naive Bayes over context words where names are hidden, else head names."""
        condition = int(asked.condition[0])
        if condition == FULL_TEXT:
            return self.frequency(asked, among) + 1e9 * self._in_text(asked, among, self.corpus.name[among.entities])
        return self._contexts(asked, among) if condition == MASKED else self._head_name(asked, among)

    def rule(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        """Prefers the head's class, its file, and owners that stand in the text, then frequent tails."""
        corpus, head = self.corpus, self.corpus.head[asked.window]
        near = (corpus.parent[among.entities][None] == corpus.parent[head][:, None]).astype(float)
        near += corpus.entity_file[among.entities][None] == corpus.window_file[asked.window][:, None]
        near += self._in_text(asked, among, corpus.owner[among.entities])
        return self.frequency(asked, among) + 1e4 * near

    def _in_text(self, asked: Questions, among: CandidateSet, words: np.ndarray) -> np.ndarray:
        """(C) a word of each candidate -> (Q, C) whether it stands in the question's text."""
        corpus = self.corpus
        first, last = corpus.window_start[asked.window], corpus.window_stop[asked.window]
        row, at = expand(first, last - first)
        stands = np.zeros((len(asked), len(corpus.word_list) + 1), bool)  # the last column is for no word, -1
        stands[row, corpus.text[at]] = True
        stands[:, -1] = False
        return stands[:, words]

    def _head_name(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        """Prefers tails that heads of the same name have, then the frequent ones."""
        question, key, _ = self.counts.keys("head's name", asked)
        pair, tail, number = self.counts.tables["head's name"].get(key)
        return self.frequency(asked, among) + 1e6 * _summed(question[pair], tail, number, asked, among)

    def _contexts(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        """Naive Bayes over the words around a hidden name: log P(t) + sum of log P(word | t), up to a constant."""
        question, key, _ = self.counts.keys("context", asked)
        pair, tail, number = self.counts.tables["context"].get(key)
        total = self._contexts_of_tail[asked.relation[0]]  # (E)
        share = np.bincount(pair, number, len(key)) / max(1, total.sum())
        unseen = _SMOOTHING * (share + 1e-6)
        scores = np.log(self.frequency(asked, among) + 1e-3)
        words = np.bincount(question, minlength=len(asked))[:, None]
        scores -= words * np.log(total[among.entities] + _SMOOTHING)[None]
        return scores + _summed(question[pair], tail, np.log1p(number / unseen[pair]), asked, among)

    @cached_property
    def _contexts_of_tail(self) -> np.ndarray:
        """(relations, entities) the number of context words of each tail in training."""
        table, total = self.counts.tables["context"], np.zeros_like(self.counts.of_tail)
        row, at = expand(table.begin[:-1], np.diff(table.begin))
        relation = table.keys[row] // self.counts.contexts_a_relation
        np.add.at(total, (relation, table.tail[at]), table.count[at])
        return total


def _summed(
    question: np.ndarray, tail: np.ndarray, value: np.ndarray, asked: Questions, among: CandidateSet
) -> np.ndarray:
    """(N) questions, tails and values -> (Q, C) their sums."""
    column = among.place[tail]
    inside = column >= 0
    code = question[inside] * len(among) + column[inside]
    return np.bincount(code, value[inside], len(asked) * len(among)).reshape(len(asked), len(among))


class Evaluator:
    """Answers the questions of an evaluation by every method."""

    def __init__(self, data: Data):
        self.data, self.corpus, self.structural = data, data.corpus, data.structural
        self.candidates = Candidates(data.corpus, data.scorer)
        self.examples: list[dict[str, Any]] = []

    def answer(self, model: nn.Module, loader: Iterable[Batch], chooses_gate: bool) -> dict[str, Answers]:
        """Returns the answers of the model to the questions of a loader, by its gate.

        The gate of each condition can be set first: to that of most likelihood here, so that an encoder that adds
        nothing is shut out. Likelihood tells gates apart with fewer facts than ranks do, which most gates share.
        """
        answering = Answering(self.data, model)
        gates: tuple[Any, ...] = GATES if chooses_gate else (None,)
        parts: dict[Any, list[Answers]] = {gate: [] for gate in gates}
        likelihoods: dict[Any, list[np.ndarray]] = {gate: [] for gate in gates}
        for batch in loader:
            added, triples = read(model, batch), batch["triple"].cpu().numpy()
            conditions = batch["condition"][:, 0].cpu().numpy()
            for asked, chosen in self._alike(triples, conditions):
                among, _ = self.candidates.of(int(asked.relation[0]))
                own = {name: value[chosen] for name, value in added.items()}
                encoded = Scores(self.data, asked, among).encoded(own, answering.of(among))
                for gate in gates:
                    scores = encoded(*(gate or answering.gate[int(asked.condition[0])].tolist()))
                    parts[gate].append(self.candidates.rank(triples[chosen], asked, scores))
                    if chooses_gate:
                        likelihoods[gate].append(self.candidates.log_likelihood(triples[chosen], asked, scores))
        answers = {gate: Answers.joined(of_gate) for gate, of_gate in parts.items()}
        if not chooses_gate:
            return {ENCODER: answers[None]}
        by_condition, first = [], answers[GATES[0]]
        is_asked = ~self.structural[self.corpus.relation[first.triple]]
        for number in range(len(CONDITIONS)):
            some = is_asked & (first.condition == number)
            total = {gate: float(np.concatenate(of_gate)[some].sum()) for gate, of_gate in likelihoods.items()}
            best = max(GATES, key=lambda gate: (round(total[gate], 3), -sum(gate)))
            answering.gate[number] = answering.gate.new_tensor(best)
            by_condition.append(answers[best][first.condition == number])
        return {ENCODER: Answers.joined(by_condition)}

    def _alike(self, triples: np.ndarray, conditions: np.ndarray) -> Iterator[tuple[Questions, np.ndarray]]:
        """Yields questions of one relation and condition each, and their places among the triples."""
        relation = self.corpus.relation[triples]
        for number, kind in itertools.product(np.unique(conditions), np.unique(relation)):
            of_kind = np.flatnonzero((conditions == number) & (relation == kind))
            for first in range(0, len(of_kind), _AT_ONCE):
                chosen = of_kind[first : first + _AT_ONCE]
                yield Questions.of_facts(self.corpus, triples[chosen], conditions[chosen]), chosen

    @cached_property
    def counted(self) -> dict[str, Answers]:
        """The answers of every method without a model to the test set."""
        queries, baselines = self.data.datasets()["test"].queries, Baselines(self.data.scorer.counts)
        triples = np.array([query.triple for query in queries])
        conditions = np.array([CONDITIONS.index(query.condition) for query in queries])
        parts: dict[str, list[Answers]] = {}
        for asked, chosen in self._alike(triples, conditions):
            among, _ = self.candidates.of(int(asked.relation[0]))
            by_method = {
                FREQUENCY: baselines.frequency(asked, among),
                CUE: baselines.cue(asked, among),
                RULE: baselines.rule(asked, among),
                COMBINED: Scores(self.data, asked, among).counted(),
            }
            for name, scores in by_method.items():
                parts.setdefault(name, []).append(self.candidates.rank(triples[chosen], asked, scores))
        return {name: Answers.joined(of_method) for name, of_method in parts.items()}

    def headline(self, answers: Answers) -> dict[str, float]:
        return ranking.headline(answers, self.structural, self.corpus.relation)

    def report(self, methods: Mapping[str, Answers], folder: Path) -> str:
        """Writes evaluation.csv with every table of the protocol, and examples.csv; returns the headline as text."""
        rows = ranking.rows(methods, self.corpus, self.structural)
        ranking.write(folder / "evaluation.csv", rows)
        text = ranking.headline_text(rows)
        if self.examples:
            ranking.write(folder / "examples.csv", self.examples)
            shown = ({**row, "right": "yes" if row["right"] else "no"} for row in self.examples)
            blocks = ("\n".join(f"  {name}: {value}" for name, value in row.items()) for row in shown)
            text += "\nExamples, right ones and wrong ones:\n" + "\n\n".join(blocks)
        return text

    def show(self, model: nn.Module, queries: Queries) -> None:
        """Keeps some facts with the guesses of model and counts and the truth: of the full text and of hidden names.

        Half of them are answered rightly by the model, if there are as many.
        """
        answering, corpus = Answering(self.data, model), self.corpus
        triples = queries.triples[~self.structural[corpus.relation[queries.triples]]]
        triples = triples[permutation(mix(len(triples)), 0, len(triples))[: 4 * _EXAMPLES]]
        rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for number, triple in enumerate(triples):
            asked = Questions.of_facts(corpus, np.array([triple]), np.array([number % 2]))
            tail, (among, _) = corpus.tail[[triple]], self.candidates.of(int(asked.relation[0]))
            row = {
                "condition": CONDITIONS[number % 2],
                "head": corpus.entities[corpus.head[asked.window[0]]],
                "relation": corpus.relations[asked.relation[0]],
                "truth": corpus.entities[tail[0]],
                "right": False,
            }
            for name, scores in zip(("counts", "model"), answering.scores(asked, among), strict=True):
                order = np.argsort(-self.candidates.hide_others(asked, tail, scores)[0], kind="stable")
                best = among.entities[order[:_GUESSES]]
                row[f"guesses of the {name}"] = ", ".join(corpus.entities[entity] for entity in best)
                row["right"] = bool(best[0] == tail[0])  # in the end the model's
            rows[row["right"]].append(row)
        right = rows[True][: max(_EXAMPLES // 2, _EXAMPLES - len(rows[False]))]
        self.examples = right + rows[False][: _EXAMPLES - len(right)]
