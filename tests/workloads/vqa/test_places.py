"""A frozen published encoder: features of places, the network without the picture beside it, and who answers."""

import json

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from lib.training.evaluation import EvaluationLoader
from tests.trainbook.published import wheel
from tests.workloads.vqa.conftest import load
from tests.workloads.vqa.files import lines, picture, row
from trainbook import published
from workloads.vqa import ALONE, NETWORK, Words, pairs_of, places, rules
from workloads.vqa.data import Record
from workloads.vqa.tokens import Answer

ASKED = ("màu gì", "con gì", "ở đâu")
SMALL = {"workload.decoder.length": 16, "training.micro_batch": 4, "training.effective_batch": 4}


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    """A folder of twelve pictures with three questions each, and the path of a wheel with an encoder."""
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    wheel.shrink(monkeypatch)
    places._loaded.cache_clear()
    rows = []
    for number in range(12):
        picture(tmp_path / "data" / f"{number}.jpg", 3 * number + 1, (40, 30))
        for place, question in enumerate(ASKED):
            answer = ("đỏ", "mèo", "sân")[(place + number) % 3]
            rows.append(row(number, question=question, answer=answer))
    lines(tmp_path / "data" / "train.jsonl", *rows)
    path = wheel.write(tmp_path / "wheels", monkeypatch)
    yield {"data.dir": tmp_path / "data", "workload.image.encoder": path, **SMALL}
    places._loaded.cache_clear()


@pytest.fixture
def task(tmp_path, photographs):
    return load(tmp_path, photographs)


def collated(task, number=6):
    part = task.datasets()["train"]
    return task.collate([part[place] for place in range(number)], torch.Generator().manual_seed(3))


def test_places_are_the_frozen_encoders_last_maps_computed_once_and_named_in_a_line(
    task, tmp_path, photographs, monkeypatch
):
    batch = collated(task)
    assert "pixels" not in batch
    assert batch["places"].shape == (6, 4, 8)
    assert {*batch["shown"].tolist()} == {True, False}, "training hides some pictures"
    part = task.datasets()["train"]
    image = part.samples[0].image
    about = task.describe_data()
    assert about.startswith("Encoder: EfficientNet-Lite0")
    assert "image EfficientNet-Lite0" in about
    pixels = torch.tensor(places.pictures.picture(image, size=wheel.SIDE)).permute(2, 0, 1)[None]
    encoder = published.encoder(str(photographs["workload.image.encoder"])).eval()
    with torch.no_grad():
        last = encoder.stages(encoder.scaled(pixels / 255))[-1]
    assert torch.allclose(batch["places"][0].float(), last[0].flatten(1).T, atol=1e-2)
    gone = load(tmp_path, {**photographs, "workload.image.encoder": ""})
    gone.take_learned(json.loads(json.dumps(task.learned())))
    places._loaded.cache_clear()
    assert torch.equal(gone.places.batch(part.samples[:1])[0], batch["places"][:1]), "from disk"
    assert "not at hand" in gone.describe_data()
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "empty"))
    fresh = load(tmp_path, {**photographs, "workload.image.encoder": ""})
    fresh.take_learned(task.learned())
    with pytest.raises(BadInput, match="Mount or install exactly this one"):
        fresh.places.batch(part.samples[:1])


def test_a_hidden_picture_says_nothing_and_a_shown_one_does(task):
    batch = collated(task)
    torch.manual_seed(0)
    model = task.model().eval()
    other = {**batch, "places": batch["places"] + 1}
    assert "alone" in model.state_dict()
    with torch.no_grad():
        shown = torch.ones(6, dtype=torch.bool)
        hidden = [model({**each, "shown": ~shown}) for each in (batch, other)]
        seen = [model({**each, "shown": shown}) for each in (batch, other)]
        mixed = model(batch)
    assert torch.equal(*hidden)
    assert not torch.allclose(*seen, atol=1e-3)
    for place, is_shown in enumerate(batch["shown"].tolist()):
        alike = seen[0] if is_shown else hidden[0]
        assert torch.allclose(mixed[place], alike[place], atol=1e-5)
    examples = task.example_batch(2, torch.device("cpu"))
    assert examples["places"].shape == (2, 4, 8)
    assert torch.isfinite(model(examples)).all()


