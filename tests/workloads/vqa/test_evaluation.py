"""The task and its stages, rules that see the question alone, answers beside them, and questions about new pictures."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from lib.errors import BadInput
from lib.task import find_task, load_config
from lib.training.evaluation import EvaluationLoader
from tests.conftest import ROOT
from tests.workloads.vqa.conftest import CONFIG, load
from tests.workloads.vqa.files import picture, record
from trainbook.launch import checks
from trainbook.supervised.samples import Part
from workloads.vqa import OFFERED, Words, certainty, chosen_weight, data, likeliest, pairs_of
from workloads.vqa.settings import Stage, stage_at
from workloads.vqa.tokens import Answer

ASKED = [
    *(record(n, question=f"what color is cup {n}?", answer="Red" if n < 5 else "blue", kind="COLOR") for n in range(8)),
    *(record(n, question="how many cups?", answer="two", kind="COUNT") for n in range(10, 17)),
    *(record(n, question="how many dogs?", answer="three", kind="COUNT") for n in range(20, 23)),
]  # fmt: skip


def test_each_rule_answers_what_was_commonest_for_what_it_sees_spelled_as_it_mostly_was(vqa):
    def by_rules(train, test):
        task = vqa()
        task.parts = {"train": Part(task, "train", train), "test": Part(task, "test", test)}
        rows = task.baselines()
        assert [*rows][-1] == "by words"
        return {name: rows[name] for name in names}

    names = "by question type", "by question"
    asked = record(99, question="How many dogs", answer="?", kind="COUNT")
    assert by_rules(ASKED, [asked]) == dict(zip(names, (["two"], ["three"]), strict=True))
    new = record(99, question="what color is that", kind="COLOR")
    assert by_rules(ASKED, [new]) == {name: ["Red"] for name in names}
    words = Words(pairs_of(ASKED))
    assert words.guesses([asked.question, new.question]) == ["three", "Red"]
    shares = words.shares([asked.question, "", "?"])
    assert np.allclose(shares.sum(1), 1)
    assert shares.min() > 0
    assert np.array_equal(shares[1], shares[2])
    train = [
        record(n, answer=answer) for n, answer in enumerate(("Red.", "red", "red", "blue", "blue"))
    ]
    for order in (train, train[::-1]):
        assert by_rules(order, [record(9)]) == {name: ["red"] for name in names}
        assert pairs_of(order) == {"red": {"what color is it": 3}, "blue": {"what color is it": 2}}
        assert Words(pairs_of(order)).guesses([record(9).question]) == ["red"]


def test_questions_without_a_word_are_answered_by_frequencies_and_pairs_are_bounded_in_bytes():
    asked = [
        record(n, question="?", answer=answer)
        for n, answer in enumerate(("red", "red", "red", "blue"))
    ]
    assert Words(pairs_of(asked)).shares(["?", "what"]).tolist() == [[0.25, 0.75]] * 2  # blue, red
    long = pairs_of([record(n, question=f"{n} " + "a" * 2**20) for n in range(9)])
    assert len(long["red"]) == 5


def judged(text, network, words):
    answer = Answer(text)
    answer.network = network
    answer.words = words
    return answer


@settings(derandomize=True, max_examples=40, deadline=None)
@given(some.lists(some.sampled_from("wwwnnnnnn?"), min_size=2, max_size=40))
def test_the_network_counts_where_a_t_test_over_pictures_is_sure_of_its_gain(right):
    """Pictures with a question each, about which the words say w and the network n."""
    written = []
    for _ in right:
        written.append(Answer("n"))
        written[-1].candidates = [judged("n", -0.1, -5.0), judged("w", -5.0, -0.1)]
    gains = [(answer == "n") - (answer == "w") for answer in right]
    is_constant = len({*gains}) == 1
    mean = sum(gains)
    if is_constant:
        is_sure = mean > 0
    else:
        is_sure = stats.ttest_1samp(gains, 0, alternative="greater").pvalue < 0.005
    weight = chosen_weight(right, written, [str(n) for n in range(len(right))])
    assert weight == float(is_sure)
    assert [*likeliest(written, weight)] == ["n" if is_sure else "w"] * len(right)
    assert chosen_weight(right, written, ["one"] * len(right)) == 0


def test_a_weight_between_takes_what_both_hold_likely():
    answer = Answer("n")
    logs = {"n": (-1, -9), "b": (-2, -2), "w": (-9, -1)}
    answer.candidates = [judged(name, *pair) for name, pair in logs.items()]
    assert [likeliest([answer], weight)[0] for weight in (0, 0.5, 1)] == ["w", "b", "n"]
    assert chosen_weight(["b"] * 9, [answer] * 9, [*"abcdefghi"]) == 0.75


def evaluated(task, model, part="test"):
    loader = EvaluationLoader(task, task.datasets()[part], 8, torch.device("cpu"))
    with torch.inference_mode():
        return task.evaluate(model, loader)


def test_an_evaluation_judges_each_record_by_type_too_with_the_same_loss_in_every_stage(
    vqa, monkeypatch, tmp_path
):
    task = load(tmp_path, {"workload.decoder.length": 24, "workload.generator.pictures": 60})
    samples = task.datasets()["test"].samples
    model = task.model().eval()
    found = []
    for task.step in (0, 3):
        found.append(evaluated(task, model))
    kinds = {f"exact_{one.kind}" for one in samples}
    names = {
        "loss",
        "exact",
        "token_f1",
        "rouge_l",
        "valid",
        "network_exact",
        "network_weight",
        *kinds,
    }
    assert found[0] == found[1]
    assert found[0].keys() == names
    assert [*task._tested["answer"].guess] == task._guesses["by words"]
    evaluated(task, model, "validation")
    evaluated(task, model)
    assert "no sure gain over 'by words'" in task.report(found[0], tmp_path)
    assert float(model.weight) == 0
    right = iter([*task.parts["validation"].samples, *samples])
    wrong = samples[0]

    def written(self, memory, mask, beams, length, returned):
        answers = []
        for _ in memory:
            sample = next(right)
            tokens, _ = task.writer.targets([sample], 40)[0]
            answers += [tokens[sample is wrong :]] * returned
        return answers

    def log_probabilities(self, memory, mask, written, last):
        size = len(written) // len(memory)
        places = [number % size for number in range(len(written))]
        # What the words offer comes behind the beams
        return [-9.0 * (place >= size - OFFERED) for place in places]

    monkeypatch.setattr("workloads.vqa.model.Network.written", written)
    monkeypatch.setattr("workloads.vqa.model.Network.log_probabilities", log_probabilities)
    evaluated(task, model, "validation")
    scores = evaluated(task, model)
    assert scores["exact"] == scores["network_exact"] == 1.0 > scores["valid"]
    assert all(scores[kind] == 1.0 for kind in kinds)
    assert scores["network_weight"] == 1
    text = task.report(scores, tmp_path)
    assert "'answer' is surely above the strongest baseline" in text
    assert "pictures of the test" in text
    assert "Validation gives the network 1 and" in text
    rows = {row["method"]: row for row in table(tmp_path / "evaluation.csv")}
    assert [*rows] == [
        "commonest answer",
        "by question type",
        "by question",
        "by words",
        "network alone",
        "answer",
    ]
    assert float(rows["answer"]["gain_exact_low"]) > 0
    assert float(rows["network alone"]["exact_COUNTING"]) == 1
    answers = table(tmp_path / "answers.csv")
    assert len(answers) == len(samples)
    assert sum(row["valid"] == "0" for row in answers) == 1
    assert all(row["network alone"] == row["answer"] == row["target"] for row in answers)
    assert all(row["question"] and row["by words"] for row in answers)


def table(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def mine(tmp_path):
    """A folder with two pictures, and questions about each in a text file."""
    folder = tmp_path / "mine"
    picture(folder / "cat.png", 3, (40, 30))
    picture(folder / "deep" / "dog.jpg", 9, (40, 30))
    (folder / "cat.txt").write_text("màu gì\n\n  ở   đâu\n", "utf-8")
    (folder / "deep" / "dog.txt").write_text("con gì\nmấy con", "utf-8")
    (folder / "notes.txt").write_text("beside no picture", "utf-8")
    return folder


def test_text_files_ask_about_the_pictures_beside_them_and_are_answered_in_any_batch(
    vqa, mine, tmp_path
):
    with pytest.raises(
        BadInput, match="no question about a picture .* a text file of the same name"
    ):
        data.questions(tmp_path / "nowhere")
    task = vqa({"training.micro_batch": 2, "workload.decoder.length": 16})
    torch.manual_seed(0)
    models = [task.model().eval() for _ in range(2)]
    rows = [*task.predict(models[:1], mine, tmp_path / "out").values()]
    assert [(row["img_id"], row["question"]) for row in rows] == [
        ("cat", "màu gì"), ("cat", "ở đâu"), ("dog", "con gì"), ("dog", "mấy con"),
    ]  # fmt: skip
    lines = [
        json.loads(line)
        for line in (tmp_path / "out" / "answers.jsonl").read_text("utf-8").splitlines()
    ]
    assert lines == rows
    task.config = vqa({"training.micro_batch": 1, "workload.decoder.length": 16}).config
    alone = task.predict(models[:1], mine, None)
    together = task.predict(models, mine, None)
    assert [row["teacher_answer"] for row in alone.values()] == [
        row["teacher_answer"] for row in rows
    ]
    assert len(together) == len(rows)
    asked = [row["question"] for row in rows]
    assert [row["teacher_answer"] for row in rows] == task.words.guesses(asked), (
        "a new network's weight is 0"
    )
    for model in models:
        model.weight.fill_(1)
    assert [
        row["teacher_answer"] for row in task.predict(models, mine, None).values()
    ] != task.words.guesses(asked)


def test_a_target_is_parsed_into_what_it_was_made_of_and_what_lacks_a_tag_is_not_valid(vqa):
    task = vqa()
    own = task.writer
    for one in task.datasets()["train"].samples[:10]:
        found = own.parsed([*own.targets([one], 40)[0][0], own.pad])
        assert found == one.answer
        assert found.kind == one.kind
        assert found.reasoning == one.reasoning
        assert found.is_valid is True
    word = own.numbers(["hình tròn"])[0]
    whole = [own.answer, *word, own.answer_end, own.reasoning, *word, own.reasoning_end, own.end]
    assert own.parsed(whole).is_valid
    for wrong, answer in (
        (whole[1:], "hình tròn"),  # no tag before it
        ([own.answer, own.answer_end, own.reasoning, own.reasoning_end], ""),  # an empty answer
        ([], ""),
    ):
        found = own.parsed(wrong)
        assert not found.is_valid
        assert found == answer


def batch_of(task, *numbers):
    samples = task.datasets()["train"]
    return task.collate(
        [samples[number] for number in numbers or range(8)], torch.Generator().manual_seed(1)
    )


def test_the_model_reads_no_data_and_the_contract_is_kept(tmp_path, vqa):
    (tmp_path / "vqa.yaml").write_text(CONFIG)
    task = find_task("vqa")(load_config(tmp_path / "vqa.yaml"))
    batch = task.example_batch(3, torch.device("cpu"))
    assert torch.isfinite(task.loss(task.model(), batch)[0]["answer"])
    assert "parts" not in vars(task)
    task = vqa(
        {"training.micro_batch": 2, "training.effective_batch": 4, "workload.decoder.length": 16}
    )
    assert checks.examine(task, task.config) == []


def test_questions_of_a_picture_follow_each_other_and_each_comes_once_in_an_epoch(vqa):
    samples = vqa({"workload.together": 3}).datasets()["train"].samples
    first = samples.order(0, 0)
    second = samples.order(0, 1)
    assert sorted(first) == list(range(len(samples))) == sorted(second)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, samples.order(0, 0))
    assert not np.array_equal(first, samples.order(1, 0))
    pictures = samples.pictures[first]
    runs = np.split(pictures, np.flatnonzero(np.diff(pictures)) + 1)
    assert max(map(len, runs)) >= 3
    assert len(runs) <= sum(-(-np.bincount(samples.pictures) // 3))
    assert min(len(set(pictures[n : n + 8])) for n in range(0, len(pictures) - 8)) >= 2, (
        "a batch is not of one picture"
    )


def test_a_training_picture_is_changed_once_for_its_questions_and_others_are_not(vqa):
    task = vqa()
    samples = task.datasets()["train"]
    pictures = samples.samples.pictures
    own = np.flatnonzero(pictures == pictures[0])[:2].tolist()
    one = batch_of(task, *own)
    other = task.collate([samples[n] for n in own], torch.Generator().manual_seed(2))
    assert torch.equal(one["pixels"][0], one["pixels"][1])
    assert one["picture"].tolist() == [0, 0]
    assert not torch.equal(one["pixels"], other["pixels"])
    held = task.datasets()["validation"]
    pair = [
        task.collate([held[0]], torch.Generator().manual_seed(seed))["pixels"] for seed in (1, 2)
    ]
    assert torch.equal(*pair)


def test_what_was_learned_is_taken_back_and_what_others_learned_is_checked(
    vqa, drawn, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "workloads.vqa.model.choose", lambda settings: pytest.fail("it chooses again")
    )
    task = vqa()
    other = load(tmp_path, {"workload.text.weights": "vinai/phobert-base"})
    other.take_learned(json.loads(json.dumps(drawn[1])))
    want = batch_of(task)
    got = batch_of(other)
    assert other.learned() == drawn[1]
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert "Parts: image from scratch, text from scratch" in other.describe_data()
    for changes in (
        {"kinds": [1]},
        {"tokenizers": {"text": {}}},
        {"words": {"a": {"b": -1}}},
        {"words": {"a": {}}},
    ):
        with pytest.raises(
            BadInput, match="lacks encoders, types of questions, a tokenizer or the words' answers"
        ):
            load(tmp_path).take_learned({**drawn[1], **changes})


def test_a_stage_lasts_until_the_next_begins():
    three = {"C": Stage(from_steps=20, answer=3.0), "A": Stage(), "B": Stage(from_steps=10)}
    assert [stage_at(three, step)[0] for step in (0, 9, 10, 19, 20, 10**6)] == [
        "A",
        "A",
        "B",
        "B",
        "C",
        "C",
    ]


def test_a_run_whose_stages_rested_encoders_loads(tmp_path, capsys):
    shipped = (ROOT / "configs" / "vqa.yaml").read_text("utf-8")
    (tmp_path / "vqa.yaml").write_text(
        re.sub(r"(format: [.0-9]+)}", r"\1, rests: [image]}", shipped), "utf-8"
    )
    assert [*load_config(tmp_path / "vqa.yaml").workload.stages] == re.findall(
        r"^    ([A-Z_]+): ", shipped, re.M
    )
    assert capsys.readouterr().err.count(".rests is no longer a key") == 4


def test_stages_that_contradict_each_other_are_refused_with_their_line(tmp_path):
    for stages, message in (
        ("{A: {from_epochs: 1}}", "must begin with epoch 0"),
        ("{A: {answer: 0, reasoning: 0, format: 0}}", "The stage learns nothing"),
    ):
        (tmp_path / "vqa.yaml").write_text(
            f"{CONFIG[: CONFIG.index('  stages:')]}  stages: {stages}\n"
        )
        with pytest.raises(BadInput, match=message):
            load_config(tmp_path / "vqa.yaml")


def test_probabilities_of_answers_mean_what_they_say_on_other_questions():
    """The candidates are drawn from known probabilities, whose logarithms a model triples; one in five is another."""
    generator = np.random.default_rng(0)
    true = np.array([0.55, 0.2, 0.05, 0.2])  # the last one is none of the candidates

    def drawn(questions):
        scores = []
        places = []
        for _ in range(questions):
            shares = generator.permutation(true[:3]) * 0.8 / true[:3].sum()
            place = int(generator.choice(4, p=[*shares, 0.2]))
            scores.append((3 * np.log(shares)).tolist())
            places.append(None if place == 3 else place)
        return scores, places

    found = certainty.fitted(*drawn(2000))
    assert found.power == pytest.approx(1 / 3, rel=0.15)
    scores, places = drawn(2000)
    best = [max(certainty.shares(each, found)) for each in scores]
    right = [int(np.argmax(each)) == place for each, place in zip(scores, places, strict=True)]
    assert np.mean(best) == pytest.approx(np.mean(right), abs=0.03)
    assert sum(certainty.shares(scores[0], found)) == pytest.approx(0.8, abs=0.03)


def test_of_a_few_answers_that_are_all_right_none_is_certain():
    found = certainty.fitted([[-0.1, -3.0]] * 10, [0] * 10)
    assert 0.8 < certainty.shares([-0.1, -3.0], found)[0] < 0.99
