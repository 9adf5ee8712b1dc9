"""A tokenizer as values that JSON has: a published one, or WordPiece of the run's own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lib.errors import BadInput, printable
from lib.supervised import encoders

_UNKNOWN = "[UNK]"
_SPECIALS = ("[PAD]", _UNKNOWN, "[CLS]", "[SEP]", "[MASK]")


class Tokens:
    """A tokenizer, and the numbers of its three special tokens."""

    def __init__(self, values: Mapping[str, Any]):
        """Takes what `published` or `trained` returned. Raises BadInput."""
        try:
            self._tokenizer = encoders.tokenizer_of(values["text"])
            self.cls, self.sep, self.pad = (int(values[name]) for name in ("cls", "sep", "pad"))
        except (KeyError, TypeError) as error:
            raise BadInput(f"The tokenizer that is kept with the weights lacks {printable(error)}.") from None

    def numbers(self, sentences: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each sentence, without special ones."""
        return [one.ids for one in self._tokenizer.encode_batch(list(sentences), add_special_tokens=False)]


def trained(sentences: Sequence[str], size: int) -> dict[str, Any]:
    """Returns WordPiece of at most `size` pieces, in lower case as BERT's, trained on the sentences.

    The same sentences give the same pieces: those of one letter have their numbers before the training, which would
    otherwise give them out in an order of chance.
    """
    tokenizer = _like_bert(models.WordPiece(unk_token=_UNKNOWN))
    plain = [tokenizer.normalizer.normalize_str(text) for text in sentences]
    seen = Counter(letter for text in plain for letter in text if not letter.isspace())
    most = (size - len(_SPECIALS)) // 4  # half of the pieces at most; of an alphabet of thousands the rest is unknown
    letters = sorted(letter for _, letter in sorted((-number, letter) for letter, number in seen.items())[:most])
    rare = dict.fromkeys(map(ord, seen.keys() - {*letters}), " ")
    fixed = [*_SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=fixed, initial_alphabet=[], show_progress=False)
    tokenizer.train_from_iterator((text.translate(rare) for text in plain), trainer)
    # Anew, without the special tokens: a text that says "[SEP]" or "##a" is a text
    whole = _like_bert(models.WordPiece(tokenizer.get_vocab(), unk_token=_UNKNOWN))
    return {"text": whole.to_str(), "cls": 2, "sep": 3, "pad": 0}


def _like_bert(model: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def published(folder: Path) -> dict[str, Any]:
    """Returns the tokenizer that lies beside published weights. Raises BadInput."""
    loaded, text = encoders.tokenizer(folder, "cls", "sep", "pad")
    return {"text": text, "cls": loaded.cls_token_id, "sep": loaded.sep_token_id, "pad": loaded.pad_token_id}
