"""Roles by counts, by the network, and by both multiplied: the network's weight, tables with intervals, figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.report import figure
from lib.report.result import write_table
from lib.scores import Interval, concluded
from lib.text import aligned
from workloads.legal import judging
from workloads.legal.counting.stack import log_softmax
from workloads.legal.data import Data
from workloads.legal.model import Network

# Rows of the tables, from the least to the most
MAJORITY, SENTENCE, CONTEXT, CHAIN = "commonest role", "words of the sentence", "words in context", "runs of roles"
COUNTS, STRONGEST = "counts multiplied", "counts + offsets"
NETWORK, PRODUCT, BOTH = "network alone", "counts x network", "counts x network + offsets"
WEIGHTS = tuple(np.arange(0, 1.01, 0.125).tolist())  # of the network beside the counts
_ROUNDS = 10
# Of an encoder with published weights: what ten documents of the sample corpus chose. One from scratch only ties.
PUBLISHED_WEIGHT = 0.5
_COLOURS = ("#0072B2", "#E69F00", "#009E73")  # of Okabe and Ito, for any kind of colour vision
POWERS = tuple((2.0 ** np.arange(-2, 1.1, 0.25)).tolist())  # of the product: how sure it is, and not of what


class Evaluator:
    """Judges all methods on the parts of some data."""

    def __init__(self, data: Data):
        self.data, self.classes = data, data.classes
        self._counted: dict[str, dict[str, np.ndarray]] = {}
        self._tested: tuple[np.ndarray, float] | None = None

    def judge(self, model: Network, network: np.ndarray, part: str) -> dict[str, float]:
        """Returns the figures of (sentences, classes) log-probabilities multiplied into the counts.

        On the validation documents the model's weight and power are chosen first. Models are compared there by their
        `probability`, which is that under the best weight, so that none gains by having chosen another one.
        """
        truth, best = self.truth(part), None
        if part == "validation":
            weight, best = self.chosen_weight(network, part)
            model.weight.fill_(weight)
            rows = self.multiplied(network, float(model.weight), part)
            model.power.fill_(max(POWERS, key=lambda power: _logs(power * rows[BOTH], truth).mean()))
        weight = float(model.weight)
        if part == "test":
            self._tested = network, weight
        rows = self.multiplied(network, weight, part)
        scores = self._figures(self.confusions(rows[BOTH], part))
        scores["probability"] = probability(rows[PRODUCT], truth) if best is None else best
        if part != "test":  # whose report has a row for the network alone
            alone = judging.scores(self.confusions(network, part).sum(0))
            scores |= {"network_macro_f1": float(alone[0]), "network_weight": weight}
        return scores

    def chosen_weight(self, network: np.ndarray, part: str) -> tuple[float, float]:
        """Returns a weight, and the probability of the right roles under the best one.

        The weight is that nearest to the usual one, out of those as good as the best as far as the documents can tell.
        As good: the right roles are as probable but for one standard error (Breiman et al., 1984). Probabilities change
        little by little with a weight, where the F1 of a few documents jumps.
        """
        truth, lengths = self.truth(part), [len(document) for document in self.data.parts[part]]
        rows = {weight: self.multiplied(network, weight, part)[PRODUCT] for weight in WEIGHTS}
        logs = {weight: fitted_logs(product, truth) for weight, product in rows.items()}
        most = max(logs.values(), key=np.mean)
        behind = {weight: most - own for weight, own in logs.items()}
        alike = [w for w, own in behind.items() if own.mean() <= standard_error(own, lengths)]
        usual = PUBLISHED_WEIGHT if self.data.learned["encoder"]["weights"] else 0.0
        return min(alike, key=lambda weight: (abs(weight - usual), weight)), float(np.exp(most.mean()))

    def truth(self, part: str) -> np.ndarray:
        """(sentences) the number of each role."""
        return self.data.labels(self.data.parts[part])

    def baseline(self) -> dict[str, float]:
        """Returns the figures of the counts with offsets on the test."""
        rows = self.counted("test")
        scores = self._figures(self.confusions(rows[STRONGEST], "test"))
        return {**scores, "probability": probability(rows[COUNTS], self.truth("test"))}

    def _figures(self, counts: np.ndarray) -> dict[str, float]:
        pooled = counts.sum(0)
        scores = dict(zip(judging.METRICS, judging.scores(pooled).tolist(), strict=True))
        f1 = 2 * pooled.diagonal() / np.maximum(pooled.sum(0) + pooled.sum(1), 1)
        return {**scores, **{f"f1_{name}": float(f1[k]) for k, name in enumerate(self.classes) if pooled[k].sum()}}

    def counted(self, part: str) -> dict[str, np.ndarray]:
        """Returns (sentences, classes) scores of each counting; of validation documents by counts without them."""
        if part not in self._counted:
            data, stack, documents = self.data, self.data.stack, self.data.parts[part]
            held_out = data.held_out if part == "validation" else {}
            scores = [held_out[one.name] if one.name in held_out else stack.scores(one) for one in documents]
            product = np.concatenate(scores).astype(np.float64)
            rows = {COUNTS: product, STRONGEST: product + stack.offsets}
            if part != "validation":
                alone = [stack.parts(document) for document in documents]
                joined = {name: np.concatenate([own[name] for own in alone]) for name in alone[0]}
                commonest = np.tile(np.arange(len(data.classes)) == data.class_counts.argmax(), (len(product), 1))
                first = {MAJORITY: commonest.astype(float), SENTENCE: joined["sentence"]}
                rows = {**first, CONTEXT: joined["context"], CHAIN: joined["crf"], **rows}
            self._counted[part] = rows
        return self._counted[part]

    def multiplied(self, network: np.ndarray, weight: float, part: str) -> dict[str, np.ndarray]:
        """Returns the scores of the rows that a network has a share in."""
        product = self.counted(part)[COUNTS] + weight * network
        return {NETWORK: network, PRODUCT: product, BOTH: product + self.data.stack.offsets}

    def confusions(self, scores: np.ndarray, part: str) -> np.ndarray:
        """Returns (documents, classes, classes)."""
        documents = self.data.parts[part]
        ends = np.cumsum([len(document) for document in documents])[:-1]
        truth = np.split(self.truth(part), ends)
        return judging.confusions(truth, np.split(scores.argmax(1), ends), len(self.classes))

    def report(self, folder: Path) -> str:
        """Writes evaluation.csv, answers.csv and figures of the test; returns the tables as text."""
        if self._tested is None:
            raise RuntimeError("There are no answers to report. Call `evaluate` on the test set before `report`.")
        network, weight = self._tested
        rows = {**self.counted("test"), **self.multiplied(network, weight, "test")}
        counts = {name: self.confusions(scores, "test") for name, scores in rows.items()}
        judged = {name: judging.judge(own) for name, own in counts.items()}
        gains = {name: judging.gain(own, counts[STRONGEST]) for name, own in counts.items()}
        write_table(folder / "evaluation.csv", self._csv(counts, judged, gains))
        write_table(folder / "answers.csv", self._answers(rows))
        pooled, documents = counts[BOTH].sum(0), len(self.data.parts["test"])
        figure.confusion(pooled, self.classes, folder / "plots" / "confusion.png", "sentences")
        draw(self.data, folder / "plots")
        table = [["", "macro F1", "weighted F1", "accuracy", f"macro F1 above {STRONGEST!r}"]]
        for name, own in judged.items():
            above = "" if name == STRONGEST else gains[name]["macro_f1"].signed
            table.append([name, *(str(own[metric]) for metric in judging.METRICS), above])
        return (
            f"{aligned(table, left={0})}\n"
            f"In brackets: 95 % of {judging.DRAWS:,} draws of the {documents} test documents; gains are paired. The "
            f"network counts {weight:g} (0 to 1) beside the counts.\n"
            f"{concluded(repr(BOTH), STRONGEST, 'macro F1', gains[BOTH]['macro_f1'], documents, 'document')}\n\n"
            f"Roles by {BOTH!r}:\n{aligned(judging.report(pooled, self.classes), left={0})}"
        )

    def _answers(self, rows: Mapping[str, np.ndarray]) -> Iterator[list[object]]:
        """Yields each sentence of the test with its role and the one that each method gives it."""
        yield ["document", "sentence", "role", *rows]
        guesses = np.stack([scores.argmax(1) for scores in rows.values()], 1)
        places = ((one, number) for one in self.data.parts["test"] for number in range(len(one)))
        for (document, number), guess in zip(places, guesses, strict=True):
            yield [document.name, number + 1, document.roles[number], *(self.classes[k] for k in guess)]

    def _csv(self, counts: Mapping[str, np.ndarray], *tables: Mapping[str, Mapping[str, Interval]]) -> Iterator[Any]:
        """Yields a row a method: its scores and its gains, each with an interval, and the F1 of each role."""
        bounds = [f"{metric}{end}" for metric in judging.METRICS for end in ("", "_low", "_high")]
        yield ["method", *bounds, *(f"gain_{name}" for name in bounds), *(f"f1_{name}" for name in self.classes)]
        for name, own in counts.items():
            scores = [one for table in tables for one in table[name].values()]
            cells = [f"{value:.6f}" for one in scores for value in (one.value, one.low, one.high)]
            f1 = self._figures(own)
            yield [name, *cells, *(f"{f1[key]:.6f}" if (key := f"f1_{c}") in f1 else "" for c in self.classes)]


def probability(scores: np.ndarray, truth: np.ndarray) -> float:
    """Returns the geometric mean of the probabilities of the right roles, of (sentences, classes) scores.

    They are those under the power and the offsets of roles that fit these sentences best: what a method knows, whatever
    it takes for common.
    """
    return float(np.exp(fitted_logs(scores, truth).mean()))


def fitted_logs(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Returns (sentences) the logarithms of these probabilities."""
    there = np.bincount(truth, minlength=scores.shape[1]) + 0.5
    logs = []
    for power in POWERS:
        offsets = np.zeros(scores.shape[1])
        for _ in range(_ROUNDS):  # of iterative scaling: as many of each role as there are
            shares = np.exp(log_softmax(power * scores + offsets))
            offsets += np.log(there / (shares.sum(0) + 0.5))
        logs.append(_logs(power * scores + offsets, truth))
    return max(logs, key=np.mean)


