"""Folders of labelled sentences, what is wrong in them, and plain judgments."""

import pytest

from lib.errors import BadInput
from tests.workloads.legal.judgments import CORPUS, as_lines, judgments
from workloads.legal import documents
from workloads.legal.document import MOST_WORDS, Document
from workloads.legal.documents import class_names, read, read_plain

FINE = "The appeal is heard\tFacts\nIt is dismissed\tRuling\n"


def folder(tmp_path, **files):
    """Writes files by stem, as .txt; text or bytes."""
    for name, content in files.items():
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


def test_a_folder_of_any_depth_gives_its_documents_by_the_order_of_the_files(tmp_path):
    made = judgments(3)
    folder(tmp_path, **{f"deep/{number}/{one.name}": as_lines(one) for number, one in enumerate(made)})
    found = read(tmp_path)
    assert [(one.name, one.sentences, one.roles) for one in found] == [
        (one.name, one.sentences, one.roles) for one in made
    ]
    assert found[1].file == "deep/1/j01.txt" and found[1].place(2) == "deep/1/j01.txt, line 3"


def test_blank_lines_part_the_documents_of_a_file_and_lines_are_counted_in_the_file(tmp_path):
    folder(tmp_path, many=f"\n\n{FINE}\n  \n{FINE.replace('heard', 'read')}\n")
    first, second = read(tmp_path)
    assert (first.name, second.name) == ("many/1", "many/2")
    assert first.lines == (3, 4) and second.place(0) == "many.txt, line 7"


def test_a_confidence_a_byte_order_mark_and_line_ends_of_windows_are_no_part_of_a_sentence(tmp_path):
    folder(tmp_path, a=b"\xef\xbb\xbfOne  thing\tFacts\t0.75\r\nAnother\tRuling\r\n")
    (found,) = read(tmp_path)
    assert found.sentences == ("One thing", "Another") and found.roles == ("Facts", "Ruling")


def test_what_lies_beside_the_documents_is_none(tmp_path):
    folder(tmp_path, a=FINE, README="read me", LICENSE="MIT", SOURCE="from the web", **{".hidden/b": "no\ttab"})
    folder(tmp_path, categories="Tax\ta b\nCivil\tc\n")
    (found,) = read(tmp_path)
    assert found.name == "a" and found.category == "Tax"


def test_documents_of_one_name_in_two_folders_have_the_folder_in_it(tmp_path):
    folder(tmp_path, **{"x/a": FINE, "y/a": FINE.replace("heard", "read"), "b": FINE.replace("heard", "seen")})
    assert [one.name for one in read(tmp_path)] == ["b", "x/a", "y/a"]


LONG = " ".join(["word"] * 20_000)
BAD = {
    "no tab": ("The appeal is dismissed\n", "a.txt, line 2: There is no tab"),
    "three tabs": ("The\tappeal\tis\tdismissed\n", "a.txt, line 2: There are 3 tabs"),
    "a tab in the sentence": ("The\tappeal\tFacts\n", "a.txt, line 2: After the second tab a confidence is expected"),
    "a confidence that is none": ("Appeal\tFacts\tnan\n", "a.txt, line 2: After the second tab"),
    "no sentence": ("\tFacts\n", "a.txt, line 2: There is no sentence"),
    "no role": ("The appeal\t \n", "a.txt, line 2: There is no role"),
    "20,000 words": (f"{LONG}\tFacts\n", "a.txt, line 2: The sentence has 20,000 words"),
    "one endless word": ("x" * 200_000 + "\tFacts\n", "a.txt, line 2: The sentence has 1 words and 200,000 letters"),
    "a carriage return": ("one\rtwo\tFacts\n", "a.txt, line 2: There is a carriage return"),
    "Latin-1": ("Café\tFacts\n".encode("latin-1"), "a.txt, line 2: Byte 0xe9 is not UTF-8"),
    "a zero byte": ("Ca\0fé\tFacts\n", "a.txt, line 2: There is a zero byte"),
}


