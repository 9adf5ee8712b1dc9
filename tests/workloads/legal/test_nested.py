"""Documents in JSON, in every form that they are published in."""

import json

import pytest

from lib.errors import BadInput
from workloads.legal.documents import read

WANTED = [("one two", "three"), ("FAC", "RLC")]
NAMES = ["FAC", "ISSUE", "RLC"]


def source(tmp_path, value, name="corpus.json", **beside):
    for other, content in beside.items():
        (tmp_path / other.replace("_txt", ".txt").replace("_json", ".json")).write_text(content)
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def span(text, *labels, start=0):
    return {"value": {"start": start, "end": start + len(text), "text": text, "labels": [*labels]}}


DOCUMENT = {"labels": ["FAC", "RLC"], "segments": ["one two", "three"]}
STUDIO = {
    "id": 7,
    "annotations": [{"result": [span("three", "RLC", start=9), span("one\n two", "FAC"), span(" \n", "FAC", start=8)]}],
    "data": {"text": "one\n two three"},
    "meta": {"group": "Tax"},
}
OBJECTS = [{"text": "one two", "label": "FAC"}, {"text": "three", "label": "RLC"}]
PLACES = [{"start": 0, "end": 7, "label": "FAC"}, {"start": 8, "end": 13, "label": "RLC"}]
SEGMENTS, NUMBERS = ["one two", "three"], [0, 2]
FORMS = {
    "lists beside one another": [DOCUMENT],
    "a name": [{"id": "7", "sentences": SEGMENTS, "roles": ["FAC", "RLC"]}],
    "a text that is a list": [{"id": 7, "text": SEGMENTS, "labels": ["FAC", "RLC"]}],
    "one document": DOCUMENT,
    "by name": {"7": {"sentences": SEGMENTS, "complete": ["FAC", "RLC"], "user_1_primary": ["x", "y"]}},
    "parts": {"train": [DOCUMENT]},
    "below a key": {"version": "1", "documents": [DOCUMENT]},
    "a list of objects": [{"id": 7, "segments": OBJECTS}],
    "rows": OBJECTS,
    "labels in lists": [{"segments": SEGMENTS, "labels": [["FAC"], ["RLC"]]}],
    "texts in objects": [{"segments": [{"text": "one two"}, {"text": "three"}], "labels": ["FAC", "RLC"]}],
    "lists of words": [{"segments": [["one", "two"], ["three"]], "labels": ["FAC", "RLC"]}],
    "columns": {"id": [7], "text": [SEGMENTS], "labels": [["FAC", "RLC"]]},
    "Label Studio": [STUDIO],
    "one of Label Studio": STUDIO,
    "spans": [{"text": "one two three", "segments": PLACES}],
    "numbers and a list for all": {"label_list": NAMES, "documents": [{"segments": SEGMENTS, "labels": NUMBERS}]},
    "numbers and a list of the document": [{"segments": SEGMENTS, "labels": [0, 2.0], "label_names": NAMES}],
    "numbers of objects": [{"labels": NAMES, "segments": [{**OBJECTS[0], "label": 0}, {**OBJECTS[1], "label": 2}]}],
    "numbers as text": {"label2id": {"FAC": 0, "RLC": 2}, "data": [{"segments": SEGMENTS, "labels": ["0", "2"]}]},
    "a document a line": f"{json.dumps(DOCUMENT)}\n\n",
}  # fmt: skip


