"""A notebook on Kaggle by the real client: found, pushed and refused, and its results brought home."""

import io
import json
import tarfile
import threading
from types import SimpleNamespace

import pytest

from lib import checkpoint
from lib.errors import BadInput
from lib.report import outputs
from lib.report.summary import Summary
from tests.conftest import ROOT
from tests.trainbook.kaggle.stub import KEY, leaves_results
from trainbook.commands import main
from trainbook.kaggle import carried, kernel
from trainbook.kaggle.kernel import Notebook

NAME = "ada/trainbook-01-graphmer"


# --- push -------------------------------------------------------------------------------------------------------------


def test_a_push_says_everything_and_carries_the_parameters(stub, capsys):
    stub.datasets["ada/code-graphs"] = [{}]
    given = ["--param", "MAX_STEPS=7", "--set", "optimizer.lr=0.5", "--dataset", "ada/code-graphs"]
    given += ["--model", "google/vit/flax/base-16/1"]
    assert main(["kaggle", "push", "graphmer", *given]) == 0
    assert f"Version 1 of {NAME} was pushed" in capsys.readouterr().out
    request = stub.sessions[0].request
    assert request["machineShape"] == "NvidiaTeslaT4" and request["enableGpu"] is True
    assert request["dockerImagePinningType"] == "latest"  # left out, versions stay on the image of the first push
    assert request["enableInternet"] is False and request["isPrivate"] is True  # left out, internet is on
    assert request["datasetDataSources"] == ["ada/code-graphs"] and request.get("kernelDataSources", []) == []
    assert request["modelDataSources"] == ["google/vit/flax/base-16/1"]
    assert stub.sessions[0].parameter("MAX_STEPS") == 7
    assert stub.sessions[0].parameter("OVERRIDES") == {"optimizer.lr": 0.5}
    assert stub.sessions[0].parameter("SMOKE_STEPS") == 0


def test_nothing_is_pushed_while_a_session_is_active(stub, capsys):
    pushed = threading.Event()
    stub.runner = lambda session: pushed.wait(600)
    assert main(["kaggle", "push", "graphmer"]) == 0
    assert main(["kaggle", "push", "graphmer"]) == 2
    pushed.set()
    assert "second run at once" in capsys.readouterr().err and len(stub.sessions) == 1


def test_going_on_mounts_its_own_output_but_not_at_the_first_push(stub, capsys):
    assert main(["kaggle", "push", "graphmer", "--continue"]) == 2
    assert "Leave --continue out of the first push" in capsys.readouterr().err
    stub.ended(leaves_results)
    assert main(["kaggle", "push", "graphmer", "--continue"]) == 0
    assert stub.sessions[1].request["kernelDataSources"] == [NAME]


REFUSED = [
    (["--param", "MAX_STEP=7"], "has no parameter MAX_STEP. It has: CONFIG, DATA_DIR"),
    (["--param", "MAX_STEPS=many"], "it cannot be 'many'"),
    (["--param", "MAX_STEPS"], "NAME=VALUE"),
    (["--param", "CONFIG=configs/nothing.yaml"], "does not carry configs/nothing.yaml. It carries: configs/gra"),
    (["--set", "training.max_stps=10"], "Did you mean max_steps?"),
    (["--set", "queue.seeds=[1,2]"], "trains one run, and configs/graphmer.yaml with the values given asks for a"),
    (["--set", "seed"], "--set takes key=value"),
    (["--dataset", "graphs"], "not owner/slug"),
    (["--slug", "abc"], "fewer than 5 characters"),
    (["--param", f"DATA_DIR={KEY}"], "credential of your environment"),
    (["--model", "ada/bert"], "is not OWNER/MODEL/FRAMEWORK/VARIATION/VERSION"),
    (["--model", "ada/bert/pytorch/tiny/latest"], "is not OWNER/MODEL/FRAMEWORK/VARIATION/VERSION"),
]