def standard_error(values: np.ndarray, lengths: Sequence[int]) -> float:
    """Returns that of the mean of (sentences) values, of which those of a document belong together.

    Documents are drawn, and not sentences, which are alike within one (Cochran, Sampling Techniques, 1977, 9A.1). A
    single document tells nothing: infinity.
    """
    if len(lengths) < 2:
        return float("inf")
    sums = np.add.reduceat(values, np.cumsum([0, *lengths[:-1]]))
    spread = ((sums - np.asarray(lengths) * values.mean()) ** 2).sum() * len(lengths) / (len(lengths) - 1)
    return float(np.sqrt(spread) / len(values))


def _logs(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return log_softmax(scores)[np.arange(len(truth)), truth]


def draw(data: Data, folder: Path) -> list[Path]:
    """Draws how often each role comes in each part of the data, and how long the training inputs are."""
    counts = {part: np.bincount(data.labels(own), minlength=len(data.classes)) for part, own in data.parts.items()}
    drawing, axes = figure.grid(1, 1, 5.0)
    ax, height = axes[0][0], 0.8 / len(counts)
    ax.set_axis_on()
    for number, (part, own) in enumerate(counts.items()):
        places = np.arange(len(data.classes)) + (number - (len(counts) - 1) / 2) * height
        label = f"{part}: {own.sum():,} sentences"
        ax.barh(places, own / max(1, own.sum()), height, color=_COLOURS[number % len(_COLOURS)], label=label)
    ax.set_yticks(range(len(data.classes)), data.classes)
    ax.invert_yaxis()
    ax.set_xlabel("share of the sentences")
    ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0))  # above, where no bar is
    classes = figure.save(drawing, folder / "classes.png")
    drawing, axes = figure.grid(1, 1, 4.2)
    ax, lengths, most = axes[0][0], data.part("train").lengths, data.settings.context.length
    ax.set_axis_on()
    ax.hist(lengths, bins=min(60, max(10, int(lengths.max()))), color=_COLOURS[0])
    ax.axvline(most, color="black", linestyle="--", linewidth=1, label=f"workload.context.length: {most}")
    ax.set_xlabel("tokens of an input")
    ax.set_ylabel("training sentences")
    ax.legend(fontsize="small")
    return [classes, figure.save(drawing, folder / "lengths.png")]
