"""The watch itself: what hostile inputs would do is seen."""

import os
import subprocess

import numpy as np
import pytest
import torch

from tests.hostile.conftest import FORGED


def read_by_native_code(outside):
    return torch.from_file(str(outside.secret), size=1, dtype=torch.uint8).sum()


def test_nothing_happens_in_a_call_that_does_nothing(nothing_outside):
    assert nothing_outside.attempt(lambda: print("a sentence")) == "a sentence\n"


WRONG = {
    "code": lambda o: exec(o.code()), "secret": lambda o: o.secret.read_text(),
    "link": lambda o: (o.folder / "link").read_text(), "target": lambda o: (o.target / "planted").write_text(""),
    "folder": lambda o: (o.folder / "planted").mkdir(), "device": lambda o: os.open("/dev/zero", os.O_RDONLY),
    "native": read_by_native_code, "process": lambda o: subprocess.run(["true"]),
    "escape": lambda o: print("\x1b[2J"), "line": lambda o: print(f"x\n{FORGED}"),
    "memory": lambda o: np.empty(256 * 2**20, np.uint8), "traceback": lambda o: {}["key"],
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_each_wrong_act_is_seen(nothing_outside, wrong):
    (nothing_outside.folder / "link").symlink_to(nothing_outside.secret)
    if wrong is read_by_native_code and not nothing_outside.keeps_read_times():
        pytest.skip("this file system keeps no times of reading, by which alone a read of native code is seen")
    with pytest.raises((AssertionError, KeyError)):
        nothing_outside.attempt(wrong, nothing_outside, weighed=True)
