"""Labelled sentences in the documented layout, sentences of running text, and whole documents in parts."""

import itertools
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import yaml

from lib.errors import BadInput
from lib.task import load_config
from tests.workloads.legal.conftest import CORPUS, judgments
from trainbook.supervised.coverage import covering
from trainbook.supervised.notes import collecting
from workloads.legal.documents import (
    check_leaks,
    class_names,
    deal,
    read,
    read_plain,
    split_sentences,
    split_text,
)
from workloads.legal.settings import Settings, Source, Split

FINE = "The appeal is heard\tFacts\nIt is dismissed\tRuling\n"


def folder(tmp_path, **files):
    """Writes files by stem, as .txt; text or bytes."""
    for name, content in files.items():
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


def documents(source, limit=0, classes=16):
    return read(source, Settings(bad_input_limit=limit, classes=classes))[0]


def test_folders_of_any_depth_give_documents_by_the_order_of_files_with_unique_names(tmp_path):
    made = judgments(3)
    for number, one in enumerate(made):
        lines = (
            f"{sentence}\t{role}\n" for sentence, role in zip(one.sentences, one.roles, strict=True)
        )
        folder(tmp_path / "a", **{f"deep/{number}/{one.name}": "".join(lines)})
    found = documents(tmp_path / "a")
    assert [(one.name, one.sentences, one.roles) for one in found] == [
        (m.name, m.sentences, m.roles) for m in made
    ]
    assert found[1].place == "deep/1/j01.txt, line 1"
    assert [one.name for one in documents(tmp_path / "a" / "deep" / "0" / "j00.txt")] == ["j00"]
    folder(tmp_path / "b", **{"x/a": FINE, "y/a": FINE, "b": FINE})
    assert [one.name for one in documents(tmp_path / "b")] == ["b", "x/a/a", "y/a/a"]


def test_blank_lines_part_the_documents_of_a_file_and_lines_are_counted_in_the_file(tmp_path):
    one = b"\xef\xbb\xbfOne  thing\tFacts\r\nAnother\tRuling\r\n"
    first, second, windows = documents(folder(tmp_path, many=f"\n\n{FINE}\n  \n{FINE}\n", one=one))
    assert windows.sentences == ("One thing", "Another")
    assert windows.roles == ("Facts", "Ruling")
    assert first.name == "many/1"
    assert second.name == "many/2"
    assert first.place == "many.txt, line 3"
    assert second.place == "many.txt, line 7"


def test_files_without_a_tab_are_none_and_categories_are_read(tmp_path):
    folder(tmp_path, a=FINE, README="read me", categories="Tax\ta b\nCivil\tc\n")
    (found,) = documents(tmp_path)
    assert found.name == "a"
    assert found.category == "Tax"
    with pytest.raises(BadInput, match="There is no sentence with a role"):
        documents(folder(tmp_path / "notes", a="Notes on the judgments\n"))


