"""Tables of an independent writer are read back unchanged, or refused with file and line."""

import bz2
import gzip
import io
import lzma
import re
import zipfile

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as some

from lib.errors import BadInput
from trainbook import paragraphs, records, split
from trainbook.supervised.coverage import covering
from trainbook.supervised.notes import collecting
from trainbook.supervised.samples import reading
from trainbook.supervised.tables import read_table

MARKS = ',;|\t"\r\n'
LETTERS = some.text(some.sampled_from(f"{MARKS} ab1é😀'\u2028\x85\ufeff.-"), max_size=6)
PLAIN = some.text(some.sampled_from("ab1é .-'"), max_size=6)
NAME = LETTERS.map(lambda name: name.replace("\ufeff", "").strip()).filter(bool)
NAMES = some.lists(NAME, min_size=1, max_size=4, unique=True)
ENCODINGS = some.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252", "iso8859-2"])
ENDS = some.sampled_from(["\n", "\r\n", "\r"])
SEPARATORS = some.sampled_from([",", ";", "|", "\t"])


def written(path, names, rows, separator, end, encoding, quote):
    lines = [separator.join(map(quote, row)) for row in [names, *rows]]
    text = end.join([*lines, ""])
    try:
        path.write_bytes(text.encode(encoding))
    except UnicodeEncodeError:
        assume(False)
    return path


def always(cell):
    return '"' + cell.replace('"', '""') + '"'


def where_needed(cell):
    if {*cell} & {*MARKS} or cell != cell.strip() or not cell:
        return always(cell)
    return cell


def never(cell):
    return cell


@some.composite
def tables(draw, cells=LETTERS, names=NAMES):
    columns = draw(names)
    row = some.tuples(*[cells] * len(columns))
    return columns, draw(some.lists(row, max_size=5))


def cells_of(path):
    with collecting(), covering(None):
        return [list(row.values()) for row in records(path)]


def said(rows):
    """Returns the rows that are not blank: blank ones are counted."""
    filled = [list(row) for row in rows if any(row)]
    return [row for row in filled if len(row) > 1 or row[0].strip()]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(tables(), SEPARATORS, ENDS, ENCODINGS, some.sampled_from([always, where_needed]))
def test_a_quoted_table_is_read_back_or_refused(
    tmp_path_factory, table, separator, end, encoding, quote
):
    names, rows = table
    path = written(
        tmp_path_factory.mktemp("any") / "a.csv", names, rows, separator, end, encoding, quote
    )
    try:
        cells = cells_of(path)
        columns = [list(row) for row in records(path)][:1]
    except BadInput as error:
        assert "a.csv" in str(error)
        return
    assert cells == said(rows)
    assert columns in ([], [names])
    by_name = {f"c{number}": name for number, name in enumerate(names)}
    if not all(name.isdecimal() for name in names):
        texts = read_table(path, "a.csv", by_name).to_dict("list")
        assert texts.keys() == by_name.keys()
        assert {len(column) for column in texts.values()} == {len(cells)}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    tables(LETTERS, some.just(["text", "label"])),
    ENDS,
    ENCODINGS,
    some.sampled_from(["a.tsv", "a.txt"]),
)
def test_a_table_of_tabs_has_no_quotes(tmp_path_factory, table, end, encoding, name):
    names, rows = table
    rows = [[re.sub(r"[\t\r\n]", "", cell) for cell in row] for row in rows]
    path = written(tmp_path_factory.mktemp("any") / name, names, rows, "\t", end, encoding, never)
    try:
        cells = cells_of(path)
    except BadInput as error:
        assert name in str(error)
        return
    assert cells == said(rows)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    tables(PLAIN, some.just(["text", "number one", "c"])),
    SEPARATORS,
    ENDS,
    some.sampled_from([always, where_needed]),
)
def test_ordinary_tables_are_read(tmp_path_factory, table, separator, end, quote):
    names, rows = table
    path = written(
        tmp_path_factory.mktemp("any") / "a.csv", names, rows, separator, end, "utf-8", quote
    )
    assert cells_of(path) == said(rows)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tables(), SEPARATORS, some.data())
