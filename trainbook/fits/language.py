"""A language model of published sizes as a user would train it, and the memory of its step by a trace."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from lib import untrusted
from lib.errors import BadInput, printable
from lib.planner.card import find_card
from lib.planner.log import Followed
from lib.planner.trace import checked, predict, predict_inference, tied
from lib.task.quantised import Quantised, replaced
from trainbook.supervised import chunks

KINDS = ("nf4", "nf4-dq", "int8")
# bitsandbytes' optimizers: blocks of 256 values have a scale of 4 bytes; tensors of fewer than 4096 stay fp32
_MOMENTS = 256
_MIN_8BIT = 4096
METHODS = ("inference", "lora", "qlora", "full")
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_BYTES = 2**20  # of a config.json
_ROWS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text("utf-8"))
_COLUMNS = _ROWS.pop("columns")
KNOWN: dict[str, dict[str, Any]] = {  # the layers of Gemma alternate
    name: dict(zip(_COLUMNS, row, strict=True))
    | ({} if row[0].startswith("gemma") else {"sliding_window": None})
    for name, row in _ROWS.items()
}


@dataclass(frozen=True)
class Question:
    """A question about a language model; by default about the step of a task here.

    That has a base in 16 bits or nf4, adapters in fp32, and the loss in chunks of positions. A `trainer` is peft's
    guide: whole logits, and in fp32 what is not packed. `length` is of a sequence, in inference with its answer.
    """

    model: str
    method: str = "qlora"
    card: str = "t4"
    batch: int = 1
    length: int = 1024
    quantised: str = ""
    precision: str = "auto"
    rank: int = 16
    targets: tuple[
        str, ...
    ] = ()  # last names of the layers with adapters; empty: all linear ones but the head
    recomputed: bool = True
    dropout: float = 0.0  # before the adapters; what is dropped is kept for each of them
    optimizer: str = "adamw"
    autocast: bool = True  # a plain loop over a model in half precision may be without
    trainer: bool = False

    @property
    def weights(self) -> str:
        return self.quantised or ("nf4" if self.method == "qlora" else "")

    @property
    def assumed(self) -> str:
        if self.method == "inference":
            return f"Assumed: {self.weights or '16-bit'} weights, keys and values of all tokens in 16 bits."
        where = ", ".join(self.targets) or "all linear layers but the head"
        adapters = (
            "" if self.method == "full" else f", adapters of rank {self.rank} in fp32 on {where}"
        )
        base = (
            "fp32 weights"
            if self.method == "full"
            else f"a frozen base in {self.weights or '16 bits'}"
        )
        return f"Assumed: {base}{adapters}, {self.optimizer}, all layers recomputed, the loss in chunks of positions."


def fits(question: Question) -> Followed:
    """Predicts by a trace of the whole model, in minutes if it is deep: see `folded.fits`. Raises BadInput."""
    check(question)
    return traced(question, settings_of(question.model))


def check(question: Question) -> None:
    """Raises BadInput for a question that has no answer."""
    choices = {"method": METHODS, "optimizer": tuple(_OPTIMIZERS), "quantised": ("", *KINDS)}
    for name, allowed in choices.items():
        if (
            value := question.weights if name == "quantised" else getattr(question, name)
        ) not in allowed:
            raise BadInput(
                f"There is no {name} {value!r}. Write {', '.join(filter(None, allowed))}."
            )
    if wrong := [name for name in ("batch", "length", "rank") if getattr(question, name) < 1]:
        raise BadInput(
            f"{wrong[0]} is {getattr(question, wrong[0])!r}. Give a whole number from 1."
        )
    if question.method == "full" and question.weights:
        raise BadInput("Quantised weights cannot be trained: choose qlora, or leave quantised out.")


def traced(question: Question, settings: Mapping[str, Any], has_state: bool = False) -> Followed:
    """Traces two steps of a model with these settings; one where the optimizer begins with its state."""
    precision = checked(find_card(question.card), question.precision)
    is_inference = question.method == "inference"

    def step(net: Any) -> Any:
        """Computes a loss, or makes the last token with those before it; a `trainer` holds logits through backward."""
        ids = torch.randint(
            0, settings["vocab_size"], (question.batch, question.length), device="cuda"
        )
        if question.trainer:
            output = net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
            return output.loss, output.logits
        if not is_inference:
            body = getattr(net, net.base_model_prefix)
            hidden = body(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
            ).last_hidden_state
            return chunks.loss(hidden[:, :-1], net.get_output_embeddings(), ids[:, 1:])
        if question.length == 1:
            return net(input_ids=ids, use_cache=True)
        prompt = net(input_ids=ids[:, :-1], use_cache=True, logits_to_keep=1)
        return net(input_ids=ids[:, -1:], past_key_values=prompt.past_key_values, use_cache=True)

    model = partial(_model, settings, question, precision)
    if is_inference:
        return predict_inference(model, step, question.card)
    kind = _OPTIMIZERS[question.optimizer]
    in_autocast = precision if question.autocast else "fp32"
    optimizer = lambda parameters: kind([p for p in parameters if p.requires_grad])  # noqa: E731
    options = {"precision": in_autocast, "optimizer": optimizer, "has_state": has_state}
    return predict(model, step, question.card, **options)


def settings_of(model: str) -> dict[str, Any]:
    """Returns the settings of a known model, named as here or as OWNER/NAME, or of a folder. Raises BadInput."""
    path = Path(model)
    by_name = {name.lower(): settings for name, settings in KNOWN.items()}
    if path.exists():
        name = model.lower()
    else:
        name = model.lower().rpartition("/")[2]
    of_base = re.sub("-(instruct|it)$", "", name)  # a tuned one has the sizes of its base
    if of_base in by_name:
        return dict(by_name[of_base])
    if not path.exists():
        what = f"There is no model or folder {printable(repr(model))}. Known models: {', '.join(KNOWN)}"
        raise BadInput(f"{what}. For another, give the folder with its config.json.")
    path = path / "config.json" if path.is_dir() else path
    try:
        settings = untrusted.objects(untrusted.read(path, _MOST_BYTES))
    except (OSError, BadInput) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{path} cannot be read ({why}). Give the folder with the model's config.json."
        ) from None
    if "model_type" not in settings:
        raise BadInput(
            f"{path} is no configuration of a model: it has no model_type. Give the folder of one."
        )
    return settings.get("text_config") or settings  # of a model that sees pictures too


def untrained(settings: Mapping[str, Any]) -> Any:
    """Makes the model of transformers, on the default device. Raises BadInput."""
    try:
        import transformers
    except ImportError as error:
        raise BadInput(
            f"A language model is made by transformers, which cannot be imported: {error}"
        ) from None
    transformers.logging.set_verbosity_error()
    try:
        config = transformers.AutoConfig.for_model(
            **{name: v for name, v in settings.items() if name != "auto_map"}
        )
        return transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        kind = settings["model_type"]
        raise BadInput(
            f"transformers cannot make a language model of the kind {kind!r}: {error}"
        ) from None


def _model(settings: Mapping[str, Any], question: Question, precision: str) -> Any:
    """Makes the model on `meta`; for training with a frozen base, fp32 adapters and recomputed layers."""
    base = untrained(settings)
    model: Any = tied(base.to(torch.float32 if question.method == "full" else _TYPES[precision]))
    head = model.get_output_embeddings()
    if question.weights:
        quantise(model, question.weights, _TYPES[precision], [head])
    if question.method == "inference":
        return model
    model.config.use_cache = False
    for parameter in (
        model.parameters() if question.weights and question.trainer else ()
    ):  # peft's k-bit guide
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    if question.method != "full":
        adapt(model, question.rank, question.targets or linear_names(model, head), question.dropout)
    if question.recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if question.method != "full":
            model.enable_input_require_grads()
    return model.train()


class Adam8bit(torch.optim.Optimizer):
    """Adam with moments of one byte a value, as bitsandbytes lays them out: their memory, without values."""

    def __init__(self, parameters: Any, **_: Any):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in (
            p for group in self.param_groups for p in group["params"] if p.grad is not None
        ):
            state = self.state[parameter]
            is_small = parameter.numel() < _MIN_8BIT
            for moment in () if state else ("state1", "state2"):
                state[moment] = torch.empty_like(
                    parameter, dtype=torch.float32 if is_small else torch.uint8
                )
                if not is_small:
                    scales = math.ceil(parameter.numel() / _MOMENTS)
                    state[f"{moment}_scales"] = parameter.new_empty(scales, dtype=torch.float32)


class _Paged(torch.optim.SGD):
    """An optimizer whose state is in pages that the driver moves (paged_adamw_8bit): the card's allocator has none."""


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW, "adamw_8bit": Adam8bit, "paged_adamw_8bit": _Paged,
}  # fmt: skip


