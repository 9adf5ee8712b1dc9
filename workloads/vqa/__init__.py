"""Answers questions about pictures by a decoder that attends to all patches and all words.

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
from collections.abc import Iterable, Mapping, Sequence
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
_Encoder = dict[str, str | bool | list[float]]
_Tokenizer = dict[str, Any]
_Counts = dict[str, untrusted.Natural]
_LEARNED: dict[str, Any] = {
    "encoders": dict[str, _Encoder],
    "tokenizers": dict[str, _Tokenizer],
    "kinds": list[str],
    "words": dict[str, _Counts],
}
_DRAWN = "No data was given or found mounted. The embedded default is used: drawn shapes, asked in Vietnamese."
_MULTIPLE = 8  # number of tokens, which suits tensor cores
NETWORK = "network alone"
WORDS = "by words"  # rows of the tables
OFFERED = 4  # likeliest training answers, which the network scores beside its beams
_LEAST = 1e-3  # probability of an answer that the words speak against, or that is not among the training's
# Weights of the network, in the order in which they are tried
_WEIGHTS = (0.0, 1.0, 0.75, 0.5, 0.25, 0.125, 0.0625)
_SURE = 0.995  # one-sided: every validation of a run asks
_MOST_ANSWERS = 200
_MOST_PAIRS = 20_000  # commonest pairs of question and answer, which `Words` is fitted to
_MOST_BYTES = 6 * 2**20  # size of these, because every checkpoint has them
_FEW = 2000  # up to so many pairs, words that occur in a single pair are learned too


def valid(right: str, written: str) -> float:
    """Returns whether a text has the requested form; texts of rules count as valid."""
    return float(getattr(written, "is_valid", True))


class Words:
    """A linear classifier of training answers by the words of a question, one to three in a row."""

    def __init__(self, pairs: Mapping[str, Mapping[str, int]]):
        """Fits the classifier to the result of `pairs_of`."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import RidgeClassifier
        from sklearn.pipeline import make_pipeline

        rows = []
        for answer, by_question in pairs.items():
            rows += [(-count, question, answer) for question, count in by_question.items()]
        negative, questions, answers = zip(*sorted(rows), strict=True)
        counts = [-count for count in negative]
        self.answers = sorted(pairs)
        self._model: Any = None
        self._places = {normal(answer): place for place, answer in enumerate(self.answers)}
        totals = [sum(pairs[answer].values()) for answer in self.answers]
        self._usual = np.array([totals]) / sum(counts)
        few = 1 if len(questions) <= _FEW else 2
        vectors = TfidfVectorizer(
            ngram_range=(1, 3), tokenizer=words, token_pattern=None, lowercase=False, min_df=few
        )
        # 6 s for 12,000 questions with 200 answers, for which a logistic regression takes 45
        model = make_pipeline(vectors, RidgeClassifier(solver="sparse_cg", tol=1e-3))
        # Raised for a single answer or no words
        with working("Learning what questions alone answer"), contextlib.suppress(ValueError):
            self._model = model.fit(questions, answers, ridgeclassifier__sample_weight=counts)

    def shares(self, questions: Sequence[str]) -> np.ndarray:
        """Returns (questions, answers) probabilities: least squares on -1 and 1 estimate them."""
        if self._model is None:
            return self._usual.repeat(len(questions), 0).astype(np.float32)
        scores = self._model.decision_function(list(map(normal, questions)))
        if scores.ndim == 1:  # two answers have one score
            scores = np.stack([-scores, scores], 1)
        shares = np.clip((1 + scores) / 2, _LEAST, 1)
        return (shares / shares.sum(1, keepdims=True)).astype(np.float32)

    def guesses(self, questions: Sequence[str]) -> list[str]:
        return [self.answers[place] for place in self.shares(questions).argmax(1)]

    def candidates(
        self, answers: Sequence[tuple[Answer, float]], shares: Sequence[float]
    ) -> list[Answer]:
        """Returns different answers, each with log-probabilities by the network and by words."""
        different: dict[str, Answer] = {}
        for answer, log in answers:
            text = normal(answer)
            place = self._places.get(text)
            share = _LEAST if place is None else shares[place]
            answer.network = log
            answer.words = math.log(share)
            different.setdefault(text, answer)  # another reasoning for the same
        return [*different.values()]


