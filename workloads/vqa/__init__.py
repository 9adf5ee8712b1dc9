"""Answers questions about pictures by a decoder that attends to all patches and all words.

Data: JSON lines of question, answer and image, or any table with its columns named (see `data`). The embedded default
are drawn shapes with questions in Vietnamese (see `generated`).
"""

import hashlib
import json
import math
import sys
from collections import defaultdict
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
from trainbook.supervised.text import commonest, normal
from workloads.vqa import certainty, data, generated, pictures, places, rules, tokens
from workloads.vqa.certainty import Certainty
from workloads.vqa.data import Record
from workloads.vqa.places import Places
from workloads.vqa.rules import Words, chosen_weight, likeliest, pairs_of
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
_MARGINS = {"strength", "power"}  # of `rules.Words`, where folds chose them
_DRAWN = "No data was given or found mounted. The embedded default is used: drawn shapes, asked in Vietnamese."
_MOST_SIZE = 4096  # of an encoder's picture, places and channels
_MULTIPLE = 8  # number of tokens, which suits tensor cores
NETWORK = "network alone"
ALONE = "words alone"  # the network without the picture
WORDS = "by words"  # rows of the tables
_HIDDEN = 0.3  # share of training questions without the picture, beside a frozen encoder
OFFERED = 4  # likeliest training answers, which the network scores beside its beams


