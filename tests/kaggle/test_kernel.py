"""A notebook on Kaggle by the real client: pushed and refused, its state, its log, its results."""

import io
import json
import sys
import tarfile
import time

import pytest

from lib import checkpoint
from lib.__main__ import main
from lib.errors import BadInput
from lib.kaggle import client, credentials, kernel
from lib.kaggle.kernel import Notebook
from lib.report import outputs
from tests.conftest import ROOT
from tests.kaggle.stub import KEY

NAME = "ada/trainbook-01-graphmer"


def settled(stub):
    stub.wait_for(lambda: stub.sessions[-1].status not in ("QUEUED", "RUNNING"))


# --- push -------------------------------------------------------------------------------------------------------------


def test_a_push_says_everything_and_carries_the_parameters(stub, capsys):
    stub.datasets["ada/code-graphs"] = [{}]
    given = ["--param", "MAX_STEPS=7", "--set", "optimizer.lr=0.5", "--dataset", "ada/code-graphs"]
    assert main(["kaggle", "push", "graphmer", *given]) == 0
    assert f"Version 1 of {NAME} was pushed" in capsys.readouterr().out
    request = stub.sessions[0].request
    assert request["machineShape"] == "NvidiaTeslaT4" and request["enableGpu"] is True
    assert request["enableInternet"] is False and request["isPrivate"] is True  # left out, internet is on
    assert request["datasetDataSources"] == ["ada/code-graphs"] and request.get("kernelDataSources", []) == []
    assert stub.sessions[0].parameter("MAX_STEPS") == 7
    assert stub.sessions[0].parameter("OVERRIDES") == {"optimizer.lr": 0.5}
    assert stub.sessions[0].parameter("SMOKE_STEPS") == 0


def test_a_refusal_is_an_error_although_the_client_exits_with_0(real_client, capsys):
    real_client.refuse_push = "Maximum batch GPU session count of 2 reached."
    assert main(["kaggle", "push", "graphmer"]) == 2
    assert "Kaggle refused the notebook" in (error := capsys.readouterr().err) and "count of 2 reached" in error


def test_a_push_without_its_data_is_an_error_although_the_client_says_successfully(stub, capsys):
    assert main(["kaggle", "push", "graphmer", "--dataset", "ada/misspelt"]) == 2
    assert "without some of its dataset sources: ['ada/misspelt']" in capsys.readouterr().err


def test_nothing_is_pushed_while_a_session_is_active(stub, capsys):
    stub.runner = lambda session: time.sleep(5)
    assert main(["kaggle", "push", "graphmer"]) == 0
    assert main(["kaggle", "push", "graphmer"]) == 2
    assert "second run at once" in capsys.readouterr().err and len(stub.sessions) == 1


def test_going_on_mounts_its_own_output_but_not_at_the_first_push(stub, capsys):
    assert main(["kaggle", "push", "graphmer", "--continue"]) == 2
    assert "Leave --continue out of the first push" in capsys.readouterr().err
    stub.ended(leaves_results)
    assert main(["kaggle", "push", "graphmer", "--continue"]) == 0
    assert stub.sessions[1].request["kernelDataSources"] == [NAME]