def pairs_of(samples: Sequence[Record]) -> dict[str, dict[str, int]]:
    """Returns the commonest answers, each with its commonest questions and their counts."""
    pairs = Counter[tuple[str, str]]()
    spelled = defaultdict[str, list[str]](list)
    for record in samples:
        answer = normal(record.answer)
        pairs[normal(record.question), answer] += 1
        spelled[answer].append(record.answer)
    by_count = sorted(spelled, key=lambda answer: (-len(spelled[answer]), answer))
    common = {*by_count[:_MOST_ANSWERS]}
    rows = sorted(pairs, key=lambda row: (-pairs[row], row))
    rows = [row for row in rows if row[1] in common][:_MOST_PAIRS]
    sizes = itertools.accumulate(len(json.dumps(row)) for row in rows)
    kept: dict[str, dict[str, int]] = {}
    for (question, answer), size in zip(rows, sizes, strict=True):
        if size <= _MOST_BYTES:
            kept.setdefault(commonest(spelled[answer]), {})[question] = pairs[question, answer]
    return kept


def likeliest(written: Sequence[Answer] | np.ndarray, weight: float) -> np.ndarray:
    """Returns the best candidate for each question; among equals the first beam's."""
    best = [max(answer.candidates, key=lambda other: other.score(weight)) for answer in written]
    return np.array(best, object)


