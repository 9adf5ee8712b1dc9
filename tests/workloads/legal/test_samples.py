"""Windows of sentences that a head reads together."""

import numpy as np
import pytest
import torch

from lib.planner import as_configured, find_card
from lib.training import checks
from tests.workloads.legal.test_legal import train
from tests.workloads.legal.test_model import network
from workloads.legal import samples
from workloads.legal.contexts import padding
from workloads.legal.model import Network
from workloads.legal.settings import POSITIONS, Head

HEADS = ("transformer", "gru")
WINDOWS = {"workload.head.document": "gru", "workload.head.window": 8}


@pytest.mark.parametrize("part", ["train", "validation"])
def test_each_sentence_has_its_role_in_one_window_of_its_document(legal, part):
    task = legal(WINDOWS)
    windows, documents = task.datasets()[part], task.data.parts[part]
    ends = np.cumsum([len(one) for one in documents])
    own, first = [], []
    for index in range(len(windows)):
        numbers, begin = windows.windows[index]
        assert len(numbers) == 8 and (np.diff(numbers) == 1).all(), "of documents with 14 sentences and more"
        assert np.searchsorted(ends, numbers[0], "right") == np.searchsorted(ends, numbers[-1], "right")
        found = windows[index]
        assert [one.number for one in found] == [n if n >= begin else -1 for n in numbers]
        assert all((one.weight > 0) == (one.number >= 0) for one in found)
        assert windows.lengths[index] == max(len(one.tokens) for one in found)
        own += [one.number for one in found if one.number >= 0]
        first.append(begin)
    assert sorted(own) == list(range(ends[-1]))
    assert first == sorted(first) if part == "train" else (np.diff(windows.lengths) >= 0).all()


def test_a_short_document_has_inputs_of_one_token_behind_its_sentences(legal):
    task = legal({**WINDOWS, "workload.head.window": 40})
    windows = task.datasets()["train"]
    batch = task.collate([windows[0], windows[1]], torch.Generator())
    assert batch["tokens"].shape[:2] == (2, 40) and batch["positions"].shape == (2, 40, POSITIONS)
    count = len(windows[0])
    assert count < 40 and (batch["mask"][0, count:].sum(-1) == 1).all() and (batch["mask"][0, :count].sum(-1) > 1).all()
    assert (batch["weight"][0, count:] == 0).all() and (batch["number"][0, count:] == -1).all()


def test_padding_counts_the_inputs_of_a_window():
    assert padding(np.array([4, 2]), 2, filled=9, window=2) == pytest.approx(1 - 9 / 16)


def together(kind):
    torch.manual_seed(0)
    model = network(document=kind, window=4)
    batch = samples.example(2, 6, POSITIONS, torch.device("cpu"), 4)
    batch["tokens"] = torch.randint(20, batch["tokens"].shape)
    return model, batch


@pytest.mark.parametrize("kind", HEADS)
def test_a_sentence_is_read_with_its_window_and_with_no_other(kind):
    model, batch = together(kind)
    changed = {**batch, "tokens": batch["tokens"].clone()}
    changed["tokens"][0, 2] += 1
    changed["tokens"] %= 20
    moved = (model(batch) - model(changed)).detach().abs().amax(1)
    assert model(batch).shape == (8, 3) and (moved[:4] > 0).all() and (moved[4:] == 0).all()


@pytest.mark.parametrize("kind", HEADS)
def test_what_stands_behind_a_short_document_is_not_read(kind):
    model, batch = together(kind)
    batch["mask"][0, 3, 1:] = 0
    changed = {**batch, "positions": batch["positions"].clone()}
    changed["positions"][0, 3] += 1
    before, after = model(batch), model(changed)
    assert torch.equal(before[:3], after[:3]) and torch.isfinite(before).all()


@pytest.mark.parametrize("kind", HEADS)
def test_such_a_head_keeps_the_contract(legal, kind):
    task = legal({**WINDOWS, "workload.head.document": kind, "training.micro_batch": 2, "training.effective_batch": 4})
    assert checks.examine(task, task.config) == []


@pytest.mark.parametrize("kind", HEADS)
def test_such_a_head_is_planned_trained_judged_and_answers_for_every_sentence(legal, tmp_path, kind):
    task = legal({**WINDOWS, "workload.head.document": kind, "training.effective_batch": 4})
    assert as_configured(task.config, find_card("t4")).prediction.peak_bytes > 0
    ended = train(task, tmp_path / "run")
    assert ended.reason == "completed" and "Padding:" in task.describe_data() and 0 < task.batch_share() <= 1
    validation = task.datasets()["validation"]
    loader = [task.collate([validation[n]], torch.Generator()) for n in range(len(validation))]
    with torch.inference_mode():
        scores = task.evaluate(ended.state.model.eval(), type("Loader", (list,), {"dataset": validation})(loader))
    assert 0 <= scores["macro_f1"] <= 1 and scores["loss"] > 0
    (tmp_path / "new.txt").write_text("The appeal is heard.\n" * 3 + "It is allowed.\n" * 7)
    answers = task.predict([ended.state.model.eval()], tmp_path / "new.txt", None)["new"]
    assert [row["sentence"] for row in answers] == list(range(1, 11))


def test_no_window_is_the_network_that_it_was():
    names = {name for name, _ in network().named_parameters()}
    assert not any(name.startswith("document") for name in names)
    assert Head().read_together == 0 and Head(document="gru", window=5).read_together == 5
    assert isinstance(network(document="gru"), Network)
