"""The real client: what it prints is understood, its refusals are errors, and it is ended when it hangs."""

import pytest

from lib.errors import BadInput
from tests.trainbook.kaggle.stub import leaves_results
from trainbook.commands import main
from trainbook.kaggle import client

NAME = "ada/trainbook-01-graphmer"


def test_status_and_log_of_a_running_session_are_followed_to_its_end(stub, capsys):
    def runner(session):
        session.say("step 1\n")
        session.say('{"a": 1} é\n')
        stub.wait_for(lambda: stub.streams)
        raise RuntimeError("ValueError: no data")

    stub.runner = runner
    main(["kaggle", "push", "graphmer"])
    stub.wait_for(lambda: len(stub.sessions[0].log) == 2)
    assert main(["kaggle", "status", "graphmer", "--log"]) == 0
    assert capsys.readouterr().out.endswith(f'step 1\n{{"a": 1}} é\n\n{NAME}: running\n')
    assert main(["kaggle", "status", "graphmer", "--follow"]) == 1
    out = capsys.readouterr().out
    assert 'step 1\n{"a": 1} é\n' in out
    assert f"{NAME}: error (ValueError: no data)" in out


@pytest.mark.parametrize(
    "status, code", [("ERROR", 1), ("CANCEL_ACKNOWLEDGED", 130), ("COMPLETE", 0)]
)
def test_following_a_session_that_has_ended_says_how(stub, capsys, status, code):
    stub.ended(lambda session: session.say("one\n")).status = status
    assert main(["kaggle", "status", "graphmer", "--follow"]) == code
    assert capsys.readouterr().out.startswith(f"one\n\n{NAME}: {status.lower()}\n")


def test_a_log_is_read_whole_cut_off_or_plain():
    first = '[{"stream_name":"stdout","time":1.0,"data":"a\\n"}\n,{"stream_na'
    assert client.readable(first + 'me":"stderr","data":"b"}]') == "a\nb"
    assert client.readable(first) == "a\n"
    assert client.readable("no JSON at all") == "no JSON at all"
    assert client.readable("") == ""


def test_the_client_as_a_child_gives_its_code_and_advice_and_is_ended_if_it_hangs(
    real_client, monkeypatch, capsys
):
    real_client.failures["GetAcceleratorQuotaStatistics"] = [503]
    with pytest.raises(
        client.NoAnswer, match=r"service is currently unavailable\. \[HTTP 503\]\. Try again later"
    ):
        client.quota()
    real_client.delay["GetAcceleratorQuotaStatistics"] = 30
    with pytest.raises(client.NoAnswer, match="gave no answer in 1 s"):
        client.call("quota", "--csv", seconds=1)
    monkeypatch.delenv("KAGGLE_KEY")
    monkeypatch.delenv("KAGGLE_USERNAME")
    assert main(["kaggle", "status", "ada/some-notebook"]) == 2
    assert "kaggle auth login" in capsys.readouterr().err


def test_a_refusal_behind_a_success_or_a_bare_404_comes_with_advice(stub, capsys):
    stub.refuse_push = "Maximum weekly GPU quota of 30.00 hours reached."
    assert main(["kaggle", "push", "graphmer"]) == 2
    assert "GPU quota of 30.00 hours reached. Correct what it names." in capsys.readouterr().err
    stub.refuse_push = ""
    assert main(["kaggle", "status", "ada/not-there"]) == 2
    assert "compare owner and slug" in capsys.readouterr().err
    assert main(["kaggle", "push", "graphmer", "--dataset", "bob/misspelt"]) == 2
    assert "without some of its dataset sources: ['bob/misspelt']" in capsys.readouterr().err
    assert main(["kaggle", "push", "graphmer", "--competition", "spaceship"]) == 2
    assert "without some of its competition sources: ['spaceship']" in capsys.readouterr().err


def test_a_question_is_asked_again_while_the_server_fails(stub, capsys):
    stub.ended(leaves_results)
    stub.failures["GetKernelSessionStatus"] = [503, 429]
    assert main(["kaggle", "status", "graphmer"]) == 0
    assert "Asking again every" in (out := capsys.readouterr().out)
    assert out.endswith(f"{NAME}: complete\n")
    stub.failures["GetKernelSessionStatus"] = [503] * 100
    assert main(["kaggle", "status", "graphmer"]) == 1  # a failure, and no bad input
    assert "Try again later" in capsys.readouterr().err
    assert len(stub.failures["GetKernelSessionStatus"]) == 96


def test_without_the_client_its_installation_is_said(monkeypatch):
    monkeypatch.setattr(client.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install kaggle==2.2.4 six"):
        client.status(NAME)


def test_a_name_that_leads_out_of_the_folder_is_not_asked_for(stub, tmp_path):
    stub.ended(leaves_results)
    (tmp_path / "deep").mkdir()
    for stub.stray_file in ("../outside.txt", "/tmp/outside.txt"):
        client.output(NAME, tmp_path / "deep" / "out", ".")
        assert not list(tmp_path.rglob("*outside.txt"))


def test_what_the_client_prints_is_read_whatever_the_locale_is(real_client, monkeypatch, capsys):
    for name, value in {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}.items():
        monkeypatch.setenv(name, value)
    real_client.ended(lambda session: session.say("⟦é⟧\n"))
    assert client.log(NAME) == "⟦é⟧\n"
    client.follow(NAME)
    assert "⟦é⟧" in capsys.readouterr().out
