"""Addresses are found in a configuration, and asked for their size without a download."""

import pytest

from lib.doctor.addresses import check_address, remote


def test_addresses_are_found_anywhere_in_a_configuration_unless_its_data_is_given(toy):
    address = "https://example.org/scenes.tar.gz"
    assert remote(toy({"run.resume_from": address})) == [address]
    assert remote(toy({"run.resume_from": address, "data.dir": "somewhere"})) == [] == remote(toy())


@pytest.mark.parametrize(
    "path, verdict, words",
    [
        ("/there", "ok", "answers, 1,234 bytes"),
        ("/get-only", "ok", "answers, 3 bytes"),
        ("/gone", "bad", "answers 404"),
        ("/slow", "bad", "does not answer in 0.5 s"),
    ],
)
def test_addresses_are_asked_without_downloading(address, path, verdict, words):
    finding = check_address(address + path, seconds=0.5 if path == "/slow" else 30)
    assert finding.verdict == verdict and words in finding.value


def test_what_may_be_a_credential_is_not_shown(address):
    for secret in ("http://user:word@127.0.0.1:1/x", "http://127.0.0.1:1/x?token=word"):
        assert "word" not in str(check_address(secret, seconds=2)) and "127.0.0.1:1/x" in str(check_address(secret, 2))


@pytest.mark.parametrize("broken", ["http://127.0.0.1:1/x", "http://no.such.host.invalid/x", "http://[bad"])
def test_an_address_that_cannot_be_reached_is_wrong(address, broken):
    assert check_address(broken, seconds=2).verdict == "bad"