def test_a_row_with_one_cell_more_is_refused(tmp_path_factory, table, separator, data):
    names, rows = table
    assume(len(names) > 1 and len(rows) > 1)
    assume(all(map(any, rows)))
    folder = tmp_path_factory.mktemp("any")
    lines = [separator.join(map(where_needed, row)) for row in [names, *rows]]
    place = data.draw(some.integers(1, len(rows)))
    lines[place] += f"{separator}x"
    (folder / "a.csv").write_bytes("\n".join([*lines, ""]).encode())
    with pytest.raises(BadInput, match=r"a.csv"):
        list(records(folder / "a.csv"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(
            "a,b\n1,2\n3,113,933\n",
            r"a.csv:3: 3 cells instead of 2 \(a, b\)",
            id="an unquoted comma in a number",
        ),
        pytest.param("a,b\n1,2\n3\n", "a.csv:3: 1 cell instead of 2", id="a cell too few"),
        pytest.param(
            "a,b\n1,2,x\n3,4,y\n",
            "a.csv:2: .*All rows have one cell more than the head",
            id="a cell more in all rows",
        ),
        pytest.param(
            "a,b\n1,x,2\n2,y,3\n", "All rows have one cell more than the head", id="row names of R"
        ),
        pytest.param(
            'a,b\nx,1\n"y,2\nz,3\n',
            "a.csv:3: A quotation mark begins a cell here that nothing",
            id="a mark that nothing shuts",
        ),
        pytest.param(
            'a,b\n"y" z,2\n',
            "a.csv:2: A quotation mark .* does not end a cell in line 2",
            id="text behind a mark",
        ),
        pytest.param('a,b\n"y \\" z",2\n', "a.csv:2: A quotation mark", id="marks of a backslash"),
        pytest.param(
            'a,b\nx,F\n"so,F\nq,R\nit",R\n',
            "a.csv:3: .* ends in line 5, and the lines between look like",
            id="two stray marks",
        ),
        pytest.param(
            'n,a\n7,x\n5,"So it\n6,and so"\n',
            "a.csv:3: .* ends in line 4, and the lines",
            id="two stray marks at the end",
        ),
        pytest.param(
            'a,b\nx,1\ny, "2"\n',
            "a.csv:3: A quotation mark stands after a space",
            id="a mark behind a space",
        ),
        pytest.param(
            "a,b,a\n1,2,3\n",
            r"a.csv:1: 2 columns are called 'a' \(1, 3\)",
            id="two columns of one name",
        ),
        pytest.param(
            "a,,\n1,2,3\n",
            r"a.csv:1: 2 columns are without a name \(2, 3\)",
            id="two columns without a name",
        ),
        pytest.param(
            "a,b\n1,2\na,b\n3,4\n", "a.csv:3: The head stands here again", id="the head again"
        ),
        pytest.param(
            "\ufeffa,b\n1,2\n\ufeffa,b\n3,4\n",
            "a.csv:3: The head stands here again",
            id="the head of another file",
        ),
        pytest.param(
            "a,b;c\n1,2;3\n",
            "a.csv: The rows can be separated by comma and by semicolon",
            id="two separators",
        ),
        pytest.param(
            b"a,b\nZ\xfcrich,1\n",
            "a.csv:2: Byte 0xfc is not UTF-8. In Windows-1252 .*Zürich",
            id="Windows-1252",
        ),
        pytest.param(
            "a,b\n1,2\n".encode("utf-16")[:-1],
            "a.csv:2: Byte .* is not UTF-16",
            id="half a letter of UTF-16",
        ),
        pytest.param(
            "a,b\n1,2\n".encode("utf-16-le"),
            "a.csv:1: There is a NUL byte",
            id="UTF-16 without a mark",
        ),
        pytest.param("a,b\n1,2\n3,\0\n", "a.csv:3: There is a NUL byte", id="a NUL byte"),
        pytest.param(
            gzip.compress(b"a,b\n1,2\n" * 99)[:-9],
            "a.csv cannot be unpacked",
            id="half of a packed file",
        ),
        pytest.param(
            "Prices of 2024\na,b\n1,2\n",
            "a.csv:2: 2 cells instead of 1",
            id="a title above the head",
        ),
    ],
)
def test_what_may_be_read_wrongly_is_refused_by_file_and_line(tmp_path, content, sentence):
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=f"(?s){sentence}"):
        list(records(path))


