"""The doctor as a whole: on machines that this one is not, and by its command."""

import json

import pytest
import torch

from lib.errors import BadInput, NotTraceable
from lib.planner import process
from tests.trainbook.doctor.conftest import by_name
from trainbook import commands, doctor
from trainbook.doctor import machine, rehearsal


def test_a_p100_with_a_cuda_12_8_build_is_caught_without_touching_the_card(card, monkeypatch, toy):
    def unplanned(*_):
        raise NotTraceable("There is no plan.")

    card("Tesla P100-PCIE-16GB", (6, 0), 15.9)
    touched = lambda *a, **k: pytest.fail("the card was touched")  # noqa: E731
    monkeypatch.setattr(
        process, "plan", unplanned
    )  # in a process that sees no card; it takes seconds
    for place, name in ((torch.cuda, "_lazy_init"), (torch, "empty"), (rehearsal, "new_state")):
        monkeypatch.setattr(place, name, touched)
    kernels = by_name(machine.check_machine())["kernels"]
    assert kernels.verdict == "bad"
    assert "none for Tesla P100-PCIE-16GB (capability 6.0, 15.90 GiB)" in kernels.value
    assert "no kernel image is available" in kernels.advice
    assert "names sm_60" in kernels.advice
    with pytest.raises(BadInput, match="kernels: none for Tesla P100"):
        doctor.admit(toy())
    run = by_name(rehearsal.check_run(toy()))
    assert run["save and resume"].value.startswith("not tried")
    assert "checkpoints" not in run


def test_the_command_tells_bad_by_its_exit_code_and_json_is_nothing_but_json(toy, tmp_path, capsys):
    config = str(tmp_path / "toy.yaml")
    toy()
    assert (
        commands.main(["doctor", config, "--json", "--set", f"output_dir={tmp_path / 'runs'}"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    sections = {row["section"] for row in report["checks"]}
    assert report["verdict"] == "warning"
    assert sections == {"machine", "versions", "run"}
    (tmp_path / "file").touch()
    assert commands.main(["doctor", config, "--set", f"output_dir={tmp_path / 'file'}"]) == 2
    assert "cannot be written to" in " ".join(capsys.readouterr().out.split())
