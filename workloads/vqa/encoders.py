"""The three parts of a run, each chosen once: mounted, cached or reachable weights, or a small one instead."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.supervised import encoders as published
from lib.task import Task
from workloads.vqa import model, tokens
from workloads.vqa.settings import Settings

_WHAT = {"image": "an encoder of pictures", "text": "an encoder of questions", "decoder": "a decoder"}
_HALF = [0.5, 0.5, 0.5]
_T5 = ("t5", "mt5", "umt5")
_MOST_BYTES = 2**20  # of a preprocessor_config.json

Chosen = Mapping[str, Mapping[str, Any]]


def choose(settings: Settings) -> dict[str, dict[str, Any]]:
    """Returns the name of each part's published weights, empty for none, or `planned` for BLIP, PhoBERT and ViT5."""
    parts: dict[str, dict[str, Any]] = {}
    for part, what in _WHAT.items():
        name = getattr(settings, part).weights
        weights = published.choose(name, what)
        parts[part] = {"weights": weights[0] if weights else ""}
        if part == "image" and weights:
            parts[part] |= _normalisation(weights[1])
        if name and not weights and torch.empty(0).is_meta:
            parts[part]["planned"] = True
    return parts


def check(chosen: Any) -> None:
    """Raises BadInput for anything that `choose` does not return: in an archive it may be anybody's."""
    is_fine = isinstance(chosen, dict) and chosen.keys() == _WHAT.keys()
    for part, one in chosen.items() if is_fine else ():
        is_fine = is_fine and isinstance(one, dict) and isinstance(one.get("weights"), str)
        is_fine = is_fine and all(_are_three(one[key]) for key in one.keys() - {"weights"})
        is_fine = is_fine and one.keys() - {"weights"} <= ({"mean", "deviation"} if part == "image" else set())
    if not is_fine:
        raise BadInput(f"What was learned from data names no encoders: {printable(repr(chosen), most=100)}.")


def _are_three(values: Any) -> bool:
    return isinstance(values, list) and len(values) == 3 and all(isinstance(one, int | float) for one in values)


def _normalisation(folder: Path) -> dict[str, list[float]]:
    """Returns mean and deviation of the colours that published weights take; halves where they do not say."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        values = json.loads(read_bytes(folder / "preprocessor_config.json", _MOST_BYTES))
        mean, deviation = values["image_mean"], values["image_std"]
        if _are_three(mean) and _are_three(deviation) and min(deviation) > 0:
            return {"mean": mean, "deviation": deviation}
    return {"mean": _HALF, "deviation": _HALF}


def tokenizers(settings: Settings, chosen: Chosen, texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the decoder's tokenizer, trained on `texts` if from scratch, and that of questions. Raises BadInput."""
    values = {"decoder": tokens.trained(texts, settings.decoder.vocabulary)}
    for part in ("decoder", "text"):
        if name := chosen[part]["weights"]:
            folder = published.folder_of(name)
            values[part] = tokens.published(folder, published.configuration(folder).vocab_size, part == "decoder")
    return values


def build(task: Task, settings: Settings, chosen: Chosen, words: int) -> model.Network:
    """Returns the network of the chosen parts; a decoder from scratch has `words` tokens. Raises BadInput."""
    t5 = _decoder(task, settings, chosen["decoder"], words)
    image, text = _image(task, settings, chosen["image"], t5.config.d_model), _text(task, settings, chosen["text"], t5)
    # Word vectors score words too; in T5 1.1, which ViT5 is, these are weights of their own
    return model.Network(image, text, t5, getattr(t5.config, "scale_decoder_outputs", t5.config.tie_word_embeddings))


