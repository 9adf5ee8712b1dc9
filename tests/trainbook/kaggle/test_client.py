"""The real client: what it prints is understood, its refusals are errors, and it is ended when it hangs."""

import pytest

from lib.errors import BadInput
from tests.trainbook.kaggle.stub import leaves_results
from trainbook.commands import main
from trainbook.kaggle import client

NAME = "ada/trainbook-01-graphmer"


def test_a_refusal_is_an_error_although_the_client_exits_with_0(real_client, capsys):
    real_client.refuse_push = "Maximum batch GPU session count of 2 reached."
    assert main(["kaggle", "push", "graphmer"]) == 2
    assert "Kaggle refused the notebook" in (error := capsys.readouterr().err) and "count of 2 reached" in error


def test_a_push_without_its_data_is_an_error_although_the_client_says_successfully(stub, capsys):
    assert main(["kaggle", "push", "graphmer", "--dataset", "ada/misspelt"]) == 2
    assert "without some of its dataset sources: ['ada/misspelt']" in capsys.readouterr().err


def test_a_log_is_followed_until_the_session_ends(real_client, capsys):
    def runner(session):
        session.say("one\n")
        session.say("two\n")
        real_client.wait_for(lambda: real_client.streams)

    real_client.runner = runner
    main(["kaggle", "push", "graphmer"])
    real_client.wait_for(lambda: len(real_client.sessions[0].log) == 2)
    assert main(["kaggle", "status", "graphmer", "--follow"]) == 0
    last = f"one\ntwo\n{NAME}: complete\nThe results: trainbook kaggle fetch {NAME}\n"
    assert capsys.readouterr().out.endswith(last)


@pytest.mark.parametrize("status, code", [("ERROR", 1), ("CANCEL_ACKNOWLEDGED", 130), ("COMPLETE", 0)])
def test_following_a_session_that_has_ended_says_how(stub, capsys, status, code):
    stub.ended(lambda session: session.say("one\n")).status = status
    assert main(["kaggle", "status", "graphmer"]) == 0
    assert main(["kaggle", "status", "graphmer", "--follow"]) == code
    wanted = f"results: trainbook kaggle fetch {NAME}"
    if status != "COMPLETE":
        wanted = f"whole log: trainbook kaggle status {NAME} --log"
    assert capsys.readouterr().out.endswith(f"one\n\n{NAME}: {status.lower()}\nThe {wanted}\n")


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


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("code, kind", [(404, client.Refused), (409, client.Refused), (429, client.NoAnswer),
                                        (500, client.NoAnswer), (503, client.NoAnswer)])  # fmt: skip
def test_the_code_of_an_error_is_known_in_both_forms_of_its_body(stub, nested, code, kind):
    stub.nested = nested
    stub.failures["GetAcceleratorQuotaStatistics"] = [code]
    with pytest.raises(client.Refused) as refusal:
        client.quota()
    assert type(refusal.value) is kind and refusal.value.code == code


def test_the_code_is_known_from_the_client_as_a_child_too(real_client):
    real_client.failures["GetAcceleratorQuotaStatistics"] = [503]
    with pytest.raises(client.NoAnswer, match=r"service is currently unavailable\. \[HTTP 503\]\. Try again later"):
        client.quota()


@pytest.mark.parametrize(
    "words, advice",
    [
        ("Maximum batch GPU session count of 2 reached.", "Two of your sessions are running already. Stop one"),
        ("Maximum weekly GPU quota of 30.00 hours reached.", "New ones come on Saturday at 00:00 UTC"),
        ("Your weekly GPU quota has been exceeded", "New ones come on Saturday at 00:00 UTC"),
        ("Conflict [HTTP 409]", "Wait a minute and run the command again"),
        ("Something else.", "Correct what it names."),
    ],
)
def test_a_refusal_comes_with_what_to_do(stub, capsys, words, advice):
    stub.refuse_push = words
    assert main(["kaggle", "push", "graphmer"]) == 2
    assert advice in (error := capsys.readouterr().err) and ".." not in error


def test_a_question_is_asked_again_while_the_server_fails(stub, capsys):
    stub.ended(leaves_results)
    stub.failures["GetKernelSessionStatus"] = [503, 429]
    assert main(["kaggle", "status", "graphmer"]) == 0
    assert "Asking again every" in (out := capsys.readouterr().out) and out.endswith(f"{NAME}: complete\n")
    stub.failures["GetKernelSessionStatus"] = [503] * 100
    assert main(["kaggle", "status", "graphmer"]) == 1  # a failure, and no bad input
    assert "Try again later" in capsys.readouterr().err and len(stub.failures["GetKernelSessionStatus"]) == 96


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


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt", "a/../../outside.txt", "C:\\outside.txt"])
def test_a_name_that_leads_out_of_the_folder_is_not_asked_for(stub, tmp_path, name):
    stub.ended(leaves_results)
    stub.stray_file = name
    (tmp_path / "deep").mkdir()
    client.output(NAME, tmp_path / "deep" / "out", ".")
    assert not list(tmp_path.rglob("*outside.txt"))
