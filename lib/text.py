"""Text for a person: aligned tables, durations, amounts of bytes."""

from collections.abc import Sequence


def amount(count: float) -> str:
    """Bytes for a person, in the units of a disk."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as columns, numbers and text alike to the right, the first line being the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 3:07:05."""
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d}"


def listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))
