"""Builds notebooks/*.ipynb from notebooks_src/*.py, checks that they are fresh, and imports edited ones.

    python build_notebooks.py [01_graphmer ...]      build these, or all; only files that changed are written
    python build_notebooks.py --check [NAME ...]     show what is stale; exit code 1 if anything is stale
    python build_notebooks.py --run [NAME ...]       run them, on CPUs, and keep what they show
    python build_notebooks.py --import EDITED.ipynb  write an edited notebook back into its source

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
A line `# %% shared: NAME` stands for the cells of that name in trainbook/notebooks/shared.py.in.
A build keeps what a cell showed when it was run, for as long as its source stays the same.
"""

import argparse
import difflib
import re
import sys
import tomllib
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from lib.errors import BadInput
from lib.machine import disk
from trainbook.notebooks import carrier, recorded
from trainbook.notebooks.source import CELL_KEYS, FORMAT, Source, build, has_tag, read_source, shared_cells

ROOT = Path(__file__).resolve().parent
MAX_DIFF_LINES, MAX_LINE = 60, 1000  # lines of a diff, and characters of a line in it
MAX_BYTES = 500_000  # with what its cells show; Kaggle has refused 1 MB; growth is a decision
BADGES = {
    "Kaggle": ("https://kaggle.com/static/images/open-in-kaggle.svg", "https://kaggle.com/kernels/welcome?src={address}"),
    "Colab": ("https://colab.research.google.com/assets/colab-badge.svg", "https://colab.research.google.com/github/{path}"),
}  # fmt: skip
# The line below the title of a notebook that is published somewhere; an import leaves it out
BADGE_LINE = re.compile(r"(?<=\n)\[!\[Open in .*\n\n")
RUN_TAGS = {"injected-parameters", "papermill-error-cell-tag"}  # cells that papermill adds to what it executed


