"""Builds notebooks/*.ipynb from notebooks_src/*.py, and checks that they are fresh.

    python build_notebooks.py [01_graphmer ...]      build these, or all; only files that changed are written
    python build_notebooks.py --check [NAME ...]     show what is stale; exit code 1 if anything is stale
    python build_notebooks.py --run [NAME ...]       run them, on CPUs, and keep what they show

A source is a percent-format file with this header (only `title` is required) and one placeholder for the carrier:
    # ---
    # trainbook:
    #   title: Graphmer
    #   tasks: [graphmer]               what the notebook carries of workloads
    #   configs: [graphmer_small]       and of configs
    #   carry: training                 planning: of a task, only what its modules import at their top
    #   gpu: true
    #   internet: false
    # ---
    # %% tags=["carrier"]
    # The build puts lib here.
A line `# %% shared: NAME` stands for the cells of that name in trainbook/building/shared.py.in.
A build keeps what a cell showed when it was run, for as long as its source stays the same.
"""

import argparse
import base64
import difflib
import io
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image

from lib.errors import BadInput
from lib.machine import disk
from lib.text import as_html
from trainbook.building import carrier
from trainbook.building.source import build, read_source

ROOT = Path(__file__).resolve().parent
MAX_DIFF_LINES, MAX_LINE = 60, 1000  # lines of a diff, and characters of a line in it
# With what its cells show. Kaggle has refused 1 MB; growth is a decision: 500,000 until the readers grew (2026-11-28)
MAX_BYTES = 650_000
# (id, source) of a cell -> its outputs and their number
Shown = dict[tuple[str, str], dict[str, Any]]
BASES = [*(ROOT / "configs").glob("*-base")]  # small models that a run finds beside it, as mounted
_AT_FULL_SIZE = 3  # pictures of a cell; more have their bytes together
_COLOURS = 32  # of a picture: a plot looks the same, in half of the bytes
PICTURES = {  # in an output: the most bytes, and how they are written
    "image/png": (50_000, {"format": "PNG", "optimize": True}),
    "image/jpeg": (36_000, {"format": "JPEG", "quality": 50}),
}
_MOST_HTML = 30_000  # characters; a page that needs more is shown as its text
BADGES = {
    "Kaggle": ("https://kaggle.com/static/images/open-in-kaggle.svg", "https://kaggle.com/kernels/welcome?src={address}"),
    "Colab": ("https://colab.research.google.com/assets/colab-badge.svg", "https://colab.research.google.com/github/{path}"),
}  # fmt: skip


