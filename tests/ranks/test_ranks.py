"""Several ranks train what one process trains: the same bits with two slots, and one end for all of them."""

import json
import socket

import pytest

from lib import checkpoint, ranks
from lib.errors import BadInput
from lib.report.metrics import read
from tests import several
from tests.conftest import VOLATILE_COLUMNS

SLOTS = {"training.micro_batch_slots": 2}


def run(name, overrides=None, task="", **more):
    return {"config": {**SLOTS, "run.name": name, **(overrides or {})}, "task": task, **more}


EARLY = {
    "training.stop_after_evaluations": 1,
    "training.evaluate_every_steps": 2,
    "optimizer.lr": 5.0,
}
DROPOUT = {"workload.dropout": 0.5, "training.ema_decay": 0.9}
# One process and two do each of these.
BOTH = [
    run("dropout", DROPOUT),
    run("branches", task="Branching"),
    run("not finite", {"workload.poison_from": 35}),
    run("norms", {"workload.batch_norm": True}),
    run("tight", task="Tight"),
    run("early", EARLY),
    run("frozen", task="Frozen"),
]
# Only two processes do these.
TWO = [
    run("undecided", task="Undecided"),
    run("missing", task="Missing"),
    run("deadline", cut=5, on=1),
]
# This one changes hands: some steps in one process, then on two ranks, then in one again.
PLAIN = {"training.clip_norm": 0}
MOVED = [run("moved", PLAIN, "Figured", cut=n) for n in (3, 4)]
SAME = ["dropout", "branches", "not finite", "frozen"]


class Ends:
    """What both ways of doing the same runs left behind."""

    def __init__(self, base):
        self.base = base
        several.here(base / "two", MOVED[:1])
        there = [*BOTH, *TWO, MOVED[1]]
        several.here(base / "one", [*BOTH, run("plain", PLAIN, "Figured")])
        names = [each["config"]["run.name"] for each in there]
        results = zip(*several.on_ranks(base / "two", there), strict=True)
        self.said = dict(zip(names, results, strict=True))
        several.here(base / "two", [run("moved", PLAIN, "Figured")])

    def newest(self, place, name):
        return checkpoint.load_newest(self.base / place / "runs" / name / "checkpoints")[0]

    def rows(self, place, name):
        rows = read(self.base / place / "runs" / name / "metrics.csv")
        return [{k: v for k, v in row.items() if k not in VOLATILE_COLUMNS} for row in rows]

    def summary(self, name):
        return json.loads((self.base / "two" / "runs" / name / "summary.json").read_text())

    def furthest(self, name, group="model", one=None):
        """The largest difference in any tensor of a group."""
        a = self.newest("one", one or name).tensors[group]
        b = self.newest("two", name).tensors[group]
        assert a.keys() == b.keys()
        differences = [a[key].double() - b[key].double() for key in a]
        return max(float(each.abs().max()) for each in differences)

    def outcomes(self, name):
        """Reason and last step of each rank, once if they agree."""
        return {(each["reason"], each["step"]) for each in self.said[name]}


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    return Ends(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SAME)
def test_one_process_with_two_slots_is_two_processes_with_one_bit_for_bit(ends, name):
    one = ends.newest("one", name)
    two = ends.newest("two", name)
    assert one.step == two.step == 12
    for group in one.tensors:
        assert ends.furthest(name, group) == 0
    # losses and validations are those of all samples
    assert ends.rows("one", name) == ends.rows("two", name)
    assert {**one.state, "identity": None} == {**two.state, "identity": None}


def test_all_ranks_stop_early_at_the_same_step(ends):
    one = ends.newest("one", "early")
    two = ends.newest("two", "early")
    assert one.step == two.step < 12
    assert ends.furthest("early") == 0
    assert ends.outcomes("early") == {("completed", two.step)}
    assert ends.summary("early")["stopped_early"]["evaluations"] == 1


def test_a_run_may_move_between_one_process_and_ranks_without_a_trace(ends):
    assert ends.newest("two", "moved").step == 12
    assert ends.furthest("moved", one="plain") == 0
    assert ends.furthest("moved", "optimizer", one="plain") == 0
    assert ends.rows("one", "plain") == ends.rows("two", "moved")


def test_a_parameter_used_by_one_rank_gets_its_gradient_and_an_unused_one_stays(ends):
    got = ends.newest("two", "branches").tensors
    assert float(got["model"]["seldom"]) != 1
    assert float(got["model"]["never"]) == 1
    assert not any("never" in name for name in got["optimizer"])


def test_steps_that_are_not_finite_on_one_rank_are_skipped_by_all(ends):
    skipped = ends.newest("one", "not finite").state["skipped_steps"]
    assert skipped > 0
    assert ends.summary("not finite")["skipped_steps"] == skipped


def test_batch_statistics_are_those_of_one_process(ends):
    assert ends.furthest("norms") < 1e-5
    counted = ends.newest("two", "norms").tensors["model"]["blocks.1.num_batches_tracked"]
    assert int(counted) == 12 * 2


def test_memory_that_runs_out_on_one_rank_repeats_the_step_on_all(ends):
    assert ends.furthest("tight") < 1e-5
    assert ends.summary("tight")["micro_batch"] == 2
    rows = (ends.base / "two" / "runs" / "tight" / "events.csv").read_text().splitlines()
    assert len(rows) == 2
    assert rows[1].startswith("0,oom_training,4,2,")


def test_weights_that_the_seed_does_not_reach_are_those_of_the_first_rank(ends):
    first, second = ends.said["undecided"]
    assert first["reason"] == second["reason"] == "completed"  # and the ranks' steps fit together:
    assert ends.newest("two", "undecided").step == 12


def test_a_deadline_on_one_rank_stops_all_at_the_same_step(ends):
    assert ends.outcomes("deadline") == {("deadline", 5)}


def test_what_one_rank_lacks_is_a_sentence_on_every_rank(ends):
    for each in ends.said["missing"]:
        assert each["kind"] == "BadInput"
        assert each["error"] == f"Rank 1 on {socket.gethostname()}: There is no graph in /data."
    assert not (ends.base / "two" / "runs" / "missing").exists()


def test_a_rank_that_meets_nobody_asks_for_a_fresh_launch(tmp_path, monkeypatch):
    def nobody(*_, **__):
        raise RuntimeError("the others did not come")

    monkeypatch.setattr(ranks.dist, "init_process_group", nobody)
    with pytest.raises(
        BadInput, match="did not find the other ranks at.*: the others did not come"
    ):
        ranks._join()
    monkeypatch.setenv("TRAINBOOK_RANK_FOLDER", str(tmp_path))
    with pytest.raises(RuntimeError, match="Timed out waiting for the other ranks to start"):
        ranks._join()
