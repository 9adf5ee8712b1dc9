"""Finds the repeated layers of a model: what is recomputed, and divided among ranks, one at a time."""

from collections.abc import Iterable
from typing import Any

from torch import nn

_BESIDE = 0.25  # of the largest class's parameters: from there another one counts, a decoder's, not a pair of heads'
_OF_STAGES = 0.75  # of a stage's parameters are in its layers: over 0.9 in ConvNeXt and Swin; two thirds are no stage


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the repeated layers of any model, in the order in which it registers them; none where nothing repeats.

    They are the members of its attribute `blocks`; else the layers that transformers marks as worth recomputing; else
    the members of one class of the largest lists and sequences of modules, wherever these lie.
    """
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.ModuleList | nn.Sequential | list | tuple):
        layers = [*blocks]
    else:
        layers = []
    if layers and all(isinstance(layer, nn.Module) for layer in layers):
        return layers

    def is_marked(
        module: nn.Module,
    ) -> bool:  # derives from the class of layers that transformers can recompute
        return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)

    if marked := [module for module in model.modules() if is_marked(module)]:
        return [
            module for module in marked if sum(map(is_marked, module.modules())) == 1
        ]  # layers, and no stages
    stacks = list[list[nn.Module]]()
    inside = set[nn.Module]()
    for module in model.modules():  # parents come first
        is_list = isinstance(module, nn.ModuleList | nn.Sequential) and module not in inside
        for layers in _by_kind(module) if is_list else ():
            inside.update(inner for layer in layers for inner in layer.modules())
            # of each nn.Sequential in a stage the layers: a list might hold experts, of which some are called
            parts = (
                part
                for stage in layers
                for part in stage.modules()
                if isinstance(part, nn.Sequential)
            )
            chains = [
                chain
                for part in _outermost(p for p in parts if _by_kind(p))
                for chain in _by_kind(part)
            ]
            stacks += chains if sum(map(_size, chains)) >= _OF_STAGES * _size(layers) else [layers]
    most = max(map(_size, stacks), default=0)
    kinds = {_kind(layers[0]) for layers in stacks if _size(layers) >= _BESIDE * most}
    return _outermost(module for module in model.modules() if _kind(module) in kinds)


def _outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    inside: set[nn.Module] = set()
    outer = []
    for module in modules:
        outer += [] if module in inside else [module]
        inside.update(module.modules())
    return outer


def _by_kind(module: nn.Module) -> list[list[nn.Module]]:
    """Returns the members that are of several modules each, grouped where two or more are of one kind."""
    groups: dict[Any, list[nn.Module]] = {}
    members = list(module.children())
    if isinstance(module, nn.ModuleList) and all(
        isinstance(child, nn.ModuleList) for child in members
    ):
        members = [
            member for child in members for member in child.children()
        ]  # lists are never called
    for member in members:
        if not isinstance(member, nn.ModuleList | nn.ModuleDict) and any(
            True for _ in member.children()
        ):
            groups.setdefault(_kind(member), []).append(member)
    return [group for group in groups.values() if len(group) > 1 and _size(group)]


def _kind(module: nn.Module) -> Any:
    """Returns what layers of one make have in common: the class, and of a sequence the kinds of its members."""
    if type(module) is nn.Sequential:
        return (type(module), *map(_kind, module.children()))
    return type(module)


def _size(layers: list[nn.Module]) -> int:
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())