@pytest.mark.parametrize(
    "cell",
    ["113,933", "1.234,5", "1 200", "$5", "5 %", "1_000", "inf", "nan", "NA", "", "-", "1e999"],
)
def test_a_number_that_is_none_is_refused_and_never_shrunk(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f'a,b\n1,2\n"{cell}",3\n')
    with pytest.raises(BadInput, match="a.csv:3: .* in the column a is no number"):
        list(records(tmp_path, numbers=("a",)))


def test_plain_numbers_are_floats_and_those_of_json_stay_as_they_are(tmp_path):
    (tmp_path / "a.csv").write_text("a\n 61\n1e3\n-.5\n+2\n")
    values = [row["a"] for row in records(tmp_path, numbers=("a",))]
    assert values == [61, 1000, -0.5, 2]
    (tmp_path / "a.jsonl").write_text('{"a": 61}\n{"a": "1.5"}\n{"a": null}\n')
    rows = [*records(tmp_path, "*.jsonl", numbers=("a",))]
    assert [row.get("a") for row in rows] == [61, 1.5, None]
    with pytest.raises(BadInput, match="a.jsonl:3: There is no column 'a'"):
        rows[2]["a"]
    (tmp_path / "a.jsonl").write_text('{"a": 61}\n{"a": true}\n')
    with pytest.raises(BadInput, match="a.jsonl:2: True in the column a is no number"):
        list(records(tmp_path, "*.jsonl", numbers=("a",)))


