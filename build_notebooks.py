"""Builds notebooks/*.ipynb from notebooks_src/*.py, checks that they are fresh, and imports edited ones.

    python build_notebooks.py [01_graphmer ...]      build these, or all; only files that changed are written
    python build_notebooks.py --check [NAME ...]     show what is stale; exit code 1 if anything is stale
    python build_notebooks.py --import EDITED.ipynb  write an edited notebook back into its source

A source is a percent-format file with this header (only `title` is required) and one placeholder for the carrier:
    # ---
    # trainbook:
    #   title: Graphmer
    #   tasks: [graphmer]               what the notebook carries of lib/tasks
    #   configs: [graphmer_small]       and of configs
    #   carry: training                 planning: of a task, only what its modules import at their top
    #   gpu: true
    #   internet: false
    # ---
    # %% tags=["carrier"]
    # The build puts lib here.
"""

import argparse
import ast
import contextlib
import difflib
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jupytext
import nbformat
from nbformat import NotebookNode

import notebook_carrier as carrier
from lib.config.reader import Reader
from lib.errors import BadInput
from lib.machine import disk

ROOT = Path(__file__).resolve().parent
MAX_BYTES = 600_000  # Kaggle has refused 1 MB; a page this size still opens fast
MAX_CODE_LINES = 300  # outside the carrier; what is longer belongs into lib
# With comment_magics a comment such as `# rm old runs` would become a shell command.
FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
CELL_KEYS = ("_kg_hide-input", "_kg_hide-output", "cellView", "jupyter", "tags")
FOLDED = {"_kg_hide-input": True, "cellView": "form", "jupyter": {"source_hidden": True}}  # Kaggle, Colab, JupyterLab
RUN_TAGS = {"injected-parameters", "papermill-error-cell-tag"}  # cells that papermill adds to what it executed
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"}}
HEADER = re.compile(r"# ---\n((?:#.*\n)*?)# ---\n\s*")
MAGIC = re.compile(r"^\s*[!%?]|=\s*[!%]|\?\s*$")


@dataclass(frozen=True)
class Header:
    """The header of a source: what its notebook is called, carries and needs."""

    title: str
    tasks: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    carry: Literal["training", "planning"] = "training"
    gpu: bool = False
    internet: bool = False


@dataclass(frozen=True)
class HeaderFile:
    """The mapping in a source's first comment, which has this one key."""

    trainbook: Header


@dataclass(frozen=True)
class Source:
    """A parsed source: `prefix` is the header as written, `lines` has the line at which each cell's text begins."""

    path: Path
    header: Header
    prefix: str
    cells: list[NotebookNode]
    lines: list[int]


def has_tag(cell: NotebookNode, *tags: str) -> bool:
    return not set(tags).isdisjoint(cell.metadata.get("tags", []))


def read_header(path: Path, text: str) -> Header:
    """Reads the header strictly. Raises BadInput for an unknown, missing or wrongly typed key."""
    reader = Reader({})
    root = reader.root("\n" + re.sub(r"^# ?", "", text, flags=re.MULTILINE), str(path), "Give a title.")
    header = reader.section(HeaderFile, root, "")
    reader.finish()
    return header.trainbook


def read_source(path: Path, text: str | None = None) -> Source:
    """Reads and checks a source, or `text`, which is not written yet. Raises BadInput."""
    text = path.read_text(encoding="utf-8") if text is None else text
    match = HEADER.match(text)
    if not match or not text[match.end():].startswith("# %%"):
        raise BadInput(f"{path}:1: not a notebook source: '# ---', '# trainbook:', keys, '# ---', then '# %%'.")
    lines = [number + 1 for number, line in enumerate(text.split("\n"), 1) if line.startswith("# %%")]
    cells = jupytext.reads(text[match.end():], fmt=FORMAT).cells
    if len(lines) != len(cells):
        raise BadInput(f"{path}: {len(lines)} '# %%' lines, {len(cells)} cells: no line in a string may begin so.")
    source = Source(path, read_header(path, match[1]), match[0], cells, lines)
    check_source(source)
    return source


