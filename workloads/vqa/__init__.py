"""vqa: answers to questions about pictures, written by a decoder that attends to all patches and all words.

Data: JSON lines of question, answer and image, or any table with its columns named (see `data`). The embedded default
are drawn shapes with questions in Vietnamese (see `generated`).
"""

import contextlib
import hashlib
import itertools
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import working
from lib.task import Batch
from lib.task.blocks import find_blocks
from trainbook import IGNORED, Judged, Supervised, padded
from trainbook.supervised import encoders, scoring, text
from trainbook.supervised.evaluation import Scored
from trainbook.supervised.intervals import least
from trainbook.supervised.text import commonest, exact, normal, words
from workloads.vqa import data, generated, pictures, tokens
from workloads.vqa.data import Record
from workloads.vqa.settings import TERMS, Settings, stage_at
from workloads.vqa.tokens import Answer, Tokens

_PARTS = ("image", "text", "decoder")
_LEARNED = {
    "encoders": dict[str, dict[str, str | bool | list[float]]], "tokenizers": dict[str, dict[str, Any]],
    "kinds": list[str], "words": dict[str, dict[str, untrusted.Natural]],
}  # fmt: skip
_DRAWN = "No data was given or found mounted. The embedded default is used: drawn shapes, asked in Vietnamese."
_MULTIPLE = 8  # of tokens, which tensor cores like
NETWORK = "network alone"
WORDS = "by words"  # rows of the tables
_RULES = {
    "by question type": lambda record: record.kind,
    "by question": lambda record: normal(record.question),
}
OFFERED = 4  # likeliest training answers, which the network judges beside its own
_LEAST = 1e-3  # probability of an answer that the words speak against, or that is not among the training's
_WEIGHTS = (
    0.0,
    1.0,
    0.75,
    0.5,
    0.25,
    0.125,
    0.0625,
)  # of the network, in the order in which they are tried
_SURE = 0.995  # of one side: every validation of a run asks
_MOST_ANSWERS = 200
_MOST_PAIRS = 20_000  # commonest answers and questions with one, of which the words learn
_MOST_BYTES = 6 * 2**20  # of these, as every checkpoint has them
_FEW = 2000  # pairs, of which words that stand in one alone are learned too


def valid(right: str, written: str) -> float:
    """Returns whether a text was written in the asked form; a rule's has none."""
    return float(getattr(written, "is_valid", True))


class Words:
    """A linear classifier of the words of a question, one to three in a row, over training answers."""

    def __init__(self, pairs: Mapping[str, Mapping[str, int]]):
        """Fits it to what `pairs_of` returned."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import RidgeClassifier
        from sklearn.pipeline import make_pipeline

        rows = [
            (question, answer, count)
            for answer, each in pairs.items()
            for question, count in each.items()
        ]
        questions, answers, counts = zip(*sorted(rows, key=lambda row: (-row[2], row)), strict=True)
        self.answers = sorted(pairs)
        self._model = None
        self._places = {normal(answer): place for place, answer in enumerate(self.answers)}
        self._usual = np.array([[sum(pairs[answer].values()) for answer in self.answers]]) / sum(
            counts
        )
        few = 1 if len(questions) <= _FEW else 2
        vectors = TfidfVectorizer(
            ngram_range=(1, 3), tokenizer=words, token_pattern=None, lowercase=False, min_df=few
        )
        # 6 s for 12,000 questions with 200 answers, for which a logistic regression takes 45
        model = make_pipeline(vectors, RidgeClassifier(solver="sparse_cg", tol=1e-3))
        with (
            working("Learning what questions alone answer"),
            contextlib.suppress(ValueError),
        ):  # one answer, no words
            self._model = model.fit(questions, answers, ridgeclassifier__sample_weight=counts)

    def shares(self, questions: Sequence[str]) -> np.ndarray:
        """Returns (questions, answers) probabilities: least squares on -1 and 1 estimate them."""
        if self._model is None:
            return self._usual.repeat(len(questions), 0).astype(np.float32)
        scores = self._model.decision_function(list(map(normal, questions)))
        scores = np.stack([-scores, scores], 1) if scores.ndim == 1 else scores  # of two answers
        shares = np.clip((1 + scores) / 2, _LEAST, 1)
        return (shares / shares.sum(1, keepdims=True)).astype(np.float32)

    def guesses(self, questions: Sequence[str]) -> list[str]:
        return [self.answers[place] for place in self.shares(questions).argmax(1)]

    def candidates(
        self, answers: Sequence[tuple[Answer, float]], shares: Sequence[float]
    ) -> list[Answer]:
        """Returns the different ones of answers, which the network gave logarithms, with those of the words' shares."""
        different: dict[str, Answer] = {}
        for answer, log in answers:
            place = self._places.get(text := normal(answer))
            answer.network, answer.words = log, math.log(_LEAST if place is None else shares[place])
            different.setdefault(text, answer)  # another reasoning for the same
        return [*different.values()]


