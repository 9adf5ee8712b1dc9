"""Traces the memory of training or running a language model of published sizes."""

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


def _known() -> dict[str, dict[str, Any]]:
    """Returns the settings of the models in models.yaml, by name."""
    rows = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text("utf-8"))
    columns = rows.pop("columns")
    models = {}
    for name, row in rows.items():
        models[name] = dict(zip(columns, row, strict=True))
        if not row[0].startswith("gemma"):  # whose layers alternate
            models[name]["sliding_window"] = None
    return models


KNOWN = _known()


@dataclass(frozen=True)
class Question:
    """A question about a language model; by default about the step of a task here.

    Such a step has a base in 16 bits or nf4, adapters in fp32, and the loss in chunks of positions.
    `trainer`: as in peft's guide, with whole logits, and unpacked weights in fp32. `length`: tokens of
    a sequence, in inference with its answer.
    """

    model: str
    method: str = "qlora"
    card: str = "t4"
    batch: int = 1
    length: int = 1024
    quantised: str = ""
    precision: str = "auto"
    rank: int = 16
    # last names of the layers with adapters; empty: all linear ones but the head
    targets: tuple[str, ...] = ()
    recomputed: bool = True
    dropout: float = 0.0  # before each adapter, which keeps its dropped input
    optimizer: str = "adamw"
    autocast: bool = True  # off for plain loops over a half-precision model
    trainer: bool = False

    @property
    def weights(self) -> str:
        if self.method == "qlora" and not self.quantised:
            return "nf4"
        return self.quantised

    @property
    def assumed(self) -> str:
        if self.method == "inference":
            return f"Assumed: {self.weights or '16-bit'} weights, keys and values of all tokens in 16 bits."
        model = "fp32 weights"
        if self.method != "full":
            layers = ", ".join(self.targets) or "all linear layers but the head"
            model = (
                f"a frozen base in {self.weights or '16 bits'}, adapters of rank {self.rank} in fp32"
                f" on {layers}"
            )
        return (
            f"Assumed: {model}, {self.optimizer}, all layers recomputed, the loss in chunks of"
            " positions."
        )


def fits(question: Question) -> Followed:
    """Predicts by a trace of the whole model, in minutes if it is deep: see `folded.fits`. Raises BadInput."""
    check(question)
    return traced(question, settings_of(question.model))


def check(question: Question) -> None:
    """Raises BadInput for a question that has no answer."""
    for name, value, choices in (
        ("method", question.method, METHODS),
        ("optimizer", question.optimizer, tuple(_OPTIMIZERS)),
        ("quantised", question.weights, KINDS),
    ):
        if value not in choices and (value or name != "quantised"):
            raise BadInput(f"There is no {name} {value!r}. Write {', '.join(choices)}.")
    for name in ("batch", "length", "rank"):
        number = getattr(question, name)
        if number < 1:
            raise BadInput(f"{name} is {number!r}. Give a whole number from 1.")
    if question.method == "full" and question.weights:
        raise BadInput("Quantised weights cannot be trained: choose qlora, or leave quantised out.")


def traced(question: Question, settings: Mapping[str, Any], has_state: bool = False) -> Followed:
    """Traces two steps of a model with these settings; one if the optimizer `has_state`."""
    precision = checked(find_card(question.card), question.precision)
    is_inference = question.method == "inference"

    def step(net: Any) -> Any:
        """Computes a loss, or generates the last token; a `trainer` holds logits through backward."""
        shape = (question.batch, question.length)
        ids = torch.randint(0, settings["vocab_size"], shape, device="cuda")
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

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return _OPTIMIZERS[question.optimizer]([p for p in parameters if p.requires_grad])

    return predict(
        model,
        step,
        question.card,
        precision=precision if question.autocast else "fp32",
        optimizer=optimizer,
        has_state=has_state,
    )


