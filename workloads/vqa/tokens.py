"""Makes tokenizers, published or trained byte pairs, from JSON values; handles the tags of answers."""

import itertools
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
KINDS = 200  # most types of questions, each a token
EXTRA = len(TAGS) + KINDS  # tokens after the tokenizer's
FORMAT, ANSWER, REASONING = range(1, 1 + len(TERMS))  # numbers of the terms of the loss; 0: padding
_SPECIALS = ("<pad>", "</s>", "<unk>")


class Answer(str):
    """A text that answers a question, with its type and reasoning."""

    kind: str = ""
    reasoning: str = ""
    is_valid: bool = True  # all tags, in their order, around an answer
    network: float = 0.0  # its log-probabilities, by the network and by the words of the question
    words: float = 0.0
    alone: float = 0.0  # by the network without the picture, where it learned that
    candidates: "Sequence[Answer]" = ()  # which were weighed
    without: "Answer | str" = ""  # the network's answer without the picture

    def score(self, weight: float, alone: float = 0.0) -> float:
        """Returns the logarithm of the probabilities' weighted geometric mean.

        `weight` is that of the network, `alone` the share in the rest of the network without the picture.
        """
        rest = self.words
        if alone:
            rest = alone * self.alone + (1 - alone) * self.words
        return weight * self.network + (1 - weight) * rest


class Tokens:
    """A tokenizer; `before` and `after` are special tokens around a text, `pad` and `end` a decoder's."""

    def __init__(self, values: Mapping[str, Any], kinds: Sequence[str] = ()):
        """Takes the result of `published` or `trained`, and types of questions. Raises BadInput."""
        try:
            self._tokenizer = encoders.tokenizer_of(values["text"])
            self.pad = int(values["pad"])
            self.end = int(values["end"])
            self.first = int(values["first"])
            self.before = [*map(int, values["before"])]
            self.after = [*map(int, values["after"])]
            self.is_lower = bool(values["is_lower"])
            self._unknown = int(values["unknown"])
        except (KeyError, TypeError) as error:
            raise BadInput(
                f"The tokenizer that is kept with the weights lacks {printable(error)}."
            ) from None
        behind = self.first + len(TAGS)
        self.kinds = {name: number for number, name in enumerate(kinds, behind)}
        tags = range(self.first, behind)
        self.answer, self.answer_end, self.reasoning, self.reasoning_end = tags

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text without special tokens and tags: "<answer>" in a text is text."""
        plain = [unicodedata.normalize("NFC", text) for text in texts]
        rows = self._tokenizer.encode_batch(plain, add_special_tokens=False)
        return [
            [number if number < self.first else self._unknown for number in row.ids] for row in rows
        ]

    def questions(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Returns at most `length` tokens of each question with special tokens, as the encoder reads them."""
        room = length - len(self.before) - len(self.after)
        if self.is_lower:
            texts = [text.lower() for text in texts]
        return [self.before + row[:room] + self.after for row in self.numbers(texts)]

    def text(self, numbers: Sequence[int]) -> str:
        """Returns the text of tokens, without tags and unknown tokens."""
        special = (self.pad, self.end)
        pieces = [n for n in numbers if n < self.first and n not in special]
        text = self._tokenizer.decode(pieces, skip_special_tokens=False)
        return " ".join(text.split())

    def targets(self, records: Sequence[Any], length: int) -> list[tuple[list[int], list[int]]]:
        """Returns the target tokens of each record, and the loss term of each token.

        Cuts a reasoning to fit. Raises BadInput for an answer that is too long.
        """
        answers = self.numbers([r.answer for r in records])
        reasonings = self.numbers([r.reasoning for r in records])
        rows = []
        for record, answer, reasoning in zip(records, answers, reasonings, strict=True):
            kind = [self.kinds[record.kind]] if record.kind in self.kinds else []
            room = length - len(answer) - len(kind) - 5  # four tags and the end
            if room < 0:
                raise BadInput(
                    f"{record.place}: the answer takes {len(answer)} tokens, and workload.decoder.length {length} "
                    f"has room for {len(answer) + room}. Raise it, or shorten the answer."
                )
            why = kind + reasoning[:room]
            tokens = [self.answer, *answer, self.answer_end]
            tokens += [self.reasoning, *why, self.reasoning_end, self.end]
            # Where an answer ends is a part of it: "đỏ" and "đỏ tươi" begin alike
            terms = [FORMAT, *[ANSWER] * (len(answer) + 1)]
            terms += [FORMAT, *[REASONING] * len(why), FORMAT, FORMAT]
            rows.append((tokens, terms))
        return rows

    def parsed(self, numbers: Sequence[int]) -> Answer:
        """Parses written tokens; an answer that lacks tags is invalid, and its text is all tokens."""
        written = [*itertools.takewhile(lambda number: number != self.end, numbers)]
        letter_of = dict(zip(range(self.first, self.first + len(TAGS)), "<>[]", strict=True))
        letters = "".join(letter_of.get(number, ".") for number in written)
        begin = letters.find("<") + 1  # the text's; 0 without a tag
        end = begin + len(letters[begin:]) - len(letters[begin:].lstrip("."))
        why = written[letters.find("[") + 1 :] if "[" in letters else []
        names = {number: name for name, number in self.kinds.items()}
        answer = Answer(self.text(written[begin:end]))
        answer.kind = next((names[n] for n in why if n in names), "")
        answer.reasoning = self.text(why)
        answer.is_valid = bool(answer) and re.fullmatch(r"<\.+>\[\.*\]", letters) is not None
        return answer


