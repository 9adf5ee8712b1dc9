"""graphmer: an encoder for a knowledge graph of code that ranks the tails of facts, beginning at what counting reaches.

Data: a folder with triples and entities as JSON lines, or any tree of Python files, from which the graph is built.
The embedded default is the standard library of the running Python.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.task import Batch
from trainbook import Judged, Supervised, Tokens
from workloads.graphmer import settings
from workloads.graphmer.model import IMPOSSIBLE, WIDTH, Ranker, room
from workloads.graphmer.settings import (
    COMBINED,
    CONDITIONS,
    ENCODER,
    IGNORE,
    SPECIALS,
    Array,
    Settings,
)

# Imported where they are used: a plan of the memory needs neither data nor evaluation
if TYPE_CHECKING:
    from workloads.graphmer.data import Data
    from workloads.graphmer.evaluation import Evaluator

KINDS = ("", "trained_")  # candidates: all that the ontology allows, the tails that training has
MEANS = (*(f"mrr_{kind}{condition}" for kind in KINDS for condition in CONDITIONS), "resolved")
_RANKING = (  # weights that learning the text does not reach
    "relation", "condition", "hgat", "query", "place_query", "place_key", "meaning", "meant", "compose", "kind",
    "vector", "trust", "trust_beside_file",
)  # fmt: skip
_ABOUT = (
    "Full text is mostly copying: the tail's name stands in the text. `resolved` is the share of right ones among the "
    "entities of the right name, and `mrr` the mean of the MRRs of three conditions, each among all entities that the "
    "ontology allows and, as `trained` in evaluation.csv, among the tails of training, where an unseen one is last."
)


def summed(judged: Judged, unit: Array, units: int) -> Array:
    """Returns (units, 2, MEANS) the sums behind MEANS, and the number of questions in each sum.

    Of Q questions, `true` has the conditions, `guess` (Q, 3) the right tail's ranks by KINDS and whether it is the
    first of its name (see `Evaluator.judged`), and `unit` (Q) their files.
    """
    is_asked = judged.true[:, None] == np.arange(len(CONDITIONS))
    counts = np.where(is_asked, 1.0, np.nan)
    ranks = judged.guess[:, : len(KINDS), None]
    first = judged.guess[:, -1:]
    reciprocal = (counts[:, None] / ranks).reshape(len(counts), -1)
    values = np.concatenate([reciprocal, counts[:, :1] * first], 1)
    numbers = ~np.isnan(values)
    added = np.stack([np.nan_to_num(values), numbers], 1)
    sums = np.zeros((units, 2, len(MEANS)))
    np.add.at(sums, unit, added)
    return sums


def means(sums: Array) -> Array:
    """(..., 2, MEANS) from `summed` -> (..., MEANS); 0 if no question counts."""
    numbers = np.maximum(sums[..., 1, :], 1)
    return sums[..., 0, :] / numbers


def figures(judged: Judged) -> dict[str, float]:
    """Returns MEANS, Hits@1, 3 and 10, and as `mrr` the mean of all MRRs, which is steadier than each of them."""
    one_unit = np.zeros(len(judged.true), int)
    values = means(summed(judged, one_unit, 1)[0]).tolist()
    mrrs = values[:-1]
    scores = {"mrr": sum(mrrs) / len(mrrs)}
    scores |= zip(MEANS, values, strict=True)
    for number, condition in enumerate(CONDITIONS):
        is_asked = judged.true == number
        for place, kind in enumerate(KINDS):
            ranks = judged.guess[is_asked, place]
            for k in (1, 3, 10):
                share = (ranks <= k).sum() / max(1, len(ranks))
                scores[f"hits{k}_{kind}{condition}"] = float(share)
    return scores


class Figure:
    """One of `figures` as a metric."""

    def __init__(self, name: str):
        self.__name__ = name

    def __call__(self, true: Array, guess: Array) -> float:
        return figures(Judged(true, guess))[self.__name__]


class Ranks(Tokens):
    """Ranks of the right answers; their figures follow from sums."""

    has_powers = False  # `choices` has weights of its own

    def tallied(self, metrics: Any, rows: Mapping[str, Judged], unit: Array, units: int) -> Array:
        sums = []
        for judged in rows.values():
            sums.append(summed(judged, unit[judged.sample], units))
        return np.stack(sums, 1)

    def measured(self, metrics: Any, sums: Array, reference: Array | None = None) -> Array:
        values = means(sums)
        mrr = values[:, :-1].mean(1)
        resolved = values[:, -1]
        return np.column_stack([mrr, values[:, : len(CONDITIONS)], resolved])


class Graphmer(Supervised):
    """Predicts the tail of a triple from the text around its head."""

    Settings = Settings
    sentinels = ("entities.jsonl", "*.entities.jsonl")
    kind = Ranks
    unit = "file"
    metrics = tuple(map(Figure, ("mrr", *MEANS[: len(CONDITIONS)], "resolved")))
    selection = ("mrr", "max")
    shown = MEANS[: len(CONDITIONS)]
    dials: ClassVar = {
        "workload.chain.roots": (32, 64, 96, 128, 192),
        "workload.chain.facts": (2, 4, 8, 16),
    }
    several = True

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for a loader worker, without the evaluation and its results."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "evaluator"}

    @cached_property
    def data(self) -> "Data":
        from workloads.graphmer.data import Data

        return Data(self.sources, self.settings, self._learned or {})

    def describe_data(self) -> str:
        return self.data.describe()

    def fingerprint(self) -> str:
        about = self.data.stored["about"]
        text = f"{about['settings']} {about['content']}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def read(self, source: Path | None = None) -> dict[str, Any]:
        return self.data.datasets()

    def group(self, sample: Any) -> str:
        corpus = self.data.corpus
        window = corpus.window_of[sample[0]]
        return corpus.files[corpus.window_file[window]]

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns the tensors of samples (see `batches.Collator`); for queries only triple and condition (B)."""
        self.data.use(self.learned()["counts"])
        items = [item.sample for item in samples]
        if samples[0].training:
            return self.data.collator.training(items, generator)
        triple, condition = torch.tensor(items).T
        return {"triple": triple, "condition": condition}

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns texts, facts and candidates of the largest shapes; see `batches.Collator`."""
        chain = self.settings.chain
        objective = self.settings.objective
        model = self.settings.model
        L = chain.roots
        G = chain.facts
        V = chain.vocabulary
        C = room(objective.candidates, size * G)

        def below(limit: int, *shape: int) -> Tensor:
            return torch.randint(limit, (size, *shape), device=device)

        def floats(*shape: int) -> Tensor:
            # one number in all places: features of all candidates take no memory here
            return torch.rand((), device=device).expand(size, *shape)

        batch: Batch = {}
        batch["roots"] = below(V - len(SPECIALS), L) + len(SPECIALS)
        batch["within"] = below(settings.LONGEST_WORD, L)
        batch["word"] = below(V, L)
        batch["owner"] = below(V, L)
        batch["is_self"] = below(2, L)
        batch["relation"] = below(model.relations, G)
        batch["condition"] = below(len(CONDITIONS), G)
        batch["gold"] = below(C, G)
        batch["distance"] = 1 + below(L, G, L)
        batch["prior"] = floats(G, C)
        batch["own"] = floats(G, C)
        batch["places"] = floats(G, L)
        batch["boost"] = floats(G)
        batch["sibling"] = floats(G, C)
        batch["features"] = floats(G, C, len(settings.FEATURES))
        batch["near"] = floats(C, len(settings.NEAR) + 1)
        batch["name"] = below(V, C)
        batch["name_owner"] = below(V, C)
        batch["pieces"] = below(V, C, WIDTH)
        batch["kind"] = below(model.types, C)
        batch["vector"] = below(1 + model.own_vectors, C)
        batch["chance"] = -floats(C)
        if objective.mlm_steps:
            share = min(1.0, 2 * objective.mlm_ratio)
            is_target = torch.rand(size, L, device=device) < share
            batch["masked_roots"] = batch["roots"].clone()
            batch["root_targets"] = torch.where(is_target, batch["roots"], IGNORE)
        return batch

    def model(self) -> nn.Module:
        return Ranker(self.settings.chain, self.settings.model)

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Moves the strengths of the encoder faster; trains the ranking modules once the text is learned."""
        fast = {"names": ["strength*", "own_file", "reach"], "lr": 3.0, "weight_decay": 0.0}
        begin = self.settings.objective.mlm_steps
        if not begin:
            return [fast]
        ranking = [f"{name}.*" for name in _RANKING]
        return [{**fast, "from_step": begin}, {"names": ranking, "from_step": begin}]

    def count(self, batch: Batch) -> dict[str, int]:
        facts = int((batch["gold"] != IGNORE).sum())
        counts = {"trust": facts, "likeness": facts, "name": int(_with_namesakes(batch).sum())}
        if "root_targets" not in batch:
            return counts
        if self.step >= self.settings.objective.mlm_steps:
            return {**counts, "mlm": 0}
        masked = int((batch["root_targets"] != IGNORE).sum())
        return {**dict.fromkeys(counts, 0), "mlm": masked}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Returns the sums of softmaxes over sampled candidates, with trust and with likeness too; see `Ranker`.

        A third one is over the entities of the right name, in both. In the first `mlm_steps` the only one is over the
        masked pieces of the text.
        """
        if "root_targets" in batch and self.step < self.settings.objective.mlm_steps:
            return {"mlm": _masked_loss(model, batch)}, {}
        facts = _places(batch["gold"] != IGNORE)
        gold = batch["gold"].flatten()[facts]
        has_namesakes = _with_namesakes(batch).flatten()[facts]
        of_named = gold.where(has_namesakes, IGNORE)
        is_gold = F.one_hot(gold, batch["chance"].shape[1]).bool()
        # Each candidate stands for those that were not drawn: minus log of its chance, for all but the right one
        correction = batch["chance"][0].masked_fill(is_gold, 0)
        name = batch["name"][0]
        is_other_name = name != name[gold][:, None]
        sums = {}
        of_name = []
        for term, scores in zip(("trust", "likeness"), model(batch), strict=True):
            of_facts = scores.float().flatten(0, 1)[facts]
            corrected = of_facts - correction
            sums[term] = F.cross_entropy(corrected, gold, reduction="sum")
            namesakes = corrected.masked_fill(is_other_name, IMPOSSIBLE)
            loss = F.cross_entropy(namesakes, of_named, ignore_index=IGNORE, reduction="sum")
            of_name.append(loss)
        sums["name"] = torch.stack(of_name).sum()
        return sums, {}

    def term_weights(self, step: int) -> dict[str, float]:
        return {"name": self.settings.objective.same_name_weight}

    def learned(self) -> dict[str, Any]:
        """Returns the weights of the counts, fitted on training files, and `Data.stored`."""
        from workloads.graphmer.counts.scoring import fit

        if self._learned is None:
            weights = fit(self.data.collator, self.settings.objective.fitting_steps)
            self._learned = {"counts": weights.as_json()}
        if "data" not in vars(self):  # in a prediction
            return self._learned
        return {"counts": self._learned["counts"], **self.data.stored}

    @cached_property
    def evaluator(self) -> "Evaluator":
        from workloads.graphmer.evaluation import Evaluator

        self.data.use(self.learned()["counts"])
        return Evaluator(self.data)

    def evaluate(self, model: nn.Module, loader: Any) -> dict[str, float]:
        """Returns `figures` of the ranks; validation chooses the gate and fits probabilities of predictions."""
        from workloads.graphmer.predicting import Calibration

        is_test = loader.dataset.name == "test"
        judged = self.evaluator.answer(model, loader, chooses_gate=not is_test)
        if is_test:
            self._tested = {ENCODER: judged}
        else:
            Calibration(self.data).fit(model)
        return figures(judged)

    def baselines(self) -> dict[str, Judged]:
        return {COMBINED: self.evaluator.counted(self.parts["test"].samples)}

    def baseline(self) -> dict[str, float]:
        return figures(self._guesses[COMBINED])

    def columns(self, judged: Judged) -> dict[str, float]:
        """Returns the figures that are not metrics, and MRRs of tails seen and unseen in training."""
        metrics = {metric.__name__ for metric in self.metrics}
        scores = figures(judged)
        columns = {name: scores[name] for name in scores if name not in metrics}
        corpus = self.data.corpus
        triple = np.array(self.parts["test"].samples)[judged.sample, 0]
        relation = corpus.relation[triple]
        tail = corpus.tail[triple]
        is_seen = self.data.scorer.counts.of_tail[relation, tail] > 0
        for kind, chosen in (("seen", is_seen), ("unseen", ~is_seen)):
            of_kind = figures(Judged(judged.true[chosen], judged.guess[chosen]))
            for name in self.shown:
                columns[f"{name}_{kind}"] = of_kind[name]
        return columns

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv; returns the question of the test and the encoder's gain."""
        if not self._tested:
            return ""
        facts = len(self.parts["test"]) // len(CONDITIONS)
        compared = self._compare({**self._guesses, **self._tested}, COMBINED, folder)
        return (
            f"Filtered tail prediction on {facts:,} facts of held-out files. {_ABOUT}\n{compared}"
        )

    def predict(
        self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None
    ) -> dict[str, Any]:
        """Resolves the unresolved names of a tree of Python files, or of one file.

        Returns a row for each answer by "head relation tail"; writes them into `out`.
        """
        from workloads.graphmer.answers import predict

        return predict(self, models, source, out)


def _masked_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the sum of cross-entropies over the masked pieces of the text."""
    masked = _places(batch["root_targets"] != IGNORE)
    logits = model(batch, masked).float()
    targets = batch["root_targets"].flatten()[masked]
    return F.cross_entropy(logits, targets, reduction="sum")


def _places(mask: Tensor) -> Tensor:
    """Returns the flat places where a mask is true: the one wait for the device in a loss."""
    return mask.flatten().nonzero().squeeze(1)


def _with_namesakes(batch: Batch) -> Tensor:
    """Returns (B, G) whether the question has its text and the right entity shares its name with another candidate."""
    name = batch["name"][0]
    full_text = CONDITIONS.index("full_text")
    asked = (batch["gold"] != IGNORE) & (batch["condition"] == full_text)
    gold = batch["gold"].clamp(min=0)
    is_possible = batch["prior"] > IMPOSSIBLE / 2
    is_namesake = (name[gold][..., None] == name) & is_possible
    return asked & (is_namesake.sum(-1) > 1)
