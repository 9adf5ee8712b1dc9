"""The encoder of a run, chosen once: published weights that are mounted, cached or reachable, or one from scratch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lib.errors import BadInput, printable
from lib.machine import memory
from lib.supervised import encoders as published
from lib.task import Task
from lib.task.blocks import find_blocks
from workloads.legal import tokens
from workloads.legal.settings import Encoder

# What configurations of transformers call the share of attention weights that is dropped
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "attention_probs_dropout")
_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}  # of BERT: layers, width, heads
_WORDS, _POSITIONS = 30_522, 512


def choose(settings: Encoder) -> dict[str, Any]:
    """Returns the name of published `weights`, empty for none, `options` of its config, and a plan's `size` of BERT."""
    weights = published.choose(settings.weights, "an encoder")
    if weights is not None:
        config = published.configuration(weights[1])
        keys = [key for key in _ATTENTION_DROPOUT if hasattr(config, key)][:1]
        return {"weights": weights[0], "options": {k: _attention_dropout(settings, getattr(config, k)) for k in keys}}
    if settings.weights and torch.empty(0).is_meta:
        return {"weights": "", "size": settings.planned_as, "options": {_ATTENTION_DROPOUT[0]: 0.1}}
    return {"weights": "", "options": {_ATTENTION_DROPOUT[0]: _attention_dropout(settings, settings.dropout)}}


def check(chosen: Mapping[str, Any]) -> None:
    """Raises BadInput for anything that `choose` does not return: in an archive it may be anybody's."""
    options = chosen.get("options")
    shares = options.values() if isinstance(options, dict) and options.keys() <= {*_ATTENTION_DROPOUT} else [None]
    is_fine = all(isinstance(share, int | float) and 0 <= share < 1 for share in shares)
    if chosen.keys() != {"weights", "options"} or not isinstance(chosen["weights"], str) or not is_fine:
        raise BadInput(f"What was learned from data names no encoder: {printable(repr(dict(chosen)), most=100)}.")


def _attention_dropout(settings: Encoder, otherwise: float) -> float:
    if settings.attention_dropout != "auto":
        return float(settings.attention_dropout)
    return 0.0 if memory.device().type == "cpu" else otherwise


def tokenizer(settings: Encoder, chosen: Mapping[str, Any], sentences: Sequence[str]) -> dict[str, Any]:
    """Returns the tokenizer of published weights, or one trained on the training sentences. Raises BadInput."""
    if chosen["weights"]:
        return tokens.published(published.folder_of(chosen["weights"]))
    return tokens.trained(sentences, settings.vocabulary)


def build(task: Task, settings: Encoder, chosen: Mapping[str, Any], length: int) -> nn.Module:
    """Returns the encoder that was chosen, for inputs of at most `length` tokens. Raises BadInput."""
    library = published.transformers()
    if chosen["weights"]:
        encoder = task.pretrained(chosen["weights"], library.AutoModel, **chosen["options"])
        _freeze(encoder, settings)
    else:
        layers, hidden, heads = settings.layers, settings.hidden, settings.heads
        words, positions, wide = settings.vocabulary, length, settings.feed_forward
        if size := chosen.get("size"):
            layers, hidden, heads = _SIZES[size]
            words, positions, wide = _WORDS, max(length, _POSITIONS), 4 * hidden
        if hidden % heads:
            fits = hidden // heads * heads or heads
            raise BadInput(f"workload.encoder.hidden {hidden} is no multiple of the {heads} heads. Write {fits}, say.")
        encoder = library.AutoModel.from_config(library.BertConfig(
            vocab_size=words, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
            intermediate_size=wide, max_position_embeddings=positions, hidden_dropout_prob=settings.dropout,
            **chosen["options"],
        ))  # fmt: skip
    config = encoder.config
    places = getattr(config, "max_position_embeddings", None) or length
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):  # which number them from behind the padding
        places -= (config.pad_token_id or 0) + 1
    if length > places:
        raise BadInput(f"workload.context.length is {length}, and the encoder has {places} positions. Write that.")
    return published.without_pooler(encoder)


def _freeze(encoder: nn.Module, settings: Encoder) -> None:
    """Keeps word vectors, or all that is below the lowest layers that are trained, as published. Raises BadInput."""
    layers = find_blocks(encoder)
    if settings.freeze_layers > len(layers):
        frozen = f"workload.encoder.freeze_layers is {settings.freeze_layers}"
        raise BadInput(f"{frozen}, and the encoder has {len(layers)} layers.")
    if settings.freeze_words:
        encoder.get_input_embeddings().weight.requires_grad_(False)
    if settings.freeze_layers:
        trained = {id(p) for layer in layers[settings.freeze_layers :] for p in layer.parameters()}
        for parameter in encoder.parameters():  # positions and norms below the layers too
            parameter.requires_grad_(id(parameter) in trained)


def depths(encoder: nn.Module) -> dict[str, int]:
    """Returns how many layers stand above each parameter's own, by its name; what is in no layer is below them all."""
    layers = find_blocks(encoder)
    of_layer = {id(p): len(layers) - 1 - n for n, layer in enumerate(layers) for p in layer.parameters()}
    return {name: of_layer.get(id(p), len(layers)) for name, p in encoder.named_parameters()}
