"""The configuration: defaults, round trips, lengths in epochs, changes, keys of earlier versions."""

import dataclasses

import pytest

from lib.config import (
    REMOVED,
    Config,
    Optimizer,
    Run,
    Training,
    read_config,
    split_overrides,
    with_changes,
)
from lib.config.lengths import resolve_lengths
from lib.errors import BadInput
from tests.config.settings import GOOD, Encoder, Settings, load, reload, workload


def test_undecodable_bytes_are_located(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"task: toy\noutput_dir: caf\xe9\n")
    with pytest.raises(BadInput, match=r"latin\.yaml:2:16: The file is not UTF-8 here\. Save it as UTF-8\."):
        read_config(path, workload=workload)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path, name):
    with pytest.raises(BadInput, match=r"The file cannot be read \(.+\)\. Give the path of a YAML file\."):
        read_config(tmp_path / name, workload=workload)


def test_defaults(tmp_path):
    found = load(tmp_path, GOOD)
    assert found == Config(
        task="toy",
        run=Run(name="toy_small"),
        training=Training(max_steps=10, effective_batch=8),
        workload=Settings(),
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.seed = 1


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    (tmp_path / "toy_small.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_config(tmp_path / "toy_small.yaml", workload=workload) == load(tmp_path, GOOD)


def test_round_trip_is_exact(tmp_path):
    found = load(tmp_path, GOOD)
    awkward = Settings(
        title="no: 'x' # \"é\"\n 1e-3 {[",
        note="null",
        size="010",
        depths=(),
        pair=("yes", 5e-324),
        weights={"on": 1e-08, "a: b": 0.1 + 0.2, "1": 1e300},
        extra=Encoder(kind="deep"),
        ramp_steps=0,
        ramp_epochs=0.3,
    )
    found = dataclasses.replace(found, output_dir="~", seed=10**17, workload=awkward)
    found = dataclasses.replace(found, optimizer=Optimizer(lr=1 / 3, eps=1e-08))
    assert reload(tmp_path, found) == found
    assert reload(tmp_path, resolve_lengths(found, 1000)[0]) == resolve_lengths(found, 1000)[0]


def test_epochs_become_steps_once(tmp_path):
    text = """\
task: toy
training: {epochs: 3, effective_batch: 64, evaluate_every_epochs: 0.5}
scheduler: {warmup_epochs: 0.0001}
workload: {ramp_epochs: 1.1}
"""
    found = load(tmp_path, text)
    assert (found.training.max_steps, found.workload.ramp_steps) == (0, 0)
    resolved, lines = resolve_lengths(found, 26_320)
    assert (resolved.training.max_steps, resolved.training.evaluate_every_steps) == (1234, 206)
    assert (resolved.training.epochs, resolved.training.evaluate_every_epochs) == (0, 0)
    assert (resolved.scheduler.warmup_steps, resolved.workload.ramp_steps) == (1, 453)
    assert lines[0] == "training.epochs 3 -> training.max_steps 1,234 (samples 26,320, effective batch 64)"
    assert len(lines) == 4
    assert resolve_lengths(resolved, 999) == (resolved, [])


@pytest.mark.parametrize(("epochs", "steps"), [("1.1", 11), ("0.3", 3), ("1", 10), ("1e-9", 1), ("1.01", 11)])
def test_a_whole_number_of_steps_is_not_rounded_up(tmp_path, epochs, steps):
    found = load(tmp_path, f"task: toy\ntraining: {{epochs: {epochs}, effective_batch: 1}}\n")
    assert resolve_lengths(found, 10)[0].training.max_steps == steps


@dataclasses.dataclass(frozen=True)
class Stage:
    ramp_steps: int = 0
    ramp_epochs: float = 0.0


@dataclasses.dataclass(frozen=True)
class Stages:
    in_turn: tuple[Stage, ...] = ()
    by_name: dict[str, Stage] = dataclasses.field(default_factory=dict)


def test_epochs_in_lists_and_mappings_of_sections_become_steps(tmp_path):
    (tmp_path / "staged.yaml").write_text(
        "task: toy\ntraining: {epochs: 1, effective_batch: 10}\n"
        "workload: {in_turn: [{ramp_epochs: 2}, {ramp_steps: 7}], by_name: {late: {ramp_epochs: 3}}}\n"
    )
    found = read_config(tmp_path / "staged.yaml", workload=lambda task: Stages)
    resolved, lines = resolve_lengths(found, 100)
    assert resolved.workload == Stages((Stage(20), Stage(7)), {"late": Stage(30)})
    assert [line.split(" (")[0] for line in lines[1:]] == [
        "workload.in_turn[0].ramp_epochs 2 -> workload.in_turn[0].ramp_steps 20",
        "workload.by_name.late.ramp_epochs 3 -> workload.by_name.late.ramp_steps 30",
    ]


def test_no_samples_have_no_epochs(tmp_path):
    with pytest.raises(BadInput, match="no training samples"):
        resolve_lengths(load(tmp_path, GOOD), 0)


def test_replace_checks_as_load_does(tmp_path):
    found = load(tmp_path, GOOD + "run: {name: mine}\n")
    changed = with_changes(found, {"training.max_steps": 3, "workload.encoder.layers": 1, "checkpoint.keep_last": 0})
    assert (changed.training.max_steps, changed.workload.encoder.layers, changed.run.name) == (3, 1, "mine")
    assert changed.workload.width == found.workload.width
    assert with_changes(found, {}) == found
    with pytest.raises(BadInput) as error:
        with_changes(found, {"optimizer.lr": 0, "workload.width": "x"})
    assert [line.split(": ")[0] for line in str(error.value).splitlines()] == [
        "override optimizer.lr",
        "override workload.width",
    ]


def test_overrides_of_a_command_line_are_split_at_the_first_equals_sign():
    assert split_overrides(["a.b=1", "c=x=y", "a.b="]) == {"a.b": "", "c": "x=y"}
    with pytest.raises(BadInput, match=r"--set takes key=value.*'seed'"):
        split_overrides(["a=1", "seed"])
    with pytest.raises(BadInput, match="NAME=VALUE"):
        split_overrides(["x"], "--param takes NAME=VALUE")


def test_benchmarking_and_determinism_exclude_each_other(toy):
    with pytest.raises(BadInput, match="training.cudnn_benchmark picks algorithms by their speed"):
        toy({"training.deterministic": "true", "training.cudnn_benchmark": "true"})


def test_a_removed_key_is_ignored_with_a_sentence(tmp_path, capsys):
    """The config.yaml of an earlier run loads; so does a file that was written by hand, and an override."""
    old = GOOD + "data:\n  persistent_workers: true\nmemory: {profile: '', empty_cache_every_steps: 3}\n"
    assert load(tmp_path, old, data__persistent_workers="x") == load(tmp_path, GOOD)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": data")[0].partition(": memory")[0] for line in lines] == [
        "override data.persistent_workers", f"{tmp_path / 'toy_small.yaml'}:5:23",
    ]  # fmt: skip
    assert all(REMOVED[key] in line for key, line in zip([*REMOVED][:2], lines, strict=True))
    with pytest.raises(BadInput, match="no key persistent_worker in data"):
        load(tmp_path, GOOD + "data: {persistent_worker: true}\n")