def test_what_cannot_work_is_refused_before_anything_is_sent(stub, capsys):
    for given, sentence in REFUSED:
        assert main(["kaggle", "push", "graphmer", *given]) == 2
        assert sentence in (error := capsys.readouterr().err) and KEY not in error and stub.count("SaveKernel") == 0
    given = ["--set", "queue.before_overrides={training.epoch: 1}"]  # of the configuration that a queue begins with
    assert main(["kaggle", "push", "glacier_finetune", *given]) == 2
    assert "There is no key epoch in training" in capsys.readouterr().err


def test_what_a_session_would_read_may_be_pushed(stub, capsys):
    given = ["--param", "SESSION_MINUTES=90", "--set", "optimizer.lr=1e-4", "--set", "training.max_steps=20"]
    assert main(["kaggle", "push", "graphmer", *given]) == 0
    assert main(["kaggle", "push", "graphmer", "--slug", "by-file", "--param", "CONFIG=/kaggle/input/a/mine.yaml"]) == 0
    assert main(["kaggle", "push", "memory"]) == 0  # it trains nothing
    assert main(["kaggle", "push", "your_model"]) == 0  # whose configuration a cell of it writes
    assert stub.count("SaveKernel") == 4


def test_a_notebook_that_lib_was_edited_after_is_only_pushed_on_purpose(staleness_counts, stub, tmp_path, capsys):
    stale = json.loads((ROOT / "notebooks" / "01_graphmer.ipynb").read_text("utf-8"))
    stale["cells"].append({**stale["cells"][0], "id": "more"})
    (tmp_path / "01_graphmer.ipynb").write_text(json.dumps(stale))
    for command in ("push", "chain"):
        assert main(["kaggle", command, str(tmp_path / "01_graphmer.ipynb")]) == 2
        assert "make notebooks" in (error := capsys.readouterr().err) and "--stale" in error
    assert stub.calls == []
    assert main(["kaggle", "push", str(tmp_path / "01_graphmer.ipynb"), "--stale"]) == 0


def test_a_dry_run_shows_what_would_be_sent_and_needs_no_account(stub, monkeypatch, capsys):
    without_client = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr("trainbook.kaggle.client.importlib", without_client)
    given = ["--param", "MAX_STEPS=7", "--set", "seed=3", "--dataset", "ada/code-graph", "--continue"]
    assert main(["kaggle", "push", "graphmer", "--dry-run", *given]) == 0
    out = capsys.readouterr().out
    assert "Nothing was sent (--dry-run)" in out and "bytes of the 1,000,000 that Kaggle takes" in out
    assert 'dataset_sources: ["ada/code-graph"]' in out and "enable_gpu: true" in out
    assert "configs/graphmer.yaml, with training.max_steps = 7, seed = 3" in out
    assert "Create > New Notebook > File > Import Notebook" in out
    pushed = json.loads((kernel.HOME / "trainbook-01-graphmer" / "push" / "01_graphmer.ipynb").read_text("utf-8"))
    assert "MAX_STEPS = 7" in carried.tagged(pushed, "injected-parameters")[0]["source"]


def test_the_title_has_the_slug_of_the_id(tmp_path):
    slugify = pytest.importorskip("slugify").slugify
    described = kernel.metadata(Notebook(ROOT / "notebooks" / "01_graphmer.ipynb", NAME), own_output=False)
    assert slugify(described["title"]) == described["id"].split("/")[1] == "trainbook-01-graphmer"
    assert len(described["title"]) >= 5 and set(described) >= {"machine_shape", "enable_internet", "is_private"}


