"""The data of a run: judgments that are read or made up, their parts, and all that is learned of the training's."""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.report.progress import working
from workloads.legal import counting, documents, generated, splits
from workloads.legal.counting.features import position_features
from workloads.legal.counting.stack import Stack, packed, unpacked
from workloads.legal.documents import Document
from workloads.legal.samples import Sentences, input_of
from workloads.legal.settings import Settings
from workloads.legal.tokens import Tokens

# The code that makes the cached counts
_MAKERS = sorted(Path(counting.__file__).parent.glob("*.py"))


def _content(documents: Sequence[Document]) -> str:
    """Returns a hash of what documents say."""
    facts = (json.dumps([one.name, one.category, [*one.sentences], [*one.roles]]) for one in documents)
    return hashlib.sha256("".join(facts).encode()).hexdigest()


class Data:
    """Judgments and their parts, each read or computed once; `learned` has what an earlier session learned."""

    def __init__(self, source: Path | None, settings: Settings, share: float, seed: int):
        self.source, self.settings, self.share, self.seed = source, settings, share, seed
        self.learned: Mapping[str, Any] = {}
        self._samples: dict[str, Sentences] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns what collating needs: a loader worker gets its samples from the data set."""
        kept = ("source", "settings", "share", "seed", "learned")
        return {name: value for name, value in vars(self).items() if name in kept} | {"_samples": {}}

    @cached_property
    def corpus(self) -> tuple[list[Document], str]:
        """All documents with their roles, and how many sentences matched. Raises BadInput."""
        if self.source is None:
            made = generated.judgments(self.settings.generator)
            return [Document(name, kind, tuple(texts), tuple(roles)) for name, kind, texts, roles in made], ""
        return documents.read(self.source, self.settings)

    @property
    def documents(self) -> list[Document]:
        return self.corpus[0]

    @cached_property
    def dealt(self) -> splits.Parts:
        """The numbers of the documents of each part; a share is of the training alone. Raises BadInput."""
        own = self.settings.split
        return splits.deal(self.documents, own.folds, own.fold, own.partition, own.validation, self.share, own.given)

    @cached_property
    def parts(self) -> dict[str, list[Document]]:
        """The documents of "train", "validation" and "test". Raises BadInput for a document in two of them."""
        return {name: [self.documents[n] for n in chosen] for name, chosen in self.dealt.by_name().items()}

    def fingerprint(self) -> str:
        """Hashes what the judgments say, and how they are divided."""
        own = self.settings.split
        parts, _ = splits.of_files(self.documents) if own.given else ([], [])
        return hashlib.sha256(f"{own} {_content(self.documents)}{''.join(parts)}".encode()).hexdigest()

    @cached_property
    def found_classes(self) -> list[str]:
        """The roles of the data, or those of the configuration. Raises BadInput where there are too many."""
        names = list(self.settings.names or documents.class_names(self.documents, self.settings.outputs))
        if len(names) < 2:
            raise BadInput("The data has fewer than two roles, so there is nothing to tell apart. Look at data.dir.")
        return names

    @property
    def classes(self) -> list[str]:
        return list(self.learned.get("classes") or self.found_classes)

    @cached_property
    def stack(self) -> Stack:
        """The counts, of all documents that are not tested."""
        return Stack.from_json(self.counts["stack"])

    @cached_property
    def held_out(self) -> dict[str, np.ndarray]:
        """(sentences, classes) scores of each counted validation document, by counts that did not see it."""
        shape = {one.name: (len(one), len(self.classes)) for one in self.parts["validation"]}
        return {name: unpacked(text, "<f4", shape[name]) for name, text in self.counts["held_out"].items()}

    @cached_property
    def counts(self) -> Mapping[str, Any]:
        """The `stack` and `held_out` as JSON has them: as they were learned, cached on this machine, or fitted now."""
        if "counts" in self.learned:
            return self.learned["counts"]
        counted = [*self.parts["train"], *self.parts["validation"]]
        makers = [file.read_text("utf-8") for file in _MAKERS]
        facts = [_content(counted), len(self.parts["train"]), self.classes, self.seed, makers]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        path = platform.detect().scratch_dir / "legal" / f"counts-{key}.json"
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text("utf-8"))
        with working("Counting words for what the network has to beat"):
            stack = Stack.fit(counted, self.classes, self.seed)
        names = [one.name for one in self.parts["validation"] if one.name in stack.held_out]
        held_out = {name: packed(stack.held_out[name], "<f4") for name in names}
        counts = {"stack": stack.as_json(), "held_out": held_out}
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with disk.whole(path, cache=True) as aside:
                aside.write_text(json.dumps(counts), "utf-8")
        return counts

    @cached_property
    def tokens(self) -> Tokens:
        return Tokens(self.learned["tokenizer"])

    def part(self, name: str) -> Sentences:
        """Returns the samples of a part, whose sentences are cut into tokens once."""
        if name not in self._samples:
            self._samples[name] = self.samples(self.parts[name], name)
        return self._samples[name]

    def samples(self, chosen: Sequence[Document], part: str) -> Sentences:
        """Returns the samples of some documents; those without roles are labelled 0."""
        tokens, length = self.tokens, self.settings.context.length
        cut = [numbers for document in chosen for numbers in tokens.numbers(document.sentences)]
        labels = self.labels(chosen)
        categories = {name: number for number, name in enumerate(self.learned["categories"], 1)}
        inputs = [input_of(numbers, length, tokens.cls, tokens.sep) for numbers in cut]
        positions = np.concatenate([position_features(document) for document in chosen])
        kinds = np.repeat([categories.get(one.category, 0) for one in chosen], [*map(len, chosen)])
        return Sentences(part, inputs, positions, kinds, labels, self.class_weights[labels])

    def labels(self, chosen: Sequence[Document]) -> np.ndarray:
        """(sentences) the number of each role; 0 where a document has none."""
        number = {name: place for place, name in enumerate(self.classes)}
        return np.array([number[role] for one in chosen for role in one.roles or [self.classes[0]] * len(one)])

    @cached_property
    def class_weights(self) -> np.ndarray:
        """(classes) the weight of each role in the loss: its rarity to a power, 1 for a mean training sentence."""
        if "class_weights" in self.learned:
            return np.array(self.learned["class_weights"])
        counts = self.class_counts
        rarity = (counts.sum() / np.maximum(counts, 1)) ** self.settings.loss.class_weights
        return rarity * counts.sum() / (rarity * counts).sum()

    @cached_property
    def class_counts(self) -> np.ndarray:
        """(classes) the training sentences of each role."""
        return np.bincount(self.labels(self.parts["train"]), minlength=len(self.classes))

    def describe(self) -> str:
        """Returns where the judgments come from, how many there are, and what a reader should know of their parts."""
        where = f"Data: {self.source}" if self.source else (
            "No data was given or found mounted. The embedded default is used: "
            f"{len(self.documents)} generated judgments"
        )  # fmt: skip
        counts = {part: (sum(map(len, own)), len(own)) for part, own in self.parts.items()}
        sizes = ", ".join(f"{n:,} sentences of {many:,} documents in {part}" for part, (n, many) in counts.items())
        names = ", ".join(printable(name, most=40) for name in self.classes)
        notes = "".join(f"\n{note}" for note in self.dealt.notes)
        are_numbers = all(map(str.isdecimal, self.classes))
        hint = " These are numbers: workload.classes names them, in their order." if are_numbers else ""
        matched = f"\n{self.corpus[1]}" if self.corpus[1] else ""
        return f"{where}. {sizes}.{matched}{notes}\nRoles: {names}.{hint}"

    def about_lengths(self, padded: float) -> str:
        """Returns a sentence on the tokens of training inputs, those that are cut, and the padding of their batches."""
        lengths, most = self.part("train").lengths, self.settings.context.length
        half, nearly, longest = np.percentile(lengths, [50, 95, 100]).astype(int)
        return (
            f"Tokens of an input: median {half}, 95 % have at most {nearly}, the longest {longest}; "
            f"{(lengths == most).sum():,} are full at {most}. Padding: {padded:.1%} of a batch; to {most} it would be "
            f"{1 - lengths.mean() / most:.1%}."
        )
