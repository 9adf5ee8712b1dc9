"""What a graph may say: relations with the entity types of their heads (domain) and of their tails (range)."""

from pathlib import Path
from typing import Any

import yaml

RELATIONS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))["relations"]
STRUCTURAL = {name for name, relation in RELATIONS.items() if relation.get("structural")}
