"""Reads users' tables: CSV, TSV, JSON, JSON lines and Parquet, with columns that the configuration names."""

import io
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lib.config.files import read_bytes
from lib.errors import BadInput, printable

_MOST_BYTES = 2**30  # of a file


def find_files(source: Path, pattern: str) -> dict[str, Path]:
    root = source.parent if source.is_file() else source
    paths = [source] if source.is_file() else sorted(source.glob(pattern.lstrip("/") or "*"))
    if files := {path.relative_to(root).as_posix(): path for path in paths if path.is_file() and path.name[0] != "."}:
        return files
    raise BadInput(f"No file below {printable(source)} matches workload.source.files, {printable(pattern)}.")


def read_table(path: Path, shown: str, columns: Mapping[str, str], optional: Sequence[str] = ()) -> pd.DataFrame:
    """Returns cells as text under our names for `columns` (or numbers, without a head). Raises BadInput."""
    is_headless = all(column.isdecimal() for name, column in columns.items() if name not in optional)
    try:
        frame = _frame(path, shown, is_headless)
    except BadInput:
        raise
    except (OSError, ValueError, TypeError, RecursionError, ImportError) as error:
        why = printable(str(error).strip().split("\n")[0], most=300)
        raise BadInput(f"{shown} cannot be read as {path.suffix[1:] or 'a table'} ({why}).") from None
    places = {str(name): place for place, name in enumerate(frame.columns)}
    texts: dict[str, Any] = {}
    for name, column in columns.items():
        if column not in places and name not in optional:
            what = f"{shown} has no column {printable(column)}"
            advice = f"Name that of the {name} as workload.columns.{name}."
            raise BadInput(f"{what}; its columns are {printable(', '.join(places), most=300) or 'none'}. {advice}")
        cells = list(frame.iloc[:, places[column]]) if column in places else []
        if any(isinstance(cell, list | dict) for cell in cells):
            raise BadInput(f"{shown}: the column {column} holds lists or objects. Flatten them first.")
        texts[name] = [_text(cell) for cell in cells] if column in places else ""
    return pd.DataFrame(texts, index=range(1, len(frame) + 1))


def read_text(path: Path, shown: str) -> str:
    """Returns the text of a UTF-8 file without a byte order mark. Raises BadInput with the line that is not UTF-8."""
    try:
        content = read_bytes(path, _MOST_BYTES)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{shown} cannot be read ({error}).") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{shown}, line {line}: Byte 0x{content[error.start]:02x} is not UTF-8. Save it so.") from None


def _frame(path: Path, shown: str, is_headless: bool) -> pd.DataFrame:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return pd.read_parquet(io.BytesIO(read_bytes(path, _MOST_BYTES)))
    text = read_text(path, shown)
    if suffix in (".json", ".jsonl"):
        lines, values = [text] if suffix == ".json" else text.split("\n"), []
        for number, line in enumerate(lines, 1):
            try:
                values += [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number + error.lineno - 1}: {error.msg}") from None
        return pd.DataFrame(values[0] if suffix == ".json" and values else values)
    separator = "\t" if suffix == ".tsv" else max(",;|\t", key=text.partition("\n")[0].count)
    head = None if is_headless else "infer"
    return pd.read_csv(io.StringIO(text), sep=separator, header=head, dtype=str, keep_default_na=False)


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    number = int(value) if isinstance(value, float) and value.is_integer() else value  # 3 in a column with gaps
    text = str(number).encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a letter, out of JSON
    return " ".join(unicodedata.normalize("NFC", text).split())
