"""Scores of questions and candidates by the counts combined, and with the encoder on them."""

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.task import Batch
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.counts.rows import Rows
from workloads.graphmer.counts.scoring import NOWHERE
from workloads.graphmer.data import Data
from workloads.graphmer.model import MOST_MEANT
from workloads.graphmer.settings import FEATURES, NEAR, Array


class Answering:
    """A model on its data, which scores any questions: of known facts or not. answering = Answering(task.data, model)
    counted, encoded = answering.encoded(Questions(window, relation, condition, hidden), CandidateSet(corpus,
    entities))"""

    def __init__(self, data: Data, model: nn.Module):
        self.data, self.model = data, model
        self.gate = model.get_buffer("gate")  # (conditions, 2) how far trust and likeness are opened
        self._latest: tuple[CandidateSet, torch.Tensor] | None = None  # that most questions in a row have

    @cached_property
    def vectors(self) -> torch.Tensor:
        """(E, 2, d) the vectors and origins of all entities."""
        parts = np.array_split(np.arange(len(self.data.corpus.entity_type)), 16)
        batches = ({n: v.to(self.gate.device) for n, v in self.data.table.of(part).items()} for part in parts)
        return torch.cat([self.model(batch).float() for batch in batches])

    def of(self, among: CandidateSet) -> torch.Tensor:
        """(C, 2, d) the vectors and origins of candidates."""
        if self._latest is None or self._latest[0] is not among:
            self._latest = among, self.vectors[torch.from_numpy(among.entities).to(self.gate.device)]
        return self._latest[1]

    def encoded(self, asked: Questions, among: CandidateSet,
                leave_out: bool = False) -> tuple[Array, Callable[[float, float], Array]]:  # fmt: skip
        """Returns the counts' scores (Q, C), and a function of two gates that returns those with the encoder."""
        batch, rows = self.data.collator.of_questions(asked)
        added = self.read({name: value.to(self.gate.device) for name, value in batch.items()})
        scores = Scores(self.data, asked, among, rows, leave_out)
        return scores.counted(), scores.encoded(added, self.of(among))

    def read(self, batch: Batch) -> dict[str, Any]:
        """Returns what the encoder makes of Q questions: `queries` (Q, d) as a tensor, all else as arrays (Q, ...)."""
        added = {name: value[:, 0].float() for name, value in self.model(batch).items()}
        return {name: value if name == "queries" else value.cpu().numpy() for name, value in added.items()}


class Scores:
    """Scores of questions of one relation and condition: by the counts, and with the encoder by its gates."""

    def __init__(self, data: Data, asked: Questions, among: CandidateSet, rows: Rows, leave_out: bool = False):
        self.data, self.asked, self.among, self.rows = data, asked, among, rows
        self.features = data.scorer.counts.found(asked, among, leave_out)
        self.prior = data.scorer.prior(asked, among, self.features)
        self.places = data.scorer.places(asked, rows, np.arange(len(asked)))

    def counted(self, added: Array | float = 0.0, meant: Callable[..., Array] | None = None) -> Array:
        """Returns (Q, C); `added` (Q, L) is what an encoder adds to each place, and `meant` for which candidate."""
        places = np.where(self.places > NOWHERE / 2, np.minimum(self.places + added, 15.0), self.places)
        return self.prior + self.data.scorer.pointer(self.asked, self.among, self.rows, places, meant)

    def encoded(self, added: Mapping[str, Any], vectors: torch.Tensor) -> Callable[[float, float], Array]:
        """Returns a function of two gates that returns (Q, C); `vectors` (C, 2, d) are those of candidates."""
        origins, places = vectors[:, 1].cpu().numpy(), added["places"][:, : self.places.shape[1]]
        features, types = np.split(added["weights"], [len(FEATURES)], axis=1)
        weighted = self.data.scorer.weighted(self.features, self.among, features, types)
        alike = (added["queries"] @ vectors[:, 0].T).float().cpu().numpy()
        kind = self.data.corpus.entity_type[self.among.entities]
        elsewhere = self.data.scorer.counts.elsewhere(self.asked, self.among)

        def meant(question: Array, root: Array, column: Array) -> Array:
            product = np.einsum("nd,nd->n", added["meanings"][question, root], origins[column])
            weights, is_elsewhere = added["meant"][question, root], elsewhere[question, column]
            product = product * is_elsewhere + weights[np.arange(len(question)), kind[column]]
            of_near = weights[:, -len(NEAR) - 1 :]
            for at, name in enumerate(NEAR):
                product += of_near[:, at] * self.features.dense[name][question, column]
            return np.clip(product + of_near[:, -1] * is_elsewhere, -MOST_MEANT, MOST_MEANT)

        @cache
        def trusting(trust: float) -> Array:
            return self.counted(trust * places, lambda *at: trust * meant(*at)) + trust * weighted

        return lambda trust, likeness: trusting(trust) + likeness * alike if trust or likeness else self.counted()