def executed(text: str, name: str) -> str:
    """Returns the text of a notebook after a run in an empty folder, without a GPU and away from any checkout."""
    import papermill

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TRAINBOOK_CACHE"] = f"{tempfile.gettempdir()}/trainbook-cache"
    with tempfile.TemporaryDirectory(prefix="trainbook-run-") as folder:
        for base in BASES:
            shutil.copytree(base, Path(folder) / base.name)
        path = Path(folder) / f"{name}.ipynb"
        path.write_text(text, encoding="utf-8")
        papermill.execute_notebook(path, path, cwd=folder, progress_bar=True)
        run = path.read_text(encoding="utf-8").replace(f"{folder}/", "")
    notebook = nbformat.reads(run, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            pictures = [each for each in cell.outputs if PICTURES.keys() & each.get("data", {})]
            share = min(1.0, _AT_FULL_SIZE / max(1, len(pictures)))
            shown = [as_shown(output, share) for output in cell.outputs]
            cell.outputs = [output for output in shown if output is not None]
    return nbformat.writes(notebook)


def cells_of(text: str) -> list[Any]:
    """Returns the cells of a notebook; none of an empty or damaged text."""
    try:
        return nbformat.reads(text, as_version=4).cells
    except Exception:  # whatever nbformat raises: the build replaces such a file
        return []


def outputs_of(text: str) -> Shown:
    """Returns what each cell of a notebook shows."""
    run = [cell for cell in cells_of(text) if cell.cell_type == "code" and cell.get("outputs")]
    return {
        (cell.id, cell.source): {"outputs": cell.outputs, "execution_count": cell.execution_count}
        for cell in run
    }


def as_shown(output: Any, share: float = 1.0) -> Any:
    """Returns an output as a page can show it, or None: no widget and no bar, which need a kernel; small pictures.

    `share` is of the bytes that a picture may have.
    """
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    if output.output_type == "error":
        return None
    data = output.data
    is_widget = any("widget" in mime for mime in data)
    is_bar = output.output_type == "display_data" and data.keys() <= {"text/plain"}
    page = data.get("text/html", "")
    # GitHub draws no SVG in a notebook, and leaves out styles
    if "<svg" in page or len(page) > _MOST_HTML:
        data["text/html"] = as_html(data.get("text/plain", ""))
    if data.get("text/html"):
        data.pop("text/plain", None)  # which no page shows beside it
    for mime in PICTURES.keys() & data.keys():
        data[mime] = small_picture(data[mime], mime, share)
    return None if is_widget or is_bar or not any(data.values()) else output


def small_picture(text: str, mime: str, share: float = 1.0) -> str:
    """Returns a picture, a plot of few colours, as small as it takes to have at most so many bytes of its kind."""
    most, options = PICTURES[mime]
    picture = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
    while True:
        shown = picture
        if mime == "image/png":
            shown = picture.quantize(_COLOURS, dither=Image.Dither.NONE)
        file = io.BytesIO()
        shown.save(file, **options)
        if file.tell() <= share * most:
            return base64.b64encode(file.getvalue()).decode("ascii")
        picture = picture.resize([side * 9 // 10 for side in picture.size])


def repository() -> str:
    """Returns where this repository is published, without a slash at its end; empty where it is not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return project["tool"]["trainbook"]["repository"].rstrip("/")


def badges(name: str, published: str) -> str:
    """Returns the badges that open a notebook on Kaggle and on Colab."""
    path = f"{published.removeprefix('https://github.com/')}/blob/main/notebooks/{name}.ipynb"
    badges = []
    for place, (image, template) in BADGES.items():
        link = template.format(address=f"https://github.com/{path}", path=path)
        badges.append(f"[![Open in {place}]({image})]({link})")
    return " ".join(badges)


def notebook_text(source_path: Path, root: Path = ROOT, last: str = "") -> str:
    """Returns the text of the notebook, the same bytes on every machine; a check compares it with the committed one.

    `last` is the text of an earlier one: what its cells showed stays with those that are the same.
    """
    source = read_source(source_path)
    header = source.header
    codes = [cell.source for cell in source.cells if cell.cell_type == "code"]
    planning = header.carry == "planning"
    files = carrier.carried_files(source_path, header.tasks, header.configs, planning, codes, root)
    notebook = build(source, files, commit=_known_commit(last, files) or carrier.commit_of(root))
    shown = outputs_of(last)
    for cell in notebook.cells:
        cell.update(shown.get((cell.id, cell.source), {}))
    if published := repository():
        head, _, rest = notebook.cells[0].source.partition("\n\n")
        notebook.cells[0].source = f"{head}\n\n{badges(source_path.stem, published)}\n\n{rest}"
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    size = len(text.encode("utf-8"))
    if size > MAX_BYTES:
        raise BadInput(
            f"{source_path}: the notebook would have {size:,} bytes, more than the {MAX_BYTES:,} that are allowed. "
            f"Import less, or raise MAX_BYTES. The largest carried files: {carrier.largest(files)}."
        )
    return text


def _known_commit(last: str, files: dict[str, str]) -> str:
    """Returns the commit that an earlier notebook of the same files names: the next makes none stale."""
    for cell in cells_of(last):
        match = carrier.COMMIT.search(cell.source)
        if match and carrier.packed(cell.source) == carrier.archive(files):
            return match[1]
    return ""


def write(path: Path, text: str) -> None:
    with disk.whole(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def difference(old: str, new: str, name: str) -> str:
    """Returns a bounded diff of the JSON of two notebooks, without lines that are packed files."""
    before = [line for line in old.split("\n") if len(line) < MAX_LINE]
    after = [line for line in new.split("\n") if len(line) < MAX_LINE]
    names = f"{name} (as it is)", f"{name} (as built)"
    diff = list(difflib.unified_diff(before, after, *names, lineterm="", n=1))
    lines = diff[:MAX_DIFF_LINES]
    if len(diff) > MAX_DIFF_LINES:
        lines.append(f"... and {len(diff) - MAX_DIFF_LINES} more lines")
    return "\n".join(lines)


def run(names: list[str], check: bool, root: Path, execute: bool = False) -> int:
    """Builds, checks, or runs the named notebooks or all; returns the exit code. Raises BadInput."""
    sources = {path.stem: path for path in sorted((root / "notebooks_src").glob("*.py"))}
    stems = [Path(name).name.removesuffix(".py").removesuffix(".ipynb") for name in names]
    for name in stems:
        if name not in sources:
            known = ", ".join(sources) or "none"
            raise BadInput(f"there is no notebooks_src/{name}.py. There are: {known}.")
    stale = []
    for name in stems or sources:
        target = root / "notebooks" / f"{name}.ipynb"
        old = target.read_bytes().decode("utf-8", "replace") if target.is_file() else ""
        last = executed(notebook_text(sources[name], root), name) if execute else old
        text = notebook_text(sources[name], root, last)
        if text == old:
            continue
        if not check:
            target.parent.mkdir(exist_ok=True)
            write(target, text)
            print(f"built notebooks/{name}.ipynb ({len(text.encode('utf-8')) / 1000:.0f} KB)")
            continue
        stale.append(name)
        if target.is_file():
            print(difference(old, text, target.name))
        else:
            print(f"notebooks/{name}.ipynb is missing.")
    orphans = []
    if not names:
        built = {path.stem for path in (root / "notebooks").glob("*.ipynb")}
        orphans = sorted(built - sources.keys())
    for name in orphans:
        print(
            f"notebooks/{name}.ipynb has no source notebooks_src/{name}.py: delete the notebook or add the source."
        )
    if stale:
        print(f"Stale: {', '.join(stale)}. To rebuild:\n    make notebooks")
    return int(bool(stale or (check and orphans)))


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command line; returns the exit code: 0, 1 (stale) or 2 (bad input)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="notebooks such as 01_graphmer (none: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; show what is stale")
    parser.add_argument("--run", action="store_true", help="run them and keep what they show")
    options = parser.parse_args(argv)
    if options.run and options.check:
        parser.error("--run writes, and --check does not.")
    try:
        return run(options.names, options.check, root, options.run)
    except BadInput as error:
        print(f"build_notebooks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