def valid(right: str, written: str) -> float:
    """Returns whether a text has the requested form; texts of rules count as valid."""
    return float(getattr(written, "is_valid", True))


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
            if self.places:
                every = [record for part in self.parts.values() for record in part.samples]
                self.places.prepare(every)
        return super().datasets()

    def describe_data(self) -> str:
        """Describes the records, notes on them, and the chosen parts of the model."""
        learned = self.learned()
        encoder = places.about(self.settings.image.encoder, self._facts, self.source is not None)
        lines = [*filter(None, [encoder]), super().describe_data()]
        if not self.source:
            lines.append(_DRAWN)
        weights = {part: values["weights"] for part, values in learned["encoders"].items()}
        if self._facts:
            weights["image"] = f"{self._facts['title']}, frozen"
        names = [f"{part} {weights[part] or 'from scratch'}" for part in _PARTS]
        lines.append(f"Parts: {printable(', '.join(names), most=300)}.")
        return "\n".join(lines)

    def example(self) -> Record:
        return Record(0, "", "", "")

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns a batch of the largest shape: as many pictures as questions, all as long as they can be."""
        side = self.settings.pictures.side
        question = torch.full((size, self.settings.text.length), 4, device=device)
        labels = torch.full((size, self.settings.decoder.length), 4, device=device)
        batch = {
            "picture": torch.arange(size, device=device),
            "question": question,
            "words": question > 0,
            "labels": labels,
            "part": labels * 0 + tokens.ANSWER,
        }
        if facts := self._facts:
            of_places = (size, facts["places"], facts["channels"])
            batch["places"] = torch.ones(of_places, dtype=torch.float16, device=device)
            batch["shown"] = batch["picture"] >= 0
        else:
            shape = (size, 3, side, side)
            batch["pixels"] = torch.ones(shape, dtype=torch.uint8, device=device)
        return batch

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
        seen = self._pictures(samples, generator)
        questions = [record.question for record in samples]
        texts = self.reader.questions(questions, settings.text.length)
        question = padded(texts, self.reader.pad, sys.maxsize)
        lengths = torch.tensor([*map(len, texts)])
        targets = self.writer.targets(samples, settings.decoder.length)
        batch = {
            **seen,
            "question": question,
            "words": torch.arange(question.shape[1]) < lengths[:, None],
            "labels": padded([labels for labels, _ in targets], IGNORED, sys.maxsize),
            "part": padded([terms for _, terms in targets], 0, sys.maxsize),
        }
        if not training:
            batch["by_words"] = torch.from_numpy(self.words.shares(questions))
        return batch

    def _pictures(self, samples: list[Record], generator: torch.Generator | None) -> Batch:
        """Returns pixels, or features of places; a `generator` augments pixels, and hides some pictures of places."""
        if not self.places:
            pixels, picture = pictures.batch(samples, self.settings.pictures.side, generator)
            return {"picture": picture, "pixels": pixels}
        features, picture = self.places.batch(samples)
        shown = torch.ones(len(samples), dtype=torch.bool)
        if generator:
            shown = torch.rand(len(samples), generator=generator) >= _HIDDEN
        return {"picture": picture, "places": features, "shown": shown}

    def learn(self, samples: Sequence[Record]) -> dict[str, Any]:
        """Returns the chosen parts, the types of questions, the tokenizers, and the pairs that `Words` is fitted to."""
        from workloads.vqa import model

        chosen = model.choose(self.settings)
        encoder = {}
        if not chosen["image"]["weights"]:
            encoder = places.chosen(self.settings.image.encoder, self.source is not None)
        kinds = sorted({record.kind for record in samples if record.kind})
        texts: list[str] = []
        for record in samples:
            texts += [record.question.lower(), record.answer, record.reasoning]
        tokenizers = {"decoder": tokens.trained(texts, self.settings.decoder.vocabulary)}
        for part in ("decoder", "text"):
            if name := chosen[part]["weights"]:
                tokenizers[part] = tokens.published(encoders.folder_of(name), part == "decoder")
        values = {
            "encoders": chosen,
            "kinds": kinds,
            "tokenizers": tokenizers,
            "words": pairs_of(samples),
        }
        if margins := rules.chosen_by_folds(samples):
            values["margins"] = margins
        if encoder:
            values["places"] = encoder
        return values

    def take_learned(self, values: Mapping[str, Any]) -> None:
        """Loads untrusted `learned()` values. Raises BadInput if they do not fit."""
        if not _are_learned(values):
            raise BadInput(
                "What was learned from data lacks encoders, types of questions, a tokenizer or the words' answers: "
                "start another run."
            )
        for name in ("reader", "writer", "words", "offers", "places"):
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
        learned = self.learned()
        with working("Learning what questions alone answer"):
            return Words(learned["words"], learned.get("margins", {}))

    @property
    def _facts(self) -> Mapping[str, Any]:
        """Facts on the frozen encoder: of the run, or in a plan of the one at hand; {} without one."""
        if self._learned:
            return self._learned.get("places", {})
        image = self.settings.image
        if image.weights:
            return {}
        with torch.device("meta"):
            return places.chosen(image.encoder, self.source is not None)

    @cached_property
    def places(self) -> Places | None:
        """The features of pictures by the run's frozen encoder."""
        facts = self.learned().get("places")
        return Places(self.settings.image.encoder, facts) if facts else None

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
        return model.build(self, self.settings, chosen, rounded, self._facts)

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
        length = self.settings.decoder.length
        written = model.written(*encoded, beams, length, beams)
        hidden = None
        blind: list[list[int]] = []
        if "shown" in batch:
            hidden = model.encode({**batch, "shown": torch.zeros_like(batch["shown"])})
            blind = model.written(*hidden, beams, length)
        by_words = batch["by_words"]
        best = by_words.argsort(descending=True, stable=True)[:, :OFFERED].tolist()
        answers: list[list[Answer]] = []
        flat: list[list[int]] = []  # the tokens of all answers
        for number, likely in enumerate(best):
            row = [*written[number * beams : (number + 1) * beams], *blind[number : number + 1]]
            offered = [Answer(self.words.answers[place]) for place in likely]
            answers.append([*map(self.writer.parsed, row), *offered])
            flat += [*row, *(self.offers[place] for place in likely)]
        end = self.writer.answer_end
        logs = model.log_probabilities(*encoded, flat, end)
        without = [0.0] * len(flat)
        if hidden:
            without = model.log_probabilities(*hidden, flat, end)
        each = zip(logs, without, strict=True)
        for parsed, shares in zip(answers, by_words.tolist(), strict=True):
            if hidden:
                parsed[0].without = parsed[beams]
            weighed = [(answer, *next(each)) for answer in parsed]
            parsed[0].candidates = self.words.candidates(weighed, shares)
        return [parsed[0] for parsed in answers]

    def candidates(self, model: Any, batch: Batch, beams: int) -> list[dict[str, float]]:
        """Returns different answers to each question, with their probabilities by the network and the words."""
        weights = self._weights(model)
        rows: list[dict[str, float]] = []
        for answer in self.write(model, batch, beams):
            shares = certainty.shares(certainty.scores_of(answer, weights), _certainty(model))
            rows.append(dict(zip(answer.candidates, shares, strict=True)))
        return rows

    def _weights(self, model: Any) -> tuple[float, float]:
        """Returns the weight of the network, and the share in the rest of the network without the picture."""
        return float(model.weight), float(getattr(model, "alone", 0.0))

    def _scored(self, model: Any, loader: Any) -> Scored:
        """Returns the scores of network and words together; a validation chooses the network's weight."""
        samples = loader.dataset.samples
        # The question types of this evaluation, and below the weight of the network in it
        self.judged_types = np.array([record.kind or data.OTHER for record in samples])
        scored = super()._scored(model, loader)
        scores = scored.scores
        network = scored.rows["network"]
        shown = [record.picture for record in samples[: len(network.true)]]
        has_alone = self.places is not None
        if loader.dataset.name == "validation":
            if has_alone:
                model.alone.fill_(rules.chosen_alone(network.true, network.guess))
            alone = self._weights(model)[1]
            model.weight.fill_(chosen_weight(network.true, network.guess, shown, alone))
            found = certainty.of_validation(network, self._weights(model))
            model.certainty.copy_(torch.tensor(found))
        self.weight, alone = self._weights(model)
        answer = network._replace(guess=likeliest(network.guess, self.weight, alone))
        figures = {**scoring.scores(self.metrics, answer), **self.columns(answer)}
        figures |= {"valid": scores["valid"], "network_exact": scores["exact"]}
        figures |= {"network_weight": self.weight}
        about = _about_weights(self.weight, alone)
        rows = {NETWORK: network, "answer": answer}
        if has_alone:
            blind = np.array([written.without for written in network.guess], object)
            of_words = network._replace(guess=blind)
            rows = {NETWORK: network, ALONE: of_words, "answer": answer}
            figures |= {"words_exact": scoring.scores(self.metrics[:1], of_words)["exact"]}
            about = f"{about}\n{_about_pictures(rows, shown)}"
        promised = certainty.promised(network, self._weights(model), _certainty(model))
        return Scored({"loss": scores["loss"], **figures}, rows, about, promised)

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


