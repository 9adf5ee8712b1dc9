"""The watch itself: what hostile inputs would do is seen."""

import os
import subprocess

import numpy as np
import pytest

from tests.hostile.conftest import FORGED


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda o: exec(o.code()), id="code"),
        pytest.param(lambda o: o.secret.read_text(), id="secret"),
        pytest.param(lambda o: (o.folder / "link").read_text(), id="link"),
        pytest.param(lambda o: (o.target / "planted").write_text(""), id="target"),
        pytest.param(lambda o: (o.folder / "planted").mkdir(), id="folder"),
        pytest.param(lambda o: os.open("/dev/zero", os.O_RDONLY), id="device"),
        pytest.param(lambda o: subprocess.run(["true"]), id="process"),
        pytest.param(lambda o: print("\x1b[2J"), id="escape"),
        pytest.param(lambda o: print(f"x\n{FORGED}"), id="line"),
        pytest.param(lambda o: np.empty(256 * 2**20, np.uint8), id="memory"),
        pytest.param(lambda o: {}["key"], id="traceback"),
    ],
)
def test_each_wrong_act_is_seen(nothing_outside, wrong):
    (nothing_outside.folder / "link").symlink_to(nothing_outside.secret)
    with pytest.raises((AssertionError, KeyError)):
        nothing_outside.attempt(wrong, nothing_outside, weighed=True)
