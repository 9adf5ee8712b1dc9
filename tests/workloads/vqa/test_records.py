"""Questions in the forms that they are published in, and what is wrong with them."""

import json
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lib.errors import BadInput
from tests.conftest import SAMPLES
from tests.workloads.vqa.files import found, lines, picture, record, rows, said, settings, teacher, text
from workloads.vqa.records import fingerprint, homes, read, reading


def test_a_teachers_records_find_their_pictures_whose_path_is_of_another_machine(tmp_path):
    lines(tmp_path / "out.jsonl", teacher(68857), teacher(12, teacher_answer="màu đen"))
    picture(tmp_path / "pictures" / "deep" / "68857.jpg", 1), picture(tmp_path / "pictures" / "12.jpg", 2)
    first, second = read(tmp_path, settings()).records
    assert Path(first.image) == tmp_path / "pictures" / "deep" / "68857.jpg" and first.number == 1
    assert (first.question, first.answer, first.kind) == ("màu của vật 68857 là gì", "màu đỏ", "DESCRIPTIVE")
    assert first.reasoning == "Vật có màu đỏ." and not first.teacher and first.file == "out.jsonl"
    assert (second.answer, second.number) == ("màu đen", 2) and first.picture != second.picture


def test_plain_lists_of_two_parts_take_the_pictures_of_their_own_folder_where_ids_are_alike(tmp_path):
    for number, part in enumerate(("train", "test")):
        text(tmp_path / part / "questions.json", [[f"what is in {part}?", "circle", 0], ["how many?", 3, 1]])
        picture(tmp_path / part / "images" / "0.png", number), picture(tmp_path / part / "images" / "1.png", 9 + number)
    records = found(tmp_path)
    assert [(one.part, Path(one.image).parts[-3:], one.answer) for one in records] == [
        ("test", ("test", "images", "0.png"), "circle"), ("test", ("test", "images", "1.png"), "3"),
        ("train", ("train", "images", "0.png"), "circle"), ("train", ("train", "images", "1.png"), "3"),
    ]  # fmt: skip


def test_the_csv_of_vivqa_names_its_types_and_finds_numbers_of_coco(tmp_path):
    head = ["", "question", "answer", "img_id", "type"]
    rows(tmp_path / "train.csv", head, [0, "màu của áo là gì", "màu cam", 436394, 2], [1, "có mấy con", "hai", 7, 1])
    rows(tmp_path / "test.csv", head, [0, "con gì", "mèo", 541050, 0])
    picture(tmp_path / "images" / "train2014" / "COCO_train2014_000000436394.jpg", 1)
    picture(tmp_path / "images" / "train2014" / "COCO_train2014_000000000007.jpg", 2)
    picture(tmp_path / "images" / "test" / "541050.jpg", 3)
    collection = read(tmp_path, settings())
    assert [(one.kind, one.part) for one in collection.records] == [
        ("OBJECT", "test"), ("COLOR", "train"), ("NUMBER", "train")
    ]  # fmt: skip
    assert collection.layout == "ViVQA's CSV"


HEADS = {
    "Vietnamese names": (",", ["câu hỏi", "câu trả lời", "ảnh"]),
    "other names": (";", ["Question", "Answers", "Image_Name"]),
    "tabs": ("\t", ["q", "a", "filename"]),
    "no head": ("|", None),
}


@pytest.mark.parametrize(("separator", "head"), HEADS.values(), ids=HEADS)
def test_a_table_is_understood_by_its_heads_or_by_what_stands_for_pictures(tmp_path, separator, head):
    cells = [["ở đâu?", "trên, dưới", "x1.png"], ["con gì?", "chó", "x2.png"]]
    if head is None:  # as VQA-Med has it
        cells = [[image, question, answer] for question, answer, image in cells]
    rows(tmp_path / "all.txt" if head is None else tmp_path / "all.csv", head, *cells, delimiter=separator)
    picture(tmp_path / "img" / "x1.png", 1), picture(tmp_path / "img" / "x2.png", 2)
    assert said(found(tmp_path)) == [("ở đâu?", "trên, dưới", "x1.png"), ("con gì?", "chó", "x2.png")]


@pytest.mark.parametrize("value", ["7", "7.0", "img7", "img7.jpg", "train/img7.png", "http://x.org/a/img7.png?s=1"])
def test_a_picture_is_found_by_number_name_or_path(tmp_path, value):
    rows(tmp_path / "a.csv", ["question", "answer", "image_id"], ["what?", "cat", value])
    picture(tmp_path / "deep" / ("7.png" if value[0] == "7" else "img7.png"))
    assert said(found(tmp_path))[0][2].endswith("7.png")


