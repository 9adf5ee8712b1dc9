"""The watch itself: what hostile inputs would do is seen."""

import os
import subprocess

import numpy as np
import pytest

from tests.hostile.conftest import FORGED

WRONG = {
    "code": lambda o: exec(o.code()), "secret": lambda o: o.secret.read_text(),
    "link": lambda o: (o.folder / "link").read_text(), "target": lambda o: (o.target / "planted").write_text(""),
    "folder": lambda o: (o.folder / "planted").mkdir(), "device": lambda o: os.open("/dev/zero", os.O_RDONLY),
    "process": lambda o: subprocess.run(["true"]),
    "escape": lambda o: print("\x1b[2J"), "line": lambda o: print(f"x\n{FORGED}"),
    "memory": lambda o: np.empty(256 * 2**20, np.uint8), "traceback": lambda o: {}["key"],
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_each_wrong_act_is_seen(nothing_outside, wrong):
    (nothing_outside.folder / "link").symlink_to(nothing_outside.secret)
    with pytest.raises((AssertionError, KeyError)):
        nothing_outside.attempt(wrong, nothing_outside, weighed=True)