@pytest.mark.parametrize(
    ("name", "content", "about"),
    [
        pytest.param(
            "a.csv", "a,b\n1,x\n\n2,y\n", "2 rows of 4 lines (1 head, 1 blank)", id="a.csv"
        ),
        pytest.param(
            "crlf.csv", "a,b\r\n1,x\r\n2,y\r\n", "2 rows of 3 lines (1 head)", id="crlf.csv"
        ),
        pytest.param("cr.csv", "a,b\r1,x\r2,y\r", "2 rows of 3 lines (1 head)", id="cr.csv"),
        pytest.param(
            "utf16.csv",
            "a,b\n1,x\n2,y\n".encode("utf-16"),
            "2 rows of 3 lines (1 head); UTF-16",
            id="utf16.csv",
        ),
        pytest.param(
            "semicolon.csv",
            "a;b\n1;x\n2;y\n",
            "2 rows of 3 lines (1 head); separated by semicolon",
            id="semicolon.csv",
        ),
        pytest.param(
            "excel.csv",
            "sep=;\r\na;b\r\n1;x\r\n2;y\r\n",
            "2 rows of 4 lines (1 head, 1 blank); the first line names the separator; separated by semicolon",
            id="excel.csv",
        ),
        pytest.param(
            "tab.csv",
            "a\tb\n1\tx\n2\ty\n",
            "2 rows of 3 lines (1 head); separated by tab",
            id="tab.csv",
        ),
        pytest.param(
            "names.csv",
            " a ,b\n1,x\n2,y\n",
            "2 rows of 3 lines (1 head); spaces round names of columns are left out",
            id="names.csv",
        ),
        pytest.param(
            "spaces.csv",
            'a, b\n1, "x"\n2, y\n',
            "2 rows of 3 lines (1 head); spaces after separators are left out",
            id="spaces.csv",
        ),
        pytest.param(
            "cell.csv",
            "a,b\n1,x,\n2,y,\n",
            "2 rows of 3 lines (1 head); rows end with one more separator than the head",
            id="cell.csv",
        ),
        pytest.param(
            "column.csv",
            "a,b,\n1,x,\n2,y,\n",
            "2 rows of 3 lines (1 head); 1 empty columns without a name are left out",
            id="column.csv",
        ),
        pytest.param(
            "empty.csv",
            "a,b\n1,x\n,\n2,y\n,\n",
            "2 rows of 5 lines (1 head, 2 of empty cells)",
            id="empty.csv",
        ),
        pytest.param("tabs.tsv", "a\tb\n1\tx\n2\ty\n", "2 rows of 3 lines (1 head)", id="tabs.tsv"),
        pytest.param(
            "r.tsv", '"a"\t"b"\n"1"\t"x"\n"2"\t"y"\n', "2 rows of 3 lines (1 head)", id="r.tsv"
        ),
        pytest.param("tabs.txt", "a\tb\n1\tx\n2\ty\n", "2 rows of 3 lines (1 head)", id="tabs.txt"),
        pytest.param(
            "commas.txt",
            "a,b\n1,x\n2,y\n",
            "2 rows of 3 lines (1 head); separated by comma",
            id="commas.txt",
        ),
        pytest.param(
            "lines.jsonl",
            '{"a": "1", "b": "x"}\n\n{"a": "2", "b": "y"}\n',
            "2 rows of 3 lines (1 blank)",
            id="lines.jsonl",
        ),
        pytest.param(
            "lines.ndjson",
            '{"a": "1", "b": "x"}\r\n{"a": "2", "b": "y"}',
            "2 rows of 2 lines",
            id="lines.ndjson",
        ),
        pytest.param(
            "lines.json",
            '{"a": "1", "b": "x"}\n{"a": "2", "b": "y"}\n',
            "2 rows of 2 lines",
            id="lines.json",
        ),
        pytest.param(
            "list.json",
            '[{"a": "1", "b": "x"},\n {"a": "2", "b": "y"}]\n',
            "2 rows",
            id="list.json",
        ),
        pytest.param(
            "columns.json",
            '{"a": ["1", "2"], "b": ["x", "y"]}',
            "2 rows; an object of columns",
            id="columns.json",
        ),
        pytest.param(
            "pandas.json",
            '{"a": {"0": "1", "1": "2"}, "b": {"0": "x", "1": "y"}}',
            "2 rows; an object of columns",
            id="pandas.json",
        ),
        pytest.param(
            "packed.csv.gz",
            gzip.compress(b"a,b\n1,x\n2,y\n"),
            "2 rows of 3 lines (1 head)",
            id="packed.csv.gz",
        ),
        pytest.param(
            "packed.csv.bz2",
            bz2.compress(b"a,b\n1,x\n2,y\n"),
            "2 rows of 3 lines (1 head)",
            id="packed.csv.bz2",
        ),
        pytest.param(
            "packed.jsonl.xz",
            lzma.compress(b'{"a": "1", "b": "x"}\n{"a": "2", "b": "y"}'),
            "2 rows of 2 lines",
            id="packed.jsonl.xz",
        ),
        pytest.param(
            "unpacked.csv.gz", "a,b\n1,x\n2,y\n", "2 rows of 3 lines (1 head)", id="unpacked.csv.gz"
        ),
    ],
)
def test_a_table_is_read_whole_and_what_was_recognised_is_noted(tmp_path, name, content, about):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with collecting() as notes, covering(tmp_path):
        rows = [(row["a"], row["b"]) for row in records(tmp_path / name)]
    assert rows == [("1", "x"), ("2", "y")]
    assert notes == [f"{name}: {about}."]