def test_questions_and_annotations_of_vqa_are_joined_by_the_id_within_their_part(tmp_path):
    for number, part in enumerate(("train", "val")):
        asked = [{"image_id": number, "question": f"is it {part}?", "question_id": 5}]
        answers = [{"answer": a, "answer_id": k} for k, a in enumerate(["yes", "no", "Yes"])]
        answered = [{"image_id": number, "question_id": 5, "answers": answers, "question_type": "is it"}]
        text(tmp_path / f"v2_OpenEnded_{part}2014_questions.json", {"info": {}, "questions": asked})
        text(tmp_path / f"v2_{part}2014_annotations.json", {"annotations": answered})
        picture(tmp_path / f"{part}2014" / f"COCO_{part}2014_{number:012}.jpg", number)
    train, validation = found(tmp_path)
    assert (train.question, train.answer, train.kind, train.part) == ("is it train?", "yes", "is it", "train")
    assert (validation.question, validation.part) == ("is it val?", "validation")


NESTED = {
    "pictures and annotations by id": {
        "images": {"1": "x1.png"}, "annotations": {"8": {"image_id": 1, "question": "con gì?", "answer": "chó"}},
    },
    "a list of pictures": {
        "images": [{"id": 1, "file_name": "x1.png"}],
        "annotations": [{"image_id": 1, "question": "con gì?", "answers": ["chó"]}],
    },
    "questions of a picture": [{"image": "x1.png", "qas": [{"question": "con gì?", "answer": "chó", "qa_id": 3}]}],
    "questions by picture": {"x1.png": [{"question": "con gì?", "answer": "chó"}]},
    "columns": {"question": {"0": "con gì?"}, "answer": {"0": "chó"}, "image_id": {"0": "x1"}},
    "columns of one picture": {"image": "x1.png", "questions": ["con gì?"], "answers": ["chó"]},
    "lists in an object, boxes beside": {"boxes": [[1, 2, 3, 4]], "data": [["con gì?", "chó", "x1"]]},
    "an object of objects": {"a": {"question": "con gì?", "answer": "chó", "image_path": ["C:\\pictures\\x1.png"]}},
}  # fmt: skip


@pytest.mark.parametrize("value", NESTED.values(), ids=NESTED)
def test_json_is_understood_in_whatever_nesting(tmp_path, value):
    text(tmp_path / "all.json", value)
    picture(tmp_path / "images" / "x1.png")
    assert said(found(tmp_path)) == [("con gì?", "chó", "x1.png")]


def test_a_medical_set_has_whole_numbers_as_answers_and_masks_beside_its_pictures(tmp_path):
    base = {"image_name": "case 1.jpg", "question_type": "grade"}
    asked = [{**base, "question": "what grade?", "answer": 0}, {**base, "question": "hard exudates?", "answer": "yes"}]
    for part in ("train", "val", "test"):
        text(tmp_path / "qa" / f"{part}qa.json", [{**one, "image_name": f"{part} 1.jpg"} for one in asked])
        picture(tmp_path / "visual" / part / f"{part} 1.jpg", len(part))
        picture(tmp_path / "masks" / part / "maskA" / f"{part} 1.jpg", 77)
    records = found(tmp_path)
    assert Counter(one.answer for one in records) == {"0": 3, "yes": 3}
    assert {Path(one.image).parts[-3] for one in records} == {"visual"}
    assert {one.part for one in records} == {"train", "validation", "test"}