def trained(texts: Sequence[str], size: int) -> dict[str, Any]:
    """Trains byte pairs of at most `size` pieces, deterministically.

    Each frequent word is one piece, so that even few questions have words as tokens, and rare words are
    spelled. In an alphabet of thousands the rarest letters are unknown.
    """
    plain = [unicodedata.normalize("NFC", text) for text in texts]
    seen = Counter(letter for text in plain for letter in text if not letter.isspace())
    by_frequency = sorted(seen, key=lambda letter: (-seen[letter], letter))
    rare = dict.fromkeys(map(ord, by_frequency[size // 2 :]), " ")
    tokenizer = Tokenizer(models.BPE(unk_token=_SPECIALS[2]))
    steps = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*_SPECIALS], show_progress=False)
    tokenizer.train_from_iterator((text.translate(rare) for text in plain), trainer)
    values = {
        **json.loads(tokenizer.to_str()),
        "added_tokens": [],
    }  # "</s>" in a text is text
    specials = {"pad": 0, "end": 1, "unknown": 2, "before": [], "after": []}
    first = tokenizer.get_vocab_size()
    return {"text": json.dumps(values), "first": first, "is_lower": True, **specials}


def published(folder: Path, is_decoder: bool) -> dict[str, Any]:
    """Returns the tokenizer of published weights as values of JSON. Raises BadInput."""
    is_phobert = (folder / "bpe.codes").is_file() and not (folder / "tokenizer.json").is_file()
    needed = ("pad", "eos") if is_decoder else ("pad",)
    loaded, text = phobert(folder) if is_phobert else encoders.tokenizer(folder, *needed)
    words = len(loaded) if is_phobert else encoders.configuration(folder).vocab_size
    pad = loaded.pad_token_id
    marks = [] if is_decoder else list(loaded("")["input_ids"])
    unknown = pad if loaded.unk_token_id is None else loaded.unk_token_id
    half = len(marks) // 2
    end = loaded.eos_token_id if is_decoder else pad
    specials = {"pad": pad, "end": end, "unknown": unknown}
    around = {"before": marks[:half], "after": marks[half:]}
    return {"text": text, "first": words, "is_lower": False, **specials, **around}


def phobert(folder: Path) -> tuple[Any, str]:
    """Returns PhoBERT's tokenizer, pure Python in transformers, with its byte pairs in this library.

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
        if number >= 4:  # the first four are special
            name = name[:-2] if name.endswith("@@") else f"{name}</w>"
        pieces[name] = number
    for first, second in merges:
        for piece in (first, second, first + second):
            pieces.setdefault(piece, len(pieces) + len(loaded))
    tokenizer = Tokenizer(models.BPE(pieces, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return loaded, tokenizer.to_str()