def archive(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return buffer.getvalue()


def test_an_archive_of_one_table_is_that_table(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(archive(**{"deep/a.tsv": "a\tb\n1\tx\n", "__MACOSX/._a.tsv": "\0"}))
    assert [dict(row) for row in records(path)] == [{"a": "1", "b": "x"}]
    path.write_bytes(archive(**{"a.csv": "a", "b.csv": "b"}))
    with pytest.raises(BadInput, match=r"a.zip holds 2 files \(a.csv, b.csv\)"):
        list(records(path))
    path.write_bytes(archive(**{"[Content_Types].xml": "", "xl/workbook.xml": ""}))
    with pytest.raises(BadInput, match="a.zip is a workbook. Save its sheet as CSV"):
        list(records(path))


def test_long_cells_and_cells_of_lines_are_whole_and_counted(tmp_path):
    long = "x" * 200_000
    lines = "one, two\nthree\u2028four\r\nfive"
    (tmp_path / "a.csv").write_bytes(f'a,b\n{long},1\n"{lines}",2\n'.encode())
    with collecting() as notes, covering(tmp_path):
        assert [row["a"] for row in records(tmp_path)] == [long, lines]
    assert notes[0] == "a.csv: 2 rows of 5 lines (1 head, 2 inside quoted cells)."
    assert notes[1] == "Columns of a.csv that nothing used: b."


def test_quotes_between_tabs_are_letters_and_those_of_a_spreadsheet_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_text('a\tb\n"The plaintiff\tF\n"Yes."\tR\n"and\tF\n')
    with collecting() as notes, covering(tmp_path):
        cells = [row["a"] for row in records(tmp_path, "*.tsv")]
    assert cells == ['"The plaintiff', '"Yes."', '"and']
    assert "1 cells in quotation marks, which are letters in TSV" in notes[0]
    (tmp_path / "a.tsv").write_text('a\tb\n"He said ""no"""\tF\n')
    sentence = "a.tsv:2: .* is quoted as in CSV, and TSV has no quotes. Name the file .csv"
    with pytest.raises(BadInput, match=sentence):
        list(records(tmp_path, "*.tsv"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"a": 1}\n{"a": 1, "a": 2}\n', "a.json:2: .*has the key 'a' twice"),
        ('[{"a": 1},\n {"a": 2},\n 3]', "a.json:1: it is .* instead of an object"),
        ('[{"a": 1},\n {"a": 2},\n]', "a.json:2: it is no JSON"),
        ('[{"a": 1},\n [2]]', r"a.json:2: it is \[2\] instead of an object"),
        ('{"a": [1, 2], "b": [3]}', "a.json: The columns have different lengths: a 2, b 1"),
    ],
)
def test_json_that_is_no_table_is_refused_by_its_line(tmp_path, content, sentence):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(BadInput, match=sentence):
        list(records(tmp_path, "*.json"))


@pytest.mark.parametrize(
    ("use", "unused"),
    [
        pytest.param(lambda row: (row["a"], row.get("c")), "b", id="by name"),
        pytest.param(lambda row: row.items(), "", id="whole"),
        pytest.param(lambda row: dict(**row), "", id="as keywords"),
        pytest.param(lambda row: {**row}, "", id="in a dict"),
        pytest.param(lambda row: {} | row, "", id="merged"),
        pytest.param(lambda row: row | {"c": 1}, "", id="changed"),
        pytest.param(lambda row: ("a" in row, len(row)), "a, b, c", id="asked for"),
    ],
)
def test_columns_that_nothing_used_are_named(tmp_path, use, unused):
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n")
    with collecting() as notes, covering(tmp_path):
        for row in records(tmp_path):
            use(row)
    assert notes[1:] == ([f"Columns of a.csv that nothing used: {unused}."] if unused else [])


def test_many_files_are_summed_up_and_tables_that_nothing_read_are_named(tmp_path):
    for number in range(7):
        (tmp_path / f"{number}.csv").write_text("a;b\n1;2\n\n" if number < 3 else "a,b\n1,2\n")
    for name in ("notes.txt", "deep/8.csv", "9.csv.gz", "._1.csv", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with collecting() as notes, covering(tmp_path):
        assert sum(int(row["a"]) for row in records(tmp_path)) == 7
    assert notes == [
        "7 files: 7 rows of 17 lines (7 head, 3 blank).",
        "3 of the files: separated by semicolon, such as 0.csv.",
        "Columns of 0.csv and 6 files more that nothing used: b.",
        "Files beside them that were not read: 9.csv.gz, deep/8.csv, notes.txt.",
    ]


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path):
    (tmp_path / "a.csv").write_text("rooms;area\n1;2\n")
    row = next(records(tmp_path))
    sentence = "a.csv:2: There is no column 'price'. Its columns are: rooms, area."
    with pytest.raises(BadInput, match=sentence):
        row["price"]
    with pytest.raises(KeyError):
        row["price"]
    assert row.get("price") is None
    assert row.get("price", 1) == 1


def test_files_without_a_head_have_the_columns_that_are_given(tmp_path):
    (tmp_path / "a.tsv").write_bytes("\ufeffone\u2028two, three\tF\r\n\r\nfour\tR\r\n".encode())
    rows = [dict(row) for row in records(tmp_path, "*.tsv", columns=("text", "label"))]
    assert rows == [{"text": "one\u2028two, three", "label": "F"}, {"text": "four", "label": "R"}]
    (tmp_path / "a.tsv").write_text("one, two\nthree, four\n")  # without labels: no comma separates
    row = next(records(tmp_path, "*.tsv", columns=("text", "label")))
    assert dict(row) == {"text": "one, two"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("one\tF\ntwo\n", "a.tsv:2: 1 cell instead of 2"),
        ("a\tb\tc\n", "a.tsv:1: 3 cells instead of 2"),
    ],
)
def test_files_without_a_head_have_rows_of_one_width(tmp_path, text, sentence):
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        list(records(tmp_path, "*.tsv", columns=("text", "label")))


