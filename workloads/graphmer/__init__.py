"""graphmer: an encoder for a knowledge graph of code that ranks the tails of facts, beginning at what counting reaches.

Data: a folder with triples and entities as JSON lines, or any tree of Python files, from which the graph is built.
The embedded default is the standard library of the running Python.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.report.result import write_table
from lib.supervised import Judged, Supervised
from lib.task import Batch
from workloads.graphmer import figures, settings
from workloads.graphmer.model import IMPOSSIBLE, WIDTH, Ranker, room
from workloads.graphmer.settings import COMBINED, CONDITIONS, IGNORE, SPECIALS, Settings

if TYPE_CHECKING:  # imported where they are used: a plan of the memory needs neither data nor evaluation
    from workloads.graphmer.data import Data
    from workloads.graphmer.evaluation import Evaluator
    from workloads.graphmer.predicting.references import Calibration

_RANKING = (  # weights that learning the text does not reach
    "relation", "condition", "hgat", "query", "place_query", "place_key", "meaning", "meant", "compose", "kind",
    "vector", "trust", "trust_beside_file",
)  # fmt: skip
_ABOUT = (
    "Full text is mostly copying: the tail's name stands in the text. `resolved` is the share of right ones among the "
    "entities of the right name, and `mrr` the mean of the MRRs of three conditions, each among all entities that the "
    "ontology allows and, as `trained`, among the tails that training has, where an unseen one is last. evaluation.csv "
    "has all of them, by relation too."
)


class Graphmer(Supervised):
    """Predicts the tail of a triple from the text around its head."""

    Settings = Settings
    sentinels = ("entities.jsonl", "*.entities.jsonl")
    kind, unit = "tokens", "file"
    metrics = tuple(map(figures.Figure, ("mrr", *(f"mrr_{condition}" for condition in CONDITIONS), "resolved")))
    selection = ("mrr", "max")
    shown = tuple(f"mrr_{condition}" for condition in CONDITIONS)
    dials: ClassVar = {"workload.chain.roots": (32, 64, 96, 128, 192), "workload.chain.facts": (2, 4, 8, 16)}
    several = True
    _measured: Sequence[Mapping[str, Any]] = ()  # of predictions on the newest test

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a loader worker needs: the evaluation and its results stay in the training process."""
        return {name: v for name, v in super().__getstate__().items() if name not in ("evaluator", "calibration")}

    @cached_property
    def data(self) -> "Data":
        from workloads.graphmer.data import Data

        return Data(self.sources, self.sentinels, self.settings, self._learned or {})

    def describe_data(self) -> str:
        return self.data.describe()

    def fingerprint(self) -> str:
        return self.data.corpus.fingerprint()

    def read(self, source: Path | None = None) -> dict[str, Any]:
        return self.data.datasets()

    def group(self, sample: Any) -> str:
        corpus = self.data.corpus
        return corpus.files[corpus.window_file[corpus.window_of[sample[0]]]]

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns the tensors of samples (training) or of queries (evaluation): see `batches.Collator`."""
        self.data.use(self.learned()["counts"])
        items, collator = [item.sample for item in samples], self.data.collator
        return collator.training(items, generator) if samples[0].training else collator.queries(items)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns texts, facts and candidates of the largest shapes; see `batches.Collator`."""
        chain, objective, model = self.settings.chain, self.settings.objective, self.settings.model
        L, G, V = chain.roots, chain.facts, chain.vocabulary
        C = room(objective.candidates, size * G)

        def below(most: int, *shape: int) -> Tensor:
            return torch.randint(most, (size, *shape), device=device)

        def floats(*shape: int) -> Tensor:  # one number in all places: features of all candidates take no memory here
            return torch.rand((), device=device).expand(size, *shape)

        batch = {
            "roots": below(V - len(SPECIALS), L) + len(SPECIALS), "within": below(settings.LONGEST_WORD, L),
            "word": below(V, L), "owner": below(V, L), "is_self": below(2, L),
            "relation": below(model.relations, G), "condition": below(len(CONDITIONS), G), "gold": below(C, G),
            "distance": 1 + below(L, G, L),
            "prior": floats(G, C), "own": floats(G, C), "places": floats(G, L), "boost": floats(G),
            "sibling": floats(G, C), "features": floats(G, C, len(settings.FEATURES)),
            "near": floats(C, len(settings.NEAR) + 1), "name": below(V, C), "name_owner": below(V, C),
            "pieces": below(V, C, WIDTH), "kind": below(model.types, C), "vector": below(1 + model.own_vectors, C),
            "chance": -floats(C),
        }  # fmt: skip
        if objective.mlm_steps:
            chosen = torch.rand(size, L, device=device) < min(1.0, 2 * objective.mlm_ratio)
            targets = torch.where(chosen, batch["roots"], IGNORE)
            batch |= {"masked_roots": batch["roots"].clone(), "root_targets": targets}
        return batch

    def model(self) -> nn.Module:
        return Ranker(self.settings.chain, self.settings.model)

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Moves the strengths of the encoder faster; trains what only ranking uses once the text is learned."""
        fast = {"names": ["strength*", "own_file", "reach"], "lr": 3.0, "weight_decay": 0.0}
        if not (begin := self.settings.objective.mlm_steps):
            return [fast]
        return [{**fast, "from_step": begin}, {"names": [f"{name}.*" for name in _RANKING], "from_step": begin}]

    def count(self, batch: Batch) -> dict[str, int]:
        facts = int((batch["gold"] != IGNORE).sum())
        counts = {"trust": facts, "likeness": facts, "name": int(_with_namesakes(batch).sum())}
        if "root_targets" not in batch:
            return counts
        if self.step >= self.settings.objective.mlm_steps:
            return {**counts, "mlm": 0}
        return {**dict.fromkeys(counts, 0), "mlm": int((batch["root_targets"] != IGNORE).sum())}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Returns the sums of softmaxes over sampled candidates, with trust and with likeness too; see `Ranker`.

        A third one is over the entities of the right name, of both. In the first `mlm_steps` the only one is over the
        masked pieces of the text.
        """
        if "root_targets" in batch and self.step < self.settings.objective.mlm_steps:
            chosen = _places(batch["root_targets"] != IGNORE)
            logits = model(batch, chosen).float()
            return {"mlm": F.cross_entropy(logits, batch["root_targets"].flatten()[chosen], reduction="sum")}, {}
        asked = _places(batch["gold"] != IGNORE)
        gold = batch["gold"].flatten()[asked]
        of_named = gold.where(_with_namesakes(batch).flatten()[asked], IGNORE)
        is_gold = F.one_hot(gold, batch["chance"].shape[1]).bool()
        # Each candidate stands for those that were not drawn: minus log of its chance, for all but the right one
        correction = batch["chance"][0].masked_fill(is_gold, 0)
        is_other_name = batch["name"][0] != batch["name"][0][gold][:, None]
        sums, of_name = {}, []
        for term, scores in zip(("trust", "likeness"), model(batch), strict=True):
            corrected = scores.float().flatten(0, 1)[asked] - correction
            sums[term] = F.cross_entropy(corrected, gold, reduction="sum")
            others = corrected.masked_fill(is_other_name, IMPOSSIBLE)
            of_name.append(F.cross_entropy(others, of_named, ignore_index=IGNORE, reduction="sum"))
        sums["name"] = torch.stack(of_name).sum()
        return sums, {}

    def term_weights(self, step: int) -> dict[str, float]:
        return {"name": self.settings.objective.same_name_weight}

    def learned(self) -> dict[str, Any]:
        """Returns the weights of the counts, fitted on training files, and what `Data.stored` has of the data."""
        from workloads.graphmer.counts.scoring import fit

        if self._learned is None:
            weights = fit(self.data.collator, self.settings.objective.fitting_steps)
            self._learned = {"counts": weights.as_json(self.data.corpus)}
        if "data" not in vars(self):  # in a prediction
            return self._learned
        return {"counts": self._learned["counts"], **self.data.stored}

    def take_learned(self, values: Mapping[str, Any]) -> None:
        super().take_learned(values)
        if "data" in vars(self):
            self.data.use(values["counts"])

    # --- evaluation ---------------------------------------------------------------------------------------------------

    @cached_property
    def evaluator(self) -> "Evaluator":
        from workloads.graphmer.evaluation import Evaluator

        self.data.use(self.learned()["counts"])
        return Evaluator(self.data)

    @cached_property
    def calibration(self) -> "Calibration":
        from workloads.graphmer.predicting.references import Calibration

        return Calibration(self.data)

    def evaluate(self, model: nn.Module, loader: Any) -> dict[str, float]:
        """Returns `figures` of the ranks; validation chooses the gate and fits probabilities of predictions."""
        is_test = loader.dataset.name == "test"
        judged = self.evaluator.answer(model, loader, chooses_gate=not is_test)
        if is_test:
            self._tested, self._measured = {settings.ENCODER: judged}, self.calibration.measured(model)
        else:
            self.calibration.fit(model)
        return figures.figures(judged)

    def baselines(self) -> dict[str, Judged]:
        return {COMBINED: self.evaluator.counted(self.parts["test"].samples.queries)}

    def baseline(self) -> dict[str, float]:
        return figures.figures(self.guesses[COMBINED])

    def tallied(self, rows: Mapping[str, Judged], unit: np.ndarray, units: int) -> np.ndarray:
        return np.stack([figures.summed(figures.each(of), unit[of.sample], units) for of in rows.values()], 1)

    def measured(self, sums: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
        means = figures.means(sums)
        return np.column_stack([means[:, :-1].mean(1), means[:, : len(CONDITIONS)], means[:, -1]])

    def columns(self, judged: Judged) -> dict[str, float]:
        """Returns figures that are no metrics, and MRRs of single relations and of tails that training has or not."""
        names, corpus = {metric.__name__ for metric in self.metrics}, self.data.corpus
        columns = {name: value for name, value in figures.figures(judged).items() if name not in names}
        triple = np.array(self.parts["test"].samples.queries)[judged.sample, 0]
        relation = corpus.relation[triple]
        is_seen = self.data.scorer.counts.of_tail[relation, corpus.tail[triple]] > 0
        kinds = {corpus.relations[number]: relation == number for number in np.unique(relation)}
        for kind, chosen in {"seen": is_seen, "unseen": ~is_seen, **kinds}.items():
            of_kind = figures.figures(Judged(judged.true[chosen], judged.guess[chosen]))
            columns |= {f"{name}_{kind}": of_kind[name] for name in self.shown}
        return columns

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv and predictions.csv; returns what was asked and what the encoder adds."""
        if not self._tested:
            return ""
        asked = f"Filtered tail prediction on {len(self.parts['test'].samples.triples):,} facts of held-out files. "
        table = self.compare({**self.guesses, **self._tested}, COMBINED, folder)
        if not self._measured:
            return f"{asked}{_ABOUT}\n{table}\nNothing is predicted of such a graph: it has no unresolved names."
        write_table(folder / "predictions.csv", [[*self._measured[0]], *(row.values() for row in self._measured)])
        return f"{asked}{_ABOUT}\n{table}\n{self.calibration.text(self._measured)}"

    def predict(self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None) -> dict[str, Any]:
        """Answers what the unresolved names of a tree of Python files, or of one file, mean.

        Returns a row for each answer by "head relation tail"; writes them, and the graph with them, into `out`.
        """
        from workloads.graphmer.predicting import predict

        return predict(self, models, source, out)


def _places(mask: Tensor) -> Tensor:
    """Returns where a mask is true, of its flattened places: the one wait for the device in a loss."""
    return mask.flatten().nonzero().squeeze(1)


def _with_namesakes(batch: Batch) -> Tensor:
    """Returns (B, G) whether the question has its text and the right entity shares its name with another candidate."""
    name = batch["name"][0]
    asked = (batch["gold"] != IGNORE) & (batch["condition"] == CONDITIONS.index("full_text"))
    gold = batch["gold"].clamp(min=0)
    return asked & (((name[gold][..., None] == name) & (batch["prior"] > IMPOSSIBLE / 2)).sum(-1) > 1)
