"""Words of code, and byte-pair pieces of words."""

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

PAD, MASK, NAME, SEP, UNKNOWN = range(5)
SPECIALS = ["[PAD]", "[MASK]", "[NAME]", "[SEP]", "[UNK]"]
LONGEST_WORD = 8  # pieces of a word whose place in it is told apart
IGNORE = -100  # the target of a position that is not predicted

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
# Pieces never cross the seams of snake_case and CamelCase.
_SEAMS = r"_*(?:[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+)|_+|."


def name_parts(entity: str) -> list[str]:
    """Returns the identifiers of an entity's id, the last one first: "json.decoder.scan" gives scan, decoder, json."""
    return _IDENTIFIER.findall(entity)[::-1] or [entity]


class Pieces:
    """Byte-pair pieces of a fixed list of words: ragged rows in two flat arrays.

    `flat` holds the pieces (int32) and `offsets` (number of words + 1) where each word's begin.
    """

    def __init__(self, flat: np.ndarray, offsets: np.ndarray):
        self.flat, self.offsets = flat, offsets

    def lengths(self, word_ids: np.ndarray) -> np.ndarray:
        """(N) indices of words -> (N) numbers of their pieces."""
        return self.offsets[word_ids + 1] - self.offsets[word_ids]


def learn(counts: Mapping[str, int], vocabulary: int) -> str:
    """Learns at most `vocabulary` byte-pair pieces from counted words; returns what `cut` takes.

    Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, ACL 2016; the `tokenizers` library.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_SEAMS), "isolated")
    options = {"special_tokens": SPECIALS, "limit_alphabet": 200, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, **options)
    # The trainer counts for itself, so each word comes as often as it was seen; beyond 64 times merges do not change.
    repeated = (word for word in sorted(counts) for _ in range(min(counts[word], 64)))
    tokenizer.train_from_iterator(repeated, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    # Pairs, or in earlier versions of the library texts with a space between
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return json.dumps({"vocabulary": model["vocab"], "merges": merges}, ensure_ascii=False)


def cut(text: str, words: Sequence[str]) -> Pieces:
    """Cuts words into the pieces that `learn` has learned. Raises ValueError where the text is none of its."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    try:
        learned = json.loads(text)
        merges = [(first, second) for first, second in learned["merges"]]
        tokenizer = Tokenizer(models.BPE(learned["vocabulary"], merges, unk_token=SPECIALS[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_SEAMS), "isolated")
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"the pieces of words cannot be read ({error})") from None
    encoded = [e.ids for e in tokenizer.encode_batch(list(words), add_special_tokens=False)]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in encoded])]).astype(np.int64)
    flat = np.fromiter((i for ids in encoded for i in ids), dtype=np.int32, count=int(offsets[-1]))
    return Pieces(flat, offsets)