def test_paragraphs_are_the_rows_between_blank_lines(tmp_path):
    content = "\ufeff# sent_id = 1\r\nA\tD\r\n#\tX\r\n\r\n \r\n# 2\r\nb\tN\r\n"
    (tmp_path / "a.tsv").write_bytes(content.encode())
    with collecting() as notes, covering(tmp_path):
        texts = [[[*row.values()] for row in rows] for rows in paragraphs(tmp_path)]
    assert texts == [[["A", "D"], ["#", "X"]], [["b", "N"]]]
    assert notes == ["a.tsv: 3 rows of 7 lines (2 blank, 2 comments)."]


def test_numbers_above_a_table_without_names_are_its_head(tmp_path):
    (tmp_path / "a.csv").write_text("0,1\nF,x\n")
    assert read_table(tmp_path / "a.csv", "a.csv", {"label": "0"})["label"].tolist() == ["F"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 9\n",
            "is a pointer of Git LFS",
        ),
        (b"<!DOCTYPE html>\n<html><title>404</title></html>\n", "is a web page"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "is a workbook"),
        (
            b"# made by R\nx,y\n1,2\n",
            "a.csv:2: 2 cells instead of 1 .* If the first line is a comment, delete it",
        ),
    ],
)
def test_what_is_no_table_is_named_by_its_kind(tmp_path, content, sentence):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        list(records(tmp_path))


@pytest.mark.parametrize(
    ("rows", "is_noted"),
    [("a,1\nb,2\nTotal,3\n", True), ("Total,1\nb,2\nTotal,3\n", False), ("Total,1\n", False)],
)
def test_a_last_row_that_may_be_a_sum_is_noted(tmp_path, rows, is_noted):
    (tmp_path / "a.csv").write_text(f"name,x\n{rows}", "utf-8")
    with collecting() as notes:
        list(records(tmp_path))
    assert (
        "the last row (line 4) has 'Total': delete it if it sums the others" in " ".join(notes)
    ) is is_noted


def test_files_called_as_parts_that_are_dealt_together_are_named(tmp_path):
    for name in ("train", "val", "other"):
        (tmp_path / f"{name}.csv").write_text(f"x,y\n1,{name}\n", "utf-8")
    with collecting() as notes, reading(tmp_path):
        split([row["x"], row.get("label")] for row in records(tmp_path))
    text = " ".join(notes)
    assert "The rows of train.csv, val.csv are dealt to the splits together" in text
    assert "Columns that were asked for, and are not in other.csv and 2 files more: label." in text
    with collecting() as notes, reading(tmp_path):
        split(records(tmp_path / "train.csv"))
    assert "dealt" not in " ".join(notes)


def test_rows_of_parquet_lack_missing_cells_and_have_a_named_index(tmp_path, monkeypatch):
    index = pd.Index([7, 8], name="id")
    frame = pd.DataFrame({"a": [1.5, None], "b": ["x", None]}, index=index)
    monkeypatch.setattr(pd, "read_parquet", lambda file: frame)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    rows = [dict(row) for row in records(tmp_path, "*.parquet", numbers=("a",))]
    assert rows == [{"id": 7, "a": 1.5, "b": "x"}, {"id": 8, "b": None}]
