"""Chooses a published encoder and tokenizer once; prints the choice if weights are missing."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.machine import published

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