def _decoder(task: Task, settings: Settings, chosen: Mapping[str, Any], words: int) -> Any:
    own, library = settings.decoder, published.transformers()
    if chosen["weights"]:
        t5 = task.pretrained(chosen["weights"], library.AutoModelForSeq2SeqLM)
        if t5.config.model_type not in _T5:
            kind = f"is a {t5.config.model_type}. Take a T5: {', '.join(_T5)}."
            raise BadInput(f"workload.decoder.weights {printable(chosen['weights'])} {kind}")
        _make_room(t5, tokens.EXTRA)
    elif chosen.get("planned"):  # VietAI/vit5-base
        t5 = library.T5ForConditionalGeneration(_t5_config(36_096, 12, 768, 12, 3072, 0.1, tie_word_embeddings=False))
        _make_room(t5, tokens.EXTRA)
    else:
        layers = max(own.layers, own.fusion_layers)
        config = _t5_config(words, layers, own.hidden, own.heads, own.feed_forward, own.dropout)
        t5 = library.T5ForConditionalGeneration(config)
        t5.decoder.block = t5.decoder.block[: own.layers]
    if own.fusion_layers > (layers := len(t5.encoder.block)):
        raise BadInput(f"workload.decoder.fusion_layers is {own.fusion_layers}; the published encoder has {layers}.")
    # Built with equal numbers and cut: `generate` sizes its cache by num_layers, which are the encoder's
    t5.encoder.block = t5.encoder.block[: own.fusion_layers]
    t5.config.num_layers = len(t5.decoder.block)
    return t5


def _make_room(t5: Any, more: int) -> None:
    """Gives a published decoder rows for tags: like its others in their mean and deviation.

    `resize_token_embeddings` would tie again what T5 1.1 has untied.
    """

    def grown(weight: nn.Parameter) -> nn.Parameter:
        rows = weight.detach()
        drawn = rows.mean(0) + rows.std(0) * torch.randn(more, rows.shape[1])
        return nn.Parameter(torch.cat([rows, drawn]))

    head = grown(t5.lm_head.weight)
    t5.shared.weight, t5.lm_head.weight = grown(t5.shared.weight), head
    t5.config.vocab_size = t5.shared.num_embeddings = t5.lm_head.out_features = len(head)


def _t5_config(words: int, layers: int, width: int, heads: int, wide: int, dropout: float, **more: Any) -> Any:
    return published.transformers().T5Config(
        vocab_size=words, num_layers=layers, num_decoder_layers=layers, d_model=width, d_kv=width // heads, d_ff=wide,
        num_heads=heads, dropout_rate=dropout, feed_forward_proj="gated-gelu", decoder_start_token_id=0, pad_token_id=0,
        eos_token_id=1, **more,
    )  # fmt: skip


def _image(task: Task, settings: Settings, chosen: Mapping[str, Any], width: int) -> nn.Module:
    library, side = published.transformers(), settings.pictures.side
    if chosen["weights"]:
        whole = task.pretrained(chosen["weights"], library.AutoModel)
        encoder = getattr(whole, "vision_model", whole)
    elif chosen.get("planned"):  # that of Salesforce/blip-vqa-base
        encoder = library.BlipVisionModel(library.BlipVisionConfig())
    else:
        return model.Stem(settings.image.channels, side, width)
    if (size := getattr(encoder.config, "image_size", "no fixed size")) != side:
        raise BadInput(f"workload.pictures.side is {side}, and the published encoder takes pictures of {size}.")
    encoder = published.without_pooler(encoder)
    return model.Vision(encoder, chosen.get("mean", _HALF), chosen.get("deviation", _HALF), width)


def _text(task: Task, settings: Settings, chosen: Mapping[str, Any], t5: Any) -> nn.Module:
    own, library = settings.text, published.transformers()
    if chosen["weights"]:
        encoder = task.pretrained(chosen["weights"], library.AutoModel)
    elif chosen.get("planned"):  # vinai/phobert-base
        config = library.RobertaConfig(vocab_size=64_001, max_position_embeddings=258, pad_token_id=1)
        encoder = library.RobertaModel(config)
    else:
        config = t5.config
        return model.Words(config.d_model, config.num_heads, own.layers, own.length, settings.decoder.dropout)
    return model.Language(published.without_pooler(encoder), t5.config.d_model)