@pytest.mark.parametrize(
    "given, sentence",
    [
        (["--param", "MAX_STEP=7"], "has no parameter MAX_STEP. It has: CONFIG, DATA_DIR"),
        (["--param", "MAX_STEPS=many"], "it cannot be 'many'"),
        (["--param", "MAX_STEPS"], "NAME=VALUE"),
        (["--set", "seed"], "--set takes key=value"),
        (["--dataset", "graphs"], "no owner/slug"),
        (["--slug", "abc"], "fewer than 5 characters"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(stub, capsys, given, sentence):
    assert main(["kaggle", "push", "graphmer", *given]) == 2
    assert sentence in capsys.readouterr().err and stub.count("SaveKernel") == 0


def test_the_title_has_the_slug_of_the_id(tmp_path):
    slugify = pytest.importorskip("slugify").slugify
    described = kernel.metadata(Notebook(ROOT / "notebooks" / "01_graphmer.ipynb", NAME), own_output=False)
    assert slugify(described["title"]) == described["id"].split("/")[1] == "trainbook-01-graphmer"
    assert len(described["title"]) >= 5 and set(described) >= {"machine_shape", "enable_internet", "is_private"}


def test_a_pushed_notebook_comes_back_without_what_the_push_put_in(stub, tmp_path):
    main(["kaggle", "push", "graphmer", "--param", "MAX_STEPS=7"])
    sys.path.insert(0, str(ROOT))
    import build_notebooks

    pushed = tmp_path / "01_graphmer.ipynb"
    pushed.write_text(stub.sessions[0].request["text"])
    cells = build_notebooks.edited_cells(pushed)
    original = build_notebooks.edited_cells(ROOT / "notebooks" / "01_graphmer.ipynb")
    assert [cell.source for cell in cells] == [cell.source for cell in original]


def test_an_unknown_notebook_lists_what_there_is(stub, capsys):
    assert main(["kaggle", "push", "nothing"]) == 2
    assert "There is no notebook nothing. There are: 00_memory, 01_graphmer" in capsys.readouterr().err


# --- status and log ---------------------------------------------------------------------------------------------------


def test_the_status_and_the_log_of_a_running_session_are_readable(stub, capsys):
    def runner(session):
        session.say("step 1\n")
        session.say('{"a": 1} é\n')
        time.sleep(3)
        raise RuntimeError("ValueError: no data")

    stub.runner = runner
    main(["kaggle", "push", "graphmer"])
    stub.wait_for(lambda: len(stub.sessions[0].log) == 2)
    assert main(["kaggle", "status", "graphmer", "--log"]) == 0
    assert capsys.readouterr().out.endswith(f'{NAME}: running\nstep 1\n{{"a": 1}} é\n\n')
    settled(stub)
    assert main(["kaggle", "status", NAME]) == 0
    assert f"{NAME}: error (ValueError: no data)" in capsys.readouterr().out


def test_a_log_is_followed_until_the_session_ends(real_client, capsys):
    real_client.runner = lambda session: [session.say("one\n"), session.say("two\n"), time.sleep(3)]
    main(["kaggle", "push", "graphmer"])
    real_client.wait_for(lambda: len(real_client.sessions[0].log) == 2)
    assert main(["kaggle", "status", "graphmer", "--follow"]) == 0
    assert "one\ntwo\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "log, text",
    [
        ('[{"stream_name":"stdout","time":1.0,"data":"a\\n"}\n,{"stream_name":"stderr","data":"b"}]', "a\nb"),
        ('[{"stream_name":"stdout","time":1.0,"data":"a\\n"}\n,{"stream_na', "a\n"),
        ("no JSON at all", "no JSON at all"),
        ("", ""),
    ],
)
def test_a_log_is_read_whole_cut_off_or_plain(log, text):
    assert client.readable(log) == text


def test_a_notebook_that_is_not_there_is_said(stub, capsys):
    assert main(["kaggle", "status", "ada/not-there"]) == 2
    assert "compare owner and slug" in capsys.readouterr().err


def test_without_a_credential_the_way_to_one_is_said(real_client, monkeypatch, capsys):
    monkeypatch.delenv("KAGGLE_KEY")
    monkeypatch.delenv("KAGGLE_USERNAME")
    assert main(["kaggle", "status", "ada/some-notebook"]) == 2
    assert "kaggle auth login" in capsys.readouterr().err


def test_without_the_client_its_installation_is_said(monkeypatch):
    monkeypatch.setattr(client.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install kaggle==2.2.4 six"):
        client.status(NAME)


def test_a_client_that_hangs_is_ended(real_client):
    real_client.delay["GetAcceleratorQuotaStatistics"] = 30
    with pytest.raises(client.NoAnswer, match="gave no answer in 2 s"):
        client.call("quota", "--csv", seconds=2)


@pytest.mark.parametrize("hours, told", [((12.5, 30.0), (12.5, 17.5, 30.0)), (None, None)])
def test_the_quota_is_read(stub, hours, told):
    stub.quota_hours = hours
    quota = client.quota()
    assert told == (quota and (quota.used, quota.remaining, quota.total))


# --- results ----------------------------------------------------------------------------------------------------------


def leaves_results(session, step=12, reason="completed"):
    """What a notebook leaves: run folder, best weights with their manifest, archive."""
    session.say("done\n")
    session.summary(step=step, reason=reason, metrics={"rmse": 0.5}, baseline={"rmse": 1.0})
    run = session.working / "toy"
    (run / "config.yaml").write_text("task: toy\n")
    (run / "plots").mkdir()
    (run / "plots" / "metrics.png").write_bytes(b"png")
    import torch

    checkpoint.save(run / "best", step, {"model": {"w": torch.zeros(4)}}, {"step": step})
    checkpoint.save(run / "checkpoints", step, {"model": {"w": torch.zeros(4)}}, {"step": step})
    outputs.package(session.working)


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


def test_the_plot_is_opened_when_asked_for(stub, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    stub.ended(leaves_results)
    main(["kaggle", "fetch", "graphmer"])
    assert opened == []  # pytest's stdout is no terminal
    main(["kaggle", "fetch", "graphmer", "--open"])
    assert len(opened) == 1 and opened[0].startswith("file:///") and opened[0].endswith("/toy/plots/metrics.png")


def spoil_summary(working):
    (working / "toy" / "summary.json").write_text('{"reason": "completed", "step": 13}')


def spoil_metrics(working):
    (working / "toy" / "metrics.csv").write_text("step,split,loss\n99,train,1\n")
    outputs.package(working)


def spoil_weights(working):
    path = working / "toy" / "best" / "step-00000012" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    outputs.package(working)


def spoil_archive(working):
    path = working / outputs.ARCHIVE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "spoil, sentence",
    [
        (spoil_summary, "the packaging was cut off"),
        (spoil_metrics, "metrics.csv ends at step 99, its summary at 12"),
        (spoil_weights, "step-00000012 is damaged"),
        (spoil_archive, "is damaged or unsafe"),
    ],
)
def test_results_that_do_not_fit_together_replace_nothing(stub, tmp_path, capsys, spoil, sentence):
    stub.ended(leaves_results)
    assert main(["kaggle", "fetch", "graphmer", "--to", "mine"]) == 0
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "mine").rglob("*"))
    spoil(stub.sessions[0].working)
    assert main(["kaggle", "fetch", "graphmer", "--to", "mine"]) == 2
    assert sentence in capsys.readouterr().err
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "mine").rglob("*")) == before
    assert not list(tmp_path.glob(".fetch-*"))


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt", "a/../../outside.txt", "C:\\outside.txt"])
def test_a_name_that_leads_out_of_the_folder_is_not_asked_for(stub, tmp_path, name):
    stub.ended(leaves_results)
    stub.stray_file = name
    (tmp_path / "deep").mkdir()
    client.output(NAME, tmp_path / "deep" / "out", ".")
    assert not list(tmp_path.rglob("*outside.txt"))


