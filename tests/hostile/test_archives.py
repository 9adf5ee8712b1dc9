"""Archives and folders of runs that `predict` is given."""

import gzip
import io
import shutil
import tarfile
from unittest import mock

import pytest

from lib.task import load_config
from tests.conftest import ROOT, TOY
from tests.hostile.conftest import FORGED
from tests.hostile.test_checkpoints import seal
from trainbook import launch
from trainbook.launch import ensemble
from trainbook.launch.ensemble import unpack

OWN = f"{ROOT / 'tests' / 'toy.py'}:Toy"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a completed run toy."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "toy.yaml").write_text(TOY)
    changes = {"output_dir": str(folder / "runs"), "training.max_steps": 4}
    with mock.patch.object(launch, "plot"):
        launch.train(load_config(folder / "toy.yaml", changes))
    return folder / "runs" / "toy"


@pytest.fixture
def mine(trained, nothing_outside):
    """A copy of that run, to be tampered with."""
    shutil.copytree(trained, nothing_outside.folder / "toy")
    shutil.rmtree(nothing_outside.folder / "toy" / "checkpoints")
    return nothing_outside.folder / "toy"


def member(name, kind=tarfile.REGTYPE, link="", size=0):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.size = size
    return info


def archive_of(folder, *members):
    """Packs a run for `predict`, after further members (info, content)."""
    path = folder.parent / "outputs.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if content is not None else None)
        for file in sorted(folder.rglob("*")):
            tar.add(file, f"toy/{file.relative_to(folder)}", recursive=False)
    return path


def files_in(folder):
    paths = [path for path in folder.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(folder)) for path in paths}


def predict(path, own=OWN):
    """Loads the models, as `predict` does first."""
    ensemble.load(path, own)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param((member("../planted.txt", size=1), b"x"), id="a name above"),
        pytest.param((member("toy/best", tarfile.SYMTYPE, "/etc"), None), id="a link away"),
        pytest.param((member("toy/evil.py", size=1), b"x"), id="a Python file"),
        pytest.param((member("a/" * 2000 + "config.yaml", size=1), b"x"), id="a deep name"),
    ],
)
def test_a_member_that_no_prediction_needs_stays_packed(nothing_outside, mine, wrong):
    path = archive_of(mine, wrong)
    into = nothing_outside.root / "temporary" / "unpacked"
    assert nothing_outside.attempt(unpack, path, into) == ""
    best = "toy/best/step-00000004"
    names = ("manifest.json", "model.safetensors", "state.json")
    needed = [f"{best}/{name}" for name in names]
    assert files_in(into) == {"toy/config.yaml", "toy/summary.json", *needed}
    assert "Models: toy." in nothing_outside.attempt(predict, path)


PLAIN = ["toy/code/mine.py", "toy/code/pack/deep/x.py"]
LEFT = [
    "toy/code/../mine.py", "toy/mine.py", "toy/code/x.so", "/toy/code/x.py", "toy/code/\x1b[2J.py",
]  # fmt: skip


def test_only_plain_python_files_in_the_folder_of_code_are_unpacked_with_trust(
    nothing_outside, mine
):
    linked = (member("toy/code/link.py", tarfile.SYMTYPE, "/etc/passwd"), None)
    members = [(member(name, size=1), b"x") for name in (*PLAIN, *LEFT)]
    path = archive_of(mine, *members, linked)
    into = nothing_outside.root / "temporary" / "unpacked"
    assert nothing_outside.attempt(unpack, path, into) == ""
    assert not list(into.rglob("*.py"))
    shutil.rmtree(into)
    assert nothing_outside.attempt(unpack, path, into, True) == ""
    code = {name for name in files_in(into) if "/code/" in name}
    assert code == {"toy/code/toy.py", *PLAIN}


def giant():
    return gzip.compress(member("toy/x", size=4 * 10**9).tobuf() + bytes(2**20))


def of_a_wrong_checksum():
    content = member("toy/x", size=5).tobuf()[:-1] + bytes(9000)
    return gzip.compress(content)[:-8] + bytes(8)


@pytest.mark.parametrize("make", [giant, of_a_wrong_checksum])
def test_a_bomb_or_no_archive_is_refused(nothing_outside, make):
    path = nothing_outside.folder / "outputs.tar.gz"
    path.write_bytes(make())
    told = nothing_outside.attempt(predict, path, weighed=True)
    refusals = ("is not unpacked: ", "cannot be unpacked (", "holds no run")
    assert any(words in told for words in refusals)
    temporary = nothing_outside.root / "temporary"
    sizes = [(temporary / name).stat().st_size for name in files_in(temporary)]
    assert sum(sizes) == 0


def test_many_members_are_refused(nothing_outside, mine, monkeypatch):
    monkeypatch.setattr(ensemble, "_MOST_MEMBERS", 50)
    many = [(member(f"x{number}"), None) for number in range(51)]
    assert "more than 50 members" in nothing_outside.attempt(predict, archive_of(mine, *many))


def test_a_name_twice_is_refused(nothing_outside, mine):
    twice = [(member("toy/config.yaml", size=1), b"x")] * 2
    text = nothing_outside.attempt(predict, archive_of(mine, *twice))
    assert "cannot be unpacked (File exists)" in text


def config(text):
    def tamper(run, outside):
        content = text.format(evil=outside.evil, secret=outside.secret)
        (run / "config.yaml").write_text(content)

    return tamper


def renamed(run, outside):
    run.rename(run.with_name(f"\x1b[2J\n{FORGED}"))


def weights_named(name):
    def tamper(run, outside):
        best = run / "best" / "step-00000004"
        seal(best, lambda m: m["files"].update({name: m["files"].pop("model.safetensors")}))

    return tamper


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(config("task: {evil}:Evil\n"), id="a task elsewhere"),
        pytest.param(config("base: {secret}\n"), id="a base elsewhere"),
        pytest.param(renamed, id="a run's name"),
        pytest.param(weights_named("../model.safetensors"), id="weights above"),
    ],
)
def test_a_hostile_run_in_an_archive_or_folder_runs_and_reads_nothing(
    nothing_outside, mine, monkeypatch, tamper
):
    monkeypatch.chdir(mine.parent)
    (mine / "evil.py").write_text(nothing_outside.code())
    tamper(mine, nothing_outside)
    folder = mine if mine.is_dir() else next(mine.parent.iterdir())
    for path in (folder.parent, archive_of(folder)):
        nothing_outside.attempt(predict, path, "")


WIDE = """
import torch
from tests.toy import Toy
class Wide(Toy):
    def model(self):
        return torch.nn.Linear(10**6, 2 * 10**6)
"""


def test_a_configuration_of_a_far_larger_model_takes_no_memory(nothing_outside, mine, monkeypatch):
    own = nothing_outside.root / "wide.py"
    own.write_text(WIDE)
    text = nothing_outside.attempt(predict, archive_of(mine), f"{own}:Wide")
    assert "describes a model of 2,000,002,000,000 numbers" in text