def test_the_network_without_the_picture_is_a_row_and_is_weighed(task, tmp_path):
    torch.manual_seed(0)
    model = task.model().eval()
    for part in ("validation", "test"):
        loader = EvaluationLoader(task, task.datasets()[part], 8, torch.device("cpu"))
        with torch.inference_mode():
            scores = task.evaluate(model, loader)
    assert [*task._tested] == [NETWORK, ALONE, "answer"]
    assert 0 <= scores["words_exact"] <= 1
    assert float(model.alone) in rules.SHARES
    text = task.report(scores, tmp_path)
    assert "beside 'words alone', and the answer" in text
    assert "words alone" in (tmp_path / "evaluation.csv").read_text("utf-8")
    rows = task.answers([model], task.parts["test"].samples[:2])
    assert all(line["teacher_answer"] for line in rows)


def test_without_an_encoder_pixels_are_read_and_a_line_says_what_one_would_give(
    tmp_path, photographs
):
    for name, line in (("none", "No encoder"), ("", "No published encoder of pictures is at hand")):
        task = load(tmp_path, {**photographs, "workload.image.encoder": name})
        assert task.describe_data().startswith(line)
        batch = collated(task)
        assert "pixels" in batch
        assert batch.keys().isdisjoint({"places", "shown"})
        assert "alone" not in task.model().state_dict()
    drawn = load(tmp_path, SMALL)
    assert drawn.describe_data().startswith("Data: ")
    damaged = {**task.learned(), "places": {"sha256": "0"}}
    with pytest.raises(BadInput, match="start another run"):
        task.take_learned(damaged)
    with pytest.raises(BadInput, match="start another run"):
        task.take_learned({**task.learned(), "margins": {"strength": 1.0}})


def judged(text, network, alone, words):
    answer = Answer(text)
    answer.network = network
    answer.alone = alone
    answer.words = words
    return answer


def test_the_better_of_words_alone_and_the_classifier_is_the_base_of_the_network():
    answer = Answer("n")
    rows = (("n", -1, -9, -9), ("a", -9, -1, -9), ("w", -9, -9, -2))
    answer.candidates = [judged(*each) for each in rows]
    written = [answer] * 12
    shown = [*"abcdefghijkl"]
    for right, share in (("a", 0.5), ("w", 0.0), ("n", 0.0)):
        alone = rules.chosen_alone([right] * 12, written)
        assert alone == share
        weight = rules.chosen_weight([right] * 12, written, shown, alone)
        assert weight == float(right == "n")
        assert [*rules.likeliest(written, weight, alone)] == [right] * 12
    true = np.array(["a"] * 12, object)
    better = np.array(["a"] * 8 + ["b"] * 4, object)
    worse = np.array(["b"] * 12, object)
    gain = rules.gain(true, better, worse, shown)
    assert gain.value == 8 / 12
    assert 0.3 < gain.low < gain.value < gain.high


def asked(number, question, answer):
    return Record(number, question, "", f"p{number}", answer=answer)


def test_margins_answer_where_folds_are_sure_of_them_and_are_fitted_again_alike(monkeypatch):
    draw = np.random.default_rng(0)
    records = []
    for number in range(400):
        kind = int(draw.integers(8))
        filler = " ".join(f"x{draw.integers(60)}" for _ in range(6))
        records.append(asked(number, f"{filler} key{kind} of {filler}", f"answer {kind}"))
    choices = []
    for is_margins in (True, False):

        def right(records, fold, choice, is_better=is_margins):
            return np.arange(len(records)) % 2 * float(bool(choice) == is_better)

        with monkeypatch.context() as patch:
            patch.setattr(rules, "_right", right)
            choices.append(rules.chosen_by_folds(records))
    assert {*choices[0]} == {"strength", "power"}
    assert choices[1] == {}
    margins = Words(pairs_of(records), {"strength": 1.0, "power": 4.0})
    again = Words(pairs_of(records), {"strength": 1.0, "power": 4.0})
    questions = [record.question for record in records[:9]]
    shares = margins.shares(questions)
    assert np.array_equal(shares, again.shares(questions))
    assert np.allclose(shares.sum(1), 1)
    assert margins.guesses(questions) == [record.answer for record in records[:9]]
    assert rules.chosen_by_folds(records[:3]) == {}
