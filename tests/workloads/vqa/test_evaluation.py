"""Rules that see the question alone, metrics over pictures, and questions about new pictures."""

import csv
import json
import re
import unicodedata

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from tests.workloads.vqa.files import picture, record
from workloads.vqa import decoding, evaluation, prediction
from workloads.vqa.decoding import Answer
from workloads.vqa.rules import BY_QUESTION, BY_TYPE, BY_WORDS, MAJORITY, Rules
from workloads.vqa.scoring import exact, normal, rouge_l, token_f1, words

TRAIN = [record(n, kind="COLOR", answer="red" if n % 3 else "blue") for n in range(12)]
TEST = [
    record(10 * p + q, p, question=f"what color is thing {q}?", kind="COLOR", answer=("red", "màu xanh")[p % 2])
    for p in range(20) for q in range(3)
]  # fmt: skip
RIGHT = [one.answer for one in TEST]


def test_right_answers_and_valid_forms_are_counted_by_type_too_and_types_of_few_questions_are_together():
    kinds = ("A", "màu đỏ"), ("A", "hai"), ("B", "ba")
    records = [record(number, kind=kind, answer=answer) for number, (kind, answer) in enumerate(kinds)]
    found = evaluation.metrics(records, ["Màu đỏ.", "màu ba", "ba"], [True, False, True])
    assert found["exact"] == pytest.approx(2 / 3) and found["valid"] == pytest.approx(2 / 3)
    assert (found["exact_A"], found["exact_B"]) == (pytest.approx(0.5), 1)
    assert found["token_f1"] == found["rouge_l"] == pytest.approx(2 / 3)
    records = [record(n, kind="MANY" if n < 30 else f"K{n}") for n in range(50)]
    found = evaluation.metrics(records, ["red"] * 50, [True] * 50)
    assert {key for key in found if key.startswith("exact_")} == {"exact_MANY", "exact_other types"}


def test_the_interval_is_over_pictures_and_not_over_questions():
    """Of 20 pictures, half with all answers right: questions as one would be sure, pictures are not."""
    values = np.array([[float(one.answer == "red")] for one in TEST])
    whole, alone = evaluation.judge(values, TEST)[0], evaluation.judge(values, [record(n) for n in range(60)])[0]
    assert whole.value == alone.value == 0.5
    assert 0.25 < whole.low < 0.34 and alone.low > whole.low + 0.05 and whole.high > alone.high
    # of a share p of n pictures: the normal interval
    assert whole.high - whole.low == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 20), rel=0.15)


def test_the_gain_is_over_the_strongest_rule_and_paired_by_picture(tmp_path):
    rules, valid = Rules(TRAIN), [True] * 60
    text = evaluation.report(TEST, RIGHT, valid, rules, tmp_path)
    assert re.search(
        r"The model is above the strongest baseline by exact match, .*: \+0.500 \[\+0.[23]\d\d, \+0.[67]", text
    )
    assert "over draws of 20 pictures, paired" in text
    same = evaluation.report(TEST, rules.answers(TEST)[BY_TYPE], valid, rules, tmp_path)
    assert "level with" in same and "+0.000 [+0.000, +0.000]" in same and "does not tell them apart" in same
    assert "The model is below" in evaluation.report(TEST, ["no"] * 60, valid, rules, tmp_path)
    assert evaluation.baseline(TEST, rules)["exact"] == 0.5


