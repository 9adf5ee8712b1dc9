"""The published encoder of a task's pictures: chosen once, kept with the run by its hash, frozen beside the network.

Each `task` is a `Supervised` with `pictures`, whose setting `encoder` names one.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.machine import memory
from lib.task import Batch
from trainbook import published
from trainbook.published import Encoder

KEY = "encoder of pictures"  # in learned values
_VIEW = "encoder"  # of the method that the head begins with
_RATE = 0.03  # times the rate of a network from scratch: published weights are to be kept
_FROZEN = 2 / 3  # of the tensors: of EfficientNet-Lite0 those up to its 112 maps
_LOOKED_AT = 16  # training samples, for their scale


def facts(task: Any) -> Mapping[str, Any]:
    """Returns what tells the encoder of a run: the one that it began with, or that is at hand; {} for none."""
    if task._learned is not None:
        return task._learned.get(KEY, {})
    if task._at_hand is None:
        with torch.device("meta"):
            encoder = published.encoder(_name(task))
        task._at_hand = encoder.facts if encoder else {}
    return task._at_hand


def learned(task: Any) -> dict[str, Any]:
    """Returns the facts on an encoder for what a run learns; {} without one."""
    encoder = frozen(task)
    return {KEY: dict(encoder.facts)} if encoder else {}


def size(task: Any) -> int:
    """Returns the side of the encoder's pictures in pixels; 0 without an encoder."""
    known = facts(task)
    return int(known["config"]["size"]) if known else 0


def of_model(task: Any) -> Encoder | None:
    """Returns a fresh encoder for a model; without its weights, if these are gone and a checkpoint has them."""
    known = facts(task)
    if not known:
        return None
    if not torch.empty(0).is_meta:
        encoder = _at_hand(task, known)
        if encoder is not None:
            return encoder
    return published.rebuilt(known)


def frozen(task: Any) -> Encoder | None:
    """Returns the encoder as it was published, loaded once. Raises BadInput if the run began with one that is gone."""
    known = facts(task)
    if not known:
        return None
    if task._frozen is None:
        encoder = _at_hand(task, known)
        if encoder is None:
            raise BadInput(
                f"This run began with the encoder {known['config']['title']} (sha256 {known['sha256']}), which is not "
                "at hand. Mount or install exactly this one, or train a new run."
            )
        task._frozen = encoder.eval().requires_grad_(False)
    return task._frozen


def pooled(task: Any, pictures: Tensor) -> Tensor | None:
    """(B, 3, H, W) from 0 to 1 -> (B, D) the frozen encoder's features, kept by content.

    None without an encoder, and if it is gone, where the answer does not start from it.
    """
    known = facts(task)
    if not known or (not task._starts and _is_gone(task)):
        return None
    digest = known["sha256"] or frozen(task).sha256  # type: ignore[union-attr]

    def compute(picture: Tensor) -> Tensor:
        encoder = frozen(task)
        assert encoder
        if torch.utils.data.get_worker_info() is None:  # a worker must not touch the GPU
            encoder.to(memory.device())
        return published.pooled(encoder, picture)

    return published.kept(digest, f"pooled {size(task)}", pictures, compute)


def about(task: Any) -> str:
    """Returns a line on the encoder of a run, or on what one would give. Raises BadInput as `frozen` does."""
    known = facts(task)
    if known and not task._starts and _is_gone(task):
        return (
            f"The encoder {known['config']['title']} is not at hand: the weights come from the checkpoint, and no "
            "linear model of its features stands beside the network."
        )
    encoder = frozen(task)
    if encoder:
        return encoder.about
    if _name(task) == published.NONE:
        return "No encoder (workload.encoder: none): the network is trained from scratch."
    return published.advice()


def of_batch(task: Any, batch: Batch) -> Tensor:
    """Returns the pictures of a batch. Raises BadInput without them."""
    pictures = batch.get(task.pictures)
    if pictures is None or pictures.dim() != 4 or pictures.shape[1] != 3:
        name = type(task).__name__
        raise BadInput(
            f"{name}.pictures is {task.pictures!r}, and {name}.batch returns no pictures of that name. Return "
            "(samples, 3, H, W) from 0 to 1."
        )
    return pictures


def check_scale(task: Any) -> None:
    """Prints a sentence if the pictures of some training samples are not in the encoder's scale."""
    encoder = frozen(task)
    if encoder is None:
        return
    part = task.parts["train"]
    places = range(0, len(part), -(-len(part) // _LOOKED_AT))
    batch = task.labelled([part[place].sample for place in places])
    pictures = of_batch(task, batch)
    least, most = float(pictures.min()), float(pictures.max())
    if least < 0 or most > 1:
        name = type(task).__name__
        print(
            f"{name}.batch returns pictures from {least:.3g} to {most:.3g}, and the encoder takes them from 0 to 1. "
            "Divide them, or leave out what standardises them: the encoder scales them itself."
        )
    device = next(encoder.parameters()).device
    sentence = encoder.misfit(encoder.scaled(pictures.to(device)))
    if sentence:
        print(sentence)


def with_head(task: Any, encoder: Encoder, outputs: int) -> nn.Module:
    """Implements `Supervised.with_head`."""
    encoder.freeze(_FROZEN)
    network = published.WithHead(encoder, outputs)
    if task._starts and not torch.empty(0).is_meta:
        for method in task._simples:
            if method.view == _VIEW and method.how == "linear":
                network.begin_with(*method.linear())
    return network


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Returns the group of a network's encoder, with its share of the rate; [] without one."""
    if not isinstance(getattr(model, "encoder", None), Encoder):
        return []
    # a head that begins with a fitted answer is near its end too
    names = "*" if isinstance(model, published.WithHead) else "encoder.*"
    return [{"names": names, "lr": _RATE}]


def _name(task: Any) -> str:
    return str(getattr(task.settings, "encoder", ""))


def _is_gone(task: Any) -> bool:
    """Returns whether a run began with an encoder that is not at hand."""
    try:
        frozen(task)
    except BadInput:
        return True
    return False


def _at_hand(task: Any, known: Mapping[str, Any]) -> Encoder | None:
    """Returns the encoder of some facts, by its name or as the default; None if the run began with another one.

    Raises BadInput if a run begins without the one that it names.
    """
    for name in dict.fromkeys((_name(task), "")):
        try:
            encoder = published.encoder(name)
        except BadInput:
            if task._learned is None:
                raise
            continue
        is_same = encoder is not None and known["sha256"] in ("", encoder.sha256)
        if is_same:
            return encoder
    return None
