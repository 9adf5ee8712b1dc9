"""The task as the trainer sees it."""

import json

import numpy as np
import pytest
import torch

from lib import checkpoint, launch
from lib.errors import BadInput
from lib.launch import ensemble
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.task import find_task, load_config
from lib.training import checks, loop
from lib.training.session import Session
from tests.conftest import VOLATILE_COLUMNS
from tests.workloads.legal.conftest import CONFIG, load
from workloads.legal.settings import POSITIONS


def train(task, folder, resume=None):
    folder.mkdir(parents=True, exist_ok=True)
    return loop.train(task, task.config, folder, Session(None, 0, 0), Plain(), resume)


def batch_of(task, *numbers):
    samples = task.datasets()["train"]
    return task.collate([samples[number] for number in numbers or range(8)], torch.Generator())


def test_the_model_reads_no_data_and_the_contract_is_kept(tmp_path, legal):
    (tmp_path / "legal.yaml").write_text(CONFIG)
    task = find_task("legal")(load_config(tmp_path / "legal.yaml"))
    batch = task.example_batch(3, torch.device("cpu"))
    assert torch.isfinite(task.loss(task.model(), batch)[0]["loss"])
    assert batch["tokens"].shape == (3, 48) and batch["positions"].shape == (3, POSITIONS) and "data" not in vars(task)
    task = legal({"training.micro_batch": 2, "training.effective_batch": 4})
    assert checks.examine(task, task.config) == []


def test_losses_are_sums_over_sentences_weighted_by_their_roles_as_far_as_the_power_says(legal, tmp_path):
    task = legal()
    batch, model = batch_of(task), task.model().eval()
    halves = [{name: value[part] for name, value in batch.items()} for part in (slice(0, 3), slice(3, 8))]
    with torch.no_grad():
        whole, parts = task.loss(model, batch)[0]["loss"], [task.loss(model, half)[0]["loss"] for half in halves]
    assert float(whole) == pytest.approx(sum(map(float, parts)), rel=1e-5)
    assert task.count(batch)["loss"] == pytest.approx(sum(task.count(half)["loss"] for half in halves))
    for power in (0.0, 0.5, 1.0):
        data = load(tmp_path, {"workload.loss.class_weights": power}).data
        weights, counts = data.class_weights, data.class_counts
        assert (weights * counts).sum() == pytest.approx(counts.sum())
        products = (weights * counts**power)[counts > 0]
        assert products == pytest.approx(products[0])


def test_the_focal_loss_turns_from_what_is_known(legal):
    logits = torch.zeros(2, 7)
    logits[:, 0] = torch.tensor([12.0, 0.1])
    batch = {"labels": torch.tensor([0, 0]), "weight": torch.ones(2)}
    task = legal({"workload.classes": 12})
    rest = torch.nn.functional.pad(logits[1:] * 0, (0, 5), value=50.0)  # outputs without a role are left out
    assert float(task.summed(rest, {k: v[1:] for k, v in batch.items()})) == pytest.approx(np.log(7))
    shares = []
    for focal in (0.0, 2.0):
        task = legal({"workload.loss.focal": focal})
        easy, hard = (task.summed(logits[n : n + 1], {k: v[n : n + 1] for k, v in batch.items()}) for n in (0, 1))
        shares.append(float(easy / hard))
    assert shares[1] < 1e-3 * shares[0]


def test_what_was_learned_is_kept_as_json_and_taken_back_and_what_somebody_else_learned_is_checked(
    legal, tmp_path, learned
):
    task, other = legal(), load(tmp_path)
    other.take_learned(json.loads(json.dumps(learned)))
    want, got = batch_of(task), batch_of(other)
    assert other.learned() == learned and all(torch.equal(want[name], got[name]) for name in want)
    for changes, message in (
        ({"encoder": None, "counts": 3}, "lacks encoder, counts"),
        ({"classes": ["a"]}, "names 1 roles, and the network has 16"),
        ({"classes": [["a"], ["b"]], "class_weights": [1, 1]}, "names 2 roles"),
        ({"encoder": {"weights": "", "options": {"attn_implementation": "eager"}}}, "names no encoder"),
        ({"encoder": {"weights": 3, "options": {}}}, "names no encoder"),
        ({"tokenizer": {"text": "{}", "cls": 0, "sep": 0, "pad": 0}}, "kept with the weights cannot be read"),
    ):
        with pytest.raises(BadInput, match=message):
            task = load(tmp_path)
            task.take_learned({**learned, **changes})
            task.datasets()


