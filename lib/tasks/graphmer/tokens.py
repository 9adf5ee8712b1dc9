"""Words of code, and byte-pair pieces of words."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

PAD, MASK, NAME, SEP, END, UNKNOWN = range(6)
SPECIALS = ["[PAD]", "[MASK]", "[NAME]", "[SEP]", "[END]", "[UNK]"]

# Identifiers, numbers' digits, and the few signs that tell a call from a base from an attribute. Everything else
# (commas, brackets, quotes) would fill a quarter of the window and say little.
_WORD = re.compile(r"[^\W\d]\w*|[(.=@]")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
# Pieces never cross the seams of snake_case and CamelCase.
_SEAMS = r"_*(?:[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+)|_+|."


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def name_parts(entity: str) -> list[str]:
    """The identifiers of an entity's id from the last to the first: "json.decoder.scan" gives scan, decoder, json."""
    return _IDENTIFIER.findall(entity)[::-1] or [entity]


class Pieces:
    """Byte-pair pieces of a fixed list of words: ragged rows in two flat arrays.

    `flat` holds the pieces (int32) and `offsets` (number of words + 1) where each word's begin.
    """

    def __init__(self, flat: np.ndarray, offsets: np.ndarray):
        self.flat, self.offsets = flat, offsets

    def lengths(self, word_ids: np.ndarray) -> np.ndarray:
        return self.offsets[word_ids + 1] - self.offsets[word_ids]

    def expand(self, word_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The pieces of a sequence of words; for each the index of its word in the sequence, and its place in it."""
        lengths = self.lengths(word_ids)
        owner = np.repeat(np.arange(len(word_ids)), lengths)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.flat[self.offsets[word_ids][owner] + within], owner, within


def learn(counts: Mapping[str, int], vocabulary: int, every_word: Sequence[str]) -> Pieces:
    """Learns at most `vocabulary` byte-pair pieces from counted words and cuts `every_word` into them.

    Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, ACL 2016; the `tokenizers` library.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_SEAMS), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIALS, limit_alphabet=200, show_progress=False
    )
    tokenizer.train_from_iterator(_repeated(counts), trainer)
    encoded = [e.ids for e in tokenizer.encode_batch(list(every_word), add_special_tokens=False)]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in encoded])]).astype(np.int64)
    flat = np.fromiter((i for ids in encoded for i in ids), dtype=np.int32, count=int(offsets[-1]))
    return Pieces(flat, offsets)


def _repeated(counts: Mapping[str, int]) -> Iterable[str]:
    """The trainer counts for itself, so a word comes as often as it was seen; above 64 times the order of merges is
    settled."""
    for word in sorted(counts):
        yield from [word] * min(counts[word], 64)
