"""A notebook on Kaggle by the real client: found, pushed and refused, and its results brought home."""

import json
import tarfile
import threading

import pytest

from lib import checkpoint
from lib.errors import BadInput
from tests.conftest import ROOT
from tests.trainbook.kaggle.stub import KEY, leaves_results
from trainbook.commands import main
from trainbook.kaggle import carried, client, kernel
from trainbook.outputs import packing

NAME = "ada/trainbook-01-graphmer"


def test_a_push_says_everything_carries_the_parameters_and_nothing_else(stub, capsys):
    stub.datasets["ada/code-graphs"] = [{}]
    given = ["--param", "MAX_STEPS=7", "--set", "optimizer.lr=0.5", "--dataset", "ada/code-graphs"]
    given += ["--model", "google/vit/flax/base-16/1"]
    assert main(["kaggle", "push", "graphmer", *given]) == 0
    assert f"Version 1 of {NAME} was pushed" in capsys.readouterr().out
    request = stub.sessions[0].request
    assert request["machineShape"] == "NvidiaTeslaT4"
    assert request["enableGpu"] is True
    # left out, versions stay on the image of the first push
    assert request["dockerImagePinningType"] == "latest"
    assert request["enableInternet"] is False
    assert request["isPrivate"] is True  # left out, internet is on
    assert request["datasetDataSources"] == ["ada/code-graphs"]
    assert request.get("kernelDataSources", []) == []
    assert request["modelDataSources"] == ["google/vit/flax/base-16/1"]
    values = {"MAX_STEPS": 7, "OVERRIDES": {"optimizer.lr": 0.5}, "SMOKE_STEPS": 0}
    assert {name: stub.sessions[0].parameter(name) for name in values} == values
    pushed = json.loads(request["text"])
    original = json.loads((ROOT / "notebooks" / "01_graphmer.ipynb").read_text("utf-8"))
    (given,) = carried.tagged(pushed, "injected-parameters")
    pushed["cells"].remove(given)
    assert sources_of(pushed) == sources_of(original)


def sources_of(notebook):
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def test_nothing_is_pushed_during_a_session_and_resuming_mounts_the_own_output(stub, capsys):
    assert main(["kaggle", "push", "graphmer", "--continue"]) == 2
    assert "Leave --continue out of the first push" in capsys.readouterr().err
    pushed = threading.Event()
    stub.runner = lambda session: pushed.wait(600)
    assert main(["kaggle", "push", "graphmer"]) == 0
    assert main(["kaggle", "push", "graphmer"]) == 2
    assert "second run at once" in capsys.readouterr().err
    assert len(stub.sessions) == 1
    pushed.set()
    stub.settled()
    assert main(["kaggle", "push", "graphmer", "--continue"]) == 0
    assert stub.sessions[1].request["kernelDataSources"] == [NAME]


