"""No credential is printed, written or sent."""

import pytest

from lib.errors import BadInput
from tests.trainbook.kaggle.stub import KEY, leaves_results
from trainbook.commands import main
from trainbook.kaggle import client


def test_no_credential_is_printed_written_or_pushed(stub, tmp_path, monkeypatch, capfd):
    """Every command, with a session that prints the key."""

    def runner(session):
        session.say(f"the key is {KEY}\n")
        leaves_results(session)

    stub.runner = runner
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdefghij")
    for words in (
        "push graphmer",
        "status graphmer --log",
        "fetch graphmer",
        "chain graphmer --poll-seconds 0.05",
    ):
        assert main(["kaggle", *words.split()]) == 0
        stub.settled()
    said = "".join(capfd.readouterr())
    assert "the key is [hidden]" in said
    assert KEY not in said
    written = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert sum(path.name == "session.log" for path in written) == 2
    assert len(written) > 5
    assert not any(KEY.encode() in path.read_bytes() for path in written)
    assert not any(KEY in session.request["text"] for session in stub.sessions)


def test_credentials_are_known_by_their_names_and_in_addresses_and_found_in_files(
    tmp_path, monkeypatch
):
    named = {"KAGGLE_KEY": "0123456789", "A_SECRET": "abcdefghi"}
    addresses = {
        "DATABASE_URL": "postgres://ada:lovelace-1815@host/db",
        "TRACKING_URI": "https://mlflow.example",
    }
    others = {"A_TOKEN": "short", "KEYBOARD": "german-layout", "PATH": "/usr/bin:/bin"}
    assert sorted(client.secrets({**named, **addresses, **others})) == sorted(
        [*named.values(), "lovelace-1815"]
    )
    monkeypatch.setenv("SOME_TOKEN", "t" * 20)
    (tmp_path / "large.bin").write_bytes(b"x" * 10**7 + b"t" * 20)
    with pytest.raises(BadInput, match=r"large\.bin contains"):
        client.refuse_in_files([tmp_path / "large.bin"])