# Of each collection: a small sample as it is published, and the lines of `workload:` that name its columns
TWO = [("one two", "three"), ("FAC", "RLC")]
COLLECTIONS = {
    "a table of segments": (
        ("all.csv", 'Document,label,text,category\nd,FAC,"one\n two",Tax\nd,RLC,three,Tax\n'),
        "source: {files: '*.csv'}\ncolumns: {document: Document, sentence: text, role: label}",
    ),
    "a line of JSON a sentence": (
        ("a.jsonl", '{"id": 7, "sentence": "one two", "role": "FAC"}\n{"id": 7, "sentence": "three", "role": "RLC"}\n'),
        "source: {files: '*.jsonl'}\ncolumns: {document: id}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "workload"), COLLECTIONS.values(), ids=COLLECTIONS)
def test_public_collections_load_by_six_lines(tmp_path, file, workload):
    (tmp_path / file[0]).write_text(file[1])
    training = {"effective_batch": 8, "max_steps": 4}
    content = {"task": "legal", "training": training, "workload": yaml.safe_load(workload)}
    (tmp_path / "legal.yaml").write_text(yaml.safe_dump(content))
    (found,), _ = read(tmp_path, load_config(tmp_path / "legal.yaml").workload)
    assert [found.sentences, found.roles] == TWO
    assert workload.count("\n") < 6
    assert found.place == f"{file[0]}, row 1"


BAD = {
    "no tab": ("The appeal is dismissed\n", "a.txt, line 2: There are 0 tabs"),
    "no role": ("The appeal\t \n", "a.txt, line 2: There is no role"),
    "an unknown role": (
        "Appeal\tRulings\n",
        "line 2: The role Rulings is none of workload.classes",
    ),
}


@pytest.mark.parametrize(("line", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_line_is_refused_with_file_and_line_or_left_out_within_the_limit(
    tmp_path, line, sentence
):
    folder(tmp_path, a=f"Good\tFacts\n{line}Better\tRuling\n")
    with pytest.raises(BadInput, match=f"(?s)bad_input_limit: 1.*{sentence}"):
        documents(tmp_path, classes=("Facts", "Ruling"))
    (found,), text = read(tmp_path, Settings(bad_input_limit=1, classes=("Facts", "Ruling")))
    assert found.sentences == ("Good", "Better")
    assert sentence in text


def test_a_plain_judgment_is_a_sentence_a_line_or_running_text(tmp_path):
    lines = "The appeal is heard\n\nIt is of Mr. A. Rao\nDismissed\n"
    running = "\tThe appeal is heard. It is by the State.\n\n\tIt is dismissed.\tNo costs.\n"
    for text, sentences in (
        (lines, ("The appeal is heard", "It is of Mr. A. Rao", "Dismissed")),
        (running, ("The appeal is heard.", "It is by the State.", "It is dismissed.", "No costs.")),
    ):
        found = read_plain(folder(tmp_path, plain=text) / "plain.txt")
        assert found.sentences == sentences
        assert found.roles == ()
        assert found.name == "plain"
    with pytest.raises(BadInput, match="has no sentence"):
        read_plain(folder(tmp_path, plain=b"\n \n") / "plain.txt")


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
def test_the_sample_corpus_is_read_as_it_is_and_its_files_without_roles_too(tmp_path):
    found = documents(CORPUS)
    assert len(found) == 50
    assert sum(map(len, found)) == 9380
    assert len(class_names(found, 10)) == 7
    assert sorted(Counter(one.category for one in found).values()) == [7, 8, 9, 10, 16]
    assert all(one.roles[-1] == "Ruling by Present Court" for one in found)
    for one in found:
        (tmp_path / "plain.txt").write_text("\n".join(one.sentences))
        assert read_plain(tmp_path / "plain.txt").sentences == one.sentences


def test_a_paragraph_is_split_where_its_sentences_end():
    for sentences in (
        ["The appeal is heard.", "It is dismissed."],
        ["Mr. A. K. Rao, for the appellant, relies on Art. 14.", "That is of no help."],
        ["See State of U.P. v. Ram, (1990) 2 S.C.C. 5 at p. 12.", "We agree."],
        ["Messrs. Tata Sons Ltd. is the owner.", "No. 5 is not."],
        ["Why?", "Because Sec. 5 says so!", "The court (per Rao, J.) held so."],
        ['He said "I am here."', '"You are not," said the other.'],
        ["(iv) There was no notice.", "(v) There was no hearing."],
        ["It cost Rs. 500 in all."], ["no full stop at the end"], [],
    ):  # fmt: skip
        assert split_sentences(" ".join(sentences)) == sentences


def test_broken_lines_are_joined_paragraphs_a_line_are_split_and_sentences_a_line_are_not():
    text = "The appellant was\nconvicted of theft. He\nappealed to the\nHigh Court.\n\nThe State\ndid not appear.\n"
    wanted = [
        "The appellant was convicted of theft.",
        "He appealed to the High Court.",
        "The State did not appear.",
    ]
    assert split_text(text) == wanted
    paragraph = "The first. The second. The third."
    assert (
        split_text(f"{paragraph}\n{paragraph}")
        == [f"The {word}." for word in ("first", "second", "third")] * 2
    )
    lines = ["The first is here. Or there", "The second", "The third", "The fourth", "The fifth"]
    assert split_text("\n".join(lines)) == lines


GROUPS = ("civil", "criminal", "tax")


def test_every_document_is_tested_in_one_fold_and_no_part_shares_a_document_whatever_their_order():
    documents = judgments(20, GROUPS)
    tested = []
    for fold in range(4):
        parts = deal(documents, Split(folds=4, fold=fold, validation=0.25))
        assert sorted(names_of(itertools.chain(*parts.values()))) == names_of(documents)
        assert len(parts["validation"]) in (3, 4)
        assert len(parts["test"]) == 5
        counts = Counter(one.category for one in parts["test"])
        assert all(1 <= counts[group] <= 2 for group in GROUPS), "its share of each category"
        tested += names_of(parts["test"])
    assert sorted(tested) == names_of(documents)
    (first, again, other) = (
        names_of(deal(documents, Split(partition=n))["test"]) for n in (3, 3, 4)
    )
    assert first == again != other
    assert names_of(deal(documents[::-1], Split(partition=3))["test"]) == first[::-1]


def names_of(documents):
    return [document.name for document in documents]


def in_files(documents, *files):
    return [replace(one, file=files[number % len(files)]) for number, one in enumerate(documents)]


def test_parts_that_files_are_named_for_are_the_split_and_what_they_lack_is_dealt_from_the_training():
    documents = in_files(judgments(12), "set/train.json", "valid.json", "test/a.json")
    parts = deal(documents, Split())
    found = [{one.file for one in part} for part in parts.values()]
    assert found == [{"set/train.json"}, {"valid.json"}, {"test/a.json"}]
    with pytest.raises(
        BadInput, match=r"fold is 1, and the test that files are named for has no folds"
    ):
        deal(documents, Split(fold=1))


def test_a_copy_under_another_name_is_refused_and_a_sentence_that_many_judgments_have_is_not():
    made = judgments(4)
    copy = replace(
        made[0], name="copy", sentences=(*made[0].sentences, "and one more of five words")
    )
    copy = replace(copy, file="copy.txt", line=7)
    copied = r"copy \(copy.txt, line 7\) and j00 \(j00.txt, line 1\)"
    with pytest.raises(BadInput, match=copied):
        check_leaks([*made, copy], {"train": [0, 1], "validation": [2], "test": [3, 4]})
    stock = "The order of the court was as follows"
    made = [replace(one, sentences=(*one.sentences, stock, "Appeal dismissed")) for one in made]
    check_leaks(made, {"train": [0], "validation": [1], "test": [2]})
    with pytest.raises(BadInput, match="No document is left for train: there are 1 in all"):
        deal(made[:1], Split())


def test_copies_are_left_out_by_one_key_and_the_test_stays_whole():
    made = judgments(6)
    copies = [
        replace(made[number], name=f"copy {number}", file=f"copy{number}.txt") for number in (0, 1)
    ]
    files = [
        "train.txt",
        "train.txt",
        "train.txt",
        "val.txt",
        "test.txt",
        "test.txt",
        "test.txt",
        "val.txt",
    ]
    documents = [replace(one, file=file) for one, file in zip([*made, *copies], files, strict=True)]
    with pytest.raises(BadInput, match=r"in two parts: 2. .*set workload.copies: drop"):
        deal(documents, Split())
    with collecting() as notes:
        parts = deal(documents, Split(), copies="drop")
    assert {name: names_of(part) for name, part in parts.items()} == {
        "train": ["j02"], "validation": ["j03", "copy 1"], "test": ["j04", "j05", "copy 0"],
    }  # fmt: skip
    assert notes == [
        "Documents of train that are left out as copies: 2, such as j00 (train.txt, line 1), a copy of copy 0 "
        "(test.txt, line 1)."
    ]
    with pytest.raises(BadInput, match="All documents of train are in another part"):
        deal([documents[0], documents[6], documents[3]], Split(), copies="drop")


def test_files_lines_columns_and_categories_that_give_nothing_are_named(tmp_path):
    folder(tmp_path, a=FINE, b=f"\n{FINE}", README="read me", categories="Tax\ta c\n")
    (tmp_path / "more.csv").write_text("sentence,role,year\nOne thing,Facts,1\n")
    with collecting() as notes, covering(tmp_path):
        found, text = read(tmp_path, Settings())
    assert len(found) == 2
    assert text == "Sentences with a role: 4 in 2 documents; left out: 0."
    assert notes == [
        "Files without a sentence and its role: README.txt.",
        "Names in categories.txt that are no document: c.",
        "Documents without a category: 1, such as b.",
        "a.txt: 2 rows of 2 lines.",
        "b.txt: 2 rows of 3 lines (1 blank).",
        "Files beside them that were not read: more.csv.",
    ]
    (tmp_path / "categories.txt").write_text("Tax\ta b\nCivil\ta\n")
    with pytest.raises(BadInput, match="a has two categories, Tax and Civil. Keep one"):
        documents(tmp_path)
    (tmp_path / "categories.txt").unlink()
    settings = Settings(source=Source(files="*.csv"))
    with collecting() as notes, covering(tmp_path):
        read(tmp_path, settings)
    assert notes[0] == "more.csv: 1 row of 2 lines (1 head)."
    assert notes[1] == "Columns of more.csv that nothing used: year."


def test_a_task_says_what_was_read_and_left_out(tmp_path, legal):
    for number, one in enumerate(judgments(12)):
        lines = (
            f"{sentence}\t{role}\n" for sentence, role in zip(one.sentences, one.roles, strict=True)
        )
        folder(
            tmp_path / "data", **{f"{'train' if number < 9 else 'test'}/{one.name}": "".join(lines)}
        )
    shutil.copyfile(
        tmp_path / "data" / "test" / "j09.txt", tmp_path / "data" / "train" / "again.txt"
    )
    with pytest.raises(BadInput, match="set workload.copies: drop"):
        legal({"data.dir": "data"}).describe_data()
    text = legal({"data.dir": "data", "workload.copies": "drop"}).describe_data()
    assert "Documents of train that are left out as copies: 1, such as again" in text
    assert "13 files: 156 rows of 156 lines." in text
