"""Watches the program with hostile inputs: code that runs, files read or written outside, hangs.

A test writes its inputs to `nothing_outside.folder`, passes them to the program by `attempt`, and
checks the text that it returns.
"""

import contextlib
import io
import os
import signal
import sys
import tempfile
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lib.errors import BadInput, TrainingFailed

SECRET = "PRIVATE-PRIVATE-PRIVATE"  # the content of every file outside
FORGED = "Training completed"  # what a hostile name would like to have on a line of its own
_HANG_SECONDS = 60  # far above what a case takes on a busy machine
_MOST_BYTES = 128 * 2**20  # held at once by Python and NumPy; a case that needs more read a bomb
_RUNS_CODE = {
    "os.system", "os.exec", "os.posix_spawn", "os.fork",
    "subprocess.Popen", "socket.connect", "pickle.find_class",
}  # fmt: skip
_NEVER_READ = (
    "/etc/passwd", "/etc/shadow", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
)  # fmt: skip

_watchers: list["Outside"] = []


def _hear(event: str, arguments: tuple) -> None:
    for watcher in _watchers:
        watcher.heard(event, arguments)


sys.addaudithook(_hear)  # for the life of the process; it does nothing between tests


class Outside:
    """The folder of a test's inputs, and files beside it that no input may reach.

    Nothing may read the file `secret`, run the Python file `evil`, or write to the folder `target`.
    `may_write` are folders for new files.
    """

    def __init__(self, root: Path):
        self.root = root
        self.folder = root / "inputs"
        self.outside = root / "outside"
        self.target = self.outside / "target"
        self.secret = self.outside / "secret.txt"
        self.evil = self.outside / "evil.py"
        self.ran = root / "code-ran"
        self.may_write = [root / "cache", root / "runs", root / "temporary"]
        self._seen: list[str] = []
        for folder in (self.folder, self.target, root / "temporary"):
            folder.mkdir(parents=True)
        self.secret.write_text(SECRET * 10)
        self.evil.write_text(self.code())
        for path in (self.secret, self.evil):
            written = path.stat().st_mtime
            os.utime(path, (0, written))  # a read by a library in C or Rust then changes the first

    def code(self) -> str:
        """Returns Python that leaves a file when it runs, and defines a class Evil."""
        return f"open({str(self.ran)!r}, 'w').close()\nclass Evil:\n    pass\n"

    def attempt(self, call: Callable[..., Any], *arguments: Any, weighed: bool = False) -> str:
        """Calls the program with a hostile input; returns its output and the message of a refusal.

        The test fails for exceptions other than BadInput and TrainingFailed, for a hang, a read or
        write outside, and for text that is unsafe for a terminal. `weighed` also limits memory, and
        doubles the time.
        """
        before = self._tree()
        printed = io.StringIO()
        sentence = ""
        if weighed:
            tracemalloc.start()
        _watchers.append(self)
        try:
            quiet = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed)
            with _no_longer_than(_HANG_SECONDS), quiet[0], quiet[1]:
                call(*arguments)
        except (BadInput, TrainingFailed) as refusal:
            sentence = str(refusal)
            assert sentence, "the refusal says nothing"
        finally:
            _watchers.remove(self)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        text = printed.getvalue() + sentence
        assert peak < _MOST_BYTES, f"{peak:,} bytes were held for this input"
        self.check(before)
        check_text(text)
        return text

    def check(self, before: dict[Path, tuple]) -> None:
        """Asserts that nothing was run, read or written outside."""
        assert not self.ran.exists(), "a file of the input was run"
        assert not self._seen, self._seen
        after = self._tree()
        changed = sorted(map(str, before.items() ^ after.items()))
        assert not changed, f"changed outside: {changed}"

    def heard(self, event: str, arguments: tuple) -> None:
        """Notes what an audit event says of code that runs and of files that are opened."""
        if event in _RUNS_CODE:
            self._seen.append(f"{event} {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            name = os.path.realpath(os.fsdecode(arguments[0]))
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if name.startswith((*_NEVER_READ, f"{self.outside}{os.sep}")):
                self._seen.append(f"{name} was opened")
            elif flags & (os.O_WRONLY | os.O_RDWR) and not self._may_be_written(name):
                self._seen.append(f"{name} was opened for writing")

    def _may_be_written(self, name: str) -> bool:
        places = [*self.may_write, Path("/dev/null")]
        return "__pycache__" in name or any(map(Path(name).is_relative_to, places))

    def _tree(self) -> dict[Path, tuple]:
        """Returns size and times of everything below the test's folder that no input may change."""
        facts = {}
        for parent, folders, names in os.walk(self.root):
            here = Path(parent)
            kept = [name for name in folders if here / name not in self.may_write]
            folders[:] = [name for name in kept if name != "__pycache__"]
            for path in [here / name for name in (*folders, *names)]:
                status = os.lstat(path)
                read = status.st_atime if path in (self.secret, self.evil) else 0
                size = 0 if path.name in folders else status.st_size
                facts[path] = (status.st_mode, size, status.st_mtime, read)
        return facts


def check_text(text: str) -> None:
    """Asserts that a text has no control or direction characters, and no forged line."""
    kinds = {letter: unicodedata.category(letter) for letter in text.replace("\n", "")}
    bad = [letter for letter, kind in kinds.items() if kind in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert not bad, f"{bad} in {text[:500]!r}"
    lines = [line.strip() for line in text.splitlines()]
    forged = [line for line in lines if line.startswith(FORGED)]
    assert not forged, f"a forged line in {text[:500]!r}"
    assert SECRET not in text, text[:500]
    assert "Traceback (most recent" not in text, text[:500]
    assert len(text) < 20_000, f"{len(text):,} characters are printed"


@contextlib.contextmanager
def _no_longer_than(seconds: int):
    def give_up(number, frame):
        raise AssertionError(f"the program hangs on this input: over {seconds} s")

    former = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


@pytest.fixture
def nothing_outside(tmp_path, monkeypatch):
    """An `Outside` in the test's own folder; what is unpacked for a moment lies there too."""
    outside = Outside(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return outside
