"""Tokenizers as values that JSON has: published ones, or byte pairs of the run's own; and the tags of an answer."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lib.errors import BadInput, printable
from trainbook.supervised import encoders
from workloads.vqa.settings import TERMS

TAGS = ("<answer>", "</answer>", "<reasoning>", "</reasoning>")
KINDS = 200  # types of questions at most, each a token of its own
EXTRA = len(TAGS) + KINDS  # tokens behind those of the tokenizer
FORMAT, ANSWER, REASONING = (
    TERMS.index(name) + 1 for name in ("format", "answer", "reasoning")
)  # 0: padding
_SPECIALS = ("<pad>", "</s>", "<unk>")


class Answer(str):
    """A text that answers a question, with the type and the reasoning beside it."""

    kind: str = ""
    reasoning: str = ""
    is_valid: bool = True  # all tags, in their order, around an answer
    network: float = 0.0  # its log-probabilities, by the network and by the words of the question
    words: float = 0.0
    candidates: "Sequence[Answer]" = ()  # which were weighed

    def score(self, weight: float) -> float:
        """Returns the logarithm of the two probabilities' weighted geometric mean."""
        return weight * self.network + (1 - weight) * self.words


class Tokens:
    """A tokenizer; `before` and `after` are the special tokens around a text, `pad` and `end` those of a decoder."""

    def __init__(self, values: Mapping[str, Any], kinds: Sequence[str] = ()):
        """Takes what `published` or `trained` returned, and the types of questions. Raises BadInput."""
        try:
            self._tokenizer = encoders.tokenizer_of(values["text"])
            self.pad, self.end, self.first = (int(values[name]) for name in ("pad", "end", "first"))
            self.before, self.after = (
                list(map(int, values["before"])),
                list(map(int, values["after"])),
            )
            self.is_lower, self._unknown = bool(values["is_lower"]), int(values["unknown"])
        except (KeyError, TypeError) as error:
            raise BadInput(
                f"The tokenizer that is kept with the weights lacks {printable(error)}."
            ) from None
        self.kinds = {name: self.first + len(TAGS) + number for number, name in enumerate(kinds)}
        self.answer, self.answer_end, self.reasoning, self.reasoning_end = range(
            self.first, self.first + len(TAGS)
        )

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text, without special ones and tags: a text that says "<answer>" is a text."""
        plain = [unicodedata.normalize("NFC", text) for text in texts]
        rows = self._tokenizer.encode_batch(plain, add_special_tokens=False)
        return [
            [number if number < self.first else self._unknown for number in row.ids] for row in rows
        ]

    def questions(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Returns the tokens of each question as the encoder reads it, with special ones, `length` at most."""
        room = length - len(self.before) - len(self.after)
        lowered = [text.lower() for text in texts] if self.is_lower else texts
        return [[*self.before, *row[:room], *self.after] for row in self.numbers(lowered)]

    def text(self, numbers: Sequence[int]) -> str:
        """Returns the text of tokens; tags and what the tokenizer does not know are left out."""
        pieces = [n for n in numbers if n < self.first and n not in (self.pad, self.end)]
        return " ".join(self._tokenizer.decode(pieces, skip_special_tokens=False).split())

    def targets(self, records: Sequence[Any], length: int) -> list[tuple[list[int], list[int]]]:
        """Returns the tokens to write for each record, and of each token the term of the loss.

        A reasoning is cut where there is no room. Raises BadInput for an answer that is too long.
        """
        answers = self.numbers([r.answer for r in records])
        reasonings = self.numbers([r.reasoning for r in records])
        rows = []
        for record, answer, reasoning in zip(records, answers, reasonings, strict=True):
            if record.kind in self.kinds:
                kind = [self.kinds[record.kind]]
            else:
                kind = []
            room = length - len(answer) - len(kind) - 5  # four tags and the end
            if room < 0:
                what = f"{record.place}: the answer takes {len(answer)} tokens, and workload.decoder.length {length}"
                raise BadInput(
                    f"{what} has room for {len(answer) + room}. Raise it, or shorten the answer."
                )
            why = [*kind, *reasoning[:room]]
            tokens = [
                self.answer,
                *answer,
                self.answer_end,
                self.reasoning,
                *why,
                self.reasoning_end,
                self.end,
            ]
            # Where an answer ends is a part of it: "đỏ" and "đỏ tươi" begin alike
            terms = [
                FORMAT,
                *[ANSWER] * (len(answer) + 1),
                FORMAT,
                *[REASONING] * len(why),
                FORMAT,
                FORMAT,
            ]
            rows.append((tokens, terms))
        return rows

    def parsed(self, numbers: Sequence[int]) -> Answer:
        """Returns what written tokens say; without the tags it is not valid, and what there is counts as its text."""
        written = list(numbers)[: numbers.index(self.end) if self.end in numbers else None]
        letters = "".join(
            "<>[]"[n - self.first] if 0 <= n - self.first < len(TAGS) else "." for n in written
        )
        text = re.search(r"(?<=<)\.*", letters) or re.match(r"\.*", letters)
        if "[" in letters:
            why = written[letters.find("[") + 1 :]
        else:
            why = []
        names = {number: name for name, number in self.kinds.items()}
        answer = Answer(self.text(written[slice(*text.span())]))
        answer.kind = next((names[n] for n in why if n in names), "")
        answer.reasoning = self.text(why)
        answer.is_valid = bool(answer) and re.fullmatch(r"<\.+>\[\.*\]", letters) is not None
        return answer