def test_a_pushed_notebook_comes_back_without_what_the_push_put_in(stub, tmp_path):
    main(["kaggle", "push", "graphmer", "--param", "MAX_STEPS=7"])
    (tmp_path / "01_graphmer.ipynb").write_text(stub.sessions[0].request["text"])
    pushed, original = (
        [cell.source for cell in carried.builder().edited_cells(folder / "01_graphmer.ipynb")]
        for folder in (tmp_path, ROOT / "notebooks")
    )
    assert pushed == original


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_come_home_unpacked_and_checked_without_checkpoints(stub, tmp_path, capsys):
    assert stub.ended(leaves_results).status == "COMPLETE", stub.sessions[0].failure
    assert main(["kaggle", "fetch", "graphmer"]) == 0
    out = capsys.readouterr().out
    assert "toy: completed at step 12" in out and "rmse: 0.5000, the trivial baseline 1.0000" in out
    home = tmp_path / "runs" / "kaggle" / "trainbook-01-graphmer" / "results"
    assert (home / "toy" / "best" / "step-00000012" / "model.safetensors").is_file()
    assert (home / "toy" / "plots" / "metrics.png").read_bytes() == b"png"
    assert not (home / "toy" / "checkpoints").exists()
    assert (home / "session.log").read_text() == "done\n"
    assert main(["kaggle", "fetch", "graphmer", "--all", "--to", "everything"]) == 0
    checkpoint.verify(tmp_path / "everything" / "toy" / "checkpoints" / "step-00000012")


def spoil_summary(toy):
    (toy / "summary.json").write_text('{"reason": "completed", "step": 13}')


def spoil_metrics(toy):
    (toy / "metrics.csv").write_text("step,split,loss\n99,train,1\n")
    outputs.package(toy.parent)


def spoil_weights(toy):
    path = toy / "best" / "step-00000012" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    outputs.package(toy.parent)


def spoil_archive(toy):
    path = toy.parent / outputs.ARCHIVE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("spoil, sentence", [
    (spoil_summary, "the packaging was cut off"), (spoil_weights, "step-00000012 is damaged"),
    (spoil_metrics, "metrics.csv ends at step 99, its summary at 12"), (spoil_archive, "cannot be unpacked"),
])  # fmt: skip
def test_results_that_do_not_fit_together_replace_nothing(stub, tmp_path, capsys, spoil, sentence):
    stub.ended(leaves_results)
    assert main(["kaggle", "fetch", "graphmer", "--to", "mine"]) == 0
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "mine").rglob("*"))
    spoil(stub.sessions[0].working / "toy")
    assert main(["kaggle", "fetch", "graphmer", "--to", "mine"]) == 2
    assert sentence in capsys.readouterr().err
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "mine").rglob("*")) == before
    assert not list(tmp_path.glob(".fetch-*"))


def test_the_vote_of_an_ensemble_which_has_no_step_comes_home(stub, tmp_path, capsys):
    def votes(session):
        leaves_results(session)
        folder = session.working / "ensemble"
        folder.mkdir()
        (folder / "config.yaml").write_text("task: toy\n")
        values = {"members": ["a", "b"], "metrics": {"rmse": 0.25}, "baseline": {"rmse": 1.0}}
        Summary("ensemble", "toy", "completed", **values).write(folder)
        outputs.package(session.working)

    assert stub.ended(votes).status == "COMPLETE", stub.sessions[0].failure
    assert main(["kaggle", "fetch", "graphmer", "--to", "mine"]) == 0
    out = capsys.readouterr().out
    assert "ensemble: completed, a vote of 2 runs\n  rmse: 0.2500, the trivial baseline 1.0000" in out
    assert "toy: completed at step 12" in out and (tmp_path / "mine" / "ensemble" / "summary.json").is_file()


def unsafe_members():
    outside, link, device, nul = (tarfile.TarInfo(name) for name in ("../outside", "link", "device", "nul"))
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    nul.pax_headers = {"path": "a\0b"}
    return [outside, link, device, nul]


@pytest.mark.parametrize("member", unsafe_members(), ids=lambda member: member.name)
def test_an_archive_that_would_write_elsewhere_is_not_unpacked(tmp_path, member):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        member.size = 1 if member.isfile() else 0
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(BadInput, match="not unpacked|cannot be unpacked"):
        kernel.unpack(tmp_path / "bad.tar.gz", tmp_path / "inside")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "inside" / "link").is_symlink()