@pytest.mark.parametrize("value", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_sentences_and_roles(tmp_path, value):
    (found,) = read(source(tmp_path, value))
    assert [found.sentences, found.roles] == WANTED
    assert found.name in ("7", "corpus", "corpus/1", "train/1", "documents/1")


def test_lines_of_json_are_documents(tmp_path):
    other = json.dumps({**DOCUMENT, "segments": ["four", "five"]})
    for name in ("corpus.jsonl", "corpus.json"):
        assert len(read(source(tmp_path, f"{json.dumps(DOCUMENT)}\n{other}\n", name))) == 2


def test_rows_with_a_document_are_parted_by_it(tmp_path):
    rows = [
        {"document": name, "text": f"{name} {number}", "label": "FAC", "category": "Tax"}
        for number in (0, 1)
        for name in "ab"
    ]
    assert [(one.name, one.sentences, one.category) for one in read(source(tmp_path, rows))] == [
        ("a", ("a 0", "a 1"), "Tax"), ("b", ("b 0", "b 1"), "Tax"),
    ]  # fmt: skip


def test_of_several_annotations_the_first_that_was_not_cancelled_counts(tmp_path):
    annotations = [
        {"result": [span("one", "RLC")], "was_cancelled": True},
        {"result": [span("one", "FAC")], "was_cancelled": False},
        {"result": [span("one", "ISSUE")]},
    ]
    assert read(source(tmp_path, [{"annotations": annotations}]))[0].roles == ("FAC",)


def test_a_span_without_its_text_is_cut_out_of_the_documents(tmp_path):
    result = span("one\n two", "FAC")
    del result["value"]["text"]
    (found,) = read(source(tmp_path, [{**STUDIO, "annotations": [{"result": [result]}]}]))
    assert found.sentences == ("one two",) and found.category == "Tax" and found.name == "7"
    assert found.place(0) == "corpus.json, document 1 (7), sentence 1"


NUMBERED = [{"segments": ["one two", "three"], "labels": [0, 2]}]
LISTS = {
    "a text": {"labels_txt": "FAC\nISSUE\nRLC\n"},
    "a list": {"tagset_json": json.dumps(NAMES)},
    "numbers by name": {"label2id_json": json.dumps({"FAC": 0, "ISSUE": 1, "RLC": 2})},
    "names by number": {"id2label_json": json.dumps({"0": "FAC", "1": "ISSUE", "2": "RLC"})},
    "below a key": {"labels_json": json.dumps({"labels": NAMES})},
    "objects of number and name": {
        "labels_json": json.dumps([{"id": place, "name": name} for place, name in enumerate(NAMES)])
    },
    "numbered lines": {"labels_txt": "0 FAC\n1 ISSUE\n2: RLC\n"},
    "lines that end in a number": {"label_map_txt": "RLC\t2\nFAC\t0\nISSUE\t1\n"},
    "a list called so beside another": {"labels_json": json.dumps(NAMES), "words_json": json.dumps(["a", "b", "c"])},
}


@pytest.mark.parametrize("beside", LISTS.values(), ids=LISTS)
def test_numbers_are_those_of_a_list_of_labels_beside_the_file(tmp_path, beside):
    source(tmp_path, NUMBERED, **beside)
    (found,) = read(tmp_path)
    assert [found.sentences, found.roles] == WANTED


def test_a_list_of_labels_may_lie_above_the_documents(tmp_path):
    (tmp_path / "train").mkdir()
    source(tmp_path, NUMBERED, "train/corpus.json", labels_txt="FAC\nISSUE\nRLC\n")
    assert read(tmp_path)[0].roles == ("FAC", "RLC")


def test_names_that_end_in_numbers_are_names(tmp_path):
    source(tmp_path, NUMBERED, labels_txt="Section 1\nSection 2\nSection 3\n")
    assert read(tmp_path)[0].roles == ("Section 1", "Section 3")


def test_without_a_list_numbers_are_those_of_the_classes_and_without_classes_names(tmp_path):
    path = source(tmp_path, NUMBERED)
    assert read(path)[0].roles == ("0", "2")
    assert read(path, classes=NAMES)[0].roles == ("FAC", "RLC")


def test_thirteen_roles_in_several_files_of_a_folder(tmp_path):
    roles = [f"ROLE_{number}" for number in range(13)]
    for part in ("train", "dev", "test"):
        documents = [
            {"segments": [f"{part} {place} says {number}\n\t " for number in range(13)], "labels": [*range(13)]}
            for place in range(3)
        ]
        source(tmp_path, documents, f"{part}.json", labels_txt="\n".join(roles))
    found = read(tmp_path, classes=roles)
    assert len(found) == 9 and all(one.roles == tuple(roles) for one in found)
    assert [one.name for one in found][:4] == ["dev/1", "dev/2", "dev/3", "test/1"]
    assert found[0].sentences[1] == "dev 0 says 1"


GOOD = {"id": "good", "segments": ["four"], "labels": ["FAC"]}
BAD = {
    "two lengths": ({"segments": ["a", "b"], "labels": ["FAC"]}, "document 2: There are 2 segments and 1 labels"),
    "no labels": ({"id": "x", "segments": ["a"]}, r"document 2 \(x\): There is no list labels; the keys are id, seg"),
    "no segments": ({"labels": ["FAC"]}, "document 2: There is no list segments"),
    "no object": (["a", "b"], "document 2: A document is an object with segments and labels"),
    "no document at all": (None, "document 2: A document is an object"),
    "empty": ({"segments": [], "labels": []}, "document 2: The document is empty"),
    "blanks alone": ({"segments": [" \n"], "labels": ["FAC"]}, "document 2: The document is empty"),
    "two labels": ({"segments": ["a"], "labels": [["FAC", "RLC"]]}, "document 2, sentence 1: There are 2 labels"),
    "no label": ({"segments": ["a"], "labels": [None]}, "document 2, sentence 1: The label is no name but None"),
    "an empty label": ({"segments": ["a"], "labels": [""]}, "document 2, sentence 1: There is no role"),
    "no text": ({"segments": [5], "labels": ["FAC"]}, "document 2, sentence 1: The segment is no text but 5"),
    "20,000 words": ({"segments": ["w " * 20_000], "labels": ["FAC"]}, "sentence 1: The sentence has 20,000 words"),
    "half a character": ({"segments": ["a\ud800"], "labels": ["FAC"]}, "sentence 1: There is half of a character"),
    "an annotation without a span": ({"annotations": [{"result": []}]}, "document 2: The document is empty"),
    "a copy": (GOOD, r"good \(2\) has the sentence of good"),
}  # fmt: skip


@pytest.mark.parametrize(("entry", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_document_is_refused_with_its_number_and_left_out_within_the_limit(tmp_path, entry, sentence):
    path = source(tmp_path, [GOOD, entry])
    with pytest.raises(BadInput, match=sentence):
        read(path)
    assert [one.sentences for one in read(path, limit=1)] == [("four",)]


def test_a_number_outside_the_list_and_an_unknown_name_are_refused(tmp_path):
    with pytest.raises(BadInput, match="sentence 2: Label 2 is none of the 2 labels of the list"):
        read(source(tmp_path, NUMBERED), classes=NAMES[:2])
    with pytest.raises(BadInput, match="sentence 2: The role 'RLC' is none of workload.classes"):
        read(source(tmp_path, [DOCUMENT]), classes=NAMES[:2])


FILES = {
    "broken": ('[{"segments": ["a"],\n "labels": [}]', "corpus.json, line 2: This is no JSON"),
    "a broken line": (f"{json.dumps(DOCUMENT)}\n{{", "corpus.json, line 2: This line is no JSON"),
    "nested": ("[" * 100_000, "corpus.json: The JSON is nested too deeply"),
    "a huge number": ("[" + "9" * 5000 + "]", "corpus.json: This is no JSON of documents"),
    "nothing": ("{}", "corpus.json: There is no document in it"),
    "empty": ("", "corpus.json, line 1: This is no JSON"),
}


@pytest.mark.parametrize(("text", "sentence"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_json_of_documents_is_refused(tmp_path, text, sentence):
    with pytest.raises(BadInput, match=sentence):
        read(source(tmp_path, text))


def test_two_lists_of_labels_side_by_side_are_refused_where_a_number_needs_one(tmp_path):
    lists = {"labels_txt": "FAC\nRLC\n", "classes_txt": "RLC\nFAC\n"}
    source(tmp_path, NUMBERED, **lists)
    with pytest.raises(BadInput, match=r"several lists of labels, classes.txt, labels.txt"):
        read(tmp_path, limit=100)
    source(tmp_path, [DOCUMENT])
    assert read(tmp_path)[0].roles == ("FAC", "RLC")