def check_source(source: Source) -> None:
    """Raises BadInput unless a source is Python without magics, short, with one carrier and one parameters cell."""
    total, seen = 0, {}
    for cell, line in zip(source.cells, source.lines, strict=True):
        if cell.cell_type == "code":
            check_code(source.path, line, cell.source)
            code = [text for text in cell.source.split("\n") if text.strip() and not text.lstrip().startswith("#")]
            total += len(code)
            if code and has_tag(cell, "carrier"):
                raise BadInput(f"{source.path}:{line}: the carrier's placeholder must hold nothing but comments.")
            if len(code) > 1 and seen.setdefault(cell.source, line) != line:
                raise BadInput(f"{source.path}:{line}: this cell repeats the one at line {seen[cell.source]}.")
    if total > MAX_CODE_LINES:
        raise BadInput(f"{source.path}: {total} code lines, at most {MAX_CODE_LINES}. Move some into lib.")
    for tag, needed in (("carrier", True), ("parameters", bool(source.header.tasks))):
        count = sum(has_tag(cell, tag) for cell in source.cells)
        if count > 1 or count < needed:
            raise BadInput(f"{source.path}: {count} cells are tagged '{tag}'; one must be '# %% tags=[\"{tag}\"]'.")


def check_code(path: Path, line: int, code: str) -> None:
    """Raises BadInput unless a cell is Python: IPython's own syntax hides failures and runs nowhere else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape, say, is the linter's matter
            compile(code, str(path), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        number = min(error.lineno or 1, code.count("\n") + 1)
        text = code.split("\n")[number - 1]
        magic = "a shell command or magic; use subprocess.run(..., check=True) or Python"
        problem = magic if MAGIC.search(text) else f"syntax error, {error.msg}"
        raise BadInput(f"{path}:{line + number - 1}: {problem}: {text.strip()}") from None


def parameters(source_path: Path) -> dict[str, object]:
    """Returns names and defaults of the parameters cell: papermill injects a misspelt name with a mere log line."""
    defaults: dict[str, object] = {}
    for cell in (cell for cell in read_source(source_path).cells if has_tag(cell, "parameters")):
        for statement in ast.parse(cell.source).body:
            try:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                defaults.update({target.id: ast.literal_eval(statement.value) for target in targets})
            except (AttributeError, ValueError):
                raise BadInput(f"{source_path}: not 'NAME: type = literal': {ast.unparse(statement)}") from None
    return defaults


def build(source: Source, files: dict[str, str], before: str = "") -> NotebookNode:
    """Builds the notebook of a source; `before` is the code of the committed one's carrier.

    A cell's id depends on its type and source (the carrier's: on the placeholder).
    """
    cells, keys = [], []
    for cell in source.cells:
        keys.append(f"{cell.cell_type}\n{cell.source}")
        new = NotebookNode(id=carrier.checksum(f"{keys.count(keys[-1])}\n{keys[-1]}"), cell_type=cell.cell_type,
                           source=cell.source, metadata={key: cell.metadata[key] for key in CELL_KEYS
                                                         if cell.metadata.get(key)})
        if cell.cell_type == "code":
            new.update(execution_count=None, outputs=[])
        if has_tag(cell, "carrier"):
            new.source = carrier.code(source.path.stem, files, before)
            new.metadata.update(FOLDED)
        cells.append(new)
    gpu, internet = source.header.gpu, source.header.internet
    kaggle = {"accelerator": "nvidiaTeslaT4" if gpu else "none", "dataSources": [], "isGpuEnabled": gpu,
              "isInternetEnabled": internet, "language": "python", "sourceType": "notebook"}
    notebook = nbformat.from_dict({"cells": cells, "metadata": {**METADATA, "kaggle": kaggle},
                                   "nbformat": 4, "nbformat_minor": 5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nbformat only warns of missing or repeated ids
        nbformat.validate(notebook)
    return notebook


def notebook_text(source_path: Path, root: Path = ROOT) -> str:
    """Returns the text of the notebook, which building and checking compare with the committed one.

    It is the same bytes on every machine: the packed block of the committed notebook is kept where its content is
    what would be packed now.
    """
    source, target = read_source(source_path), root / "notebooks" / f"{source_path.stem}.ipynb"
    header, codes = source.header, [cell.source for cell in source.cells if cell.cell_type == "code"]
    planning = header.carry == "planning"
    files = carrier.carried_files(source_path, header.tasks, header.configs, planning, codes, root)
    before = ""
    with contextlib.suppress(BadInput, OSError):  # none yet, or a damaged one
        before = next((c.source for c in read_cells(target.read_text("utf-8")) if has_tag(c, "carrier")), "")
    text = nbformat.writes(build(source, files, before)).rstrip("\n") + "\n"
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
    """Returns a bounded diff of two notebooks, cell by cell, or of their JSON where the cells are the same."""
    try:
        listings = [[line for cell in read_cells(text) for line in
                     (f"[{cell.cell_type} cell] {dict(cell.metadata) or ''}", *cell.source.split("\n"), "")]
                    for text in (old, new)]
    except BadInput:  # what was committed is no notebook
        listings = [[], []]
    old, new = ["\n".join(lines) for lines in listings] if listings[0] != listings[1] else [old, new]
    return carrier.bounded_diff(old, new, f"{name} (as it is)", f"{name} (as built)")


def run(names: list[str], check: bool, root: Path) -> int:
    """Builds, or checks, the named notebooks or all; returns the exit code. Raises BadInput."""
    sources = {path.stem: path for path in sorted((root / "notebooks_src").glob("*.py"))}
    stems = [Path(name).name.removesuffix(".py").removesuffix(".ipynb") for name in names] or list(sources)
    if unknown := [name for name in stems if name not in sources]:
        raise BadInput(f"there is no notebooks_src/{unknown[0]}.py. There are: {', '.join(sources) or 'none'}.")
    stale = []
    for name in stems:
        target = root / "notebooks" / f"{name}.ipynb"
        text = notebook_text(sources[name], root)
        old = target.read_bytes().decode("utf-8", "replace") if target.is_file() else None
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
        cell.source = cell.source.rstrip("\n")
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
    """Returns the source's text with these cells. Raises BadInput where it would not read back as these cells."""
    filters = {"notebook_metadata_filter": "-all", "cell_metadata_filter": f"title,{','.join(CELL_KEYS)},-all"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"jupytext": filters})
    text = source.prefix + jupytext.writes(notebook, fmt=FORMAT).lstrip("\n")
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
        lib_edits = carrier.edits(target.stem, code, root)
    except BadInput as error:
        raise BadInput(f"{path} was not imported: {error}") from None
    if text:
        write(target, text)
    print(f"notebooks_src/{target.name}: {'updated' if text else 'unchanged'}", *lib_edits, sep="\n")
    return int(bool(lib_edits))


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command line; returns the exit code: 0, 1 (stale, or an edited carrier cell) or 2 (bad input)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks such as 01_graphmer (none: all); with --import, files")
    parser.add_argument("--check", action="store_true", help="write nothing; show what is stale")
    parser.add_argument("--import", dest="bring_back", action="store_true", help="bring edited notebooks back")
    options = parser.parse_args(argv)
    if options.bring_back and (options.check or not options.names):
        parser.error("--import needs the edited notebooks, and no --check.")
    try:
        if options.bring_back:
            return max([import_notebook(Path(name), root) for name in options.names])
        return run(options.names, options.check, root)
    except BadInput as error:
        print(f"build_notebooks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
