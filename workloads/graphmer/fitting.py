"""Fits the weights of the counts on training files, each fact asked as if its own file were not there."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.training.order import mix, permutation
from workloads.graphmer.chains import Collator, Drawn
from workloads.graphmer.counts import FULL_TEXT
from workloads.graphmer.model import IMPOSSIBLE
from workloads.graphmer.rows import PREVIOUS
from workloads.graphmer.scoring import Weights
from workloads.graphmer.settings import FEATURES

_SAMPLES = 48  # of a step
_RATE = 0.05
_SHOWN = 10  # first and last steps, of which the mean loss is printed
_SHRINKAGE = 1e-3  # of what a relation's weights differ from those of all: a rare relation stays near them
# Where the weights start; others at 0.3
_START = {
    "frequency": 1.0, "unseen": -1.0, "same file": 2.0, "same parent": 1.0, "head's name": 1.0, "same package": 0.0,
    "same folder": 0.0, "words shared with the head's name": 1.0, "owner before": 1.0, "self before": 1.0,
}  # fmt: skip
_START_PLACE, _START_BRACKET, _START_BOOST = 4.0, 0.5, 1.0


class _Combination(nn.Module):
    """Weights that all relations share, and what each relation's differ from them."""

    def __init__(self, relations: int, types: int):
        super().__init__()
        shapes = Weights.shapes(relations, types)
        start = {name: torch.zeros(shape) for name, shape in shapes.items()}
        start["features"] += torch.tensor([_START.get(name, 0.3) for name in FEATURES])
        start["place"] += torch.tensor([_START_PLACE, _START_BRACKET, *([0.0] * PREVIOUS)])
        start["boost"] += _START_BOOST
        at = {name: 1 if len(shape) == 3 else 0 for name, shape in shapes.items()}  # the dimension of relations
        self.shared = nn.ParameterDict({n: nn.Parameter(v.mean(at[n], keepdim=True)) for n, v in start.items()})
        self.apart = nn.ParameterDict({n: nn.Parameter(torch.zeros_like(v)) for n, v in start.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self.shared[name] + self.apart[name]

    def shrinkage(self) -> Tensor:
        return _SHRINKAGE * torch.stack([value.square().sum() for value in self.apart.values()]).sum()

    def scores(self, drawn: Drawn, inputs: dict[str, Tensor]) -> Tensor:
        """Returns (Q, C)."""
        relation, condition = torch.from_numpy(drawn.asked.relation), torch.from_numpy(drawn.asked.condition)
        additive = (inputs["features"] @ self["features"][condition, relation][..., None]).squeeze(-1)
        additive = additive + self["types"][condition, relation][:, inputs["kind"]]
        question, place, boost = inputs["question"], self["place"][relation], self["boost"][relation].expm1()
        score = place[question, 0] + place[question, 1] * inputs["is_call"]
        score = score + place[question, 2 + inputs["previous"]]
        factor = 1 + boost[question, 0] * inputs["owner"] + boost[question, 1] * inputs["sibling"]
        total = torch.zeros(additive.numel()).index_add(
            0, question * additive.shape[1] + inputs["column"], score.clamp(max=15).exp() * factor
        )
        return additive + torch.log1p(total.clamp(min=0)).view_as(additive)


@torch.inference_mode(False)  # which an evaluation has switched on
@torch.enable_grad()
def fit(collator: Collator, steps: int, seed: int = 0) -> Weights:
    """Returns the weights after `steps` of Adam on a softmax over sampled candidates: the same ones in every run.

    Prints what that does to the loss.
    """
    corpus = collator.corpus
    model = _Combination(len(corpus.relations), len(corpus.types))
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    order = permutation(mix(seed), 0, len(collator.samples))
    losses = []
    for step in range(steps):
        items = order[np.arange(step * _SAMPLES, (step + 1) * _SAMPLES) % len(order)]
        drawn = collator.draw(items.tolist(), torch.Generator().manual_seed(mix(seed, step)))
        scores = model.scores(drawn, _inputs(collator, drawn))
        gold = torch.from_numpy(drawn.gold.astype(np.int64))
        is_gold = F.one_hot(gold, scores.shape[1]).bool()
        excluded = torch.zeros_like(is_gold)
        excluded[drawn.excluded] = True
        correction = torch.from_numpy(drawn.chance.astype(np.float32)).masked_fill(is_gold, 0)
        loss = F.cross_entropy((scores - correction).masked_fill(excluded, IMPOSSIBLE), gold)
        for group in optimizer.param_groups:
            group["lr"] = _RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        losses.append(loss.item())
        optimizer.zero_grad()
        (loss + model.shrinkage()).backward()
        optimizer.step()
    first, last = (sum(part) / len(part) for part in (losses[:_SHOWN], losses[-_SHOWN:]))
    print(f"The weights of the counts are fitted on training files: loss {first:.3f} at first, {last:.3f} at last.")
    return Weights(**{name: model[name].detach().numpy() for name in model.shared})


def _inputs(collator: Collator, drawn: Drawn) -> dict[str, Tensor]:
    """Returns the features of all questions and candidates, and the places of names one by one."""
    corpus, asked, among = collator.corpus, drawn.asked, drawn.among
    question, root = np.nonzero((drawn.rows.word[drawn.row] >= 0) & (asked.condition == FULL_TEXT)[:, None])
    pair, column = among.by_name.places(drawn.rows.word[drawn.row[question], root])
    question, root = question[pair], root[pair]
    at, entity = (drawn.row[question], root), among.entities[column]
    sibling = corpus.parent[entity] == corpus.parent[corpus.head[asked.window[question]]]
    arrays = {
        "features": collator.scorer.counts.found(asked, among, leave_out=True).stacked(),
        "kind": corpus.entity_type[among.entities].astype(np.int64),
        "question": question,
        "column": column,
        "is_call": (drawn.rows.is_call[at] == 1).astype(np.float32),
        "previous": np.maximum(drawn.rows.previous[at], 0),
        "owner": (drawn.rows.owner[at] == corpus.owner[entity]).astype(np.float32),
        "sibling": (sibling & (drawn.rows.is_self[at] == 1)).astype(np.float32),
    }
    return {name: torch.from_numpy(value) for name, value in arrays.items()}
