"""The page of the public names: signature and docstring of each name that `from trainbook import ...` gives."""

import inspect
from collections.abc import Callable
from typing import Any

import trainbook

# What a docstring cannot say: constants and aliases have none of their own.
CONSTANTS = {
    "BESIDE_MASKS": "Patterns of the usual layouts of pictures beside their masks. As `sentinels` of a "
    "task they let a mounted input be recognised.",
    "Batch": "A batch: tensors by name, `dict[str, Tensor]`, samples first.",
    "IGNORED": "The label -100 of a position without a target, as in torch and transformers. Losses "
    "and scores leave it out.",
    "IN_FOLDERS": "Patterns of a folder of pictures for each class. As `sentinels` of a task they let "
    "a mounted input be recognised.",
}


def kind_of(value: Any) -> str:
    """Returns the heading of a name: "class", "function" or "constant"."""
    if inspect.isclass(value):
        return "class"
    return "function" if inspect.isfunction(value) else "constant"


def signature(name: str, value: Any) -> str:
    """Returns the call of a function as it is written, or the name alone."""
    if not inspect.isfunction(value):
        return name
    parameters = inspect.signature(value).parameters.values()
    shown = [str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters]
    return f"{name}({', '.join(shown)})"


def names() -> str:
    """Returns the public names in their order, each with what it is and its docstring."""
    parts = []
    for name in trainbook.PUBLIC:
        value = getattr(trainbook, name)
        text = CONSTANTS.get(name) or inspect.getdoc(value) or ""
        parts.append(f"### {name}\n\n`{signature(name, value)}`, a {kind_of(value)}.\n\n{text}\n")
    return "\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {"public-names": names}