def test_the_report_has_a_row_a_rule_and_the_files_say_each_answer(tmp_path):
    predicted, valid = ["wrong", *RIGHT[1:]], [False, *[True] * 59]
    text = evaluation.report(TEST, predicted, valid, Rules(TRAIN), tmp_path)
    for part in ("the model", BY_TYPE, "0.983", "+0.483", "20 pictures", "COLOR"):
        assert part in text
    with (tmp_path / "evaluation.csv").open(encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert len(rows) == 5 and float(rows["the model"]["exact"]) == pytest.approx(59 / 60, abs=1e-6)
    assert float(rows["the model"]["gain_low"]) > 0 and float(rows[BY_TYPE]["exact_COLOR"]) == 0.5
    with (tmp_path / "answers.csv").open(encoding="utf-8") as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == 60 and answers[0]["answer"] == "wrong" and answers[0]["valid"] == "0"
    assert answers[59]["right"] == "màu xanh" and answers[59]["question"] == "what color is thing 2?"


COLOURS = ("Red", "blue", "green")
ASKED = [
    *(record(n, question=f"what color is cup {n}?", answer="Red" if n < 5 else "blue", kind="COLOR") for n in range(8)),
    *(record(n, question="how many cups?", answer="two", kind="COUNT") for n in range(10, 17)),
    *(record(n, question="how many dogs?", answer="three", kind="COUNT") for n in range(20, 23)),
]  # fmt: skip


def test_each_rule_answers_what_was_commonest_for_what_it_sees_spelled_as_it_mostly_was():
    rules = Rules(ASKED)
    asked = record(99, question="How many dogs", answer="?", kind="COUNT")
    assert rules.answers([asked]) == {MAJORITY: ["two"], BY_TYPE: ["two"], BY_QUESTION: ["three"], BY_WORDS: ["three"]}
    new = record(99, question="what color is that", kind="COLOR")
    assert rules.answers([new]) == {MAJORITY: ["two"], BY_TYPE: ["Red"], BY_QUESTION: ["Red"], BY_WORDS: ["Red"]}
    train = [record(n, answer=answer) for n, answer in enumerate(("Red.", "red", "red", "blue", "blue"))]
    for order in (train, train[::-1]):
        assert Rules(order).answers([record(9)])[MAJORITY] == ["red"]


def test_what_differs_in_writing_alone_is_equal_and_in_an_accent_a_sign_or_a_word_is_not():
    composed = unicodedata.normalize("NFD", "màu đỏ")
    for one, other in (
        (composed, "màu đỏ"), ("Màu Đỏ", "màu đỏ"), ("“màu đỏ”.", "màu đỏ"), (" màu \t đỏ\n", "màu đỏ"), ("-5", "-5."),
    ):  # fmt: skip
        assert normal(one) == normal(other) and exact(one, other) == token_f1(one, other) == rouge_l(one, other) == 1
    for one, other in (("má", "mà"), ("đỏ", "do"), ("-5", "5"), ("+", "-"), ("", "a"), ("màu đỏ", "đỏ")):
        assert exact(one, other) == 0
    assert words("Màu đỏ, (hay) xanh-lá?") == ["màu", "đỏ", "hay", "xanh", "lá"]


def test_token_f1_counts_words_and_rouge_l_their_order():
    assert token_f1("màu đỏ", "màu đen") == rouge_l("màu đỏ", "màu đen") == pytest.approx(0.5)  # .80 in letters a to z
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert (token_f1("b a", "a b"), rouge_l("b a", "a b")) == (1, 0.5)
    assert rouge_l("a x b y c", "a b c") == pytest.approx(6 / 8)
    assert token_f1("", "a") == rouge_l("", "a") == token_f1("a", "b") == 0 and token_f1("+", "+") == 1


@pytest.fixture
def mine(tmp_path):
    """A folder with two pictures: questions about one in a text file, about both in JSON lines."""
    folder = tmp_path / "mine"
    picture(folder / "cat.png", 3, (40, 30))
    picture(folder / "deep" / "dog.jpg", 9, (40, 30))
    (folder / "cat.txt").write_text("màu gì\n\n  ở   đâu\n", "utf-8")
    lines = [{"image": "dog.jpg", "question": "con gì"}, {"image": "./dog.jpg", "question": "mấy con"}]
    (folder / "deep" / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (folder / "notes.txt").write_text("beside no picture", "utf-8")
    return folder


@pytest.mark.parametrize("image", ["{}/secret.png", "../../secret.png", "a" * 5000, "a\0", "bird.png"])
def test_a_picture_from_outside_of_the_folder_or_no_question_is_refused(mine, tmp_path, image):
    picture(tmp_path / "secret.png", 3, (40, 30))
    (mine / "deep" / "asked.jsonl").write_text(json.dumps({"image": image.format(tmp_path), "question": "what"}))
    for source in (mine, mine / "deep" / "asked.jsonl"):
        with pytest.raises(BadInput, match="asked.jsonl, row 1: there is no picture .* below "):
            prediction.questions(source)
    (mine / "deep" / "asked.jsonl").write_text('{"image": "dog.jpg", "question": " "}')
    with pytest.raises(BadInput, match="row 1: there is no question"):
        prediction.questions(mine)


def test_text_files_and_lines_ask_about_the_pictures_beside_them_and_are_answered_in_any_batch(vqa, mine, tmp_path):
    assert len(prediction.questions(mine / "deep" / "asked.jsonl")) == 2
    task = vqa({"training.micro_batch": 2})
    torch.manual_seed(0)
    models = [task.model().eval() for _ in range(2)]
    found = task.predict(models[:1], mine, tmp_path / "out")
    assert {name: [row["question"] for row in rows] for name, rows in found.items()} == {
        "cat.png": ["màu gì", "ở đâu"], "dog.jpg": ["con gì", "mấy con"],
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text("utf-8").splitlines()]
    assert lines == [row for rows in found.values() for row in rows]
    task.config = vqa({"data.evaluation_batch": 1}).config
    alone, together = task.predict(models[:1], mine, None), task.predict(models, mine, None)
    for name, rows in found.items():
        assert [row["teacher_answer"] for row in rows] == [row["teacher_answer"] for row in alone[name]]
        assert len(together[name]) == len(rows)


def test_several_models_answer_by_the_mean_of_their_probabilities():
    one, other = Answer("Đỏ", "", "a", True), Answer("đen", "", "b", False)
    found = prediction.row(record(1), [{one: 0.5, other: 0.4}, {other: 0.5, Answer("đỏ.", "", "c", True): 0.2}])
    assert found["teacher_answer"] == "đen" and found["teacher_reasoning"] == "b" and not found["is_valid"]
    assert found["teacher_answers"] == {"Đỏ": pytest.approx(0.35), "đen": pytest.approx(0.45)}


def test_a_folder_without_questions_and_a_picture_that_is_none_are_refused(vqa, tmp_path, mine):
    task = vqa()
    picture(tmp_path / "other" / "cat.png")
    for name, sentence in (("nothing", "There is no"), ("other", "no question about a picture")):
        with pytest.raises(BadInput, match=sentence):
            task.predict([], tmp_path / name, None)
    (mine / "cat.png").write_text("<html>")
    with pytest.raises(BadInput, match="cannot be decoded"):
        task.predict([task.model().eval()], mine, None)


@pytest.fixture
def seven(vqa):
    """A task, its model in evaluation mode, and a batch of seven questions."""
    task = vqa()
    torch.manual_seed(0)
    model = task.model().eval()
    samples = task.datasets()["validation"]
    return task, model, task.collate([samples[n] for n in range(7)], torch.Generator())


def test_a_target_is_parsed_into_what_it_was_made_of_and_what_lacks_a_tag_is_not_valid(vqa):
    task = vqa()
    samples, own = task.datasets()["train"], task.writer
    for number in range(10):
        record = samples.records[number]
        found = decoding.parsed([*samples.targets[number].tokens, own.pad], own)
        assert found == decoding.Answer(record.answer, record.kind, record.reasoning, True)
    word = own.numbers(["hình tròn"])[0]
    whole = [own.answer, *word, own.answer_end, own.reasoning, *word, own.reasoning_end, own.end]
    assert decoding.parsed(whole, own).is_valid
    for wrong, answer in (
        (whole[1:], "hình tròn"),  # no tag before it
        ([own.answer, *word, own.end, own.answer_end], "hình tròn"),  # ends too early
        ([own.answer, own.answer_end, own.reasoning, own.reasoning_end], ""),  # an empty answer
        ([*word, *whole], "hình tròn"),  # something before it
        ([], ""),
    ):
        found = decoding.parsed(wrong, own)
        assert not found.is_valid and found.text == answer


def test_answers_are_the_same_in_batches_of_any_size_with_the_loss_of_all_tokens(seven):
    _, model, batch = seven
    with torch.no_grad():
        found = [decoding.Writer(at_once, 5).write(model, batch, 2) for at_once in (1, 4, 100)]
        losses = decoding.objectives.losses(model(batch), batch["target"])[batch["part"] > 0]
    for written, loss, count in found:
        assert [one[:5] for one in written] == [one[:5] for one in found[0][0]]
        assert count == len(losses) and loss == pytest.approx(float(losses.sum()), rel=1e-4)


def test_where_memory_runs_out_it_goes_on_from_there_but_not_under_shards_where_others_wait(seven, monkeypatch):
    _, model, batch = seven
    tried, search = [], decoding.search

    def limited(model, encoded, *rest):
        tried.append(len(encoded))
        if len(encoded) > 2:
            raise torch.OutOfMemoryError
        return search(model, encoded, *rest)

    with torch.no_grad():
        want = decoding.Writer(100, 5).write(model, batch, 2)
        monkeypatch.setattr(decoding, "search", limited)
        writer = decoding.Writer(8, 5)
        got = writer.write(model, batch, 2)
        assert tried == [4, 2, 2, 2, 1] and got[0] == want[0] and got[1] == pytest.approx(want[1], rel=1e-4)
        writer.write(model, batch, 2)
        assert tried[5:] == [2, 2, 2, 1]
        monkeypatch.setattr(decoding.sharding, "is_shard", lambda parameter: True)
        with pytest.raises(torch.OutOfMemoryError):
            decoding.Writer(8, 5).write(model, batch, 2)
    assert tried[9:] == [4]