class Adapted(nn.Module):
    """A linear layer with a low-rank addition, as peft computes it: the adapters and what enters them are fp32."""

    def __init__(self, layer: Any, rank: int, dropout: float):
        super().__init__()
        self.layer = layer
        self.dropout = dropout
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, device="meta"))
        self.lora_b = nn.Parameter(torch.empty(layer.out_features, rank, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x)
        low = F.linear(F.dropout(x.to(self.lora_a.dtype), self.dropout, self.training), self.lora_a)
        return (result + F.linear(low, self.lora_b) * 2.0).to(result.dtype)


def quantise(
    model: nn.Module, kind: str, dtype: torch.dtype, without: Iterable[nn.Module] = ()
) -> nn.Module:
    spared = {id(layer) for layer in without}
    return replaced(
        model, lambda _, layer: Quantised(layer, kind, dtype) if _is_linear(layer, spared) else None
    )


def adapt(model: nn.Module, rank: int, targets: Iterable[str], dropout: float = 0.0) -> nn.Module:
    """Freezes the model and adds adapters of a rank to the layers whose name ends so. Raises BadInput for none."""
    names = set(targets)
    linear = linear_names(model)
    model.requires_grad_(False)
    if not names & linear:
        what = f"No adapter can be put on {', '.join(sorted(names)) or 'nothing'}"
        raise BadInput(f"{what}. The linear layers are {', '.join(sorted(linear))}.")
    return replaced(
        model,
        lambda name, x: Adapted(x, rank, dropout) if name in names and _is_linear(x) else None,
    )


def linear_names(model: nn.Module, head: nn.Module | None = None) -> set[str]:
    return {
        name.rsplit(".", 1)[-1]
        for name, layer in model.named_modules()
        if _is_linear(layer) and layer is not head
    }


def _is_linear(layer: nn.Module, without: Iterable[int] = ()) -> bool:
    return isinstance(layer, nn.Linear | Quantised) and id(layer) not in without