def trained(texts: Sequence[str], size: int) -> dict[str, Any]:
    """Returns byte pairs of at most `size` pieces. The same texts give the same ones, with the same numbers.

    Words that are frequent are a piece each, so that few questions have words as tokens, and what is rare is
    spelled. Of an alphabet of thousands the rarest letters are unknown.
    """
    plain = [unicodedata.normalize("NFC", text) for text in texts]
    seen = Counter(letter for text in plain for letter in text if not letter.isspace())
    frequent = [
        letter
        for _, letter in sorted((-number, letter) for letter, number in seen.items())[: size // 2]
    ]
    rare = dict.fromkeys(map(ord, seen.keys() - {*frequent}), " ")
    tokenizer = Tokenizer(models.BPE(unk_token=_SPECIALS[2]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*_SPECIALS], show_progress=False)
    tokenizer.train_from_iterator((text.translate(rare) for text in plain), trainer)
    text = json.dumps(
        {**json.loads(tokenizer.to_str()), "added_tokens": []}
    )  # a text that says "</s>" is a text
    return {"text": text, "pad": 0, "end": 1, "unknown": 2, "first": tokenizer.get_vocab_size(), "before": [],
            "after": [], "is_lower": True}  # fmt: skip


def published(folder: Path, is_decoder: bool) -> dict[str, Any]:
    is_phobert = (folder / "bpe.codes").is_file() and not (folder / "tokenizer.json").is_file()
    needed = ("pad", "eos") if is_decoder else ("pad",)
    loaded, text = phobert(folder) if is_phobert else encoders.tokenizer(folder, *needed)
    words = len(loaded) if is_phobert else encoders.configuration(folder).vocab_size
    pad = loaded.pad_token_id
    marks = [] if is_decoder else list(loaded("")["input_ids"])
    unknown = pad if loaded.unk_token_id is None else loaded.unk_token_id
    half = len(marks) // 2
    return {"text": text, "pad": pad, "end": loaded.eos_token_id if is_decoder else pad, "unknown": unknown,
            "first": words, "before": marks[:half], "after": marks[half:], "is_lower": False}  # fmt: skip


def phobert(folder: Path) -> tuple[Any, str]:
    """Returns PhoBERT's tokenizer, which is Python alone in transformers, and its byte pairs as this library has them.

    There "x@@" is a piece within a word and "x" one at its end; here that is "x" and "x</w>". Pieces that only merges
    go through have numbers behind all others, and count as unknown. Raises BadInput.
    """
    from transformers import PhobertTokenizer

    try:
        loaded: Any = PhobertTokenizer(str(folder / "vocab.txt"), str(folder / "bpe.codes"))
        merges = [(first, second) for first, second in loaded.bpe_ranks]
    except Exception as error:  # its reader raises Exception itself
        raise BadInput(
            f"The tokenizer in {printable(folder)} cannot be read ({printable(error)})."
        ) from None
    pieces: dict[str, int] = {}
    for name, number in loaded.encoder.items():
        pieces[name if number < 4 else name[:-2] if name.endswith("@@") else f"{name}</w>"] = number
    for first, second in merges:
        for piece in (first, second, first + second):
            pieces.setdefault(piece, len(pieces) + len(loaded))
    tokenizer = Tokenizer(models.BPE(pieces, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return loaded, tokenizer.to_str()
