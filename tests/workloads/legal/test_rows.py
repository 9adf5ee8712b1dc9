"""Documents in tables."""

import pytest

from lib.errors import BadInput
from workloads.legal.documents import read


def table(tmp_path, text):
    path = tmp_path / "all.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_column_tells_the_documents_and_another_their_category(tmp_path):
    text = 'Document,label,text,category\na,F,one,Tax\nb,F,two,Civil\na,R,"three, with\na line",Tax\n'
    first, second = read(table(tmp_path, text))
    assert (first.name, first.category, first.sentences) == ("a", "Tax", ("one", "three, with a line"))
    assert first.roles == ("F", "R") and first.place(1) == "all.csv, line 4"
    assert (second.name, second.category) == ("b", "Civil")


def test_without_one_an_empty_row_ends_a_document(tmp_path):
    assert [one.sentences for one in read(table(tmp_path, "text,label\none,F\ntwo,R\n\n,\nthree,F\n"))] == [
        ("one", "two"),
        ("three",),
    ]
    (alone,) = read(table(tmp_path, "sentence,role\none,F\n"))
    assert alone.name == "all"


def test_columns_of_a_corpus_of_segments_are_read_with_numbers_that_a_list_names(tmp_path):
    table(tmp_path, '\ufefflabels,segments\r\n0,"\n   IN THE HIGH COURT\nOF X"\r\n2.0,Heard\r\n1,""\r\n')
    (tmp_path / "labels.txt").write_text("PREAMBLE\nFAC\nNONE\n")
    (found,) = read(tmp_path, limit=1)
    assert found.sentences == ("IN THE HIGH COURT OF X", "Heard") and found.roles == ("PREAMBLE", "NONE")
    with pytest.raises(BadInput, match="all.csv, line 7: Label 3 is none of the 3 labels of the list"):
        read(table(tmp_path, (tmp_path / "all.csv").read_text() + "3,more\n"), limit=1)


def test_a_table_that_names_no_documents_is_divided_into_stretches_and_it_is_said(tmp_path, capsys):
    rows = [f"sentence {number} of all,{'FR'[number % 2]}" for number in range(205)]
    found = read(table(tmp_path, "text,label\n" + "\n".join(rows) + "\n"))
    assert [s for one in found for s in one.sentences] == [row.split(",")[0] for row in rows]
    assert len(found) == 10 and all(20 <= len(one) == len(one.roles) < 40 for one in found)
    assert found[3].name == "all/4" and found[3].place(0) == "all.csv, line 62"
    assert "taken for 10 documents of about 20" in capsys.readouterr().out


BAD = {
    "a column too many": ("text,label\none,F,2\nx,F\n", "all.csv, line 2: There are 3 columns; the head has 2"),
    "no role": ("text,label\none,\nx,F\n", "all.csv, line 2: There is no role"),
    "no text": ('text,label\n"",F\nx,F\n', "all.csv, line 2: There is no sentence"),
    "no head": ("one,F\ntwo,R\n", "all.csv, line 1: There is no column text .* the columns are one, f"),
    "no rows": ("text,label\n", "all.csv, line 1: The table has no rows"),
    "empty": ("", "all.csv, line 1: There is no column text"),
    "an open quotation mark": (
        'text,label\none,F\n"two,F\n' + "three words here,F\n" * 10_000,
        "all.csv, line 3: This is no CSV",
    ),
    "Latin-1": ("text,label\nCafé,F\n".encode("latin-1"), "all.csv, line 2: Byte 0xe9"),
    "a word without end": (f"text,label\n{'x ' * 60_000},F\n", "all.csv, line 2: The sentence has 60,000 words"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_table_is_refused_with_its_line(tmp_path, text, sentence):
    with pytest.raises(BadInput, match=sentence):
        read(table(tmp_path, text))


def test_a_bad_row_is_left_out_within_the_limit(tmp_path):
    (found,) = read(table(tmp_path, "text,label\none,F\ntwo\nthree,R\n"), limit=1)
    assert found.sentences == ("one", "three") and found.lines == (2, 4)