def archive_with(member, data=b"x"):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        member.size = len(data) if member.isfile() else 0
        archive.addfile(member, io.BytesIO(data))
    return raw.getvalue()


def unsafe_members():
    outside, link, device = (tarfile.TarInfo(name) for name in ("../outside", "link", "device"))
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    return [outside, link, device]


@pytest.mark.parametrize("member", unsafe_members(), ids=lambda member: member.name)
def test_an_archive_that_would_write_elsewhere_is_not_unpacked(tmp_path, member):
    (tmp_path / "bad.tar.gz").write_bytes(archive_with(member))
    with pytest.raises(BadInput, match=r"not unpacked|unsafe"):
        kernel.unpack(tmp_path / "bad.tar.gz", tmp_path / "inside")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "inside" / "link").is_symlink()


def test_a_session_that_left_nothing_is_said_with_its_log(stub, capsys):
    stub.ended(lambda session: session.say("ImportError\n"))
    assert main(["kaggle", "fetch", "graphmer"]) == 2
    assert "left no summary.json" in (error := capsys.readouterr().err) and "session.log" in error


# --- credentials ------------------------------------------------------------------------------------------------------


def test_no_credential_is_printed_written_or_pushed(stub, tmp_path, monkeypatch, capfd):
    """Every command, with a session that prints the key."""

    def runner(session):
        session.say(f"the key is {KEY}\n")
        leaves_results(session)

    stub.runner = runner
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdefghij")
    for words in ("push graphmer", "status graphmer --log", "fetch graphmer", "chain graphmer"):
        assert main(["kaggle", *words.split()]) == 0
        settled(stub)
    said = "".join(capfd.readouterr())
    assert "the key is [hidden]" in said and KEY not in said
    written = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert sum(path.name == "session.log" for path in written) == 2 and len(written) > 5
    assert not any(KEY.encode() in path.read_bytes() for path in written)
    assert not any(KEY in session.request["text"] for session in stub.sessions)


def test_a_notebook_with_a_credential_in_it_is_not_pushed(stub, capsys):
    assert main(["kaggle", "push", "graphmer", "--param", f"DATA_DIR={KEY}"]) == 2
    assert "credential of your environment" in (error := capsys.readouterr().err) and KEY not in error
    assert stub.count("SaveKernel") == 0


def test_short_values_and_other_names_are_no_credentials():
    environment = {"KAGGLE_KEY": "0123456789", "A_TOKEN": "short", "KEYBOARD": "german-layout", "A_SECRET": "abcdefghi"}
    assert sorted(credentials.values(environment)) == ["0123456789", "abcdefghi"]


def test_a_credential_is_found_across_the_chunks_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "t" * 20)
    monkeypatch.setattr(credentials, "_CHUNK", 16)
    (tmp_path / "a.txt").write_text("x" * 10 + "t" * 20 + "y" * 10)
    with pytest.raises(BadInput, match=r"a\.txt contains"):
        credentials.refuse_in_files([tmp_path / "a.txt"])


def test_no_notebook_carries_the_command_line_for_kaggle():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        assert '"lib/kaggle' not in path.read_text("utf-8")
    assert json.loads((ROOT / "notebooks" / "01_graphmer.ipynb").read_text())["metadata"]["kaggle"]["isGpuEnabled"]