ANSWERS = {
    "a whole number": (2, "2"), "naught": (0, "0"), "a fraction": (2.5, "2.5"), "a whole fraction": (3.0, "3"),
    "a truth": (True, "true"), "the commonest": (["hai", "ba", "Ba", "bốn"], "ba"), "objects": ([{"answer": "x"}], "x"),
    "blanks among them": (["", None, "đỏ"], "đỏ"),
    "a list as text": ("['đỏ', 'đỏ', 'đen']", "đỏ"), "NFD": (unicodedata.normalize("NFD", "màu đỏ"), "màu đỏ"),
    "line ends": (" màu\n đỏ ", "màu đỏ"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "read_as"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_of_any_type_becomes_text(tmp_path, given, read_as):
    lines(tmp_path / "a.jsonl", {"question": "gì?", "answer": given, "image": "x"})
    picture(tmp_path / "x.png")
    assert found(tmp_path)[0].answer == read_as


def test_questions_and_types_are_composed_however_they_were_written(tmp_path):
    question = unicodedata.normalize("NFD", "màu  của\tcửa")
    lines(tmp_path / "a.jsonl", teacher(1, question=question, reasoning_type="VỊ TRÍ"))
    picture(tmp_path / "1.jpg")
    assert (found(tmp_path)[0].question, found(tmp_path)[0].kind) == ("màu của cửa", "VỊ TRÍ")


def test_a_teachers_probabilities_and_its_answer_beside_the_right_one_are_kept(tmp_path):
    given = [{"đỏ": 0.75, "cam": 0.25}, [["đỏ", 1.0]], [{"answer": "đỏ", "probability": 0.5}]]
    lines(
        tmp_path / "a.jsonl",
        *(teacher(1, question=f"{n}?", teacher_probabilities=one) for n, one in enumerate(given)),
        teacher(1, answer="màu cam", question="?"),
    )
    picture(tmp_path / "1.jpg")
    records = found(tmp_path)
    assert [one.teacher for one in records] == [
        (("đỏ", 0.75), ("cam", 0.25)), (("đỏ", 1.0),), (("đỏ", 0.5),), (("màu đỏ", 1.0),),
    ]  # fmt: skip
    assert records[3].answer == "màu cam"


def test_a_column_is_named_in_the_configuration_where_its_name_is_another(tmp_path):
    rows(tmp_path / "a.csv", ["utterance", "reply", "shot", "question"], ["con gì?", "chó", "x", "no"])
    picture(tmp_path / "x.png")
    with pytest.raises(BadInput, match=r"a.csv has no column that is called like that of the answer; its columns are "
                                       r"utterance, reply, shot, question.*workload.source.answer"):  # fmt: skip
        found(tmp_path)
    assert said(found(tmp_path, question="Utterance", answer="reply")) == [("con gì?", "chó", "x.png")]
    with pytest.raises(BadInput, match="no column imag; its columns"):
        found(tmp_path, question="utterance", answer="reply", image="imag")


def test_pictures_in_another_folder_or_another_input_of_the_notebook_are_found(tmp_path, monkeypatch):
    inputs = tmp_path / "kaggle" / "input"
    lines(inputs / "questions" / "a.jsonl", teacher(1))
    picture(inputs / "coco" / "train" / "1.jpg"), picture(inputs / "questions" / "about.png")
    assert len(found(inputs / "questions", images=str(inputs / "coco"))) == 1
    with pytest.raises(BadInput, match="workload.source.images is .*a.jsonl, which is no folder"):
        found(inputs / "questions", images=str(inputs / "questions" / "a.jsonl"))
    with pytest.raises(BadInput, match="None of 1 records has its picture"):
        found(inputs / "questions")
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    assert len(found(inputs / "questions")) == 1


# --- what is wrong ----------------------------------------------------------------------------------------------------

BAD = {
    "no answer": ({"teacher_answer": None}, "a.jsonl, line 2: There is no answer"),
    "an empty answer": ({"teacher_answer": " "}, "a.jsonl, line 2: The answer is empty"),
    "a list of no answers": ({"teacher_answer": [""]}, "a.jsonl, line 2: The answer is empty"),
    "no key of a question": ({"question": None}, "a.jsonl, line 2: There is no question"),
    "no question": ({"question": "\n"}, "a.jsonl, line 2: There is no question"),
    "an object": ({"question": {"vi": "gì?"}}, "a.jsonl, line 2: {'vi': 'gì?'} is no text"),
    "half a letter": ({"question": "\ud83d"}, "a.jsonl, line 2: There is half of a character"),
    "no picture's name": ({"image_path": "", "img_id": ""}, "a.jsonl, line 2: There is nothing in image_path"),
    "an endless answer": ({"teacher_answer": "x" * 5000}, "a.jsonl, line 2: The answer has 5,000 letters"),
    "a type with brackets": ({"reasoning_type": "[A]"}, "a.jsonl, line 2: '[A]' is no question type"),
    "probabilities above 1": ({"teacher_probs": {"a": 1.5}}, "a.jsonl, line 2: The teacher's answers need"),
    "text for probabilities": ({"teacher_probs": "đỏ"}, "a.jsonl, line 2: The teacher's answers need"),
    "brackets without end": ({"teacher_answer": json.loads("[" * 800 + "]" * 800)}, "a.jsonl, line 2: "),
    "probabilities that are none": ({"teacher_probs": 3}, "a.jsonl, line 2: The teacher's answers need"),
    "a known id": ({"question_id": 5}, "a.jsonl, line 2: The question 5 is in line 1 too, with other content"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_record_is_refused_with_its_line_and_left_out_within_the_limit(tmp_path, change, sentence):
    text(
        tmp_path / "a.jsonl",
        "".join(json.dumps(one) + "\n" for one in (teacher(1, question_id=5), teacher(2, **change), teacher(3))),
    )
    for number in (1, 2, 3):
        picture(tmp_path / f"{number}.jpg", number)
    with pytest.raises(BadInput) as refused:
        found(tmp_path)
    assert sentence in str(refused.value) and "workload.bad_input_limit: 1" in str(refused.value)
    collection = read(tmp_path, settings(limit=1))
    assert [one.number for one in collection.records] == [1, 3]
    assert any(sentence in note for note in collection.notes)


def test_an_unknown_question_type_is_refused_where_the_types_are_listed(tmp_path):
    lines(tmp_path / "a.jsonl", teacher(1), teacher(1, question="đâu", reasoning_type="SPATAL"))
    picture(tmp_path / "1.jpg")
    assert len(found(tmp_path)) == 2
    with pytest.raises(BadInput, match="line 2: The question type 'SPATAL' is none of .*, SPATIAL. Is SPATIAL meant"):
        found(tmp_path, kinds=("DESCRIPTIVE", "SPATIAL"))


def test_rare_question_types_slips_and_several_in_one_are_together_with_a_sentence(tmp_path):
    kinds = ["PRES"] * 150 + ["POS"] * 50 + ["PRSE", "POS, PRES"]
    lines(tmp_path / "a.jsonl", *(teacher(1, question=f"{n}?", reasoning_type=kind) for n, kind in enumerate(kinds)))
    picture(tmp_path / "1.jpg")
    collection = read(tmp_path, settings())
    assert Counter(one.kind for one in collection.records) == {"PRES": 150, "POS": 50, "other types": 2}
    assert any("'POS, PRES', 'PRSE'" in note and "workload.source.kinds" in note for note in collection.notes)
    assert {one.kind for one in found(tmp_path, kinds=("PRES", "POS", "PRSE", "POS, PRES"))} == {*kinds}


def test_question_types_are_compared_with_usual_ones_alone(tmp_path, monkeypatch):
    """A column of ids has thousands of types: each with each would take hours."""
    reads = []

    class Counted(Counter):
        def __getitem__(self, kind):
            reads.append(kind)
            return super().__getitem__(kind)

    monkeypatch.setattr(reading, "Counter", Counted)
    kinds = ["SPATIAL"] * 20 + [f"id{n}" for n in range(300)]
    lines(tmp_path / "a.jsonl", *(teacher(1, question=f"{n}?", reasoning_type=kind) for n, kind in enumerate(kinds)))
    picture(tmp_path / "1.jpg")
    assert len(found(tmp_path)) == 320 and len(reads) < 3000


def test_a_broken_line_and_a_row_too_short_are_counted_among_the_bad_records(tmp_path):
    text(tmp_path / "a.jsonl", json.dumps(teacher(1)) + "\n{'img_id'\n")
    picture(tmp_path / "1.jpg")
    with pytest.raises(BadInput, match="a.jsonl, line 2: This is no JSON"):
        found(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    text(tmp_path / "a.csv", 'question,answer,image\n"two\nlines",yes,1\nwhat,1\n')
    with pytest.raises(BadInput, match="a.csv, line 4: There are 2 cells, and the head 3"):
        found(tmp_path)
    assert said(found(tmp_path, limit=1)) == [("two lines", "yes", "1.jpg")]


def test_pictures_in_a_linked_folder_are_found_and_links_in_a_circle_end(tmp_path):
    lines(tmp_path / "data" / "a.jsonl", teacher(1))
    picture(tmp_path / "elsewhere" / "1.jpg")
    (tmp_path / "data" / "images").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data")
    assert len(found(tmp_path / "data")) == 1


def test_a_record_without_its_picture_is_counted_limited_and_never_replaced(tmp_path):
    lines(tmp_path / "a.jsonl", teacher(1), teacher(2), teacher(3))
    picture(tmp_path / "1.jpg")
    with pytest.raises(BadInput) as refused:
        found(tmp_path, missing_limit=1, limit=9)
    for part in ("2 of 3 records have no picture; 1 pictures lie below", "workload.source.images", "a.jsonl, line 3",
                 "workload.source.missing_limit: 2"):  # fmt: skip
        assert part in str(refused.value)
    collection = read(tmp_path, settings(missing_limit=2))
    assert [one.number for one in collection.records] == [1]
    assert collection.notes == ["Records without their picture, which are left out: 2 of 3."]


@pytest.mark.parametrize("limit", [0, 9])
def test_where_no_record_has_its_picture_none_is_to_be_left_out_and_vivqas_ids_are_said_to_be_cocos(tmp_path, limit):
    rows(tmp_path / "test.csv", ["question", "answer", "img_id", "type"], ["màu gì", "đỏ", 123, 2])
    with pytest.raises(BadInput, match="None of 1 records has its picture") as refused:
        found(tmp_path, missing_limit=limit)
    assert "COCO_train2014_000000000123.jpg" in str(refused.value) and "workload.source.images" in str(refused.value)
    assert "missing_limit" not in str(refused.value)


def test_a_picture_that_cannot_be_decoded_is_a_bad_record(tmp_path):
    lines(tmp_path / "a.jsonl", teacher(1), teacher(2), teacher(2, question="gì"))
    picture(tmp_path / "1.jpg"), text(tmp_path / "2.jpg", "<!DOCTYPE html><html>404</html>")
    with pytest.raises(BadInput, match="(?s)line 2: .*2.jpg is no picture: it is a page of HTML.*line 3: "):
        found(tmp_path, limit=1)
    assert [one.number for one in found(tmp_path, limit=2)] == [1]


def test_a_name_that_several_pictures_have_is_refused_unless_one_is_nearer(tmp_path):
    text(tmp_path / "a.json", [{"question": "gì", "answer": "chó", "image": "1.png"}])
    picture(tmp_path / "x" / "1.png", 1), picture(tmp_path / "y" / "1.png", 2)
    with pytest.raises(BadInput, match="entry 1: '1.png' stands for several pictures, .*workload.source.images"):
        found(tmp_path)
    assert len(found(tmp_path, images=str(tmp_path / "y"))) == 1
    text(tmp_path / "a.json", [{"question": "gì", "answer": "chó", "image": "/else/y/1.png"}])
    assert Path(found(tmp_path)[0].image) == tmp_path / "y" / "1.png"


def test_what_is_said_twice_stays_once_and_what_is_answered_twice_is_reported(tmp_path):
    changes = {"teacher_reasoning": ""}, {"teacher_answer": "Màu đỏ."}, {"teacher_answer": "cam"}
    lines(tmp_path / "a.jsonl", *(teacher(1, **one) for one in changes))
    picture(tmp_path / "1.jpg")
    collection = read(tmp_path, settings())
    assert [(one.answer, bool(one.reasoning)) for one in collection.records] == [("Màu đỏ.", True), ("cam", True)]
    assert collection.notes == [
        "Records that repeat another one and are left out: 1.",
        "Questions with different answers about the same picture, which are all kept: 1.",
    ]


def test_parts_of_files_that_show_the_same_pictures_do_not_count(tmp_path):
    rows(tmp_path / "train.csv", ["question", "answer", "image"], ["a", "x", 1], ["b", "x", 2])
    rows(tmp_path / "test.csv", ["question", "answer", "image"], ["c", "x", 3])
    for number, colour in ((1, 1), (2, 2), (3, 2)):  # the second picture under two names
        picture(tmp_path / f"{number}.png", colour)
    collection = read(tmp_path, settings())
    assert {one.part for one in collection.records} == {""}
    assert any("share 1 of 2 pictures" in note and "dealt anew" in note for note in collection.notes)


def test_a_column_of_as_many_types_as_questions_holds_none(tmp_path):
    rows(tmp_path / "a.csv", ["question", "answer", "image", "type"], *([f"q{n}", "x", 1, f"t{n}"] for n in range(101)))
    picture(tmp_path / "1.png")
    collection = read(tmp_path, settings())
    assert {one.kind for one in collection.records} == {""} and "workload.source.kind" in collection.notes[-1]


def test_what_lies_beside_questions_is_not_read_as_such(tmp_path):
    text(tmp_path / "vqa.json", [{"question": "gì", "answer": "chó", "image": "1"}])
    text(tmp_path / "labels.json", ["chó", "mèo", "gà"]), text(tmp_path / "answer_space.txt", "chó\nmèo\n")
    text(tmp_path / "SOURCE.txt", "from, the, web\nx\n"), text(tmp_path / "label2id.json", {"a": 1, "label": "x"})
    text(tmp_path / "instances.json", [{"image_id": 1, "segmentation": [[1, 2, 3], [4, 5, 6]]}])
    rows(tmp_path / "test.csv", ["question", "image"], ["đâu", 1])
    picture(tmp_path / "1.png")
    collection = read(tmp_path, settings())
    assert said(collection.records) == [("gì", "chó", "1.png")]
    assert collection.notes == ["test.csv: 1 questions have no answer and are not read."]


def test_a_table_without_a_head_beside_prose_is_that_which_names_pictures(tmp_path):
    rows(tmp_path / "all.txt", None, ["x1", "con gì?", "chó"], delimiter="|")
    text(tmp_path / "about.txt", "Radiology, 2019, first part\nand, much, more\n")
    picture(tmp_path / "x1.png")
    assert said(found(tmp_path)) == [("con gì?", "chó", "x1.png")]


NOTHING = {
    "an empty folder": {}, "a list of labels": {"labels.json": '["a", "b"]'}, "a readme": {"README.md": "question"},
    "other tables": {"a.csv": "x,y,z\n1,2,3\n"},
}  # fmt: skip


@pytest.mark.parametrize("files", NOTHING.values(), ids=NOTHING)
def test_a_folder_without_questions_is_refused_and_is_no_home(tmp_path, files):
    for name, content in files.items():
        text(tmp_path / name, content)
    with pytest.raises(BadInput):
        found(tmp_path)
    assert homes([tmp_path]) == []


def test_what_is_no_text_of_utf_8_is_refused_with_file_and_line(tmp_path):
    (tmp_path / "a.csv").write_bytes("question,answer,image\ncà phê,có,1\n".encode("utf-16"))
    with pytest.raises(BadInput, match="a.csv: The file is UTF-16"):
        found(tmp_path)
    (tmp_path / "a.csv").write_bytes(b"question,answer,image\ncaf\xe9,x,1\n")
    with pytest.raises(BadInput, match="a.csv, line 2: Byte 0xe9 is not UTF-8"):
        found(tmp_path)


def test_mounted_folders_with_questions_are_told_from_encoders(tmp_path):
    lines(tmp_path / "a" / "a.jsonl", teacher(1))
    text(tmp_path / "b" / "questions.json", [["what is it?", "a", 0]])
    rows(tmp_path / "c" / "x.csv", ["question", "answer", "img_id"], ["a", "b", 1])
    text(tmp_path / "d" / "vocab.json", {"question": 1})
    (tmp_path / "d" / "model.safetensors").write_bytes(b"0")
    rows(tmp_path / "e" / "x.csv", ["text", "label"], ["a", "b"])
    assert homes([tmp_path / name for name in "abcde"]) == [tmp_path / name for name in "abc"]


def test_the_fingerprint_is_of_what_records_say_and_pictures_show_wherever_they_lie():
    one = record(1)
    assert fingerprint([one]) == fingerprint([replace(one, image="/elsewhere/x.png", number=9, file="b")])
    for change in ({"picture": "other"}, {"answer": "blue"}, {"question": "x"}, {"kind": "X"}, {"reasoning": "x"}):
        assert fingerprint([one]) != fingerprint([replace(one, **change)])


# --- real records -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SAMPLES / "easy_vqa_subset").is_dir(), reason="sample data is not there")
def test_the_easy_questions_load_with_their_parts():
    records = found(SAMPLES / "easy_vqa_subset")
    assert Counter(one.part for one in records) == {"train": 5940, "test": 2449}
    assert len({one.picture for one in records}) == 850 and len({one.answer for one in records}) == 13


@pytest.mark.skipif(not (SAMPLES / "vivqa_teacher_jsonl").is_dir(), reason="sample data is not there")
def test_the_vietnamese_teachers_records_load_beside_pictures_and_are_refused_without(tmp_path):
    folder = SAMPLES / "vivqa_teacher_jsonl"
    with pytest.raises(BadInput, match="None of 1,238 records has its picture.*workload.source.images"):
        found(folder)
    content = next(folder.glob("*.jsonl")).read_text("utf-8")
    for line in content.splitlines():
        number = json.loads(line)["img_id"]
        picture(tmp_path / "train" / f"{number}.jpg", int(number) % 65_536, size=(1, 1), quality=100)
    collection = read(folder, settings(images=str(tmp_path)))
    assert len(collection.records) == 1238 and collection.layout == "a teacher's records"
    assert len({one.answer for one in collection.records}) == 12 and all(one.reasoning for one in collection.records)
