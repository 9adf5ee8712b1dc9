"""legal: the role of each sentence of a judgment, by an encoder of text that is multiplied into what counting reaches.

Data: text files with a sentence and its role a line, or any table with its columns named (see `documents`). The
embedded default are generated judgments (see `generated`).
"""

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import counted, working
from lib.task import Batch
from lib.task.blocks import find_blocks
from lib.training.data import to_device
from trainbook import Judged, Supervised, padded
from trainbook.supervised import scoring
from trainbook.supervised.batches import in_batches
from trainbook.supervised.coverage import covering
from trainbook.supervised.evaluation import outputs_of, part_of
from trainbook.supervised.notes import collecting
from workloads.legal import documents, generated, product
from workloads.legal import model as network
from workloads.legal.documents import Document
from workloads.legal.product import METHODS, SHIFTED
from workloads.legal.settings import CATEGORIES, POSITIONS, Settings

if TYPE_CHECKING:  # it takes seconds, and a plan needs none of it
    from workloads.legal.counting import Stack

# Rows of the tables, from the least to the most
MAJORITY = "commonest role"
SENTENCE = "words of the sentence"
CONTEXT = "words in context"
CHAIN = "runs of roles"
COUNTS = "counts multiplied"
SHIFTED_COUNTS = "counts + offsets"
NETWORK = "network alone"
PRODUCT = "counts x network"
BOTH = "counts x network + offsets"
COUNTINGS = (SENTENCE, CONTEXT, CHAIN, COUNTS, SHIFTED_COUNTS)  # as METHODS has them
_OF_DATA = ("corpus", "_dealt", "stack")
_AT_ONCE = 32  # sentences that are predicted together, where no micro-batch is set
_LEARNED: dict[str, Any] = {
    "classes": list[str],
    "class_weights": list[float],
    "encoder": network.Choice,
    "categories": list[str],
    "tokenizer": network.Tokens,
    "counts": dict[str, Any],
}


