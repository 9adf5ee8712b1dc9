"""Trains the image example of docs/own.md in a temporary folder, and keeps its picture and its table for docs/own.md.

python -m docs.pictures      writes docs/pictures/run.png and docs/pictures/run.txt, in about a minute
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
PLOT = FOLDER / "run.png"
TABLE = FOLDER / "run.txt"
COLOURS = 64  # of the committed PNG: few, so that it takes a third of the bytes


def run() -> str:
    """Returns the committed table of the run, as a block of text."""
    return f"```text\n{TABLE.read_text('utf-8')}```\n"


def trained(folder: str, *options: str) -> str:
    """Runs the page's two commands in a folder; returns the table of the test that the run prints."""
    _command(folder, "new", "my", "--like", "images")
    printed = _command(folder, "train", "my.yaml", *options)
    table = re.search(r"^metric .*?(?=\n\n)", printed, re.MULTILINE | re.DOTALL)
    if not table:
        raise RuntimeError(f"The run printed no table of its test:\n{printed[-2000:]}")
    return "\n".join(line.rstrip() for line in table[0].splitlines()) + "\n"


def main() -> None:
    """Writes, trains, and copies what a person sees at the end of the run."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        table = trained(folder)
        FOLDER.mkdir(exist_ok=True)
        TABLE.write_text(table, "utf-8")
        with Image.open(Path(folder) / "runs" / "my" / "plots" / "metrics.png") as picture:
            picture.convert("RGB").quantize(COLOURS).save(PLOT, optimize=True)
    print(
        f"wrote {PLOT.relative_to(ROOT)} ({PLOT.stat().st_size:,} bytes) and {TABLE.relative_to(ROOT)}"
    )


def _command(folder: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "trainbook", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=True
    ).stdout


TABLES = {"run": run}

if __name__ == "__main__":
    main()
