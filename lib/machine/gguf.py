"""Unpacks a model in llama.cpp's GGUF to a folder of transformers: once for each content, into the cache."""

import functools
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.text import amount

SUFFIX = ".gguf"


def unpacked(path: Path) -> Path:
    """Returns the folder with weights in bf16, configuration, tokenizer and chat template of a GGUF file.

    Raises BadInput without the package gguf, or for a model that transformers does not unpack.
    """
    status = path.stat()
    folder = (
        platform.detect().scratch_dir
        / f"gguf-{_hash(path, status.st_mtime_ns, status.st_size)[:16]}"
    )
    if folder.is_dir():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise BadInput(
            f"{printable(path)} is a GGUF file, which the package gguf unpacks. Install it (pip install gguf), "
            "or take the folder of this model with model.safetensors."
        )
    size = amount(status.st_size)
    print(f"Unpacking {printable(path)} ({size}) to bf16, once, in {folder} ...", flush=True)
    disk.make_folders(folder.parent)
    try:
        with disk.whole(folder, cache=True) as aside:
            _unpack(path, aside)
    except Exception as error:  # gguf and transformers raise many
        if isinstance(error, OSError) and error.errno:  # a full disk
            raise
        raise BadInput(
            f"{printable(path)} cannot be unpacked ({printable(error, most=300)}). "
            "Take the folder of this model with model.safetensors."
        ) from error
    return folder


@functools.lru_cache(16)
def _hash(path: Path, changed: int, size: int) -> str:
    """Returns the sha256 of a file; `changed` and `size` tell its states apart."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(path: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": path.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **source)
    with torch.device("cpu"):  # of a plan, too
        model: Any = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.bfloat16, **source
        )
    # Without these marks of the packed file the model is saved as any other
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