def chosen_weight(
    right: Sequence[str] | np.ndarray,
    written: Sequence[Answer] | np.ndarray,
    pictures: Sequence[str],
) -> float:
    """Returns the network's weight: the first sure gain over the words' answers, if any, or a sure gain over that.

    A gain is sure if the lower end of Student's paired interval over pictures is above 0. So the network answers if it
    gains, unless a weight between both gains more.
    """
    names, unit, sizes = np.unique(pictures, return_inverse=True, return_counts=True)
    of_weight = []
    for weight in _WEIGHTS:
        is_right = [*map(exact, right, likeliest(written, weight))]
        of_weight.append(np.bincount(unit, is_right))
    sums = np.array(of_weight).T  # (pictures, weights)
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
    metrics: ClassVar[Any] = ("exact", "token_f1", "rouge_l", valid)
    unit = "picture"
    constant = "commonest answer"
    # Comparable between stages, and improves while words answer
    selection = ("network_exact", "max")
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
        for name in ("validation", "test"):
            parts[name].sort(key=lambda record: record.picture)
        return {**parts, "train": data.Questions(parts["train"], self.settings.together)}

    def fingerprint(self) -> str:
        """Hashes content, pictures and split of all records, independent of their place."""
        digest = hashlib.sha256()
        for name, part in self.parts.items():
            for r in part.samples:
                facts = (name, r.picture, r.question, r.answer, r.kind, r.reasoning)
                digest.update(repr(facts).encode())
        return digest.hexdigest()

    def datasets(self) -> dict[str, Any]:
        # Loaders get the words made, and an answer that is too long is met before the run
        if "words" not in vars(self):
            for part in self.parts.values():
                self.writer.targets(part.samples, self.settings.decoder.length)
            assert self.words
        return super().datasets()

    def describe_data(self) -> str:
        """Describes the records, notes on them, and the chosen parts of the model."""
        lines = [super().describe_data()]
        if not self.source:
            lines.append(_DRAWN)
        chosen = self.learned()["encoders"]
        names = [f"{part} {chosen[part]['weights'] or 'from scratch'}" for part in _PARTS]
        lines.append(f"Parts: {printable(', '.join(names), most=300)}.")
        return "\n".join(lines)

    def example(self) -> Record:
        return Record(0, "", "", "")

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns a batch of the largest shape: as many pictures as questions, all as long as they can be."""
        side = self.settings.pictures.side
        question = torch.full((size, self.settings.text.length), 4, device=device)
        labels = torch.full((size, self.settings.decoder.length), 4, device=device)
        return {
            "picture": torch.arange(size, device=device),
            "question": question,
            "words": question > 0,
            "pixels": torch.ones(size, 3, side, side, dtype=torch.uint8, device=device),
            "labels": labels,
            "part": labels * 0 + tokens.ANSWER,
        }

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        return self.batch([item.sample for item in samples], samples[0].training, generator)

    def batch(
        self, samples: list[Record], training: bool, generator: torch.Generator | None = None
    ) -> Batch:
        """Returns tensors as long as the longest question and answer.

        In training the `generator` augments the pictures; otherwise `by_words` has (B, training answers) probabilities.
        """
        settings = self.settings
        generator = generator if training else None
        pixels, picture = pictures.batch(samples, settings.pictures.side, generator)
        questions = [record.question for record in samples]
        texts = self.reader.questions(questions, settings.text.length)
        question = padded(texts, self.reader.pad, sys.maxsize)
        lengths = torch.tensor([*map(len, texts)])
        targets = self.writer.targets(samples, settings.decoder.length)
        batch = {
            "picture": picture,
            "pixels": pixels,
            "question": question,
            "words": torch.arange(question.shape[1]) < lengths[:, None],
            "labels": padded([labels for labels, _ in targets], IGNORED, sys.maxsize),
            "part": padded([terms for _, terms in targets], 0, sys.maxsize),
        }
        if not training:
            batch["by_words"] = torch.from_numpy(self.words.shares(questions))
        return batch

    def learn(self, samples: Sequence[Record]) -> dict[str, Any]:
        """Returns the chosen parts, the types of questions, the tokenizers, and the pairs that `Words` is fitted to."""
        from workloads.vqa import model

        chosen = model.choose(self.settings)
        kinds = sorted({record.kind for record in samples if record.kind})
        texts: list[str] = []
        for record in samples:
            texts += [record.question.lower(), record.answer, record.reasoning]
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
        """Loads untrusted `learned()` values. Raises BadInput if they do not fit."""
        if not _are_learned(values):
            raise BadInput(
                "What was learned from data lacks encoders, types of questions, a tokenizer or the words' answers: "
                "start another run."
            )
        for name in ("reader", "writer", "words", "offers"):
            vars(self).pop(name, None)
        super().take_learned(values)

    @cached_property
    def writer(self) -> Tokens:
        learned = self.learned()
        return Tokens(learned["tokenizers"]["decoder"], learned["kinds"])

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
        """The tokens of each answer of `words`."""
        first = self.writer.answer
        last = self.writer.answer_end
        return [[first, *row, last] for row in self.writer.numbers(self.words.answers)]

    def model(self) -> nn.Module:
        from workloads.vqa import model

        chosen = self._learned["encoders"] if self._learned else model.choose(self.settings)
        words = self.settings.decoder.vocabulary + tokens.EXTRA
        if self._learned:  # never more
            words = self.writer.first + len(tokens.TAGS) + len(self.writer.kinds)
        rounded = -(-words // _MULTIPLE) * _MULTIPLE
        return model.build(self, self.settings, chosen, rounded)

    def blocks(self, model: Any) -> Sequence[nn.Module]:
        """Returns the layers of the decoder, the fusion and the encoders."""
        encoders = [*find_blocks(model.image), *find_blocks(model.text)]
        return [*model.t5.decoder.block, *model.t5.encoder.block, *encoders]

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        rates = {"image": self.settings.image.lr, "text": self.settings.text.lr}
        return [{"names": f"{part}.*", "lr": rate} for part, rate in rates.items() if rate != 1]

    def stage_name(self, step: int) -> str:
        return stage_at(self.settings.stages, step)[0]

    def term_weights(self, step: int) -> dict[str, float]:
        stage = stage_at(self.settings.stages, step)[1]
        return {term: getattr(stage, term) for term in TERMS}

    def count(self, batch: Batch) -> dict[str, float]:
        part = batch["part"]
        return {name: int((part == number).sum()) for number, name in enumerate(TERMS, 1)}

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
        losses = text.losses(model(batch), batch["labels"])
        part = batch["part"]
        terms = {name: (losses * (part == number)).sum() for number, name in enumerate(TERMS, 1)}
        return terms, {}

    def beams(self, part: str) -> int:
        if part == "validation":
            return self.settings.writing.validation_beams
        return self.settings.writing.beams

    def write(self, model: Any, batch: Batch, beams: int) -> list[Answer]:
        """Returns the network's answers; their `candidates` are other beams and the likeliest answers by words."""
        encoded = model.encode(batch)
        written = model.written(*encoded, beams, self.settings.decoder.length, beams)
        by_words = batch["by_words"]
        best = by_words.argsort(descending=True, stable=True)[:, :OFFERED].tolist()
        answers: list[list[Answer]] = []
        flat: list[list[int]] = []  # the tokens of all answers
        for number, places in enumerate(best):
            beam = written[number * beams : (number + 1) * beams]
            offered = [Answer(self.words.answers[place]) for place in places]
            answers.append([*map(self.writer.parsed, beam), *offered])
            flat += [*beam, *(self.offers[place] for place in places)]
        logs = iter(model.log_probabilities(*encoded, flat, self.writer.answer_end))
        for row, shares in zip(answers, by_words.tolist(), strict=True):
            pairs = [(answer, next(logs)) for answer in row]
            row[0].candidates = self.words.candidates(pairs, shares)
        return [row[0] for row in answers]

    def candidates(self, model: Any, batch: Batch, beams: int) -> list[dict[str, float]]:
        """Returns different answers to each question, with the weighed probabilities of the network and the words."""
        weight = float(model.weight)
        rows: list[dict[str, float]] = []
        for answer in self.write(model, batch, beams):
            rows.append({each: math.exp(each.score(weight)) for each in answer.candidates})
        return rows

    def _scored(self, model: Any, loader: Any) -> Scored:
        """Returns the scores of network and words together; a validation chooses the network's weight."""
        samples = loader.dataset.samples
        # The question types of this evaluation, and below the weight of the network in it
        self.judged_types = np.array([record.kind or data.OTHER for record in samples])
        scored = super()._scored(model, loader)
        scores = scored.scores
        network = scored.rows["network"]
        if loader.dataset.name == "validation":
            shown = [record.picture for record in samples[: len(network.true)]]
            model.weight.fill_(chosen_weight(network.true, network.guess, shown))
        self.weight = float(model.weight)
        answer = network._replace(guess=likeliest(network.guess, self.weight))
        figures = {**scoring.scores(self.metrics, answer), **self.columns(answer)}
        figures |= {"valid": scores["valid"], "network_exact": scores["exact"]}
        figures |= {"network_weight": self.weight}
        if self.weight:
            about = (
                f"Validation gives the network {self.weight:g} "
                "and the words of the question the rest of the weight."
            )
        else:
            about = (
                f"Validation shows no sure gain over {WORDS!r}, "
                "so these answers count, not the network's."
            )
        rows = {NETWORK: network, "answer": answer}
        return Scored({"loss": scores["loss"], **figures}, rows, about)

    def group(self, sample: Record) -> str:
        return sample.picture

    def baselines(self) -> dict[str, Any]:
        """Returns the commonest training answer to a question's type, and to the question or else its type."""
        train = self.parts["train"].samples
        test = self.parts["test"].samples
        usual = commonest(record.answer for record in train)
        by_kind = _commonest_by((record.kind, record.answer) for record in train)
        by_question = _commonest_by((normal(r.question), r.answer) for r in train)
        of_kind = [by_kind.get(record.kind, usual) for record in test]
        questions = [record.question for record in test]
        return {
            "by question type": of_kind,
            "by question": [*map(by_question.get, map(normal, questions), of_kind)],
            WORDS: self.words.guesses(questions),
        }

    def baseline(self) -> dict[str, float]:
        scores = super().baseline()
        scores.pop("valid", None)  # a rule has no form
        return scores

    def columns(self, judged: Judged) -> dict[str, float]:
        right = np.array(self.metrics[0].each(judged.true, judged.guess))
        kinds = self.judged_types[judged.sample]
        return {f"exact_{kind}": float(right[kinds == kind].mean()) for kind in sorted({*kinds})}

    def cells(self, sample: Record, number: int) -> dict[str, Any]:
        written = self._tested[NETWORK].guess[number]
        return {
            "file": sample.file,
            "record": sample.number,
            "picture": Path(sample.image).name,
            "type": self.judged_types[number],
            "question": sample.question,
            "valid": int(written.is_valid),
        }

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        return f"{super().report(metrics, folder)}\nRules see the question alone."

    def answers(self, models: list[nn.Module], samples: list[Record]) -> list[Mapping[str, Any]]:
        """Returns the joint answers of the models in the fields of a teacher's records."""
        shares = text.together(self, models, samples)
        return [*map(_teacher_row, samples, shares)]

    def read_new(self, source: Path) -> list[Record]:
        return data.questions(source)

    def predict(self, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
        """Returns the answers to questions about new pictures; writes answers.jsonl into `out`."""
        rows = super().predict(models, source, None)
        if out is not None:
            disk.make_folders(out)
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows.values()]
            disk.write_text(out / "answers.jsonl", "".join(lines))
        return rows


def _are_learned(values: Mapping[str, Any]) -> bool:
    if not all(untrusted.fits(values.get(name), kind) for name, kind in _LEARNED.items()):
        return False
    words = values["words"]
    encoders = [values["encoders"].get(part, {}) for part in _PARTS]
    has_words = bool(words) and all(words.values())
    has_encoders = all("weights" in encoder for encoder in encoders)
    return has_words and has_encoders and "decoder" in values["tokenizers"]


def _commonest_by(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the commonest answer by key."""
    groups = defaultdict[str, list[str]](list)
    for key, answer in pairs:
        groups[key].append(answer)
    return {key: commonest(answers) for key, answers in groups.items()}


def _teacher_row(record: Record, shares: Mapping[Any, float]) -> dict[str, Any]:
    """Returns the fields of a teacher's record for the likeliest answer."""
    best = max(shares, key=lambda answer: shares[answer])
    answers = {answer: round(share, 6) for answer, share in shares.items() if answer}
    return {
        "img_id": Path(record.image).stem,
        "image_path": record.image,
        "question": record.question,
        "reasoning_type": best.kind,
        "teacher_answer": best,
        "teacher_reasoning": best.reasoning,
        "teacher_answers": answers,
        "is_valid": best.is_valid,
    }
