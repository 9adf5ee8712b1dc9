"""The suite and every notebook with the versions of Kaggle's image, without network: `make kaggle-image`.

    python -m tests.notebooks.kaggle_image [TESTS ...]

is run by the Python that has the packages of kaggle-image.txt. With all tests it writes what came of them to
tests/bench/records/kaggle_image.json; with some it prints that. It takes about an hour on two cores.
"""

import collections
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.bench.record import RECORDS, head, write

ROOT = Path(__file__).parents[2]
PACKAGES = Path(__file__).with_name("kaggle-image.txt")
RECORD = RECORDS / "kaggle_image.json"
INSIDE = "--without-network"
_SET_FLAGS = 0x8914
_UP = 0x1  # SIOCSIFFLAGS and IFF_UP of linux/sockios.h and linux/if.h


def main() -> int:
    if INSIDE in sys.argv:
        return _inside(sys.argv[sys.argv.index(INSIDE) + 1 :])
    chosen = sys.argv[1:]
    alone = bool(_unshare())
    network = (
        "none"
        if alone
        else "there was one, because unshare is not permitted: a test may have used it"
    )
    print(f"Network: {network}.", flush=True)
    record = head(*_packages()) | {"network": network}
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary, "report.xml")
        begin = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder",
                   f"--junitxml={report}", *chosen]  # fmt: skip
        if alone:
            command = [
                *_unshare(),
                sys.executable,
                "-m",
                "tests.notebooks.kaggle_image",
                INSIDE,
                *command,
            ]
        code = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        ).returncode
        record |= _count(report) | {"seconds": round(time.perf_counter() - begin)}
    print(json.dumps(record, indent=1))
    if not chosen:
        write(RECORD, record)
    return code


def _unshare() -> list[str]:
    """Returns the command that takes the network away, where it is there and permitted."""
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    permitted = (
        shutil.which("unshare")
        and not subprocess.run([*command, "true"], capture_output=True).returncode
    )
    return command if permitted else []


def _inside(command: list[str]) -> int:
    """Starts the loopback device, the only one of a new network and down at first, and becomes the command."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    os.execv(command[0], command)


def _packages() -> list[str]:
    """The packages of kaggle-image.txt; raises AssertionError where another version is installed."""
    wanted = dict(re.findall(r"^([\w-]+)==(\S+)", PACKAGES.read_text("utf-8"), re.MULTILINE))
    for name, version in wanted.items():
        found = importlib.metadata.version(name).split("+")[0]
        assert found == version, f"{name} is {found}, not {version}: install {PACKAGES.name}"
    return list(wanted)


def _count(report: Path) -> dict:
    """Counts the outcomes in pytest's report, and names what failed and why what was skipped was."""
    failed = []
    skipped = collections.Counter()
    cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif (why := case.find("skipped")) is not None:
            skipped[why.get("message", "")] += 1
    passed = len(cases) - len(failed) - skipped.total()
    return {
        "passed": passed, "failed": len(failed), "skipped": skipped.total(), "failures": sorted(failed),
        "skipped because": dict(skipped.most_common()),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
