"""What a task learns from data: kept with its weights, taken back before model and data, the same at every start."""

import pytest

from lib import checkpoint
from lib.errors import BadInput
from lib.task import find_task, load_config
from lib.training import learned
from trainbook import launch
from trainbook.launch import ensemble

OWN = """
from tests.toy import Toy

class Own(Toy):
    facts = {"labels": ("no", "yes"), "means": {2: 0.5, 10: 2.0}}
    calls = []

    def learned(self):
        return getattr(self, "taken", self.facts)

    def take_learned(self, values):
        self.calls.append("take")
        self.taken = dict(values)

    def model(self):
        self.calls.append("model")
        return super().model()

    def datasets(self):
        self.calls.append("datasets")
        return super().datasets()
"""
KEPT = {"labels": ["no", "yes"], "means": {"10": 2.0, "2": 0.5}}


@pytest.fixture
def own(tmp_path):
    """own(**overrides) -> the configuration of a task that learns from data."""
    (tmp_path / "own.py").write_text(OWN)
    text = (
        "task: own.py:Own\ntraining: {max_steps: 4, effective_batch: 8, evaluate_every_steps: 2}\n"
    )
    (tmp_path / "own.yaml").write_text(
        text + "data: {num_workers: 0}\ncheckpoint: {every_steps: 2}\n"
    )
    return lambda overrides=None: load_config(
        "own.yaml", {"output_dir": str(tmp_path / "runs"), **(overrides or {})}
    )


@pytest.fixture
def run(own, cut, quick):
    """run(steps, overrides) -> the task after a session of so many steps, with what it was asked for in `calls`."""

    def train(steps=None, overrides=None):
        cut(steps)
        prepared = launch.prepare(own(overrides))
        prepared.task.calls.clear()
        launch.train(prepared)
        return prepared.task

    return train


def test_a_resumed_run_and_a_prediction_keep_the_values_of_the_first_session(
    run, tmp_path, monkeypatch
):
    fresh = run(2)
    assert fresh.calls[:2] == ["take", "datasets"]
    assert fresh.calls.index("take") < fresh.calls.index("model")
    monkeypatch.setattr(
        find_task("own.py:Own"), "facts", {"labels": ("yes", "no"), "means": {3: 0.5}, "more": 1}
    )
    resumed = run()
    fresh.calls.clear()
    predicting, _ = ensemble.load(tmp_path / "runs" / "own", str(tmp_path / "own.py:Own"))
    assert predicting.calls.index("take") < predicting.calls.index("model")
    for task in (fresh, resumed, predicting):
        assert task.taken == KEPT
        assert list(task.taken["means"]) == ["10", "2"]


def test_runs_that_learned_different_things_do_not_predict_together(run, tmp_path, monkeypatch):
    run(None, {"run.name": "own-seed1", "queue.seeds": [1, 2]})
    monkeypatch.setattr(find_task("own.py:Own"), "facts", {"labels": ["yes", "no"]})
    run(None, {"run.name": "own-seed2", "queue.seeds": [1, 2]})
    with pytest.raises(BadInput, match="cannot vote together.*or what they learned from data"):
        ensemble.load(tmp_path / "runs", "own.py:Own")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "Own.learned returned a NoneType. Return a dict"),
        ({"mean": float("nan")}, "learned returned values that JSON cannot hold"),
        (
            {"words": "a" * 13_000_000},
            "learned returned 13,000,.* bytes, which every checkpoint would hold",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_first_step(
    own, monkeypatch, tmp_path, value, sentence
):
    config = own()
    monkeypatch.setattr(find_task("own.py:Own"), "facts", value)
    with pytest.raises(BadInput, match=sentence):
        launch.train(config)
    assert not checkpoint.steps(tmp_path / "runs" / "own" / "checkpoints")


def test_a_task_that_could_not_take_it_back_is_refused(own, monkeypatch):
    task = find_task("own.py:Own")(own())
    monkeypatch.delattr(type(task), "take_learned")
    with pytest.raises(BadInput, match=r"Own has learned\(\) and no take_learned\(values\)"):
        learned.take(task, None)


def test_a_kept_file_of_another_size_is_refused_without_being_read(tmp_path, monkeypatch, capsys):
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "words.txt"
    file.write_text("ten bytes.")
    reference = learned._reference("words", file)
    assert learned.restored({"words": reference}, tmp_path) == {"words": file}
    file.write_text("ten bytes, and more")
    monkeypatch.setattr(learned.hashlib, "file_digest", lambda *_: pytest.fail("it was hashed"))
    assert learned.restored({"words": reference}, tmp_path) == {}
    assert "is not used: it is not as it was written" in capsys.readouterr().out