def pairs_of(samples: Sequence[Record]) -> dict[str, dict[str, int]]:
    """Returns the commonest answers, each with its commonest questions and how often these came with it."""
    pairs = Counter((normal(record.question), normal(record.answer)) for record in samples)
    spelled: dict[str, list[str]] = {}
    for record in samples:
        spelled.setdefault(normal(record.answer), []).append(record.answer)
    common = {*sorted(spelled, key=lambda answer: (-len(spelled[answer]), answer))[:_MOST_ANSWERS]}
    rows = sorted((row for row in pairs if row[1] in common), key=lambda row: (-pairs[row], row))[
        :_MOST_PAIRS
    ]
    sizes = itertools.accumulate(len(json.dumps(row)) for row in rows)
    kept: dict[str, dict[str, int]] = {}
    for (question, answer), size in zip(rows, sizes, strict=True):
        if size <= _MOST_BYTES:
            kept.setdefault(commonest(spelled[answer]), {})[question] = pairs[question, answer]
    return kept


def likeliest(written: Sequence[Answer], weight: float) -> np.ndarray:
    """Returns the best candidate for each question, of the first answers in the order of the beams."""
    return np.array(
        [max(answer.candidates, key=lambda other: other.score(weight)) for answer in written],
        object,
    )


def chosen_weight(
    right: Sequence[str], written: Sequence[Answer], pictures: Sequence[str]
) -> float:
    """Returns the network's weight: the first one surely above the words' answers, if any, or one surely above that.

    Surely: the lower end of Student's paired interval over pictures is above 0. So the network alone answers where it
    gains, unless a weight between both gains more.
    """
    names, unit, sizes = np.unique(pictures, return_inverse=True, return_counts=True)
    guesses = (likeliest(written, weight) for weight in _WEIGHTS)
    each = [[exact(*pair) for pair in zip(right, guess, strict=True)] for guess in guesses]
    sums = np.array([np.bincount(unit, row) for row in each]).T  # (pictures, weights)
    place = 0
    while len(names) > 1:
        gains = sums - sums[:, [place]]
        whole = gains.sum(0)
        others = (whole - gains) / (len(right) - sizes)[:, None]  # without each picture
        is_sure = least(whole / len(right), others, _SURE) > 0
        if not is_sure.any():
            break
        place = int(is_sure.argmax())
    return _WEIGHTS[place]


