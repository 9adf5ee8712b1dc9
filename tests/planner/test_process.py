"""The child process that plans: its answers and its refusals; whole plans are compared in test_search.py."""

import pickle

import pytest

from lib.planner import process
from lib.planner.card import find_card


@pytest.mark.parametrize("changes, code", [({}, 0), ({"training.fully_shard": True}, 3), ({"task": "nothing"}, 2)])
def test_the_exit_code_says_whether_there_is_a_plan(toy, tmp_path, changes, code, capsys):
    toy()
    text = (tmp_path / "toy.yaml").read_text()
    if "task" in changes:
        text = text.replace(":Toy", ":Nothing")
    elif changes:
        text = text.replace("training:", "training:\n  fully_shard: true")
    (tmp_path / "toy.yaml").write_text(text)
    request, answer = tmp_path / "request", tmp_path / "answer"
    request.write_bytes(pickle.dumps((str(tmp_path / "toy.yaml"), find_card("t4"), 1)))
    assert process.write_plan(str(request), str(answer)) == code
    assert answer.exists() == (code == 0) and bool(capsys.readouterr().err) == (code != 0)
