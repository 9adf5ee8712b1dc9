"""What leaves a run beside the adapter: merged weights, which are read again and compared with it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lib.errors import BadInput
from lib.task.quantised import Linear4

_DIFFERENCE, _SAME = 1e-2, 0.99  # of the largest logit, at most; of first choices, at least: fp16 rounds by 5e-4
_IN_FP32 = 4 * 2**30  # bytes of merged weights that are compared in fp32; twice as much must fit the host
_PIECE = 2 * 2**30  # bytes of a file of merged weights, which stand beside the model while it is written


def plain(model: nn.Module) -> Any:
    """Returns the model of transformers inside of one of peft."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields each weight on the CPU with the adapters added in fp32, by the name that it has without them."""
    seen = set[int]()
    for path, module in plain(model).named_modules():
        if "lora_" in path or path.endswith(".base_layer"):
            continue
        layer = module.base_layer if hasattr(module, "lora_A") else module
        for name, weight in layer.named_parameters(recurse=False):
            if id(weight) in seen or (name == "scales" and isinstance(layer, Linear4)):  # or tied
                continue
            seen.add(id(weight))
            is_packed = isinstance(layer, Linear4) and name == "weight"
            value = layer.unpacked(torch.float32).clone() if is_packed else weight.detach().float().clone()
            if hasattr(module, "lora_A") and name == "weight":
                for key, down in module.lora_A.items():
                    value += module.scaling[key] * (module.lora_B[key].weight.float() @ down.weight.float())
            yield f"{path}.{name}", value.cpu()


@torch.no_grad()
def write_merged(model: nn.Module, folder: Path, stops: Sequence[int]) -> None:
    """Streams merged weights in fp16 into files of at most 2 GiB, beside their configuration."""
    piece, files = dict[str, Tensor](), dict[str, str]()
    folder.mkdir()

    def write() -> None:
        name = f"model-{len({*files.values()}) + 1:05d}.safetensors"
        save_file(piece, folder / name, metadata={"format": "pt"})
        files.update(dict.fromkeys(piece, name))
        piece.clear()

    for name, value in merged(model):
        if piece and sum(each.nbytes for each in piece.values()) + 2 * value.numel() > _PIECE:
            write()
        piece[name] = value.half()
    write()
    if len({*files.values()}) > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    else:
        (folder / files[name]).rename(folder / "model.safetensors")
    config = {**plain(model).config.to_dict(), "dtype": "float16"}
    config.pop("quantization_config", None)
    ends = {"eos_token_id": stops, "pad_token_id": stops[0]}
    for name, values in {"config": config, "generation_config": ends}.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1, default=str))


@torch.no_grad()
def prove(model: nn.Module, folder: Path, rows: Sequence[Sequence[int]]) -> str:
    """Reads merged weights again and compares logits with those of base and adapter; returns a sentence.

    Raises BadInput beyond a hundredth of the largest logit, or where more than one first choice of a hundred differs.
    """
    from transformers import AutoModelForCausalLM

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    dtype = torch.float32 if size < _IN_FP32 else torch.float16
    other = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype).eval()
    device, (widest, difference, same, count) = next(model.parameters()).device, (0.0, 0.0, 0, 0)
    for row in rows:
        first = model(input_ids=torch.tensor([row], device=device)).logits[0].float().cpu()
        second = other(input_ids=torch.tensor([row])).logits[0].float()
        widest, difference = max(widest, float(first.abs().max())), max(difference, float((first - second).abs().max()))
        same, count = same + int((first.argmax(-1) == second.argmax(-1)).sum()), count + len(row)
    sentence = f"logits differ by at most {difference / widest:.1e} of the largest, {same:,} of {count:,} choices agree"
    if difference > _DIFFERENCE * widest or same < _SAME * count:
        raise BadInput(f"The merged model is not the trained one: {sentence}. Use the adapter with its base.")
    return f"Merged in fp16 and read again: {sentence}."
