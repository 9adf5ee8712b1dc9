"""Formats text: aligned tables, durations, amounts of bytes, criteria with their results."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

_NUMBER = re.compile(r"[+-]?\d[\d.,:/%e-]*( .*)?")
# Lines that two spaces divide or indent
_ROWS = re.compile(r"((?:^.*  \S.*(?:\n|\Z)){2,})", re.MULTILINE)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> str:
    """Sets rows of cells as columns, two spaces apart, flush right or, if in `left`, flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.ljust(width) if number in left else cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def split_tables(text: str) -> Iterator[str | list[list[str]]]:
    """Yields the parts of a text: rows of cells for the tables of `aligned`, text for others.

    No cell may hold two spaces. Lines of one column stay text; one with only the last cell
    continues the line above.
    """
    for number, part in enumerate(_ROWS.split(text)):
        lines = part.strip("\n").split("\n")
        columns = _columns(lines)
        if number % 2 and len(columns) > 1:
            rows: list[list[str]] = []
            for line in lines:
                cells = [line[begin:end].strip() for begin, end in columns]
                if rows and not any(cells[:-1]):  # it continues the line above
                    rows[-1][-1] += f" {cells[-1]}"
                else:
                    rows.append(cells)
            yield rows
        elif columns:
            yield "\n".join(lines)


def _columns(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Returns begin and end of each column; two blanks in all lines divide them."""
    inked = ""
    for letters in zip_longest(*lines, fillvalue=" "):
        inked += " " if {*letters} <= {" "} else "x"
    return [match.span() for match in re.finditer(r"x+( x+)*", inked)]


def table(rows: Sequence[Sequence[str]], bold: str | None = None) -> str:
    """Returns rows as a table of HTML, with words above numbers as head, and one `bold` row."""
    numbers = [_has_numbers(column[1:]) for column in zip(*rows, strict=True)]
    first = rows[0] if rows else ()
    heads = [cell for cell, is_number in zip(first, numbers, strict=True) if is_number]
    has_head = not all(map(_NUMBER.fullmatch, heads))
    lines = ""
    for place, row in enumerate(rows):
        tag = "td"
        right = "right;white-space:nowrap"
        if has_head and not place:
            tag = "th"
            right = "right"
        cells = ""
        for cell, is_number in zip(row, numbers, strict=True):
            look = right if is_number else "left"
            cells += f'<{tag} style="text-align:{look}">{escape(cell)}</{tag}>'
        style = ' style="font-weight:bold"' if row[0] == bold else ""
        lines += f"<tr{style}>{cells}</tr>"
    return f'<div style="overflow-x:auto"><table cellpadding="3" style="margin:4px 0">{lines}</table></div>'


def _has_numbers(cells: Sequence[str]) -> bool:
    return any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells if cell)


def as_html(text: str) -> str:
    """Returns a text as HTML: its tables, and between them paragraphs whose lines and indents stay."""
    parts = ""
    for part in split_tables(text):
        if isinstance(part, str):
            lines = re.sub("^ +", "&emsp;", escape(part), flags=re.MULTILINE).replace("\n", "<br>")
            parts += f'<div style="max-width:72em;margin:4px 0">{lines}</div>'
        else:
            parts += table(part)
    return parts


def duration(seconds: float) -> str:
    """Writes hours, minutes and seconds: 3:07:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def amount(count: float) -> str:
    """Writes a number of bytes in the units of a disk: 1.2 GB, 34.5 MB, 0.7 MB."""
    if count >= 1e9:
        return f"{count / 1e9:,.1f} GB"
    return f"{count / 1e6:,.1f} MB"


def weights(count: int) -> str:
    """Writes a number of weights: 7,540, or 22.7 M."""
    if count >= 1e5:
        return f"{count / 1e6:,.1f} M"
    return f"{count:,}"


def computed(value: float) -> str:
    """Writes a computed number without false precision: 0.52, 9.30, 93.0, 177,000."""
    if value < 100:
        if value < 10:
            return f"{value:.2f}"
        return f"{value:.1f}"
    return f"{float(f'{value:.3g}'):,.0f}"


@dataclass(frozen=True)
class Criterion:
    """A figure beside the least that it should reach; it is judged and never enforced."""

    name: str
    value: float
    wanted: float

    @property
    def reached(self) -> bool:
        return self.value >= self.wanted

    def __str__(self) -> str:
        verdict = "reached" if self.reached else "missed"
        return f"Criterion {self.name} >= {self.wanted:.2f}: {self.value:.4f}, {verdict}."
