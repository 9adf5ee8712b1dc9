"""Scores of questions and candidates: by the counts alone, and with what the encoder adds to them."""

from collections.abc import Callable
from functools import cache, cached_property

import numpy as np
import torch
from torch import nn

from lib.task import Batch
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.data import Data
from workloads.graphmer.model import MOST_MEANT
from workloads.graphmer.rows import Rows
from workloads.graphmer.scoring import NOWHERE
from workloads.graphmer.settings import NEAR

# (N) questions, roots and candidates -> (N) what is added to the score of the root as a place of the candidate's name
Meant = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Read:
    """What the encoder makes of questions: `queries` (Q, d), `meanings` and `meant` (Q, L, ...), and what it adds."""

    def __init__(self, model: nn.Module, batch: Batch):
        added = {name: value[:, 0].float() for name, value in model(batch).items()}
        self.queries = added.pop("queries")
        names = ("meanings", "meant", "places", "features", "types")
        self.meanings, self.meant, self.places, self.features, self.types = (added[n].cpu().numpy() for n in names)

    def __getitem__(self, chosen: np.ndarray) -> "Read":
        part = Read.__new__(Read)
        for name, value in vars(self).items():
            setattr(part, name, value[torch.from_numpy(chosen)] if isinstance(value, torch.Tensor) else value[chosen])
        return part


class Scores:
    """Scores of questions of one relation and condition: by the counts, and with the encoder as far as its gates open.

    `leave_out` leaves each question's own file out of the counts, where it is one of training.
    """

    def __init__(
        self, data: Data, asked: Questions, among: CandidateSet, rows: Rows | None = None, leave_out: bool = False
    ):
        self.data, self.asked, self.among = data, asked, among
        self.rows = rows or data.collator.of_questions(asked)[1]
        self.own_rows = np.arange(len(asked))
        self.found = data.scorer.counts.found(asked, among, leave_out)
        self.prior = data.scorer.prior(asked, among, leave_out, self.found)
        self.places = data.scorer.places(asked, self.rows, self.own_rows)

    def counted(self, added: np.ndarray | float = 0.0, meant: Meant | None = None) -> np.ndarray:
        """Returns (Q, C); `added` (Q, L) is what an encoder adds to each place, and `meant` for which candidate."""
        places = np.where(self.places > NOWHERE / 2, np.minimum(self.places + added, 15.0), self.places)
        return self.prior + self.data.scorer.pointer(self.asked, self.among, self.rows, self.own_rows, places, meant)

    def encoded(self, read: Read, vectors: torch.Tensor) -> Callable[[float, float], np.ndarray]:
        """Returns a function of two gates, of trust and of likeness, that returns (Q, C).

        `vectors` (C, 2, d) are those of the candidates, and their origins.
        """
        vectors, origins = vectors[:, 0], vectors[:, 1].cpu().numpy()
        weighted = self.data.scorer.weighted(self.found, self.among, read.features, read.types)
        product = (read.queries @ vectors.T).float().cpu().numpy()
        places = read.places[:, : self.places.shape[1]]

        kind = self.data.corpus.entity_type[self.among.entities]
        elsewhere = self.data.scorer.counts.elsewhere(self.asked, self.among)

        def meant(question: np.ndarray, root: np.ndarray, column: np.ndarray) -> np.ndarray:
            product = np.einsum("nd,nd->n", read.meanings[question, root], origins[column])
            weights, is_elsewhere = read.meant[question, root], elsewhere[question, column]
            product = product * is_elsewhere + weights[np.arange(len(question)), kind[column]]
            of_near = weights[:, -len(NEAR) - 1 :]
            for at, name in enumerate(NEAR):
                product += of_near[:, at] * self.found.dense[name][question, column]
            return np.clip(product + of_near[:, -1] * is_elsewhere, -MOST_MEANT, MOST_MEANT)

        @cache
        def trusting(trust: float) -> np.ndarray:
            return self.counted(trust * places, lambda *at: trust * meant(*at)) + trust * weighted

        return lambda trust, likeness: trusting(trust) + likeness * product if trust or likeness else self.counted()


class Answering:
    """A model on its data, which scores any questions: of known facts or not.

    answering = Answering(task.data, model)
    counted, encoded = answering.scores(Questions(window, relation, condition, hidden), CandidateSet(corpus, entities))
    """

    def __init__(self, data: Data, model: nn.Module):
        self.data, self.model = data, model
        self._latest: tuple[CandidateSet, torch.Tensor] | None = None  # that most questions in a row have

    @cached_property
    def vectors(self) -> torch.Tensor:
        """(E, 2, d) the vectors and origins of all entities."""
        parts = []
        for chosen in np.array_split(np.arange(len(self.data.corpus.entity_type)), 16):
            of = {name: value.to(self.device) for name, value in self.data.table.of(chosen).items()}
            parts.append(self.model(of).float())
        return torch.cat(parts)

    @property
    def gate(self) -> torch.Tensor:
        """(conditions, 2) how far trust and likeness are opened."""
        return self.model.get_buffer("gate")

    @property
    def device(self) -> torch.device:
        return self.gate.device

    def of(self, among: CandidateSet) -> torch.Tensor:
        """(C, 2, d) the vectors and origins of candidates."""
        if self._latest is None or self._latest[0] is not among:
            self._latest = among, self.vectors[torch.from_numpy(among.entities).to(self.device)]
        return self._latest[1]

    def gates(self, condition: int) -> tuple[float, float]:
        """Returns how far trust and likeness are opened."""
        trust, likeness = self.gate[condition].tolist()
        return trust, likeness

    @torch.no_grad()
    def scores(self, asked: Questions, among: CandidateSet) -> tuple[np.ndarray, np.ndarray]:
        """Returns the scores (Q, C) by the counts, and with the encoder; all questions are of one condition."""
        arrays, rows = self.data.collator.of_questions(asked)
        read = Read(self.model, {name: torch.from_numpy(value).to(self.device) for name, value in arrays.items()})
        scores = Scores(self.data, asked, among, rows)
        return scores.counted(), scores.encoded(read, self.of(among))(*self.gates(int(asked.condition[0])))
