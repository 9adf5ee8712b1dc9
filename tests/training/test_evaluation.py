"""An evaluation whose memory runs out: repeated in smaller pieces, with the same metrics."""

import pytest
import torch

from lib.config import with_changes
from lib.errors import TrainingFailed
from lib.task import load_task
from lib.training import data
from lib.training.evaluation import EvaluationLoader, evaluate
from lib.training.state import new_state
from tests.training.test_loop import newest, same_tensors
from tests.training.test_step import rows, run_in, tight

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_an_evaluation_that_runs_out_starts_again_in_smaller_pieces_with_the_same_metrics(
    toy, tmp_path, monkeypatch, capsys, noise
):
    config = toy({"workload.noise": noise})
    easy = run_in(tmp_path / "easy", config, monkeypatch)
    hard = run_in(tmp_path / "hard", config, monkeypatch, loss=tight(1))
    assert hard.state.micro_batch == 8 and hard.state.evaluation_batch == 1
    assert hard.state.best["value"] == pytest.approx(easy.state.best["value"], rel=1e-6)
    assert same_tensors(newest(tmp_path / "easy").tensors["model"], newest(tmp_path / "hard").tensors["model"])
    out = capsys.readouterr().out
    assert out.count("Memory ran out in the evaluation at step 4") == 3  # 8 -> 4 -> 2 -> 1, and never again
    assert out.count("Memory ran out") == 3
    assert [(row["kind"], row["before"], row["after"]) for row in rows(tmp_path / "hard")] == [
        ("oom_evaluation", "8", "4"), ("oom_evaluation", "4", "2"), ("oom_evaluation", "2", "1"),
    ]  # fmt: skip


def test_an_evaluation_of_one_sample_that_does_not_fit_says_what_was_tried(toy, tmp_path, monkeypatch):
    with pytest.raises(TrainingFailed, match=r"evaluation at step 4 with one sample.*\(tried: 8, 4, 2, 1\)"):
        run_in(tmp_path / "run", toy(), monkeypatch, loss=tight(0))


def test_slices_of_an_evaluation_hold_what_the_whole_batches_hold(toy):
    task = load_task(toy({"workload.noise": 0.5}))
    whole = list(EvaluationLoader(task, range(11), 4, torch.device("cpu")))
    counted = []
    loader = EvaluationLoader(
        task, range(11), 4, torch.device("cpu"), on_batch=lambda done, total: counted.append((done, total)), most=3
    )
    parts = list(loader)
    assert [data.size_of(part) for part in parts] == [3, 1, 3, 1, 3] and len(loader) == 5
    assert counted == [(n, 5) for n in range(1, 6)]
    for name in ("x", "y", "id"):
        assert torch.equal(torch.cat([b[name] for b in whole]), torch.cat([b[name] for b in parts]))


def seen_by(config, state=None):
    """The sizes of the batches that an evaluation of 21 samples gets."""
    task, sizes = load_task(config), []
    task.evaluate = lambda model, loader: sizes.extend(map(data.size_of, loader)) or {"loss": 0.0}
    evaluate(state or new_state(task, config), task, config, range(21))
    return sizes


def test_an_evaluation_has_a_batch_of_its_own(toy):
    config = toy({"training.micro_batch": 4})
    assert seen_by(config) == [4, 4, 4, 4, 4, 1]
    own = with_changes(config, {"data.evaluation_batch": 16})
    state = new_state(load_task(own), own)
    state.micro_batch = 1  # training ran out of memory, which an evaluation may not
    assert seen_by(own) == seen_by(own, state) == [16, 5]
    assert seen_by(with_changes(config, {"data.evaluation_batch": 2})) == [2] * 10 + [1]
