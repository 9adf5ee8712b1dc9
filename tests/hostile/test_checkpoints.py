"""Hostile checkpoints of a mounted session, with a valid seal, since anyone can compute one."""

import dataclasses
import hashlib
import json
import os
import pickle
import shutil
import struct
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file

from lib import checkpoint
from lib.machine.inputs import run_folders
from lib.task import load_config
from lib.training.state import first_state
from tests.conftest import TOY
from tests.hostile.conftest import FORGED, SECRET
from trainbook import launch
from trainbook.launch.resume import bring_along, look_for_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the run toy and its checkpoints of steps 3 and 6, and a run to resume it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "toy.yaml").write_text(TOY)
    changes = {"output_dir": str(folder / "runs"), "training.ema_decay": 0.5}
    changes["training.max_steps"] = 6
    with mock.patch.object(launch, "plot"):
        launch.train(load_config(folder / "toy.yaml", changes))
    config = load_config(folder / "toy.yaml", {**changes, "training.max_steps": 9})
    return folder / "runs" / "toy", launch.prepare(config)


@pytest.fixture
def resumed(trained, nothing_outside):
    """resumed() -> the output of a run that resumes from the mounted copy, and the steps resumed."""
    origin, run = trained
    shutil.copytree(origin, nothing_outside.folder / "toy")
    runs = nothing_outside.root / "runs"
    options = dataclasses.replace(run.config.run, resume_from=str(nothing_outside.folder))
    config = dataclasses.replace(run.config, output_dir=str(runs), run=options)
    places = run_folders("toy", str(runs), options.resume_from)
    mine = dataclasses.replace(run, config=config, folder=runs / "toy", places=places)
    (runs / "toy").mkdir(parents=True)

    def resume(weighed=False):
        steps = []

        def go():
            found, sentences = look_for_checkpoint(mine)
            print(*sentences, sep="\n")
            bring_along(mine, found)
            steps.append(first_state(mine.task, config, found, print).step)

        return nothing_outside.attempt(go, weighed=weighed), steps

    return resume


def entry(path):
    """Returns the entry of a file in a manifest."""
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal(folder, change=lambda manifest: None):
    """Writes the manifest of a checkpoint's folder, with a change."""
    files = {path.name: entry(path) for path in sorted(folder.iterdir())}
    files.pop("manifest.json", None)
    manifest = {"format": 1, "step": int(folder.name[5:]), "files": files}
    change(manifest)
    (folder / "manifest.json").write_bytes(checkpoint._sealed(manifest))


def above(folder, outside):
    """Gives the model a name outside of its folder, with a file there."""
    new = "../planted.safetensors"
    real = "model.safetensors"
    seal(folder, lambda manifest: manifest["files"].update({new: manifest["files"].pop(real)}))
    shutil.copy(folder / real, folder / new)


def manifest_is(content):
    return lambda folder, outside: (folder / "manifest.json").write_bytes(content)


def instead_of(name, make):
    """Replaces a file, and keeps the manifest."""

    def tamper(folder, outside):
        (folder / name).unlink()
        make(folder / name, outside)

    return tamper


def a_pipe(path, outside):
    os.mkfifo(path)


LARGE = manifest_is(b" " * 2_000_000)
MANIFESTS = [
    pytest.param(above, id="a name above"),
    pytest.param(LARGE, id="2 MB"),
    pytest.param(instead_of("manifest.json", a_pipe), id="a pipe"),
]


def with_state(**values):
    """Replaces values in state.json, and seals the folder again."""

    def tamper(folder, outside):
        path = folder / "state.json"
        state = json.loads(path.read_text())
        path.write_text(json.dumps(state | values))
        seal(folder)

    return tamper


def a_link(path, outside):
    path.symlink_to(outside.secret)


def tensors_are(name, content):
    """Replaces a file of tensors by bytes or by `content(saved)`, and seals the folder again."""

    def tamper(folder, outside):
        path = folder / f"{name}.safetensors"
        if callable(content):
            saved = checkpoint.load(folder).tensors[name]
            tensors = {key: value.clone() for key, value in content(saved).items()}
            save_file(tensors, path)
        else:
            path.write_bytes(content)
        seal(folder)

    return tamper


def header(tensors, data=b""):
    raw = json.dumps(tensors).encode()
    return struct.pack("<Q", len(raw)) + raw + data


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def without_model(folder, outside):
    (folder / "model.safetensors").unlink()
    seal(folder)


def of_another_shape(tensors):
    return dict.fromkeys(tensors, torch.zeros(7, 7))


GIANT = {"w": {"dtype": "U8", "shape": [2**62, 4], "data_offsets": [0, 1]}}


@pytest.mark.parametrize(
    "tamper",
    [
        *MANIFESTS,
        pytest.param(instead_of("state.json", a_link), id="a state that is a link"),
        pytest.param(with_state(pending={"squared": float("nan")}), id="not a number"),
        pytest.param(with_state(step=3), id="another step"),
        pytest.param(with_state(learned=f"\n{FORGED}"), id="what was learned as text"),
        pytest.param(without_model, id="no model"),
        pytest.param(tensors_are("model", pickle.dumps(Evil())), id="a pickle"),
        pytest.param(tensors_are("model", struct.pack("<Q", 2**63)), id="a header of 2**63 bytes"),
        pytest.param(tensors_are("model", header(GIANT, b"0")), id="a giant shape"),
        pytest.param(tensors_are("optimizer", of_another_shape), id="moments of another shape"),
        pytest.param(tensors_are("ema", lambda tensors: {}), id="no average"),
    ],
)
def test_a_hostile_checkpoint_is_passed_over_and_the_one_before_is_used(
    nothing_outside, resumed, tamper
):
    tamper(nothing_outside.folder / "toy" / "checkpoints" / "step-00000006", nothing_outside)
    told, steps = resumed(weighed=tamper is LARGE)
    assert steps == [3]
    assert "step-00000006 is damaged (" in told


@pytest.mark.parametrize("tamper", MANIFESTS)
def test_hostile_best_weights_are_brought_nowhere(nothing_outside, resumed, tamper):
    run = nothing_outside.folder / "toy"
    for best in (run / "best").iterdir():
        if best.name != "step-00000006":
            shutil.rmtree(best)
    best = run / "best" / "step-00000006"
    shutil.copytree(run / "checkpoints" / "step-00000006", best, dirs_exist_ok=True)
    tamper(best, nothing_outside)
    assert resumed()[1] == [6]
    runs = nothing_outside.root / "runs"
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert not [path for path in files if "best" in path.relative_to(runs).as_posix()]
    assert not [path for path in files if SECRET in path.read_text(errors="replace")]


def test_a_checkpoint_that_nobody_touched_is_resumed(nothing_outside, resumed):
    seal(nothing_outside.folder / "toy" / "checkpoints" / "step-00000006")
    told, steps = resumed()
    assert steps == [6]
    assert "damaged" not in told