def repository() -> str:
    """Returns where this repository is published, without a slash at its end; empty where it is not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return project["tool"]["trainbook"]["repository"].rstrip("/")


def badges(name: str, published: str) -> str:
    """Returns the badges that open a notebook on Kaggle and on Colab."""
    path = f"{published.removeprefix('https://github.com/')}/blob/main/notebooks/{name}.ipynb"
    values = {"address": f"https://github.com/{path}", "path": path}
    shown = ((place, image, link.format(**values)) for place, (image, link) in BADGES.items())
    return " ".join(f"[![Open in {place}]({image})]({link})" for place, image, link in shown)


def notebook_text(source_path: Path, root: Path = ROOT, last: str = "") -> str:
    """Returns the text of the notebook, the same bytes on every machine; a check compares it with the committed one.

    `last` is the text of an earlier one: what its cells showed stays with those that are the same.
    """
    source = read_source(source_path)
    header, codes = source.header, [cell.source for cell in source.cells if cell.cell_type == "code"]
    planning = header.carry == "planning"
    files = carrier.carried_files(source_path, header.tasks, header.configs, planning, codes, root)
    notebook, shown = build(source, files), recorded.of(last)
    for cell in notebook.cells:
        cell.update(shown.get((cell.id, cell.source), {}))
    if published := repository():
        head, _, rest = notebook.cells[0].source.partition("\n\n")
        notebook.cells[0].source = f"{head}\n\n{badges(source_path.stem, published)}\n\n{rest}"
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    if (size := len(text.encode("utf-8"))) > MAX_BYTES:
        raise BadInput(
            f"{source_path}: the notebook would have {size:,} bytes, more than the {MAX_BYTES:,} that are allowed. "
            f"Import less, or raise MAX_BYTES. The largest carried files: {carrier.largest(files)}."
        )
    return text


def write(path: Path, text: str) -> None:
    with disk.whole(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def read_cells(text: str) -> list[NotebookNode]:
    try:
        return nbformat.reads(text, as_version=4).cells
    except (ValueError, AttributeError, KeyError, nbformat.ValidationError) as error:
        raise BadInput(f"it cannot be read as a notebook: {error}") from None


def difference(old: str, new: str, name: str) -> str:
    """Returns a bounded diff of the JSON of two notebooks, without lines that are packed files."""
    listings = [[line for line in text.split("\n") if len(line) < MAX_LINE] for text in (old, new)]
    diff = list(difflib.unified_diff(*listings, f"{name} (as it is)", f"{name} (as built)", lineterm="", n=1))
    left_out = [f"... and {len(diff) - MAX_DIFF_LINES} more lines"] if len(diff) > MAX_DIFF_LINES else []
    return "\n".join([*diff[:MAX_DIFF_LINES], *left_out])


def run(names: list[str], check: bool, root: Path, execute: bool = False) -> int:
    """Builds, checks, or runs the named notebooks or all; returns the exit code. Raises BadInput."""
    sources = {path.stem: path for path in sorted((root / "notebooks_src").glob("*.py"))}
    stems = [Path(name).name.removesuffix(".py").removesuffix(".ipynb") for name in names] or list(sources)
    if unknown := [name for name in stems if name not in sources]:
        raise BadInput(f"there is no notebooks_src/{unknown[0]}.py. There are: {', '.join(sources) or 'none'}.")
    stale = []
    for name in stems:
        target = root / "notebooks" / f"{name}.ipynb"
        old = target.read_bytes().decode("utf-8", "replace") if target.is_file() else None
        last = recorded.execute(notebook_text(sources[name], root), name) if execute else old or ""
        text = notebook_text(sources[name], root, last)
        if text != old and check:
            stale.append(name)
            print(f"notebooks/{name}.ipynb is missing." if old is None else difference(old, text, target.name))
        elif text != old:
            target.parent.mkdir(exist_ok=True)
            write(target, text)
            print(f"built notebooks/{name}.ipynb ({len(text.encode('utf-8')) / 1000:.0f} KB)")
    orphans = [] if names else sorted({path.stem for path in (root / "notebooks").glob("*.ipynb")} - set(sources))
    for name in orphans:
        print(f"notebooks/{name}.ipynb has no source notebooks_src/{name}.py: delete the notebook or add the source.")
    if stale:
        print(f"Stale: {', '.join(stale)}. To rebuild:\n    make notebooks")
    return int(bool(stale or (check and orphans)))


def edited_cells(path: Path) -> list[NotebookNode]:
    """Returns the cells of an edited notebook, without what running and foreign editors added. Raises BadInput."""
    if not path.is_file():
        raise BadInput("there is no such file.")
    cells = [cell for cell in read_cells(path.read_text(encoding="utf-8")) if not has_tag(cell, *RUN_TAGS)]
    for number, cell in enumerate(cells):
        cell.setdefault("id", f"cell-{number}")  # notebooks of format 4.4 have no ids
        cell.source = BADGE_LINE.sub("", cell.source, count=1).rstrip("\n")
        # papermill leaves an empty list of tags everywhere, and that is no edit
        cell.metadata = NotebookNode({k: cell.metadata[k] for k in CELL_KEYS if cell.metadata.get(k, []) != []})
        if "jupyter" in cell.metadata:
            cell.metadata["jupyter"] = {key: value for key, value in cell.metadata["jupyter"].items() if value}
        if carrier.FIRST_LINES.match(cell.source):  # also where a platform dropped the tag
            cell.metadata["tags"] = ["carrier"]
    return cells


def merged_cells(source: Source, edited: list[NotebookNode]) -> list[NotebookNode]:
    """Returns the edited cells, with what only the source knows (title, tags, spacing) where one can be matched."""
    unmatched = {cell.id: old for cell, old in zip(build(source, {}).cells, source.cells, strict=True)}
    rules = (lambda new, key, old: has_tag(new, "carrier") and has_tag(old, "carrier"),
             lambda new, key, old: key == new.get("id"),
             lambda new, key, old: old.source == new.source,
             lambda new, key, old: difflib.get_close_matches(new.source, [old.source]))
    matches: dict[int, NotebookNode] = {}
    for rule in rules:
        for number, new in enumerate(edited):
            keys = (key for key, old in unmatched.items() if old.cell_type == new.cell_type and rule(new, key, old))
            if number not in matches and (key := next(keys, None)):
                matches[number] = unmatched.pop(key)
    return [merged_cell(matches.get(number), new) for number, new in enumerate(edited)]


def merged_cell(old: NotebookNode | None, new: NotebookNode) -> NotebookNode:
    """Returns an edited cell; a key that it lacks keeps the source's value, a false one goes: platforms drop keys."""
    if old and has_tag(old, "carrier"):
        return old
    merged = {**old.metadata, **new.metadata} if old else new.metadata
    metadata = NotebookNode({key: value for key, value in merged.items() if value or key not in new.metadata})
    return NotebookNode({**(old or new), "source": new.source, "metadata": metadata})