def _certainty(model: Any) -> Certainty:
    return Certainty(*model.certainty.tolist())


def _about_weights(weight: float, alone: float) -> str:
    """Returns a sentence on who answers, and how far."""
    words = repr(WORDS)
    if alone == 1:
        words = f"the network without the picture ({ALONE!r})"
    elif alone:
        words = f"{alone:g} {ALONE!r} and {1 - alone:g} {WORDS!r}"
    if not weight:
        return f"Validation shows no sure gain over {words}, so these answers count, not the network's."
    if not alone:
        words = "the words of the question"
    return f"Validation gives the network {weight:g} and {words} the rest of the weight."


def _about_pictures(rows: Mapping[str, Judged], shown: Sequence[str]) -> str:
    """Returns sentences on what the picture adds to the words, over draws of pictures."""
    blind = rows[ALONE]
    of_network = rules.gain(blind.true, rows[NETWORK].guess, blind.guess, shown)
    of_answer = rules.gain(blind.true, rows["answer"].guess, blind.guess, shown)
    helps = "It is not sure that the picture helps"
    if of_network.low > 0:
        helps = "The picture helps"
    elif of_network.high < 0:
        helps = "The picture misleads the network"
    return (
        f"{helps}: with it the network has {of_network.signed} of exact answers beside {ALONE!r}, and the answer "
        f"{of_answer.signed}."
    )


def _are_learned(values: Mapping[str, Any]) -> bool:
    if not all(untrusted.fits(values.get(name), kind) for name, kind in _LEARNED.items()):
        return False
    words = values["words"]
    encoders = [values["encoders"].get(part, {}) for part in _PARTS]
    has_words = bool(words) and all(words.values())
    has_encoders = all("weights" in encoder for encoder in encoders)
    return (
        has_words
        and has_encoders
        and _are_margins(values.get("margins", {}))
        and _are_places(values.get("places", {}))
        and "decoder" in values["tokenizers"]
    )


def _are_margins(values: Any) -> bool:
    """Returns whether values are settings of margins, or {}; runs of earlier versions have none."""
    if not untrusted.fits(values, dict[str, float]) or values.keys() not in (set(), _MARGINS):
        return False
    return all(0 < value < math.inf for value in values.values())


def _are_places(values: Any) -> bool:
    """Returns whether values are facts on an encoder of pictures, or {}; runs of earlier versions have none."""
    if values == {}:
        return True
    if not isinstance(values, Mapping) or values.keys() != places.FACTS.keys():
        return False
    fit = all(type(values[name]) is kind for name, kind in places.FACTS.items())
    return fit and all(0 < values[name] <= _MOST_SIZE for name in ("size", "places", "channels"))


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
