"""A model with published weights, which are chosen once: a run that resumes builds the same one without them."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lib.config import Config
from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.machine import inputs, platform
from lib.machine.published import as_safetensors, digest, find_model, has_weights

_MOST_BYTES = 2**24  # of a state.json
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_TAKEN_FROM_HUB = ["*.json", "*.safetensors", "*.txt", "*.model"]
_PICKLES = ["pytorch_model*.bin"]  # where there are no safetensors; read by torch's reader that runs no code
_OF_LOADING = {  # options of from_pretrained that mean nothing to a model without weights
    "quantization_config", "device_map", "max_memory", "offload_folder", "offload_buffers", "offload_state_dict",
    "low_cpu_mem_usage", "ignore_mismatched_sizes", "key_mapping", "output_loading_info", "state_dict", "weights_only",
    "subfolder", "variant", "revision", "token", "cache_dir", "force_download", "proxies",
}  # fmt: skip


def pretrained(task: Any, name: str, cls: Any, options: Mapping[str, Any]) -> nn.Module:
    """Does what `Task.pretrained` says."""
    options = {"dtype": torch.float32, **options}
    dtype = options.pop("dtype")
    taken = task.published.get(name, {})
    known = taken if "config" in taken else _taken_before(task.config, name)
    folder = _folder(name, is_known=bool(known))
    config, rest = _configuration(name, folder, known, options)
    if not known and not _on_meta():
        known = {"config": json.loads(config.to_json_string(use_diff=False)), "sha256": digest(as_safetensors(folder))}
    if known:
        task.published = {**task.published, name: {**taken, **known}}
    if folder is None or _on_meta():
        make = getattr(cls, "from_config", None) or cls._from_config
        model = make(config, dtype=dtype, **{key: value for key, value in rest.items() if key not in _OF_LOADING})
        _mark(model, options.get("quantization_config") or getattr(config, "quantization_config", None))
        return model
    here = as_safetensors(folder)
    return cls.from_pretrained(here, config=config, dtype=dtype, use_safetensors=True, local_files_only=True, **rest)


def _mark(model: Any, quantization: Any) -> None:
    """Sets `loaded_as`, kind and type of computation, on layers that loading makes nf4 or int8: a plan counts them so.

    `quantization` is a BitsAndBytesConfig or its values; transformers spares the last layer.
    """
    values = quantization.to_dict() if hasattr(quantization, "to_dict") else dict(quantization or {})
    bits = 8 if values.get("load_in_8bit") else 4 if values.get("load_in_4bit") else 0
    if not bits:
        return
    kind = "int8" if bits == 8 else "nf4-dq" if values.get("bnb_4bit_use_double_quant") else "nf4"
    dtype = "float16" if bits == 8 else str(values.get("bnb_4bit_compute_dtype") or "float32").removeprefix("torch.")
    last = model.get_submodule(next(reversed(dict(model.named_parameters()))).rpartition(".")[0])
    skipped = values.get("llm_int8_skip_modules") or ()
    for name, layer in model.named_modules():
        is_spared = layer in (last, model.get_output_embeddings()) or any(part in name for part in skipped)
        if isinstance(layer, nn.Linear) and not is_spared:
            layer.loaded_as = kind, getattr(torch, dtype)
    setattr(model, f"is_loaded_in_{bits}bit", True)  # peft asks


def _on_meta() -> bool:
    return torch.empty(0).is_meta


def _configuration(
    name: str, folder: Path | None, known: Mapping[str, Any] | None, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Returns the configuration that the run began with, else the published one, and the options that it lacks.

    Raises BadInput.
    """
    from transformers import AutoConfig

    try:
        if known:
            values = dict(known["config"])
            config = AutoConfig.for_model(values.pop("model_type"), **values)
            return config, {key: value for key, value in options.items() if not hasattr(config, key)}
        return AutoConfig.from_pretrained(folder, return_unused_kwargs=True, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = printable(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, most=300)
        where = "which the run began with" if known else f"in {printable(folder)}"
        raise BadInput(f"The configuration of {printable(name)} {where} cannot be used ({why}).") from None


def _folder(name: str, is_known: bool) -> Path | None:
    """Returns the folder with the weights; None where it is not there, and the run knows what to build without it."""
    try:
        found = find_model(name)
        if found.is_dir():
            return found
        raise BadInput(f"{printable(found)} is a file. Give the folder with the weights and config.json.")
    except BadInput as absent:
        folder = _from_hub(name) if _ON_HUB.fullmatch(name) else None
        if folder is None and not is_known:
            raise absent
        return folder


def located(name: str, download: bool = True) -> tuple[str, Path] | None:
    """Returns the folder of published weights, with the name that it goes by here; None for one that is nowhere.

    A name on the Hugging Face hub is looked for among the mounted inputs of anybody, too. Without `download` the
    internet is not asked. Raises BadInput for a path that is not there, and where several mounted inputs have the name.
    """
    if not _ON_HUB.fullmatch(name) or Path(name).expanduser().exists():
        return name, find_model(name)
    here, model = platform.detect(), name.split("/")[1]
    for one in dict.fromkeys([name, model, model.lower()]):
        if inputs.is_mounted(one, here):
            return one, find_model(one)
    folder = _from_hub(name, download)
    return None if folder is None else (name, folder)


def _from_hub(name: str, download: bool = True) -> Path | None:
    """Returns the folder of a model of the Hugging Face hub, from its cache or over the internet; None without them."""
    tries = [(_TAKEN_FROM_HUB, True), (_TAKEN_FROM_HUB, False), ([*_TAKEN_FROM_HUB, *_PICKLES], False)]
    try:
        from huggingface_hub import snapshot_download

        for patterns, is_local in tries if download else tries[:1]:
            with contextlib.suppress(OSError if is_local else ()):
                folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=is_local))
                if has_weights(folder):
                    return folder
    except Exception as error:  # of the network in many forms
        print(f"{printable(name)} is not mounted, and the Hugging Face hub does not give it ({type(error).__name__}).")
        return None
    if download:
        print(f"The Hugging Face hub has no weights of {printable(name)} in a form that is read: mount them.")
    return None


def _taken_before(config: Config, name: str) -> Mapping[str, Any] | None:
    """Returns what the newest checkpoint of the run says of published weights, for a plan before the run resumes."""
    for folder in _checkpoints(config):
        for path in sorted(folder.glob("step-*/state.json"), reverse=True):
            try:
                taken = json.loads(read_bytes(path, _MOST_BYTES))["published"][name]
                if isinstance(taken["config"], dict):
                    return taken
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
    return None


def _checkpoints(config: Config) -> Iterator[Path]:
    run = config.run.name
    if config.run.resume_from:
        base = inputs.find_input(config.run.resume_from, platform.detect())
        yield from (base / "checkpoints", base / run / "checkpoints")
        return
    earlier = inputs.earlier_runs(run, platform.detect())
    yield from (folder / "checkpoints" for folder in (platform.output_dir(config) / run, *earlier))
