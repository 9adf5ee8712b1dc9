"""Data sets by the real client: validated, the same bytes, within limits, uploaded whole, broken and resumed."""

import shutil
import zipfile

import pytest

from lib import checkpoint
from lib.machine.facts import Fact
from tests.conftest import ROOT
from tests.notebooks.test_notebooks import small_graph
from tests.trainbook.kaggle.stub import KEY
from trainbook.commands import main
from trainbook.kaggle import dataset

CONFIG = str(ROOT / "configs" / "graphmer_small.yaml")
KEYS = [
    *("workload.split.validation=0.2", "workload.split.test=0.2", "training.effective_batch=8"),
    *("workload.evaluation.validation_triples=5", "workload.evaluation.test_triples=10"),
]
GIVEN = ["--data", "graph", "--slug", "code-graph", *(f"--set={key}" for key in KEYS)]


def pack(*options):
    return main(["kaggle", "dataset", CONFIG, *GIVEN, *options])


@pytest.fixture
def graph(tmp_path):
    small_graph(tmp_path / "graph")
    shutil.copy(ROOT / "workloads" / "codegraph" / "ontology.yaml", tmp_path / "graph")
    return tmp_path / "graph"


@pytest.fixture
def packed(tmp_path):
    return tmp_path / "runs" / "kaggle" / "code-graph" / "dataset"


def test_a_dry_run_packs_and_checks_and_uploads_nothing(stub, graph, packed, capsys):
    (graph / ".hidden").write_text("x")
    (graph / "link").symlink_to(graph / "triples.jsonl")
    assert pack("--dry-run") == 0
    out = capsys.readouterr().out
    assert "Archives in it" not in out
    assert "3 files" in out
    assert "Left out (2: hidden, links, or half written): .hidden, link" in out
    assert "--dataset ada/code-graph" in out
    assert stub.count("CreateDataset") == stub.count("StartBlobUpload") == 0
    assert zipfile.ZipFile(packed / "data.zip").namelist() == [
        "entities.jsonl",
        "ontology.yaml",
        "triples.jsonl",
    ]
    assert "Samples: 36 train" in (packed / "dataset-metadata.json").read_text()


def test_archives_in_the_data_are_named_because_kaggle_unpacks_them(stub, graph, capsys):
    (graph / "notes.csv.gz").write_bytes(b"no archive")
    assert pack("--dry-run") == 0
    assert "Archives in it (1): notes.csv.gz. Kaggle may unpack them" in capsys.readouterr().out


def test_it_is_created_then_versioned_and_a_refused_file_is_an_error(stub, graph, packed, capsys):
    assert pack("--license", "CC0-1.0") == 0
    created = stub.datasets["ada/code-graph"][0]
    assert created["licenseName"] == "CC0-1.0"
    assert created["title"] == "code graph"
    assert created["isPrivate"] is True
    assert created["contents"]["data.zip"] == (packed / "data.zip").read_bytes()
    stub.fail_uploads = 1  # and the client exits with 0
    assert pack() == 2
    assert "failed, and Kaggle may have the data set without it" in capsys.readouterr().err
    assert pack() == 0
    assert stub.count("CreateDataset") == 1
    assert len(stub.datasets["ada/code-graph"][-1]["contents"]) == 1


def test_limits_and_credentials_are_checked_before_anything_is_sent(
    stub, graph, packed, monkeypatch, capsys
):
    for options, sentence in (
        (["--slug", "abc"], "a slug has 6 to 50"),
        (["--data", "nowhere"], "is no folder"),
    ):
        assert pack(*options) == 2
        assert sentence in capsys.readouterr().err
    for name in ("kaggle.json", "notes.txt"):
        (graph / name).write_text(f"key: {KEY}")
        assert pack() == 2
        assert name in (error := capsys.readouterr().err)
        assert KEY not in error
        (graph / name).unlink()
    monkeypatch.setitem(dataset.FACTS, "kaggle_dataset_bytes", Fact(10, "bytes", "a test"))
    assert pack() == 2
    assert "bytes; Kaggle takes 10 a data set" in capsys.readouterr().err
    with (graph / "triples.jsonl").open("a") as file:
        file.write('{"head": "pack.mod0.load"\n')
    assert pack() == 2
    assert "triples.jsonl:73" in capsys.readouterr().err
    assert not packed.exists()
    assert stub.calls == []


def test_a_run_is_published_so_that_a_session_goes_on_with_it(
    stub, tmp_path, toy, quick, monkeypatch, capsys
):
    """Unpacked as Kaggle does, to a folder with the archive's name, it is found."""
    from trainbook import launch

    launch.train(toy({"training.max_steps": 3}))
    assert main(["kaggle", "dataset", "--run", "runs/toy", "--slug", "toy-output"]) == 0
    contents = stub.datasets["ada/toy-output"][0]["contents"]
    assert set(contents) == {"toy.zip"}
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    mount = tmp_path / "kaggle" / "input" / "datasets" / "ada" / "toy-output" / "toy"
    mount.mkdir(parents=True)
    (tmp_path / "toy.zip").write_bytes(contents["toy.zip"])
    zipfile.ZipFile(tmp_path / "toy.zip").extractall(mount)
    checkpoint.verify(mount / "checkpoints" / "step-00000003")
    config = toy({"training.max_steps": 6, "output_dir": str(tmp_path / "kaggle" / "working")})
    assert launch.train(config).step == 6
    assert f"Resuming toy from {mount}" in capsys.readouterr().out
