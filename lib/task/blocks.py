"""Finds the repeated layers of a model, which are recomputed one at a time."""

from collections.abc import Iterable
from typing import Any

from torch import nn

# Share of the largest class's parameters from which another one counts: a decoder's, no pair of
# heads
_BESIDE = 0.25
# Share of a stage's parameters in its layers: over 0.9 in ConvNeXt and Swin; with two thirds it is
# one layer
_OF_STAGES = 0.75


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the repeated layers of any model in the order of registration; [] if nothing repeats.

    They are the members of its attribute `blocks`; otherwise the layers that transformers marks as
    worth recomputing; otherwise the members of one class of the largest lists and sequences.
    """
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.ModuleList | nn.Sequential | list | tuple):
        layers = [*blocks]
        if layers and all(isinstance(layer, nn.Module) for layer in layers):
            return layers
    marked = [module for module in model.modules() if _is_marked(module)]
    if marked:  # layers and stages, which hold other marked ones
        return [module for module in marked if sum(map(_is_marked, module.modules())) == 1]
    stacks = _stacks(model)
    largest = max(map(_size, stacks), default=0)
    kinds = {_kind(layers[0]) for layers in stacks if _size(layers) >= _BESIDE * largest}
    return _outermost(module for module in model.modules() if _kind(module) in kinds)


def _is_marked(module: nn.Module) -> bool:
    """Returns whether transformers can recompute a layer, by its class."""
    names = [base.__name__ for base in type(module).__mro__]
    return "GradientCheckpointingLayer" in names


def _stacks(model: nn.Module) -> list[list[nn.Module]]:
    """Returns the groups of layers of one kind in lists and sequences, each layer once."""
    stacks = list[list[nn.Module]]()
    inside = set[nn.Module]()
    for module in model.modules():  # parents come first
        if module in inside or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        for layers in _by_kind(module):
            for layer in layers:
                inside.update(layer.modules())
            chains = _chains(layers)
            are_stages = sum(map(_size, chains)) >= _OF_STAGES * _size(layers)
            stacks += chains if are_stages else [layers]
    return stacks


def _chains(stages: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Returns the layers in each nn.Sequential of stages, not in lists, which may hold experts."""
    parts = list[nn.Module]()
    for stage in stages:
        parts += [part for part in stage.modules() if isinstance(part, nn.Sequential)]
    chains = list[list[nn.Module]]()
    for part in _outermost(part for part in parts if _by_kind(part)):
        chains += _by_kind(part)
    return chains


def _outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    inside: set[nn.Module] = set()
    outer = []
    for module in modules:
        if module not in inside:
            outer.append(module)
        inside.update(module.modules())
    return outer


def _by_kind(module: nn.Module) -> list[list[nn.Module]]:
    """Returns the members that consist of modules, in groups of two or more of one kind."""
    groups: dict[Any, list[nn.Module]] = {}
    members = list(module.children())
    has_lists = all(isinstance(child, nn.ModuleList) for child in members)
    if isinstance(module, nn.ModuleList) and has_lists:  # lists are never called
        members = [member for child in members for member in child.children()]
    for member in members:
        is_list = isinstance(member, nn.ModuleList | nn.ModuleDict)
        if not is_list and list(member.children()):
            groups.setdefault(_kind(member), []).append(member)
    return [group for group in groups.values() if len(group) > 1 and _size(group)]


def _kind(module: nn.Module) -> Any:
    """Returns the class of a layer; for a sequence also the kinds of its members."""
    if type(module) is nn.Sequential:
        return (type(module), *map(_kind, module.children()))
    return type(module)


def _size(layers: list[nn.Module]) -> int:
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())
