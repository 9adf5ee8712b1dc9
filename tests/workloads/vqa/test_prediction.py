"""Questions about new pictures, what written tokens say, and a search that goes on where memory ran out."""

import json

import pytest
import torch

from lib.errors import BadInput
from tests.workloads.vqa.files import picture, record
from workloads.vqa import decoding, prediction
from workloads.vqa.decoding import Answer


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
