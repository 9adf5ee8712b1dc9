"""Stages: their order, what they weigh, and which encoders rest in them."""

import pytest

from lib.config.lengths import resolve_lengths
from lib.errors import BadInput
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.task import load_config
from lib.training import loop
from lib.training.groups import groups_of
from lib.training.session import Session
from tests.workloads.vqa.conftest import CONFIG
from workloads.vqa import stages
from workloads.vqa.stages import Stage


def test_a_stage_lasts_until_the_next_begins_and_an_encoder_rests_in_the_first_ones():
    rests = {"A": Stage(rests=("image", "text")), "B": Stage(from_steps=10, rests=("image",))}
    three = {"C": Stage(from_steps=20, answer=3.0), **rests}
    assert [stages.name_at(three, step) for step in (0, 9, 10, 19, 20, 10**6)] == ["A", "A", "B", "B", "C", "C"]
    assert stages.weights_at(three, 20) == {"answer": 3.0, "reasoning": 1.0, "format": 1.0}
    assert stages.trained(three, "image") == (20, None) and stages.trained(three, "text") == (10, None)
    assert stages.trained({"A": Stage(), "B": Stage(from_steps=4, rests=("image",))}, "image") == (0, 4)
    assert stages.trained({"A": Stage(rests=("image",))}, "image") is None


def test_begins_in_epochs_become_steps_and_are_written_back(tmp_path):
    text = CONFIG.replace("from_steps: 2", "from_epochs: 1.5")
    (tmp_path / "vqa.yaml").write_text(text)
    config, lines = resolve_lengths(load_config(tmp_path / "vqa.yaml"), 64)
    assert config.workload.stages["SECOND"].begin == (0.0, 12)
    said = "workload.stages.SECOND.from_epochs 1.5 -> workload.stages.SECOND.from_steps 12"
    assert any(said in line for line in lines)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{A: {from_epochs: 1}}", "must begin with epoch 0"),
        ("{A: {}, B: {}}", "begin at the same time"),
        ("{A: {}, B: {from_epochs: 1}, C: {from_steps: 9}}", "in one form"),
        ("{A: {answer: 0, reasoning: 0, format: 0}}", "A learns nothing"),
        ("{A: {}, B: {from_epochs: 1, rests: [image]}, C: {from_epochs: 2}}", "train the image encoder, rest it"),
        ("{A: {rests: [decoder]}}", "rests"),
        ("{A: {answers: 2}}", "Did you mean answer"),
    ],
)
def test_stages_that_contradict_each_other_are_refused_with_their_line(tmp_path, given, message):
    head = CONFIG[: CONFIG.index("  stages:")]
    (tmp_path / "vqa.yaml").write_text(f"{head}  stages: {given}\n")
    with pytest.raises(BadInput, match=message):
        load_config(tmp_path / "vqa.yaml")


def test_the_encoders_rest_in_the_steps_of_their_stages(vqa):
    task = vqa({"workload.stages.FIRST.rests": ["image"]})
    groups = groups_of(task, task.model())
    image = next(group for group in groups if any(name.startswith("image.") for name in group.parameters))
    assert [image.is_trained(step) for step in (0, 1, 2, 3)] == [False, False, True, True]
    assert all(name.startswith("image.") for name in image.parameters)
    rest = [name for group in groups if group is not image for name in group.parameters]
    assert not any(name.startswith("image.") for name in rest)


def test_progress_and_table_name_the_stage(vqa, tmp_path):
    task = vqa({"training.log_every_steps": 1, "training.evaluate_every_steps": 2})
    shown = []
    progress = Plain()
    progress.update = lambda done, total, text: shown.append(text())
    loop.train(task, task.config, tmp_path, Session(None, 0, 0), progress, None)
    assert [(row["step"], row["split"], row["stage"]) for row in read(tmp_path / "metrics.csv")] == [
        ("1", "train", "FIRST"), ("2", "train", "FIRST"), ("2", "validation", "FIRST"), ("3", "train", "SECOND"),
        ("4", "train", "SECOND"), ("4", "validation", "SECOND"),
    ]  # fmt: skip
    assert "  FIRST  " in shown[0] and "  SECOND  " in shown[-1]