def merged_text(source: Source, cells: list[NotebookNode]) -> str:
    """Returns the source's text with these cells; edited ones are no longer shared. Raises BadInput.

    They must read back as these cells.
    """
    filters = {"notebook_metadata_filter": "-all", "cell_metadata_filter": f"title,{','.join(CELL_KEYS)},-all"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"jupytext": filters})
    text = source.prefix + jupytext.writes(notebook, fmt=FORMAT).lstrip("\n")
    for name in source.shared:
        cells_of_name = re.escape(shared_cells(name, str(source.path)))
        text = re.sub(rf"^{cells_of_name}$(?=\n+# %%|\n*\Z)", f"# %% shared: {name}", text, count=1, flags=re.MULTILINE)
    again = read_source(source.path, text).cells
    if [(new.cell_type, new.source) for new in again] != [(cell.cell_type, cell.source) for cell in cells]:
        raise BadInput("a cell cannot be written in percent format.")
    return text


def import_notebook(path: Path, root: Path) -> int:
    """Writes an edited notebook back into its source; returns 1 where its carrier cell was edited."""
    try:
        edited = edited_cells(path)
        code = next((cell.source for cell in edited if has_tag(cell, "carrier")), "")
        names = [path.stem, *carrier.FIRST_LINES.findall(code)[:1]]
        target = next((file for name in names if (file := root / "notebooks_src" / f"{name}.py").is_file()), None)
        if target is None:
            raise BadInput(f"there is no notebooks_src/{names[-1]}.py that it could belong to.")
        source = read_source(target)
        cells = merged_cells(source, edited)
        text = None if cells == source.cells else merged_text(source, cells)
        lib_edits = carrier.edits(code)
    except BadInput as error:
        raise BadInput(f"{path} was not imported: {error}") from None
    if text:
        write(target, text)
    print(f"notebooks_src/{target.name}: {'updated' if text else 'unchanged'}")
    if lib_edits:
        print(lib_edits)
    return int(bool(lib_edits))


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command line; returns the exit code: 0, 1 (stale, or an edited carrier cell) or 2 (bad input)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks such as 01_graphmer (none: all); with --import, files")
    parser.add_argument("--check", action="store_true", help="write nothing; show what is stale")
    parser.add_argument("--run", action="store_true", help="run them and keep what they show")
    parser.add_argument("--import", dest="bring_back", action="store_true", help="bring edited notebooks back")
    options = parser.parse_args(argv)
    if options.bring_back and (options.check or not options.names):
        parser.error("--import needs the edited notebooks, and no --check.")
    if options.run and options.check:
        parser.error("--run writes, and --check does not.")
    try:
        if options.bring_back:
            return max([import_notebook(Path(name), root) for name in options.names])
        return run(options.names, options.check, root, options.run)
    except BadInput as error:
        print(f"build_notebooks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