def test_the_fingerprint_is_that_of_the_sentences_and_of_their_division(tmp_path):
    hashes = [
        load(tmp_path, more).fingerprint()
        for more in ({}, {}, {"workload.split.partition": 1}, {"workload.generator.documents": 13})
    ]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3
    with pytest.raises(BadInput, match=r"workload\.classes"):
        load(tmp_path, {"workload.classes": 5}).datasets()


def test_the_data_is_described_and_roles_that_are_numbers_come_with_what_names_them(tmp_path, legal):
    text = legal().describe_data()
    assert "12 generated judgments" in text and "Padding:" in text and "Roles: Argument, Facts" in text
    (tmp_path / "data").mkdir()
    for number in range(6):
        (tmp_path / "data" / f"{number}.txt").write_text("".join(f"word{number} {n}\t{n % 2}\n" for n in range(9)))
    text = load(tmp_path, {"data.dir": str(tmp_path / "data")}).data.describe()
    assert "Roles: 0, 1. These are numbers: workload.classes" in text and "Sentences with a role: 54 in 6" in text


def test_an_evaluation_meets_sentences_of_a_length_together_and_answers_in_their_order(legal):
    task = legal()
    validation = task.datasets()["validation"]
    assert (validation.lengths[:-1] <= validation.lengths[1:]).all()
    numbers = [validation[n].number for n in range(len(validation))]
    labels = task.data.labels(task.data.parts["validation"])
    assert sorted(numbers) == list(range(len(labels)))
    assert [validation[n].label for n in range(len(labels))] == labels[numbers].tolist()


def test_validation_documents_are_counted_and_scored_by_counts_without_them(legal):
    data = legal().data
    assert {*data.held_out} == {one.name for one in data.parts["validation"]}
    for one in data.parts["validation"]:
        seen = data.stack.scores(one)
        assert data.held_out[one.name].shape == seen.shape and not np.allclose(data.held_out[one.name], seen, atol=0.1)
    counted = [*data.parts["train"], *data.parts["validation"]]
    assert data.stack.vocabulary.sentences == sum(map(len, counted))


MORE = {"training.max_steps": 4, "training.evaluate_every_steps": 2, "training.log_every_steps": 1}
MORE |= {"workload.encoder.dropout": 0.2, "checkpoint.every_steps": 2}


def config(home, name):
    (home / "legal.yaml").write_text(CONFIG)
    return load_config(home / "legal.yaml", {**MORE, "run.name": name, "output_dir": str(home / "runs")})


def newest(folder, kind):
    return checkpoint.load_model(checkpoint.path_of(folder / kind, checkpoint.steps(folder / kind)[-1]))


@pytest.mark.usefixtures("quick", "learned")
def test_a_run_that_is_cut_off_ends_in_the_same_bytes_and_predicts(tmp_path, cut, monkeypatch):
    monkeypatch.setattr("lib.report.figure.save", lambda figure, path: path)
    cut(None)
    assert launch.train(config(tmp_path, "whole")).reason == "completed"
    cut(3)
    assert launch.train(config(tmp_path, "cut")).reason == "deadline"
    cut(None)
    # On another machine, whose cache is empty: what was learned comes from the run's own folder
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("workloads.legal.data.Stack.fit", lambda *_: pytest.fail("a resumed run counts again"))
    ended = launch.train(config(tmp_path, "cut"))
    assert ended.reason == "completed" and ended.session == 2 and not ended.missing
    whole, other = (tmp_path / "runs" / name for name in ("whole", "cut"))
    for kind in ("checkpoints", "best"):
        one, two = newest(whole, kind), newest(other, kind)
        assert one.step == two.step and one.state.get("learned") == two.state.get("learned")
        assert all(torch.equal(value, two.tensors["model"][name]) for name, value in one.tensors["model"].items())
    rows = [
        [{k: v for k, v in row.items() if k not in VOLATILE_COLUMNS} for row in read(folder / "metrics.csv")]
        for folder in (whole, other)
    ]
    assert rows[0] == rows[1] and all(0 <= float(row["padding"]) < 1 for row in rows[0] if row["split"] == "train")
    (tmp_path / "new.txt").write_text("The trial court convicted the accused. The appeal is allowed.")
    ensemble.run(other, tmp_path / "new.txt", tmp_path / "out")
    found = [json.loads(line) for line in (tmp_path / "out" / "new.jsonl").read_text().splitlines()]
    assert len(found) == 2 and (tmp_path / "out" / "new.html").is_file()