@pytest.mark.parametrize(
    "option, value, sentence",
    [
        ("--param", "MAX_STEP=7", "MAX_STEP. It has: CONFIG, DATA_DIR"),
        ("--param", "MAX_STEPS=many", "found many"),
        ("--param", "OVERRIDES=5", "--set writes OVERRIDES"),
        ("--param", "CONFIG=configs/no.yaml", "does not carry configs/no.yaml, but configs/gra"),
        ("--set", "training.max_stps=10", "Did you mean max_steps?"),
        ("--set", "queue.seeds=[1,2]", "trains one run"),
        ("--dataset", "graphs", "the last two parts of its address"),
        ("--slug", "abc", "at least five characters"),
        ("--param", f"DATA_DIR={KEY}", "credential of your environment"),
    ],
)
def test_a_hopeless_push_is_refused_before_anything_is_sent(stub, capsys, option, value, sentence):
    assert main(["kaggle", "push", "graphmer", option, value]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert KEY not in error
    assert stub.count("SaveKernel") == 0


def test_a_notebook_that_lib_was_edited_after_is_not_pushed(
    staleness_counts, stub, tmp_path, capsys
):
    stale = json.loads((ROOT / "notebooks" / "01_graphmer.ipynb").read_text("utf-8"))
    stale["cells"].append({**stale["cells"][0], "id": "more"})
    (tmp_path / "01_graphmer.ipynb").write_text(json.dumps(stale))
    assert main(["kaggle", "push", str(tmp_path / "01_graphmer.ipynb")]) == 2
    assert "make notebooks" in capsys.readouterr().err
    assert stub.calls == []


def test_a_dry_run_shows_what_would_be_sent_and_needs_no_account(stub, monkeypatch, capsys):
    monkeypatch.setattr("trainbook.kaggle.client.importlib.util.find_spec", lambda name: None)
    given = [
        "--param",
        "MAX_STEPS=7",
        "--set",
        "seed=3",
        "--dataset",
        "ada/code-graph",
        "--continue",
    ]
    assert main(["kaggle", "push", "graphmer", "--dry-run", *given]) == 0
    out = capsys.readouterr().out
    assert "Nothing was sent (--dry-run)" in out
    assert '"dataset_sources": [\n  "ada/code-graph"' in out
    assert stub.calls == []
    for given in (
        ["graphmer", "--param", "CONFIG=/kaggle/input/a/mine.yaml"],
        ["memory"],
        ["your_model"],
    ):
        assert main(["kaggle", "push", *given, "--dry-run"]) == 0, (
            "what only a session would read may be pushed"
        )


def test_results_come_home_unpacked_and_checked_without_checkpoints(stub, tmp_path, capsys):
    stub.ended(leaves_results)
    assert main(["kaggle", "fetch", "graphmer"]) == 0
    assert "toy: completed at step 12" in capsys.readouterr().out
    results = tmp_path / "runs" / "kaggle" / "trainbook-01-graphmer" / "results"
    assert (results / "toy" / "best" / "step-00000012" / "model.safetensors").is_file()
    assert (results / "toy" / "plots" / "metrics.png").read_bytes() == b"png"
    assert not (results / "toy" / "checkpoints").exists()
    assert (results / "session.log").read_text() == "done\n"
    assert main(["kaggle", "fetch", "graphmer", "--all", "--to", "everything"]) == 0
    checkpoint.verify(tmp_path / "everything" / "toy" / "checkpoints" / "step-00000012")


def test_a_session_that_left_nothing_is_said(stub, capsys):
    stub.ended(lambda session: session.say("ImportError\n"))
    assert main(["kaggle", "fetch", "graphmer"]) == 2
    assert "left no summary.json" in (error := capsys.readouterr().err)
    assert "session.log" in error


WEIGHTS = "toy/best/step-00000012/model.safetensors"


@pytest.fixture
def fetched(stub, tmp_path, capsys):
    """Fetches results into `mine`; a function that refuses the next ones, and checks that `mine` stays."""
    working = stub.ended(leaves_results).working
    assert main(["kaggle", "fetch", "graphmer", "--to", "mine"]) == 0
    before = sorted((tmp_path / "mine").rglob("*"))

    def refuses(sentence):
        assert main(["kaggle", "fetch", "graphmer", "--to", "mine"]) == 2
        assert sentence in capsys.readouterr().err
        assert sorted((tmp_path / "mine").rglob("*")) == before
        assert not list(tmp_path.glob(".fetch-*"))

    return working, refuses


def test_results_with_damaged_weights_replace_nothing(fetched):
    working, refuses = fetched
    data = (working / WEIGHTS).read_bytes()
    (working / WEIGHTS).write_bytes(data[:-1] + b"x")
    packing.package(working)
    refuses("model.safetensors")


def test_results_in_a_cut_archive_replace_nothing(fetched):
    working, refuses = fetched
    data = (working / packing.ARCHIVE).read_bytes()
    (working / packing.ARCHIVE).write_bytes(data[: len(data) // 2])
    refuses("cannot be unpacked")


@pytest.mark.parametrize(
    "member", [tarfile.TarInfo("../outside"), tarfile.TarInfo("link")], ids=["path", "link"]
)
def test_an_archive_that_would_write_elsewhere_is_not_unpacked(tmp_path, member):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        if member.name == "link":
            member.type = tarfile.SYMTYPE
            member.linkname = "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(BadInput, match="not unpacked|cannot be unpacked"):
        kernel.unpack(tmp_path / "bad.tar.gz", tmp_path / "inside")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "inside" / "link").is_symlink()


def push(*options):
    return main(["kaggle", "push", "graphmer", *options])


def test_a_push_waits_until_a_data_set_of_one_s_own_can_be_attached(stub, capsys):
    stub.datasets["ada/code-graphs"] = [{}]
    stub.failures["GetDatasetStatus"] = [403, 403]
    stub.states = ["NOT_YET_PERSISTED", "BLOBS_RECEIVED"]
    assert push("--dataset", "ada/code-graphs") == 0
    out = capsys.readouterr().out
    assert "Asking again every 0.05 s, at most 24 times." in out
    assert "ada/code-graphs is not ready yet (not_yet_persisted): waiting" in out
    assert [name for name, _ in stub.calls].index("SaveKernel") > 4
    assert stub.states == []


@pytest.mark.parametrize(
    "states, denials, code, sentence",
    [
        (
            ["BLOBS_RECEIVED"] * 9,
            0,
            1,
            "ada/sines is still not ready (blobs_received); nothing was pushed",
        ),
        (["FAILED"], 0, 2, "ada/sines is failed on Kaggle. Upload it again"),
        ([], 99, 2, "compare owner and slug"),
    ],
)
def test_a_data_set_that_never_gets_ready_starts_no_session(
    stub, monkeypatch, capsys, states, denials, code, sentence
):
    monkeypatch.setattr(client, "READY", 5)
    stub.datasets["ada/sines"] = [{}]
    stub.states, stub.failures["GetDatasetStatus"] = states, [403] * denials
    assert push("--dataset", "ada/sines") == code
    assert sentence in capsys.readouterr().err
    assert stub.sessions == []
    assert len(stub.failures["GetDatasetStatus"]) == max(0, denials - client.SETTLING)


def test_a_status_that_is_denied_right_after_a_push_is_asked_again(stub, capsys):
    assert push() == 0
    stub.settled()
    stub.failures["GetKernelSessionStatus"] = [403, 403]
    assert main(["kaggle", "status", "graphmer"]) == 0
    assert "Asking again every" in (out := capsys.readouterr().out)
    assert out.endswith(f"{NAME}: complete\n")
    running = threading.Event()
    stub.runner = lambda session: running.wait(60)
    assert push() == 0
    stub.failures["GetKernelSessionStatus"] = [403]
    assert push() == 2
    assert "second run at once" in capsys.readouterr().err
    running.set()


def test_a_competition_is_mounted_and_named_as_the_data(stub, capsys):
    assert push("--competition", "titanic", "--param", "DATA_DIR=titanic") == 0
    assert stub.sessions[0].request["competitionDataSources"] == ["titanic"]
    assert "competitions/titanic" in stub.sessions[0].mounts
    assert stub.sessions[0].request["enableInternet"] is False
    card = ("--accelerator", "rtxpro6000")
    assert push(*card) == 2
    assert "only to notebooks of some competitions" in capsys.readouterr().err
    assert push(*card, "--competition", "titanic", "--internet") == 2
    assert "has no internet" in capsys.readouterr().err
    assert push("--accelerator", "p100", "--competition", "titanic") == 2
    assert "It is one of: rtxpro6000" in capsys.readouterr().err
    assert push(*card, "--competition", "titanic") == 0
    request = stub.sessions[-1].request
    assert (request["machineShape"], request["enableInternet"]) == ("NvidiaRtxPro6000", False)
    assert stub.sessions[-1].parameter("SESSION_MINUTES") == 510
    assert push("--competition", "kaggle.com/c/titanic") == 2
    assert "Give the last part of its address" in capsys.readouterr().err


@pytest.mark.parametrize("slug, sentence", [
    ("a" * 51, "has 51 letters, and Kaggle takes 50 in the title"), ("my--model", "is no slug"),
    ("My-Model", "is no slug"), ("model-", "is no slug"),
])  # fmt: skip
def test_a_slug_of_which_kaggle_would_make_no_title_is_refused(stub, capsys, slug, sentence):
    for options in ([], ["--dry-run"]):
        assert push("--slug", slug, *options) == 2
        assert sentence in capsys.readouterr().err
        assert stub.sessions == []
    assert push("--slug", "a" * 50) == 0
