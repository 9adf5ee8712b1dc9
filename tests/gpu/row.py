"""Runs one row of a part and writes its result: python -m tests.gpu.row PART ROW FOLDER [--tiny]."""

import argparse
import importlib
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("row")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    part = importlib.import_module(f"tests.gpu.parts.{options.part}")
    result = part.measure(options.row, options.folder, options.tiny)
    aside = options.folder / "result.new"
    aside.write_text(json.dumps(result), "utf-8")
    aside.replace(options.folder / "result.json")


if __name__ == "__main__":
    main()
