"""The earlier address of what `from trainbook import ...` gives: task files that name it go on working."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("trainbook"), name)
