"""Does a language model fit a card: for inference with so many tokens, for LoRA, for QLoRA, for full fine-tuning?

trainbook fits Qwen2.5-7B --method qlora --gpu t4 --length 1024
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lib import untrusted
from lib.errors import BadInput
from lib.planner import Prediction
from lib.planner.card import find_card
from lib.planner.trace import checked, predict, predict_inference, tied
from trainbook.fits.layers import KINDS, Adam8bit, adapt, quantise

METHODS = ("inference", "lora", "qlora", "full")
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_BYTES = 2**20  # of a config.json


# The config.json of the models' own repositories (huggingface.co/meta-llama, /mistralai, /Qwen).
_NAMES = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "tie_word_embeddings",
)  # fmt: skip
_ROWS: dict[str, tuple[Any, ...]] = {
    "Llama-2-7B": ("llama", 4096, 11008, 32, 32, 32, 32000, False),
    "Llama-2-13B": ("llama", 5120, 13824, 40, 40, 40, 32000, False),
    "Llama-3-8B": ("llama", 4096, 14336, 32, 32, 8, 128256, False),
    "Mistral-7B": ("mistral", 4096, 14336, 32, 32, 8, 32000, False),
    "Qwen2.5-0.5B": ("qwen2", 896, 4864, 24, 14, 2, 151936, True),
    "Qwen2.5-1.5B": ("qwen2", 1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-3B": ("qwen2", 2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-7B": ("qwen2", 3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-14B": ("qwen2", 5120, 13824, 48, 40, 8, 152064, False),
}
_ALWAYS: dict[str, Any] = {"max_position_embeddings": 131072, "sliding_window": None}
KNOWN = {name: dict(zip(_NAMES, row, strict=True)) | _ALWAYS for name, row in _ROWS.items()}


def largest(predicted: Callable[[int], Prediction], bound: int, multiple: int = 1) -> tuple[int, Prediction]:
    """Returns the largest size up to a bound that fits, a multiple of `multiple`, with its prediction.

    It is 0 if no size fits, with the prediction of the smallest. Memory grows with the size on a line or faster, so the
    line through the largest two sizes that fit leads there in a few predictions, and halving otherwise.
    """
    end = fails = bound // multiple + 1
    predictions: dict[int, Prediction] = {}  # by multiples
    before, best = 0, 0  # the largest two that fit
    while best + 1 < fails:
        trial = 2 * best or 1
        if before:
            low, high = predictions[before], predictions[best]
            slope = (high.peak_bytes - low.peak_bytes) / (best - before)
            trial = best + int((high.limit_bytes - high.peak_bytes) / max(1.0, slope))
        if trial >= fails:
            trial = fails - 1 if fails == end else (best + fails) // 2
        trial = max(trial, best + 1)
        predictions[trial] = predicted(trial * multiple)
        if predictions[trial].fits:
            before, best = best, trial
        else:
            fails = trial
    return best * multiple, predictions[best or 1]


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


def fits(question: Question) -> Prediction:
    """Predicts the peak of what is asked, on a card that this machine lacks. Raises BadInput."""
    choices = {"method": METHODS, "optimizer": tuple(_OPTIMIZERS), "quantised": ("", *KINDS)}
    for name, allowed in choices.items():
        if (value := question.weights if name == "quantised" else getattr(question, name)) not in allowed:
            raise BadInput(f"There is no {name} {value!r}. Write {', '.join(filter(None, allowed))}.")
    for name in ("batch", "length", "rank"):
        if type(number := getattr(question, name)) is not int or number < 1:
            raise BadInput(f"{name} is {number!r}. Give a whole number from 1.")
    if question.method == "full" and question.weights:
        raise BadInput("Quantised weights cannot be trained: choose qlora, or leave quantised out.")
    computed = checked(find_card(question.card), question.precision, 1, 0)
    settings, is_inference = settings_of(question.model), question.method == "inference"

    def step(net: nn.Module) -> Any:
        """Trains with logits and all through the backward pass, or makes the last token with those before it."""
        ids = torch.randint(0, settings["vocab_size"], (question.batch, question.length), device="cuda")
        if not is_inference:
            output = net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
            return output.loss, output.logits
        if question.length == 1:
            return net(input_ids=ids, use_cache=True)
        prompt = net(input_ids=ids[:, :-1], use_cache=True, logits_to_keep=1)
        return net(input_ids=ids[:, -1:], past_key_values=prompt.past_key_values, use_cache=True)

    model = partial(_model, settings, question, computed)
    if is_inference:
        return predict_inference(model, step, question.card)
    kind, precision = _OPTIMIZERS[question.optimizer], computed if question.autocast else "fp32"
    optimizer = lambda parameters: kind([p for p in parameters if p.requires_grad])  # noqa: E731
    return predict(model, step, question.card, precision=precision, optimizer=optimizer)


def most(question: Question, of: str) -> tuple[int, Prediction]:
    """Returns the largest "batch" or "length" that fits, as `largest` does; a length is a multiple of 64."""
    if of not in ("batch", "length"):
        raise BadInput(f"The largest {of!r} cannot be asked for. Write batch or length.")
    bound = settings_of(question.model).get("max_position_embeddings") or 2**17 if of == "length" else 4096
    multiple = 64 if of == "length" and bound >= 64 else 1
    return largest(lambda size: fits(replace(question, **{of: size})), bound, multiple)  # type: ignore[arg-type]


def settings_of(model: str) -> dict[str, Any]:
    """Returns the settings of a known model, or those of a folder with a config.json. Raises BadInput."""
    by_name = {name.lower(): settings for name, settings in KNOWN.items()}
    if model.lower() in by_name:
        return dict(by_name[model.lower()])
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    try:
        settings = untrusted.objects(untrusted.read(path, _MOST_BYTES))
    except (OSError, BadInput) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"There is no model {model!r} ({why}). Known are {', '.join(KNOWN)}; for another give the folder with its "
            "config.json, as Hugging Face has it."
        ) from None
    if "model_type" not in settings:
        raise BadInput(f"{path} is no configuration of a model: it has no model_type. Give the folder of one.")
    return settings


def _model(settings: Mapping[str, Any], question: Question, precision: str) -> Any:
    """Makes the model on `meta`; for training as peft does: a frozen base, fp32 adapters, recomputed layers."""
    try:
        import transformers
    except ImportError as error:
        raise BadInput(f"A language model is made by transformers, which cannot be imported: {error}") from None
    transformers.logging.set_verbosity_error()
    try:
        config = transformers.AutoConfig.for_model(**{name: v for name, v in settings.items() if name != "auto_map"})
        base = transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        kind = settings["model_type"]
        raise BadInput(f"transformers cannot make a language model of the kind {kind!r}: {error}") from None
    model: Any = tied(base.to(torch.float32 if question.method == "full" else _TYPES[precision]))
    if question.weights:
        quantise(model, question.weights, _TYPES[precision], [model.get_output_embeddings()])
    if question.method == "inference":
        return model
    model.config.use_cache = False
    for parameter in model.parameters() if question.weights else ():  # prepare_model_for_kbit_training
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    if question.method != "full":
        adapt(model, question.rank, question.targets, question.dropout)
    if question.recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if question.method != "full":
            model.enable_input_require_grads()
    return model.train()


class _Paged(torch.optim.SGD):
    """An optimizer whose state is in pages that the driver moves (paged_adamw_8bit): the card's allocator has none."""


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW, "adamw_8bit": Adam8bit, "paged_adamw_8bit": _Paged,
}  # fmt: skip
