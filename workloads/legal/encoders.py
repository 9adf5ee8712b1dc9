"""The encoder of a run, chosen once: published weights that are mounted, cached or reachable, or one from scratch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lib.errors import BadInput, printable
from lib.machine import memory, published
from lib.task import Task
from lib.task.blocks import find_blocks
from workloads.legal import tokens
from workloads.legal.settings import Encoder

# What configurations of transformers call the share of attention weights that is dropped
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "attention_probs_dropout")
_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}  # of BERT: layers, width, heads
_WORDS, _POSITIONS = 30_522, 512


def choose(settings: Encoder) -> dict[str, Any]:
    """Returns what a run begins with: the name of published `weights`, empty for none, and `options` of its config.

    A plan for weights that are not there has the `size` of BERT that stands for them. Prints where there are none
    although a name was given. Raises BadInput for a path that is not there.
    """
    is_plan = torch.empty(0).is_meta
    folder = published.located(settings.weights, download=not is_plan) if settings.weights else None
    if folder is not None:
        return {"weights": folder[0], "options": _options(settings, folder[1])}
    if settings.weights and not is_plan:
        print(
            f"The weights {printable(settings.weights)} are neither mounted nor cached, and the Hugging Face hub does "
            f"not give them. The run begins with an encoder from scratch ({settings.layers} layers, {settings.hidden} "
            "wide), which is worth less: add the weights as a Kaggle model or data set and start a run under another "
            "run.name.",
            flush=True,
        )
    if settings.weights and is_plan:
        return {"weights": "", "size": settings.planned_as, "options": {_ATTENTION_DROPOUT[0]: 0.1}}
    return {"weights": "", "options": {_ATTENTION_DROPOUT[0]: _attention_dropout(settings, settings.dropout)}}


def check(chosen: Mapping[str, Any]) -> None:
    """Raises BadInput for anything that `choose` does not return: in an archive it may be anybody's."""
    options = chosen.get("options")
    shares = options.values() if isinstance(options, dict) and options.keys() <= {*_ATTENTION_DROPOUT} else [None]
    is_fine = all(isinstance(share, int | float) and 0 <= share < 1 for share in shares)
    if chosen.keys() != {"weights", "options"} or not isinstance(chosen["weights"], str) or not is_fine:
        raise BadInput(f"What was learned from data names no encoder: {printable(repr(dict(chosen)), most=100)}.")


def _transformers() -> Any:
    """Returns the package, which a laptop that only plans may lack. Raises BadInput."""
    try:
        import transformers
    except ImportError as error:
        raise BadInput(f"The encoder needs transformers ({printable(error)}): pip install transformers.") from None
    return transformers


def _options(settings: Encoder, folder: Any) -> dict[str, float]:
    AutoConfig = _transformers().AutoConfig
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        why = printable(str(error).strip().splitlines()[0], most=300)
        raise BadInput(f"The configuration of the encoder in {printable(folder)} cannot be used ({why}).") from None
    keys = [key for key in _ATTENTION_DROPOUT if hasattr(config, key)]
    return {key: _attention_dropout(settings, getattr(config, key)) for key in keys[:1]}


def _attention_dropout(settings: Encoder, otherwise: float) -> float:
    if settings.attention_dropout != "auto":
        return float(settings.attention_dropout)
    return 0.0 if memory.device().type == "cpu" else otherwise


def tokenizer(settings: Encoder, chosen: Mapping[str, Any], sentences: Sequence[str]) -> dict[str, Any]:
    """Returns the tokenizer of published weights, or one trained on the training sentences. Raises BadInput."""
    if not chosen["weights"]:
        return tokens.trained(sentences, settings.vocabulary)
    folder = published.located(chosen["weights"])
    if folder is None:
        raise BadInput(f"The tokenizer of {printable(chosen['weights'])} is no longer there. Mount the weights again.")
    return tokens.published(folder[1])


def build(task: Task, settings: Encoder, chosen: Mapping[str, Any], length: int) -> nn.Module:
    """Returns the encoder that was chosen, for inputs of at most `length` tokens. Raises BadInput."""
    AutoModel = _transformers().AutoModel
    if chosen["weights"]:
        encoder = task.pretrained(chosen["weights"], AutoModel, **chosen["options"])
        _freeze(encoder, settings)
    else:
        encoder = AutoModel.from_config(_configuration(settings, chosen, length))
    if getattr(encoder, "pooler", None) is not None:  # a layer for pairs of sentences, which nothing here would train
        encoder.pooler = None
    _check_length(encoder.config, length)
    return encoder


def _configuration(settings: Encoder, chosen: Mapping[str, Any], length: int) -> Any:
    layers, hidden, heads = settings.layers, settings.hidden, settings.heads
    words, positions, wide = settings.vocabulary, length, settings.feed_forward
    if size := chosen.get("size"):
        layers, hidden, heads = _SIZES[size]
        words, positions, wide = _WORDS, max(length, _POSITIONS), 4 * hidden
    if hidden % heads:
        raise BadInput(
            f"workload.encoder.hidden is {hidden}, which is no multiple of the {heads} heads. Write "
            f"{hidden // heads * heads or heads}, say."
        )
    return _transformers().BertConfig(
        vocab_size=words, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        intermediate_size=wide, max_position_embeddings=positions, hidden_dropout_prob=settings.dropout,
        **chosen["options"],
    )  # fmt: skip


def _check_length(config: Any, length: int) -> None:
    """Raises BadInput where an input would have more tokens than the encoder has positions."""
    positions = getattr(config, "max_position_embeddings", None) or length
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):  # which number them from behind the padding
        positions -= (config.pad_token_id or 0) + 1
    if length > positions:
        raise BadInput(
            f"workload.context.length is {length}, and the encoder has {positions} positions. Write that or less."
        )


def _freeze(encoder: nn.Module, settings: Encoder) -> None:
    """Keeps word vectors, or all that is below the lowest layers that are trained, as published. Raises BadInput."""
    layers = find_blocks(encoder)
    if settings.freeze_layers > len(layers):
        raise BadInput(
            f"workload.encoder.freeze_layers is {settings.freeze_layers}, and the encoder has {len(layers)} layers."
        )
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