class Vqa(Supervised):
    Settings = Settings
    kind = "text"
    sentinels = ("*.jsonl",)
    metrics = ("exact", "token_f1", "rouge_l", valid)
    unit = "picture"
    constant = "commonest answer"
    selection = (
        "network_exact",
        "max",
    )  # which means the same in every stage, and improves where words alone answer
    shown = ("exact", "network_exact", "valid")
    dials: ClassVar = {"workload.decoder.length": (40, 96, 128, 160)}

    def __init__(self, config: Any, source: Any = None):
        super().__init__(config, source)
        self._beams_at_once = self.settings.writing.at_once

    def read(self, source: Path | None = None) -> dict[str, Any]:
        settings = self.settings if source else Settings()
        records = data.read(source or generated.folder_of(self.settings.generator), settings)
        parts = data.split(records, self.settings.split)
        # An evaluation meets the questions of a picture together, so that it is read and encoded once for them
        held = {
            name: sorted(rows, key=lambda record: record.picture) for name, rows in parts.items()
        }
        return {**held, "train": data.Questions(parts["train"], self.settings.together)}

    def fingerprint(self) -> str:
        """Hashes what records say and what their pictures show, wherever they lie, and which part they are in."""
        rows = ((name, record) for name, part in self.parts.items() for record in part.samples)
        facts = (
            repr((name, r.picture, r.question, r.answer, r.kind, r.reasoning)) for name, r in rows
        )
        return hashlib.sha256("".join(facts).encode()).hexdigest()

    def datasets(self) -> dict[str, Any]:
        if "words" not in vars(
            self
        ):  # which loaders get made; and an answer that is too long is met before the run
            for part in self.parts.values():
                self.writer.targets(part.samples, self.settings.decoder.length)
            assert self.words
        return super().datasets()

    def describe_data(self) -> str:
        """Returns how many records there are, what a reader should know of them, and which parts were chosen."""
        about = super().describe_data()
        chosen = self.learned()["encoders"]
        names = ", ".join(f"{part} {chosen[part]['weights'] or 'from scratch'}" for part in _PARTS)
        drawn = [] if self.source else [_DRAWN]
        return "\n".join([about, *drawn, f"Parts: {printable(names, most=300)}."])

    def example(self) -> Record:
        return Record(0, "", "", "")

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns a batch of the largest shape: as many pictures as questions, all as long as they can be."""
        side = self.settings.pictures.side
        lengths = (self.settings.text.length, self.settings.decoder.length)
        question, labels = (torch.full((size, length), 4, device=device) for length in lengths)
        return {
            "picture": torch.arange(size, device=device), "question": question, "words": question > 0,
            "pixels": torch.ones(size, 3, side, side, dtype=torch.uint8, device=device),
            "labels": labels, "part": labels * 0 + tokens.ANSWER,
        }  # fmt: skip

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        return self.batch([item.sample for item in samples], samples[0].training, generator)

    def batch(
        self, samples: list[Record], training: bool, generator: torch.Generator | None = None
    ) -> Batch:
        """Returns tensors as long as the longest question and answer.

        In training the `generator` changes the pictures; else there is what words alone say, (B, training answers).
        """
        pixels, picture = pictures.batch(
            samples, self.settings.pictures.side, generator if training else None
        )
        texts = self.reader.questions(
            [record.question for record in samples], self.settings.text.length
        )
        question = padded(texts, self.reader.pad, sys.maxsize)
        tokens, terms = zip(
            *self.writer.targets(samples, self.settings.decoder.length), strict=True
        )
        return {
            **({} if training else {"by_words": torch.from_numpy(self.words.shares([r.question for r in samples]))}),
            "picture": picture, "pixels": pixels, "question": question,
            "words": torch.arange(question.shape[1]) < torch.tensor([[len(text)] for text in texts]),
            "labels": padded(tokens, IGNORED, sys.maxsize), "part": padded(terms, 0, sys.maxsize),
        }  # fmt: skip

    def learn(self, samples: Sequence[Record]) -> dict[str, Any]:
        """Returns the parts that are chosen, the types of questions, the tokenizers, and what the words learn of."""
        from workloads.vqa import model

        chosen = model.choose(self.settings)
        kinds = sorted({record.kind for record in samples if record.kind})
        texts = [text for r in samples for text in (r.question.lower(), r.answer, r.reasoning)]
        tokenizers = {"decoder": tokens.trained(texts, self.settings.decoder.vocabulary)}
        for part in ("decoder", "text"):
            if name := chosen[part]["weights"]:
                tokenizers[part] = tokens.published(encoders.folder_of(name), part == "decoder")
        return {
            "encoders": chosen,
            "kinds": kinds,
            "tokenizers": tokenizers,
            "words": pairs_of(samples),
        }

    def take_learned(self, values: Mapping[str, Any]) -> None:
        """Takes what `learned` returned, perhaps a stranger's. Raises BadInput where that is of another kind."""
        is_fine = all(untrusted.fits(values.get(name), kind) for name, kind in _LEARNED.items())
        is_fine = (
            is_fine
            and "decoder" in values["tokenizers"]
            and all([values["words"], *values["words"].values()])
        )
        if not (is_fine and all("weights" in values["encoders"].get(part, ()) for part in _PARTS)):
            what = "What was learned from data lacks encoders, types of questions, a tokenizer or the words' answers"
            raise BadInput(f"{what}: start another run.")
        for name in ("reader", "writer", "words", "offers"):
            vars(self).pop(name, None)
        super().take_learned(values)

    @cached_property
    def writer(self) -> Tokens:
        return Tokens(self.learned()["tokenizers"]["decoder"], self.learned()["kinds"])

    @cached_property
    def reader(self) -> Tokens:
        learned = self.learned()["tokenizers"]
        if "text" in learned:
            return Tokens(learned["text"])
        return self.writer

    @cached_property
    def words(self) -> Words:
        return Words(self.learned()["words"])

    @cached_property
    def offers(self) -> list[list[int]]:
        """The tokens of each answer of that classifier."""
        first = self.writer.answer
        last = self.writer.answer_end
        return [[first, *row, last] for row in self.writer.numbers(self.words.answers)]

    def model(self) -> nn.Module:
        from workloads.vqa import model

        chosen = self._learned["encoders"] if self._learned else model.choose(self.settings)
        words = self.settings.decoder.vocabulary + tokens.EXTRA
        if self._learned:  # never more
            words = self.writer.first + len(tokens.TAGS) + len(self.writer.kinds)
        return model.build(self, self.settings, chosen, -(-words // _MULTIPLE) * _MULTIPLE)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Returns the decoder's layers first, then those of the fusion and of the encoders."""
        encoders = (
            block for encoder in (model.image, model.text) for block in find_blocks(encoder)
        )
        return [*model.t5.decoder.block, *model.t5.encoder.block, *encoders]

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        rates = {"image": self.settings.image.lr, "text": self.settings.text.lr}
        return [{"names": f"{part}.*", "lr": rate} for part, rate in rates.items() if rate != 1]

    def stage_name(self, step: int) -> str:
        return stage_at(self.settings.stages, step)[0]

    def term_weights(self, step: int) -> dict[str, float]:
        return {term: getattr(stage_at(self.settings.stages, step)[1], term) for term in TERMS}

    def count(self, batch: Batch) -> dict[str, float]:
        return {name: int((batch["part"] == number).sum()) for number, name in enumerate(TERMS, 1)}

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
        each = text.losses(model(batch), batch["labels"])
        return {
            name: (each * (batch["part"] == number)).sum() for number, name in enumerate(TERMS, 1)
        }, {}

    def beams(self, part: str) -> int:
        if part == "validation":
            return self.settings.writing.validation_beams
        return self.settings.writing.beams

    def write(self, model: nn.Module, batch: Batch, beams: int) -> list[Answer]:
        """Returns what the network writes; beside it, as `candidates`, its other beams and what the words offer."""
        encoded = model.encode(batch)
        written = model.written(*encoded, beams, self.settings.decoder.length, beams)
        best = batch["by_words"].argsort(descending=True, stable=True)[:, :OFFERED].tolist()
        pairs = [(self.writer.parsed(tokens), tokens) for tokens in written]
        rows = []
        for number, places in enumerate(best):
            offered = [(Answer(self.words.answers[place]), self.offers[place]) for place in places]
            rows.append([*pairs[number * beams : (number + 1) * beams], *offered])
        flat = [tokens for row in rows for _, tokens in row]
        logs = iter(model.log_probabilities(*encoded, flat, self.writer.answer_end))
        for row, shares in zip(rows, batch["by_words"].tolist(), strict=True):
            row[0][0].candidates = self.words.candidates(
                [(answer, next(logs)) for answer, _ in row], shares
            )
        return [row[0][0] for row in rows]

    def candidates(self, model: nn.Module, batch: Batch, beams: int) -> list[dict[Answer, float]]:
        """Returns different answers to each question, with the weighed probabilities of the network and the words."""
        weight = float(model.weight)
        written = self.write(model, batch, beams)
        return [
            {each: math.exp(each.score(weight)) for each in answer.candidates} for answer in written
        ]

    def _scored(self, model: nn.Module, loader: Any) -> Scored:
        """Returns the figures of the network weighed beside the words; a validation chooses its weight."""
        # The question types of this evaluation, and below the weight of the network in it
        self.judged_types = np.array(
            [record.kind or data.OTHER for record in loader.dataset.samples]
        )
        scores, rows, _ = super()._scored(model, loader)
        network = rows["network"]
        if loader.dataset.name == "validation":
            shown = [record.picture for record in loader.dataset.samples[: len(network.true)]]
            model.weight.fill_(chosen_weight(network.true, network.guess, shown))
        self.weight = float(model.weight)
        answer = network._replace(guess=likeliest(network.guess, self.weight))
        figures = {**scoring.scores(self.metrics, answer), **self.columns(answer)}
        beside = {
            "valid": scores["valid"],
            "network_exact": scores["exact"],
            "network_weight": self.weight,
        }
        about = f"Validation shows no sure gain over {WORDS!r}, so these answers count, not the network's."
        if self.weight:
            rest = "and the words of the question the rest of the weight."
            about = f"Validation gives the network {self.weight:g} {rest}"
        rows = {NETWORK: network, "answer": answer}
        return Scored({"loss": scores["loss"], **figures, **beside}, rows, about)

    def group(self, sample: Record) -> str:
        return sample.picture

    def baselines(self) -> dict[str, list[str]]:
        """Returns what training records mostly answer to a question's type, and to the question, else to its type."""
        train = self.parts["train"].samples
        test = self.parts["test"].samples
        guesses = [commonest(record.answer for record in train)] * len(test)
        rows = {}
        for name, key in _RULES.items():
            groups = defaultdict[str, list[str]](list)
            for record in train:
                groups[key(record)].append(record.answer)
            usual = {asked: commonest(answers) for asked, answers in groups.items()}
            rows[name] = guesses = [
                usual.get(key(r), guess) for r, guess in zip(test, guesses, strict=True)
            ]
        return {**rows, WORDS: self.words.guesses([record.question for record in test])}

    def baseline(self) -> dict[str, float]:
        return {
            name: score for name, score in super().baseline().items() if name != "valid"
        }  # a rule has no form

    def columns(self, judged: Judged) -> dict[str, float]:
        right = np.array(self.metrics[0].each(judged.true, judged.guess))
        kinds = self.judged_types[judged.sample]
        return {f"exact_{kind}": float(right[kinds == kind].mean()) for kind in sorted({*kinds})}

    def cells(self, sample: Record, number: int) -> dict[str, Any]:
        place = {"file": sample.file, "record": sample.number, "picture": Path(sample.image).name}
        is_valid = int(self._tested[NETWORK].guess[number].is_valid)
        return {
            **place,
            "type": self.judged_types[number],
            "question": sample.question,
            "valid": is_valid,
        }

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        return f"{super().report(metrics, folder)}\nRules see the question alone."

    def answers(self, models: list[nn.Module], samples: list[Record]) -> list[Mapping[str, Any]]:
        """Returns what the models answer together, in the fields of a teacher's records."""
        rows = []
        for record, shares in zip(samples, text.together(self, models, samples), strict=True):
            best: Any = max(shares, key=lambda answer: shares[answer])
            rows.append({
                "img_id": Path(record.image).stem, "image_path": record.image, "question": record.question,
                "reasoning_type": best.kind, "teacher_answer": best, "teacher_reasoning": best.reasoning,
                "teacher_answers": {answer: round(share, 6) for answer, share in shares.items() if answer},
                "is_valid": best.is_valid,
            })  # fmt: skip
        return rows

    read_new = staticmethod(data.questions)

    def predict(self, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
        """Returns the answers to questions about one's own pictures, and writes answers.jsonl into `out`."""
        rows = super().predict(models, source, None)
        if out is not None:
            disk.make_folders(out)
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows.values()]
            disk.write_text(out / "answers.jsonl", "".join(lines))
        return rows