@pytest.mark.parametrize(("line", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_line_is_refused_with_file_and_line_and_left_out_within_the_limit(tmp_path, line, sentence, capsys):
    line = line if isinstance(line, bytes) else line.encode()
    folder(tmp_path, a=b"Good\tFacts\n" + line + b"Better\tRuling\n", b=FINE)
    with pytest.raises(BadInput) as told:
        read(tmp_path)
    assert sentence in str(told.value) and "workload.bad_input_limit: 1" in str(told.value)
    kept = read(tmp_path, limit=1)
    whole_file = "byte" in sentence.lower()
    assert [one.name for one in kept] == (["b"] if whole_file else ["a", "b"])
    assert whole_file or (kept[0].sentences == ("Good", "Better") and kept[0].lines == (1, 3))
    assert sentence in capsys.readouterr().out


FILES = {
    "UTF-16": (FINE.encode("utf-16"), "b.txt, line 1: The file is UTF-16"),
    "empty": (b"", "b.txt, line 1: The document is empty"),
    "blank": (b"\n \n", "b.txt, line 1: The document is empty"),
    "no tab at all": (b"Notes on the judgments\nof the court\n", "b.txt, line 1: No line has a tab"),
}


@pytest.mark.parametrize(("content", "sentence"), FILES.values(), ids=FILES)
def test_a_bad_file_is_one_problem(tmp_path, content, sentence):
    folder(tmp_path, a=FINE, b=content)
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path)
    assert [one.name for one in read(tmp_path, limit=1)] == ["a"]


def test_a_document_that_stands_twice_is_refused_with_both_places(tmp_path):
    folder(tmp_path, a=FINE, b=FINE.upper().replace("FACTS", "Facts").replace("RULING", "Ruling"))
    with pytest.raises(BadInput, match=r"b.txt, line 1: b has the 2 sentences of a \(a.txt\)"):
        read(tmp_path)
    assert [one.name for one in read(tmp_path, limit=1)] == ["a"]


def test_an_unknown_role_is_refused_where_classes_are_given_and_the_nearest_is_named(tmp_path):
    folder(tmp_path, a=FINE.replace("Ruling", "Rulings"))
    assert read(tmp_path)[0].roles == ("Facts", "Rulings")
    with pytest.raises(
        BadInput, match="a.txt, line 2: The role 'Rulings' is none of workload.classes. Is 'Ruling' meant"
    ):
        read(tmp_path, classes=("Facts", "Ruling"))


def test_numbers_in_the_place_of_roles_are_those_of_the_classes_or_of_a_list_beside(tmp_path):
    folder(tmp_path, **{"train/a": "The appeal is heard\t0\t0.9\nIt is dismissed\t1\n"})
    assert read(tmp_path)[0].roles == ("0", "1")
    assert read(tmp_path, classes=("Facts", "Ruling"))[0].roles == ("Facts", "Ruling")
    folder(tmp_path, labels="FAC\nRPC\n")
    assert [one.roles for one in read(tmp_path)] == [("FAC", "RPC")]


def test_all_problems_are_counted_before_the_run_is_refused(tmp_path):
    folder(tmp_path, a=FINE + "x\ny\n", b=b"\xff\xfe", c="z")
    with pytest.raises(BadInput, match=r"(?s)4; workload.bad_input_limit allows 3.*a.txt, line 3.*b.txt.*c.txt"):
        read(tmp_path, limit=3)


def test_a_folder_without_documents_and_a_file_of_another_kind_are_refused(tmp_path):
    with pytest.raises(BadInput, match="There is no document in"):
        read(tmp_path)
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(BadInput, match=r"a.pdf is none of .txt, .json, .jsonl, .csv"):
        read(tmp_path / "a.pdf")


def test_a_single_file_is_a_source(tmp_path):
    folder(tmp_path, a=FINE, b="no tab")
    assert [one.name for one in read(tmp_path / "a.txt")] == ["a"]


def test_of_two_forms_the_labelled_lines_are_read_and_the_others_are_named(tmp_path, capsys):
    folder(tmp_path, a=FINE)
    (tmp_path / "all.csv").write_text("text,label\nx,Facts\n")
    assert [one.name for one in read(tmp_path)] == ["a"]
    assert "1 .csv files are not read" in capsys.readouterr().out
    (tmp_path / "a.txt").write_text("Notes.")
    assert [one.name for one in read(tmp_path)] == ["all"], "a note without any tab does not hide a table"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Tax a b\n", "categories.txt, line 1: Write a category, a tab"),
        ("Tax\ta\n\nCivil\tb a\n", "categories.txt, line 3: a is in the categories Tax and Civil"),
    ],
)
def test_categories_that_cannot_be_read_are_refused(tmp_path, text, sentence):
    folder(tmp_path, a=FINE, categories=text)
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path)


def test_roles_are_classes_in_alphabetical_order_and_numbers_in_theirs():
    def of(*roles):
        return [Document("a", "", roles, roles)]

    assert class_names(of("b", "a", "b"), 2) == ("a", "b")
    assert class_names(of("10", "2", "0"), 3) == ("0", "2", "10")
    with pytest.raises(BadInput, match="3 different roles, more than workload.classes allows \\(2\\)"):
        class_names(of("b", "a", "c"), 2)
    with pytest.raises(BadInput, match="'Facts' .1 sentences. and 'facts' .2. differ in case alone"):
        class_names(of("facts", "Facts", "facts"), 5)


def test_a_plain_judgment_of_a_sentence_a_line_keeps_its_lines(tmp_path):
    folder(tmp_path, plain="The appeal is heard\n\nIt is of Mr. A. Rao\nDismissed\n")
    found = read_plain(tmp_path / "plain.txt")
    assert found.sentences == ("The appeal is heard", "It is of Mr. A. Rao", "Dismissed") and found.roles == ()
    assert found.lines == (1, 3, 4) and found.name == "plain"


def test_a_labelled_file_is_a_plain_one_without_its_roles(tmp_path):
    folder(tmp_path, a=FINE)
    assert read_plain(tmp_path / "a.txt").sentences == ("The appeal is heard", "It is dismissed")


def test_paragraphs_that_a_tab_indents_are_no_labelled_lines(tmp_path):
    folder(tmp_path, a="\tThe appeal is heard. It is by the State.\n\n\tIt is dismissed.\tNo costs.\n")
    wanted = ("The appeal is heard.", "It is by the State.", "It is dismissed.", "No costs.")
    assert read_plain(tmp_path / "a.txt").sentences == wanted


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\n \n", "has no sentence"), ("é".encode("latin-1"), "line 1: Byte 0xe9"), ("a".encode("utf-16"), "is UTF-16")],
)
def test_a_plain_file_that_is_none_is_refused(tmp_path, content, sentence):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        read_plain(tmp_path / "a.txt")


def test_limits_of_a_sentence_leave_room_for_a_title_page():
    assert MOST_WORDS > 20 * 332, "the longest sentence of the sample corpus"


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
def test_the_sample_corpus_is_read_as_it_is_and_its_files_without_roles_too(tmp_path):
    found = read(CORPUS)
    assert len(found) == 50 and sum(map(len, found)) == 9380 and len(class_names(found, 10)) == 7
    assert sorted(documents.Counter(one.category for one in found).values()) == [7, 8, 9, 10, 16]
    assert all(one.roles[-1] == "Ruling by Present Court" for one in found)
    for one in found:
        (tmp_path / "plain.txt").write_text("\n".join(one.sentences))
        assert read_plain(tmp_path / "plain.txt").sentences == one.sentences
