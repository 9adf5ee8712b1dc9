"""The task as the trainer sees it, and its stages."""

import json

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from lib.task import find_task, load_config
from lib.training import checks
from tests.workloads.vqa.conftest import CONFIG, load
from workloads.vqa.settings import Stage, stage_at, trained


def batch_of(task, *numbers):
    samples = task.datasets()["train"]
    return task.collate([samples[number] for number in numbers or range(8)], torch.Generator().manual_seed(1))


def test_the_model_reads_no_data_and_the_contract_is_kept(tmp_path, vqa):
    (tmp_path / "vqa.yaml").write_text(CONFIG)
    task = find_task("vqa")(load_config(tmp_path / "vqa.yaml"))
    batch = task.example_batch(3, torch.device("cpu"))
    assert torch.isfinite(task.loss(task.model(), batch)[0]["answer"]) and "parts" not in vars(task)
    task = vqa({"training.micro_batch": 2, "training.effective_batch": 4, "workload.decoder.length": 16})
    assert checks.examine(task, task.config) == []
    text = task.describe_data()
    assert "drawn shapes, asked in Vietnamese" in text and "pictures in validation" in text
    assert "Tokens of an answer with its reasoning: median" in text and "rows that are left out: 0" in text


def test_questions_of_a_picture_follow_each_other_and_each_comes_once_in_an_epoch(vqa):
    samples = vqa({"workload.together": 3}).datasets()["train"].samples
    first, second = samples.order(0, 0), samples.order(0, 1)
    assert sorted(first) == list(range(len(samples))) == sorted(second) and not np.array_equal(first, second)
    assert np.array_equal(first, samples.order(0, 0)) and not np.array_equal(first, samples.order(1, 0))
    pictures = samples.pictures[first]
    runs = np.split(pictures, np.flatnonzero(np.diff(pictures)) + 1)
    assert max(map(len, runs)) >= 3 and len(runs) <= sum(-(-np.bincount(samples.pictures) // 3))
    assert min(len(set(pictures[n : n + 8])) for n in range(0, len(pictures) - 8)) >= 2, "a batch is not of one picture"


def test_a_training_picture_is_changed_once_for_its_questions_and_others_are_not(vqa):
    task = vqa()
    samples = task.datasets()["train"]
    pictures = samples.samples.pictures
    own = np.flatnonzero(pictures == pictures[0])[:2].tolist()
    one, other = batch_of(task, *own), task.collate([samples[n] for n in own], torch.Generator().manual_seed(2))
    assert torch.equal(one["pixels"][0], one["pixels"][1]) and one["picture"].tolist() == [0, 0]
    assert not torch.equal(one["pixels"], other["pixels"])
    held = task.datasets()["validation"]
    pair = [task.collate([held[0]], torch.Generator().manual_seed(seed))["pixels"] for seed in (1, 2)]
    assert torch.equal(*pair)


def test_what_was_learned_is_taken_back_and_what_others_learned_is_checked(vqa, drawn, tmp_path, monkeypatch):
    monkeypatch.setattr("workloads.vqa.model.choose", lambda settings: pytest.fail("it chooses again"))
    task, other = vqa(), load(tmp_path, {"workload.text.weights": "vinai/phobert-base"})
    other.take_learned(json.loads(json.dumps(drawn[1])))
    want, got = batch_of(task), batch_of(other)
    assert other.learned() == drawn[1] and all(torch.equal(want[name], got[name]) for name in want)
    assert "Parts: image from scratch, text from scratch" in other.describe_data()
    for changes in ({"kinds": [1]}, {"tokenizers": {"text": {}}}, {"words": {"a": {"b": -1}}}, {"words": {"a": {}}}):
        with pytest.raises(BadInput, match="lacks encoders, types of questions, a tokenizer or the words' answers"):
            load(tmp_path).take_learned({**drawn[1], **changes})


def test_a_stage_lasts_until_the_next_begins_and_an_encoder_rests_in_the_first_ones():
    rests = {"A": Stage(rests=("image", "text")), "B": Stage(from_steps=10, rests=("image",))}
    three = {"C": Stage(from_steps=20, answer=3.0), **rests}
    assert [stage_at(three, step)[0] for step in (0, 9, 10, 19, 20, 10**6)] == ["A", "A", "B", "B", "C", "C"]
    assert trained(three, "image") == (20, None) and trained(three, "text") == (10, None)
    assert trained({"A": Stage(), "B": Stage(from_steps=4, rests=("image",))}, "image") == (0, 4)
    assert trained({"A": Stage(rests=("image",))}, "image") is None


def test_stages_that_contradict_each_other_are_refused_with_their_line(tmp_path):
    for given, message in (
        ("{A: {from_epochs: 1}}", "must begin with epoch 0"),
        ("{A: {}, B: {}}", "begin at the same time"),
        ("{A: {}, B: {from_epochs: 1}, C: {from_steps: 9}}", "in one form"),
        ("{A: {answer: 0, reasoning: 0, format: 0}}", "A learns nothing"),
        ("{A: {}, B: {from_epochs: 1, rests: [image]}, C: {from_epochs: 2}}", "train the image encoder, rest it"),
        ("{A: {rests: [decoder]}}", "rests"),
        ("{A: {answers: 2}}", "Did you mean answer"),
    ):
        (tmp_path / "vqa.yaml").write_text(f"{CONFIG[: CONFIG.index('  stages:')]}  stages: {given}\n")
        with pytest.raises(BadInput, match=message):
            load_config(tmp_path / "vqa.yaml")
