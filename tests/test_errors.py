"""The limit on unusable inputs, and the list of the first ten."""

import pytest

from lib.errors import BadInput, TrainingFailed, check_limit


def test_one_more_than_the_limit_is_refused_with_the_setting_that_passes():
    bad = [f"a.txt line {number}: empty" for number in range(1, 13)]
    check_limit("Bad lines", bad, 12)
    with pytest.raises(BadInput) as refused:
        check_limit("Bad lines", bad, 11)
    head, *lines = str(refused.value).splitlines()
    assert head.startswith("Bad lines: 12; workload.bad_input_limit allows 11.")
    assert head.endswith("workload.bad_input_limit: 12.")
    assert lines == [f"  {line}" for line in bad[:10]] + ["  and 2 more"]


@pytest.mark.parametrize("kind", [BadInput, TrainingFailed])
def test_a_notebook_shows_the_sentence_and_none_of_our_frames(kind, monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    monkeypatch.setitem(
        shell.user_ns, "error", kind("There is no input pets. Give a path that exists.")
    )
    assert not shell.run_cell("raise error").success
    assert (
        capsys.readouterr().out
        == f"{kind.__name__}: There is no input pets. Give a path that exists.\n"
    )