class Legal(Supervised):
    Settings = Settings
    sentinels = ("*.txt",)
    metrics = ("macro_f1", "weighted_f1", "accuracy")
    selection = ("probability", "max")
    shown = ("macro_f1", "network_macro_f1")
    unit = "document"
    fold_key = "workload.split.fold"
    constant = MAJORITY
    _draws = 4000
    dials: ClassVar = {"workload.context.length": (64, 128, 256, 512)}

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the documents and counts, which a loader worker does not need."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_DATA}

    # --- data ---------------------------------------------------------------------------------------------------------

    @cached_property
    def corpus(self) -> tuple[list[Document], str]:
        """All documents with their roles, and what was read of the files. Raises BadInput."""
        if self.source is None:
            return [*generated.judgments(self.settings.generator)], ""
        with collecting() as notes, covering(self.source):
            judgments, matched = documents.read(self.source, self.settings)
        return judgments, "\n".join([matched, *notes])

    @property
    def documents(self) -> dict[str, list[Document]]:
        """The documents of each part, a share of the training alone. Raises BadInput."""
        return self._dealt[0]

    @cached_property
    def _dealt(self) -> tuple[dict[str, list[Document]], list[str]]:
        """The documents of each part, and what was left out of them."""
        with collecting() as notes:
            ratio = self.config.data.subset_ratio
            copies = self.settings.copies
            parts = documents.deal(self.corpus[0], self.settings.split, ratio, copies)
        return parts, notes

    def read(self, source: Path | None = None) -> dict[str, network.Sentences]:
        return {
            part: network.Sentences(self, chosen, part == "train")
            for part, chosen in self.documents.items()
        }

    def group(self, sample: Any) -> str:
        return sample.document

    def cells(self, sample: Any, number: int) -> dict[str, Any]:
        return {"document": sample.document, "sentence": sample.number + 1}

    def fingerprint(self) -> str:
        # The documents have the files, which may be named for a part
        facts = (self.settings.split, self.corpus[0])
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def learned(self) -> dict[str, Any]:
        """Returns the names of roles and categories, the chosen encoder, its tokenizer, and the counts."""
        if self._learned is None:
            self._learned = self._learn()
        return self._learned

    def _learn(self) -> dict[str, Any]:
        settings = self.settings
        train = self.documents["train"]
        classes = [*(settings.names or documents.class_names(self.corpus[0], settings.outputs))]
        if len(classes) < 2:
            raise BadInput(
                "The data has one role at most, so there is nothing to tell apart. Look at data.dir."
            )
        sentences = [sentence for document in train for sentence in document.sentences]
        encoder = network.choose(settings.encoder)
        return {
            "classes": classes,
            "class_weights": _weights(train, classes),
            "encoder": encoder,
            "categories": _categories(train),
            "tokenizer": network.tokenizer(settings.encoder, encoder, sentences),
            "counts": self._counts(classes),
        }

    def take_learned(self, values: Mapping[str, Any]) -> None:
        """Loads untrusted `learned()` values. Raises BadInput if they do not fit."""
        wrong = [n for n, kind in _LEARNED.items() if not untrusted.fits(values.get(n), kind)]
        if wrong:
            raise BadInput(
                f"What was learned from data lacks {', '.join(wrong)}, so the weights cannot be used."
            )
        names = values["classes"]
        outputs = self.settings.outputs
        has_weights = len(values["class_weights"]) == len(names)
        if not has_weights or not 2 <= len(names) <= outputs:
            raise BadInput(
                f"What was learned from data names {len(names)} roles, and the network has {outputs}."
            )
        if values != self._learned:
            for name in ("parts", "_parts_and_notes", "_guesses", "stack", "tokens"):
                vars(self).pop(name, None)
            super().take_learned(values)

    def _counts(self, classes: Sequence[str]) -> dict[str, Any]:
        """Returns the counts as JSON has them, with scores of validation documents by counts that did not see them."""
        from workloads.legal.counting import Stack

        validation = self.documents["validation"]
        with working("Counting words for what the network has to beat"):
            every = [*self.documents["train"], *validation]
            held_out = [one.name for one in validation]
            return Stack.fit(every, classes, self.config.seed, held_out).as_json()

    @cached_property
    def tokens(self) -> network.Tokens:
        return untrusted.parse(self.learned()["tokenizer"], network.Tokens)

    def truth(self, part: str) -> np.ndarray:
        """(sentences) the number of each role, in the order of the documents."""
        roles = [role for document in self.documents[part] for role in document.roles]
        return np.array([self._numbers[role] for role in roles])

    # --- batches and losses -------------------------------------------------------------------------------------------

    def batch(self, samples: list[Any], training: bool) -> Batch:
        """Returns tokens and mask (B, L), as long as the longest; positions (B, POSITIONS); the rest (B)."""
        learned = self.learned()
        rows = [sample.tokens.tolist() for sample in samples]
        tokens = padded(rows, learned["tokenizer"]["pad"], sys.maxsize)
        lengths = torch.tensor([*map(len, rows)])
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        positions = np.stack([sample.positions for sample in samples])
        labels = torch.tensor([sample.role for sample in samples])
        return {
            "tokens": tokens,
            "mask": mask.long(),
            "positions": torch.from_numpy(positions),
            "category": torch.tensor([sample.category for sample in samples]),
            "labels": labels,
            "weight": torch.tensor(learned["class_weights"])[labels],
        }

    def example_batch(self, size: int, device: torch.device) -> Batch:
        length = self.settings.context.length
        tokens = torch.ones(size, length, dtype=torch.int64, device=device)
        each = tokens[:, 0].clone()
        positions = torch.rand(size, POSITIONS, device=device)
        whole = {"tokens": tokens, "mask": tokens.clone(), "positions": positions}
        return {**whole, "category": each, "labels": each, "weight": each.float()}

    def model(self) -> nn.Module:
        settings = self.settings
        chosen = self._learned["encoder"] if self._learned else network.choose(settings.encoder)
        encoder = network.build(self, settings.encoder, chosen, settings.context.length)
        return network.Network(encoder, settings.outputs)

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Gives the head a rate of its own, and each layer of the encoder less the further it is from the head."""
        rates = self.settings.rates
        encoder: Any = model.encoder
        layers = find_blocks(encoder)
        layers_above = {}
        for number, layer in enumerate(reversed(layers)):
            layers_above.update(dict.fromkeys(map(id, layer.parameters()), number))
        names = defaultdict[int, list[str]](list)
        for name, parameter in encoder.named_parameters():
            if parameter.requires_grad:
                # A parameter outside of the layers counts as below them all
                number = layers_above.get(id(parameter), len(layers))
                names[number].append(f"encoder.{name}")
        groups = [{"names": ["inner.*", "output.*", "norm.*"], "lr": rates.head}]
        for number in sorted(names):
            groups.append({"names": names[number], "lr": rates.layer_decay**number})
        return groups

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns (sentences, roles); a plan, which knows no roles, has all outputs."""
        logits = model(batch)
        if self._learned:
            return logits[:, : len(self._learned["classes"])].float()
        return logits.float()

    def count(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(batch["weight"].sum())}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
        losses = F.cross_entropy(outputs_of(self, model, batch), batch["labels"], reduction="none")
        loss = (losses * batch["weight"]).sum()
        return {"loss": loss}, {"padding": 1 - batch["mask"].float().mean()}

    # --- beside and multiplied into the counts ------------------------------------------------------------------------

    @cached_property
    def stack(self) -> "Stack":
        """The counts, of all documents that are not tested."""
        from workloads.legal.counting import Stack

        return Stack.from_json(self.learned()["counts"])

    def counted(self, part: str) -> np.ndarray:
        """Returns (sentences, classes) scores by the best counting, without its offsets.

        Those of validation documents are by counts without them.
        """
        held_out = self.stack.held_out if part == "validation" else {}
        scores = []
        for document in self.documents[part]:
            has_scores = document.name in held_out
            scores.append(held_out[document.name] if has_scores else self.stack.base(document))
        return np.concatenate(scores).astype(np.float64)

    def baselines(self) -> dict[str, Any]:
        test = self.documents["test"]
        parts = [self.stack.parts(document) for document in test]
        counts = np.concatenate([self.stack.scores(document) for document in test])
        scores = [np.concatenate([part[name] for part in parts]) for name in METHODS[:3]]
        scores += [counts, counts + self.stack.offsets]
        places = self.parts["test"].samples.places
        named = zip(COUNTINGS, scores, strict=True)
        return {name: values.argmax(1)[places] for name, values in named}

    def _strongest(self, baselines: Mapping[str, Judged]) -> str:
        """Returns the counting that was best on documents outside of its fit, whichever is best on the test."""
        return COUNTINGS[METHODS.index(self.stack.best)]

    def combined(self, model: Any, outputs: Tensor, part: str) -> dict[str, np.ndarray]:
        """Multiplies the network into the counts, in logarithms.

        On the validation documents the model's weight and power are chosen first. Models are compared there by their
        `probability`, which is that under the best weight, so that none gains by having chosen another one.
        """
        places = self.parts[part].samples.places
        truth = self.truth(part)
        counts = self.counted(part)
        shift = self.stack.shift
        scores = F.log_softmax(outputs, -1).double().numpy()[np.argsort(places)]
        best = None
        if part == "validation":
            usual = product.PUBLISHED_WEIGHT if self.learned()["encoder"]["weights"] else 0.0
            alone = (counts + shift)[places]
            chosen, best = product.chosen_weight(self, alone, scores[places], truth[places], usual)
            model.weight.fill_(chosen)
        weight = float(model.weight)
        multiplied = counts + weight * scores
        shifted = multiplied + shift
        if part == "validation":
            model.power.fill_(product.chosen_power(shifted, truth))
        if best is None:
            best = product.probability(multiplied, truth)
        self._figures = {**self.figures(truth, shifted), "probability": best}
        if part == "test":
            powered = float(model.power) * shifted[places]
            self._shares = torch.from_numpy(powered).softmax(-1).numpy()
        else:  # the report of a test has a row for the network alone
            alone = self.figures(truth, scores)["macro_f1"]
            self._figures |= {"network_macro_f1": alone, "network_weight": weight}
        rows = {NETWORK: scores, PRODUCT: multiplied}
        if self.stack.best == SHIFTED:
            rows[BOTH] = shifted
        return {name: values[places] for name, values in rows.items()}

    def figures(self, truth: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        """Returns the metrics of (sentences, classes) scores, and the F1 of each role."""
        judged = Judged(truth, scores.argmax(1))
        return {**scoring.scores(self.metrics, judged), **self.columns(judged)}

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        scores = super().evaluate(model, loader)
        if part_of(loader) == "test":
            *_, answer = self._tested.values()
            self._promised = answer._replace(shares=self._shares)
        return {**scores, **self._figures}

    def baseline(self) -> dict[str, float]:
        """Returns what the strongest counting reaches on the test, without a network."""
        counts = self.counted("test")
        truth = self.truth("test")
        figures = self.figures(truth, counts + self.stack.shift)
        return {**figures, "probability": product.probability(counts, truth)}

    # --- what a person reads ------------------------------------------------------------------------------------------

    def describe_data(self) -> str:
        """Describes the source of the judgments, their number, and what a reader should know of their parts."""
        judgments, matched = self.corpus
        parts, left_out = self._dealt
        where = f"Data: {self.source}"
        if not self.source:
            where = (
                f"No data was given or found mounted. "
                f"The embedded default is used: {len(judgments)} generated judgments"
            )
        sizes = []
        for name, part in parts.items():
            sentences = sum(map(len, part))
            sizes.append(f"{sentences:,} sentences of {len(part):,} documents in {name}")
        roles = ", ".join(printable(name, most=40) for name in self.learned()["classes"])
        lines = [f"{where}. {', '.join(sizes)}.", matched, *left_out, *self._notes]
        return "\n".join(filter(None, [*lines, f"Roles: {roles}."]))

    def predict(self, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
        """Returns a row a sentence, by the name of its file; writes `name.jsonl` into `out`. Raises BadInput."""
        base = source
        paths = sorted(path for path in source.rglob("*.txt") if path.is_file())
        if source.is_file():
            base = source.parent
            paths = [source]
        if not paths:
            raise BadInput(
                f"There is no .txt file in {printable(source)}. "
                f"Give a judgment as text, or a folder of these."
            )
        answers = {}
        for path in counted(paths, "judgments read"):
            rows = self._sentences(models, documents.read_plain(path))
            name = path.relative_to(base).with_suffix("").as_posix()
            answers[name] = rows
            if out:
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
                disk.write_text(out / f"{name}.jsonl", "".join(lines))
        return answers

    def _sentences(self, models: Sequence[nn.Module], document: Document) -> list[dict[str, Any]]:
        """Returns a row a sentence: its role and the probabilities of all roles."""
        rows = []
        shares = self._probabilities(models, document)
        for number, text in enumerate(document.sentences):
            rounded = [round(float(share), 4) for share in shares[number]]
            probabilities = dict(zip(self.names, rounded, strict=True))
            role = self.names[int(shares[number].argmax())]
            head = {"sentence": number + 1, "text": text, "role": role}
            answer = {"probability": probabilities[role], "probabilities": probabilities}
            rows.append({**head, **answer})
        return rows

    def _probabilities(self, models: Sequence[Any], document: Document) -> np.ndarray:
        """Returns (sentences, classes) of counts times networks."""

        def weighed(samples: Sequence[Any]) -> Tensor:
            """Returns (sentences, classes) the mean of weighted log-probabilities over networks."""
            batch = to_device(self.labelled([*samples]), models[0].weight.device)
            scores = []
            for model in models:
                logs = F.log_softmax(self.outputs(model, batch), -1)
                scores.append(model.weight * logs)
            return torch.stack(scores).mean(0).cpu()

        samples = network.Sentences(self, [document])
        size = self.config.training.micro_batch or _AT_ONCE
        with torch.inference_mode():
            batches = [*in_batches(weighed, samples, size)]
        scores = torch.cat(batches).double()[np.argsort(samples.places)].numpy()
        counts = self.stack.base(document) + self.stack.shift + scores
        power = float(torch.stack([model.power for model in models]).mean())
        return torch.from_numpy(power * counts).softmax(-1).numpy()


def _categories(documents: Sequence[Document]) -> list[str]:
    """Returns the categories of documents, as many as the head has columns."""
    return sorted({document.category for document in documents if document.category})[:CATEGORIES]


def _weights(documents: Sequence[Document], classes: Sequence[str]) -> list[float]:
    """Returns the weight of each role in the loss: the root of its rarity, 1 for a mean sentence."""
    roles = [role for document in documents for role in document.roles]
    counts = np.array([roles.count(name) for name in classes])
    rarity = (counts.sum() / np.maximum(counts, 1)) ** 0.5
    return (rarity * counts.sum() / (rarity * counts).sum()).tolist()
