"""Does a language model fit a card: for inference with so many tokens, for LoRA, for QLoRA, for full fine-tuning?

trainbook fits Qwen2.5-7B --method qlora --gpu t4 --length 1024
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib.config.files import read_bytes
from lib.errors import BadInput
from lib.planner import Prediction, plain
from lib.planner.card import find_card
from lib.planner.trace import predict, predict_inference, tied
from trainbook.fits.layers import KINDS, Adam8bit, adapt, quantise
from trainbook.fits.sizes import Largest, largest

METHODS = ("inference", "lora", "qlora", "full")
OPTIMIZERS = ("adamw", "adamw_8bit", "paged_adamw_8bit")
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_BYTES = 2**20  # of a config.json


def _sizes(kind: str, d: int, wide: int, layers: int, heads: int, groups: int, words: int, **more: Any) -> dict:
    """The settings of a transformers configuration, by the names that Llama, Mistral, Qwen2 and Phi share."""
    return {
        "model_type": kind, "hidden_size": d, "intermediate_size": wide, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": words, "tie_word_embeddings": False,
        "max_position_embeddings": 131072, **more,
    }  # fmt: skip


# The config.json of the models' own repositories (huggingface.co/meta-llama, /mistralai, /Qwen).
KNOWN: dict[str, dict[str, Any]] = {
    "Llama-2-7B": _sizes("llama", 4096, 11008, 32, 32, 32, 32000),
    "Llama-2-13B": _sizes("llama", 5120, 13824, 40, 40, 40, 32000),
    "Llama-3-8B": _sizes("llama", 4096, 14336, 32, 32, 8, 128256),
    "Mistral-7B": _sizes("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=None),
    "Qwen2.5-0.5B": _sizes("qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-1.5B": _sizes("qwen2", 1536, 8960, 28, 12, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-3B": _sizes("qwen2", 2048, 11008, 36, 16, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-7B": _sizes("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "Qwen2.5-14B": _sizes("qwen2", 5120, 13824, 48, 40, 8, 152064),
}


@dataclass(frozen=True)
class Question:
    """What is asked of a language model; `method` is one of METHODS, `quantised` one of quantised.KINDS or empty.

    `length` counts the tokens of a sequence: in training its whole, in inference prompt and answer together, whose keys
    and values are held.
    """

    model: str
    method: str = "qlora"
    card: str = "t4"
    batch: int = 1
    length: int = 1024
    quantised: str = ""
    precision: str = "auto"
    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    recomputed: bool = True
    dropout: float = 0.05  # before the adapters; what is dropped is kept for each of them
    optimizer: str = "adamw"
    autocast: bool = True  # as trainers have it; a plain loop over a model in half precision may be without

    @property
    def weights(self) -> str:
        """The kind of quantised weights; QLoRA has doubly quantised nf4 where none is given."""
        return self.quantised or ("nf4-dq" if self.method == "qlora" else "")


def fits(asked: Question) -> Prediction:
    """Predicts the peak of what is asked, on a card that this machine lacks. Raises BadInput."""
    _check(asked)
    computed = plain.checked(find_card(asked.card), asked.precision, 1, 0)
    settings = settings_of(asked.model)
    if asked.method == "inference":
        return predict_inference(lambda: _inferring(settings, asked, computed), _answer(settings, asked), asked.card)
    return predict(
        lambda: _trained(settings, asked, computed), _training_step(settings, asked), asked.card,
        precision=computed if asked.autocast else "fp32", optimizer=_optimizer(asked.optimizer),
    )  # fmt: skip


def most(asked: Question, of: str) -> Largest:
    """Returns the largest `of`, "batch" or "length", that fits; a length is a multiple of 64."""
    if of not in ("batch", "length"):
        raise BadInput(f"The largest {of!r} cannot be asked for. Write batch or length.")
    bound = settings_of(asked.model).get("max_position_embeddings") or 2**17 if of == "length" else 4096
    step = 64 if of == "length" and bound >= 64 else 1

    def predicted(size: int) -> Prediction:
        changes: dict[str, Any] = {of: size}
        return fits(replace(asked, **changes))

    return largest(predicted, most=bound, multiple=step)


def settings_of(model: str) -> dict[str, Any]:
    """Returns the settings of a known model, or those of a folder with a config.json. Raises BadInput."""
    known = {name.lower(): settings for name, settings in KNOWN.items()}
    if model.lower() in known:
        return dict(known[model.lower()])
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    try:
        settings = json.loads(read_bytes(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"There is no model {model!r} ({why}). Known are {', '.join(KNOWN)}; for another give the folder with its "
            "config.json, as Hugging Face has it."
        ) from None
    if not isinstance(settings, dict) or "model_type" not in settings:
        raise BadInput(f"{path} is no configuration of a model: it has no model_type. Give the folder of one.")
    return settings


def _check(asked: Question) -> None:
    for name, value, allowed in (
        ("method", asked.method, METHODS), ("optimizer", asked.optimizer, OPTIMIZERS),
        ("quantised", asked.weights, ("", *KINDS)),
    ):  # fmt: skip
        if value not in allowed:
            raise BadInput(f"There is no {name} {value!r}. Write {', '.join(filter(None, allowed))}.")
    for name, number in (("batch", asked.batch), ("length", asked.length), ("rank", asked.rank)):
        if type(number) is not int or number < 1:
            raise BadInput(f"{name} is {number!r}. Give a whole number from 1.")
    if asked.method == "full" and asked.weights:
        raise BadInput("Quantised weights cannot be trained: choose qlora, or leave quantised out.")


def _made(settings: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """Makes the model on `meta`, with weights of `dtype`."""
    try:
        import transformers
    except ImportError as error:
        raise BadInput(f"A language model is made by transformers, which cannot be imported: {error}") from None
    transformers.logging.set_verbosity_error()
    kind = settings["model_type"]
    try:
        config = transformers.AutoConfig.for_model(**{name: v for name, v in settings.items() if name != "auto_map"})
        model = transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"transformers cannot make a language model of the kind {kind!r}: {error}") from None
    return tied(model.to(dtype))


def _inferring(settings: Mapping[str, Any], asked: Question, precision: str) -> Any:
    model = _made(settings, _TYPES[precision])
    if asked.weights:
        quantise(model, asked.weights, _TYPES[precision], [model.get_output_embeddings()])
    return model


def _trained(settings: Mapping[str, Any], asked: Question, precision: str) -> Any:
    """Prepares a model as peft does: a frozen base, adapters in fp32, layers that are recomputed."""
    model = _made(settings, torch.float32 if asked.method == "full" else _TYPES[precision])
    model.config.use_cache = False
    if asked.weights:
        quantise(model, asked.weights, _TYPES[precision], [model.get_output_embeddings()])
        for parameter in model.parameters():  # prepare_model_for_kbit_training
            if parameter.is_floating_point():
                parameter.data = parameter.data.float()
    if asked.method != "full":
        adapt(model, asked.rank, asked.targets, asked.dropout)
    if asked.recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if asked.method != "full":
            model.enable_input_require_grads()
    return model.train()


def _training_step(settings: Mapping[str, Any], asked: Question) -> Callable[[nn.Module], tuple[Tensor, Tensor]]:
    """A loop that holds the model's output, logits and all, through the backward pass, as most do."""

    def step(net: nn.Module) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, settings["vocab_size"], (asked.batch, asked.length), device="cuda")
        made = net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        return made.loss, made.logits

    return step


def _answer(settings: Mapping[str, Any], asked: Question) -> Callable[[nn.Module], Any]:
    """Reads all tokens but the last, and makes that one with the keys and values of those before it."""

    def step(net: nn.Module) -> Any:
        ids = torch.randint(0, settings["vocab_size"], (asked.batch, asked.length), device="cuda")
        if asked.length == 1:
            return net(input_ids=ids, use_cache=True)
        read = net(input_ids=ids[:, :-1], use_cache=True, logits_to_keep=1)
        return net(input_ids=ids[:, -1:], past_key_values=read.past_key_values, use_cache=True)

    return step


def _optimizer(name: str) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    kind = {"adamw": torch.optim.AdamW, "adamw_8bit": Adam8bit, "paged_adamw_8bit": _Paged}[name]
    return lambda parameters: kind([p for p in parameters if p.requires_grad])


class _Paged(torch.optim.SGD):
    """An optimizer whose state is in pages that the driver moves (paged_adamw_8bit): the card's allocator has none."""