def settings_of(model: str) -> dict[str, Any]:
    """Returns the settings of a known model (NAME or OWNER/NAME), or of a folder. Raises BadInput."""
    path = Path(model)
    by_name = {name.lower(): settings for name, settings in KNOWN.items()}
    name = model.lower()
    if not path.exists():
        name = name.rpartition("/")[2]
    base = re.sub("-(instruct|it)$", "", name)  # a tuned model has the sizes of its base
    if base in by_name:
        return dict(by_name[base])
    if not path.exists():
        raise BadInput(
            f"There is no model or folder {printable(repr(model))}. Known models: {', '.join(KNOWN)}."
            " For another, give the folder with its config.json."
        )
    if path.is_dir():
        path /= "config.json"
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
        plain = {name: value for name, value in settings.items() if name != "auto_map"}
        config = transformers.AutoConfig.for_model(**plain)
        return transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        kind = settings["model_type"]
        raise BadInput(
            f"transformers cannot make a language model of the kind {kind!r}: {error}"
        ) from None


def _model(settings: Mapping[str, Any], question: Question, precision: str) -> Any:
    """Makes the model on `meta`; for training with a frozen base, fp32 adapters and recomputed layers."""
    dtype = torch.float32 if question.method == "full" else _TYPES[precision]
    model: Any = tied(untrained(settings).to(dtype))
    head = model.get_output_embeddings()
    if question.weights:
        quantise(model, question.weights, _TYPES[precision], [head])
    if question.method == "inference":
        return model
    model.config.use_cache = False
    if question.weights and question.trainer:  # peft's guide to training on k bits
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.float()
    if question.method != "full":
        targets = question.targets or linear_names(model, head)
        adapt(model, question.rank, targets, question.dropout)
    if question.recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if question.method != "full":
            model.enable_input_require_grads()
    return model.train()


class Adam8bit(torch.optim.Optimizer):
    """Allocates the moments of bitsandbytes' Adam, of one byte a value; computes no values."""

    def __init__(self, parameters: Any, **_: Any):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    _add_moments(parameter, self.state[parameter])


def _add_moments(parameter: Tensor, state: dict[str, Tensor]) -> None:
    is_small = parameter.numel() < _MIN_8BIT
    scales = math.ceil(parameter.numel() / _MOMENTS)
    dtype = torch.float32 if is_small else torch.uint8
    for moment in ("state1", "state2"):
        state[moment] = torch.empty_like(parameter, dtype=dtype)
        if not is_small:
            state[f"{moment}_scales"] = parameter.new_empty(scales, dtype=torch.float32)


class _Paged(torch.optim.SGD):
    """Models paged_adamw_8bit: the driver moves its state, which the card's allocator never holds."""


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW, "adamw_8bit": Adam8bit, "paged_adamw_8bit": _Paged,
}  # fmt: skip


class Adapted(nn.Module):
    """A linear layer with a low-rank addition, as in peft: adapters and their inputs are fp32."""

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
    """Replaces linear layers by quantised ones, but those in `without`."""
    spared = {id(layer) for layer in without}

    def quantised(_: str, layer: nn.Module) -> nn.Module | None:
        if _is_linear(layer) and id(layer) not in spared:
            return Quantised(layer, kind, dtype)
        return None

    return replaced(model, quantised)


def adapt(model: nn.Module, rank: int, targets: Iterable[str], dropout: float = 0.0) -> nn.Module:
    """Freezes the model and adds adapters of a rank to the layers with these last names.

    Raises BadInput if the model has no such layer.
    """
    names = set(targets)
    linear = linear_names(model)
    model.requires_grad_(False)
    if not names & linear:
        raise BadInput(
            f"No adapter can be put on {', '.join(sorted(names)) or 'nothing'}. The linear layers are"
            f" {', '.join(sorted(linear))}."
        )

    def adapted(name: str, layer: nn.Module) -> nn.Module | None:
        if name in names and _is_linear(layer):
            return Adapted(layer, rank, dropout)
        return None

    return replaced(model, adapted)


def linear_names(model: nn.Module, head: nn.Module | None = None) -> set[str]:
    """Returns the last names of linear layers, but of the head."""
    names = set()
    for name, layer in model.named_modules():
        if _is_linear(layer) and layer is not head:
            names.add(name.rsplit(".", 1)[-1])
    return names


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear | Quantised)
