"""Tail prediction by counts and by the encoder on them: answers, the gate, tables with intervals, and examples."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from lib.task import Batch
from lib.training.order import mix, permutation
from workloads.graphmer import ranking, tables
from workloads.graphmer.answering import Answering, Read, Scores
from workloads.graphmer.baselines import Baselines
from workloads.graphmer.chains import Queries
from workloads.graphmer.counts import Questions
from workloads.graphmer.data import Data
from workloads.graphmer.ranking import Answers, Candidates
from workloads.graphmer.settings import CONDITIONS
from workloads.graphmer.tables import COMBINED, CUE, ENCODER, FREQUENCY, RULE

OPEN = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of trust and of likeness, which was learned on top of all of trust
GATES = tuple((trust, likeness) for trust, likeness in itertools.product(OPEN, OPEN) if likeness <= trust)
_AT_ONCE = 64  # questions that are scored together
_EXAMPLES, _GUESSES = 10, 3


class Evaluator:
    """Answers the questions of an evaluation by every method."""

    def __init__(self, data: Data):
        self.data, self.corpus, self.structural = data, data.corpus, data.structural
        self.candidates = Candidates(data.corpus, data.scorer)
        self.examples: list[dict[str, Any]] = []

    # --- answers ------------------------------------------------------------------------------------------------------

    def answer(self, model: nn.Module, loader: Iterable[Batch], chooses_gate: bool) -> dict[str, Answers]:
        """Returns the answers of the model to the questions of a loader, by its gate.

        The gate of each condition can be chosen first: the one of most likelihood here, so that an encoder that adds
        nothing is shut out. Likelihood tells gates apart with fewer facts than ranks do, which most gates share.
        """
        answering = Answering(self.data, model)
        gates = GATES if chooses_gate else (None,)
        parts: dict[Any, list[Answers]] = {gate: [] for gate in gates}
        likelihoods: dict[Any, list[np.ndarray]] = {gate: [] for gate in gates}
        for batch in loader:
            read = Read(model, batch)
            triples = batch["triple"].cpu().numpy()
            conditions = batch["condition"][:, 0].cpu().numpy()
            for asked, chosen in self._alike(triples, conditions):
                among, _ = self.candidates.of(int(asked.relation[0]))
                scores = Scores(self.data, asked, among)
                encoded = scores.encoded(read[chosen], answering.of(among))
                for gate in gates:
                    found = encoded(*(gate or answering.gates(int(asked.condition[0]))))
                    parts[gate].append(self.candidates.rank(triples[chosen], asked, found))
                    if chooses_gate:
                        likelihoods[gate].append(self.candidates.log_likelihood(triples[chosen], asked, found))
        answers = {gate: Answers.joined(found) for gate, found in parts.items()}
        if not chooses_gate:
            return {ENCODER: answers[None]}
        return {ENCODER: self._opened(answering.gate, answers, likelihoods)}

    def _opened(
        self,
        gates: Tensor,
        answers: Mapping[tuple[float, float], Answers],
        likelihoods: Mapping[tuple[float, float], list[np.ndarray]],
    ) -> Answers:
        """Sets the gate of each condition to the best one here; returns the answers with it."""
        chosen = []
        some = next(iter(answers.values()))
        is_asked = ~self.structural[self.corpus.relation[some.triple]]
        for number in range(len(CONDITIONS)):
            of_condition = is_asked & (some.condition == number)
            mean = {gate: np.concatenate(found)[of_condition].sum() for gate, found in likelihoods.items()}
            best = max(GATES, key=lambda gate: (round(float(mean[gate]), 3), -sum(gate)))
            gates[number] = gates.new_tensor(best)
            chosen.append(answers[best][some.condition == number])
        return Answers.joined(chosen)

    def _alike(self, triples: np.ndarray, conditions: np.ndarray) -> Iterator[tuple[Questions, np.ndarray]]:
        """Yields questions of one relation and condition each, and which of the given ones they are."""
        relation = self.corpus.relation[triples]
        for number, kind in itertools.product(np.unique(conditions), np.unique(relation)):
            of_kind = np.flatnonzero((conditions == number) & (relation == kind))
            for first in range(0, len(of_kind), _AT_ONCE):
                chosen = of_kind[first : first + _AT_ONCE]
                yield Questions.of_facts(self.corpus, triples[chosen], conditions[chosen]), chosen

    @cached_property
    def counted(self) -> dict[str, Answers]:
        """The answers of every method without a model to the test set."""
        queries = self.data.datasets()["test"].queries
        triples = np.array([query.triple for query in queries])
        conditions = np.array([CONDITIONS.index(query.condition) for query in queries])
        parts = []
        for asked, chosen in self._alike(triples, conditions):
            among, _ = self.candidates.of(int(asked.relation[0]))
            parts.append(self._counts_of(triples[chosen], Scores(self.data, asked, among)))
        return {name: Answers.joined([part[name] for part in parts]) for name in parts[0]}

    def _counts_of(self, triples: np.ndarray, scores: Scores) -> dict[str, Answers]:
        """Returns the answers of every method without a model to Q questions of one relation."""
        asked, among = scores.asked, scores.among
        by_method = {
            FREQUENCY: self.baselines.frequency(asked, among),
            CUE: self.baselines.cue(asked, among),
            RULE: self.baselines.rule(asked, among),
            COMBINED: scores.counted(),
        }
        return {name: self.candidates.rank(triples, asked, values) for name, values in by_method.items()}

    @cached_property
    def baselines(self) -> Baselines:
        return Baselines(self.data.scorer.counts)

    def headline(self, answers: Answers) -> dict[str, float]:
        return ranking.headline(answers, self.structural, self.corpus.relation)

    # --- reports ------------------------------------------------------------------------------------------------------

    def report(self, methods: Mapping[str, Answers], folder: Path) -> str:
        """Writes evaluation.csv with every table of the protocol, and examples.csv; returns the headline as text."""
        rows = tables.rows(methods, self.corpus, self.structural)
        tables.write(folder / "evaluation.csv", rows)
        text = tables.headline_text(rows)
        if self.examples:
            tables.write(folder / "examples.csv", self.examples)
            shown = [{**row, "right": "yes" if row["right"] else "no"} for row in self.examples]
            text += "\n" + tables.as_text(shown)
        return text

    def show(self, model: nn.Module, queries: Queries) -> None:
        """Keeps some facts with the guesses of model and counts and the truth: of the full text and of hidden names.

        As many that the model answers are kept as ones that it does not, if there are.
        """
        answering = Answering(self.data, model)
        is_asked = ~self.structural[self.corpus.relation[queries.triples]]
        triples = queries.triples[is_asked]
        triples = triples[permutation(mix(len(triples)), 0, len(triples))[: 4 * _EXAMPLES]]
        rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for number, triple in enumerate(triples):
            asked = Questions.of_facts(self.corpus, np.array([triple]), np.array([number % 2]))
            counted, encoded = answering.scores(asked, self.candidates.of(int(asked.relation[0]))[0])
            row = self._example(asked, int(triple), {"counts": counted, "model": encoded})
            rows[row["right"]].append(row)
        half = _EXAMPLES // 2
        right = rows[True][: max(half, _EXAMPLES - len(rows[False]))]
        self.examples = right + rows[False][: _EXAMPLES - len(right)]

    def _example(self, asked: Questions, triple: int, scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
        corpus = self.corpus
        tail = corpus.tail[triple]
        among, _ = self.candidates.of(int(asked.relation[0]))
        guesses = {}
        for name, values in scores.items():
            hidden = self.candidates.hide_others(asked, np.array([tail]), values)[0]
            best = np.argsort(-hidden, kind="stable")[:_GUESSES]
            guesses[name] = among.entities[best]
        return {
            "condition": CONDITIONS[int(asked.condition[0])],
            "head": corpus.entities[corpus.head[asked.window[0]]],
            "relation": corpus.relations[asked.relation[0]],
            "truth": corpus.entities[tail],
            "right": bool(guesses["model"][0] == tail),
            **{
                f"guesses of the {name}": ", ".join(corpus.entities[e] for e in found)
                for name, found in guesses.items()
            },
        }
