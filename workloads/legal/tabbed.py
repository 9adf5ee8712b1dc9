"""Documents in .txt files of `sentence<TAB>role` lines, with a confidence after a second tab where there is one."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from workloads.legal.document import Document, Sentences, Unreadable, quoted, text_of
from workloads.legal.labels import LabelLists


def read_tabbed(
    path: Path, shown: str, classes: Sequence[str], problems: list[str], lists: LabelLists
) -> list[Document]:
    """Returns a file's documents, which blank lines part; notes a problem for each line that cannot be used."""
    text = text_of(path, shown)
    if text.strip() and "\t" not in text:
        raise Unreadable(
            f"{shown}, line 1: No line has a tab, so these are no sentences with roles. Write each line as sentence, "
            "tab, role, or move the file elsewhere."
        )
    begun = partial(Sentences, problems, classes, partial(lists.of, path))
    found, current = [], begun()
    before = len(problems)
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        where = f"{shown}, line {number}"
        if not line.strip():
            found.append(current)
            current = begun()
        elif "\r" in line:
            problems.append(f"{where}: There is a carriage return within the line. End lines by a line feed.")
        else:
            _add(current, line, number, where)
    found = [sentences for sentences in [*found, current] if len(sentences)]
    if not found and len(problems) == before:
        raise Unreadable(f"{shown}, line 1: The document is empty. Remove the file.")
    names = [path.stem] if len(found) == 1 else [f"{path.stem}/{number}" for number in range(1, len(found) + 1)]
    return [sentences.document(name, "", shown) for name, sentences in zip(names, found, strict=True)]


def _add(sentences: Sentences, line: str, number: int, where: str) -> None:
    cells = line.split("\t")
    if len(cells) < 2:
        sentences.problems.append(f"{where}: There is no tab, so no role. Write sentence, tab, role.")
    elif len(cells) > 3:
        sentences.problems.append(
            f"{where}: There are {len(cells) - 1} tabs; a line is a sentence, a role, and perhaps a confidence. "
            "Write spaces for the tabs within the sentence."
        )
    elif len(cells) == 3 and not _is_number(cells[2]):
        sentences.problems.append(
            f"{where}: After the second tab a confidence is expected, a number, and {quoted(cells[2].strip())} is "
            "none. Write spaces for the tabs within the sentence."
        )
    else:
        sentences.add(cells[0], cells[1], number, where)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
