"""The real `kaggle` client, run as a child process.

A child rather than its Python interface, because importing that signs in and may end the process, its requests have no
time-out, and it keeps the credential in memory: so no credential is ever in this process. What the client prints in
version 2.2.4 is read here and nowhere else. It exits with 0 after most refusals, so success is what it says, not how it
exits.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.errors import BadInput
from lib.kaggle import credentials

SHORT, LONG = 300, 6 * 3600  # seconds that a question, and that a transfer of files, may take
ACTIVE = ("QUEUED", "RUNNING", "CANCEL_REQUESTED")
# The client joins a file's name to the folder as it is: names that lead elsewhere are not asked for.
_SAFE = r"^(?!/)(?!.*(^|/)\.\.(/|$))(?!.*[\\:])"
_PAGE = "100"  # files of an output that are listed at once; the client's own 20 makes 25 requests for 500 files


# What requests and urllib3 say of a connection that failed, and servers that ask for patience
_NETWORK = re.compile(
    r"Max retries|[Cc]onnection|[Tt]imed? ?out|RemoteDisconnected|ProtocolError|Temporary failure|\b(429|5\d\d) "
)


class Refused(BadInput):
    """Kaggle, or its client, said no; the message holds its words."""


class NoAnswer(Refused):
    """Nothing is known of what came of a request: the network, the server or the client broke off."""


@dataclass(frozen=True)
class Status:
    """The state of a notebook's newest session; `failure` is what Kaggle says about its end."""

    word: str
    failure: str = ""

    @property
    def active(self) -> bool:
        return self.word in ACTIVE


@dataclass(frozen=True)
class Quota:
    """GPU hours of this week."""

    used: float
    remaining: float
    total: float
    refreshes: str


@dataclass(frozen=True)
class Pushed:
    version: int
    url: str


def call(*arguments: str, seconds: float = SHORT, hold: int | None = None) -> str:
    """Runs `kaggle ARGUMENTS`; returns what it printed, without credentials.

    `hold` is an open file that the child inherits: a lock on it lasts until the child has ended, even without us.
    Raises Refused where it exits with another code than 0, NoAnswer where that, or its silence for `seconds`, says
    nothing about the request itself.
    """
    if importlib.util.find_spec("kaggle") is None:
        raise BadInput("The `kaggle` client is missing. Install it: pip install kaggle==2.2.4 six")
    try:
        code, out, error = _execute(arguments, seconds, hold)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"`kaggle {' '.join(arguments)}` gave no answer in {seconds:.0f} s. Try again later.") from None
    out, error = credentials.clean(out), credentials.clean(error)
    if code:
        raise _failure(arguments, out + error)
    return out


def _execute(arguments: tuple[str, ...], seconds: float, hold: int | None) -> tuple[int, str, str]:
    """Exit code, standard output and errors of the client."""
    # -P: a folder called kaggle in the working folder is not the client
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kaggle", "--no-warn", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
        pass_fds=() if hold is None else (hold,),
    )
    return done.returncode, done.stdout, done.stderr


def _failure(arguments: tuple[str, ...], text: str) -> Refused:
    """What the client said about a failure, and what to do about the usual ones."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("Traceback", "  "))]
    said = "\n".join(lines[-6:]) or "nothing"
    kind, advice = Refused, "Mend what it names."
    if _NETWORK.search(text):
        kind, advice = NoAnswer, "Try again later."
    elif re.search(r"uthenticat|\b401\b", text):
        said = "it is not signed in"
        kind, advice = (
            Refused,
            "Run `kaggle auth login` once, or make a token at kaggle.com/settings and follow its text.",
        )
    elif _unknown(text):
        kind, advice = Refused, "Kaggle says so of wrong names, too: compare owner and slug with the browser's address."
    return kind(f"`kaggle {' '.join(arguments[:2])}` failed: {said}. {advice}")


def _unknown(text: str) -> bool:
    """Whether an error is about a thing that does not exist, or is not yours, which Kaggle does not tell apart."""
    return bool(re.search(r"\b40[34]\b|was denied", text))


def username() -> str:
    """The account that the client is signed in to. Raises BadInput."""
    found = re.search(r"^- username: (\S+)$", call("config", "view"), re.MULTILINE)
    if not found or found[1] == "None":
        raise BadInput("The kaggle client is not signed in. Run `kaggle auth login` once, or give --owner.")
    return found[1]


# --- notebooks --------------------------------------------------------------------------------------------------------


def push(folder: Path, hold: int | None = None) -> Pushed:
    """Pushes the notebook in a folder with its kernel-metadata.json; a session starts. Raises Refused."""
    said = call("kernels", "push", "-p", str(folder), hold=hold)
    # The client says "successfully pushed" of a version without the data that the server did not know, too.
    if left_out := re.search(r"not valid (\w+ sources).*?: (\[.*\])", said):
        raise Refused(
            f"Kaggle pushed the notebook without some of its {left_out[1]}: {left_out[2]}. A session without them may "
            "be running: stop it in the browser, correct the names, push again."
        )
    found = re.search(r"Kernel version (\d+) successfully pushed\.\s+Please check progress at (\S+)", said)
    if not found:
        raise Refused(f"Kaggle refused the notebook: {' '.join(said.split()) or 'it said nothing'}")
    return Pushed(int(found[1]), found[2])


def status(kernel: str) -> Status:
    """The state of the newest session of "owner/slug". Raises Refused."""
    said = call("kernels", "status", kernel)
    found = re.search(r'has status "(?:KernelWorkerStatus\.)?(\w+)"', said)
    if not found:
        raise Refused(f"The kaggle client answered the question for the status of {kernel} with {said!r}.")
    failure = re.search(r'^Failure message: "(.*)"$', said, re.MULTILINE | re.DOTALL)
    return Status(found[1].upper(), failure[1] if failure else "")


def find(kernel: str) -> Status | None:
    """The same; None where there is no such notebook. Kaggle denies access to what does not exist."""
    try:
        return status(kernel)
    except Refused as refusal:
        if _unknown(str(refusal)):
            return None
        raise


def source(kernel: str) -> str:
    """The text of the newest version of a notebook."""
    with tempfile.TemporaryDirectory() as folder:
        call("kernels", "pull", kernel, "-p", folder)
        return "".join(path.read_text("utf-8") for path in sorted(Path(folder).iterdir()) if path.is_file())


def output(kernel: str, folder: Path, pattern: str) -> list[Path]:
    """Downloads the files of the newest session's output whose names match a pattern; returns those in the folder.

    The newest session's log lies among them, as SLUG.log.
    """
    call(
        *("kernels", "output", kernel, "-p", str(folder), "--force", "--page-size", _PAGE),
        *("--file-pattern", f"{_SAFE}.*(?:{pattern})"),
        seconds=LONG,
    )
    return sorted(path for path in folder.rglob("*") if path.is_file())


def log(kernel: str) -> str:
    """What the newest session has printed so far, as text."""
    return readable(call("kernels", "logs", kernel))


def events(log: str) -> list[dict[str, Any]]:
    """The events of a log as Kaggle keeps it: JSON, {stream_name, time, data} each, in a list that may be open."""
    decoder, found, position = json.JSONDecoder(), [], 0
    while (position := log.find("{", position)) >= 0:
        try:
            event, position = decoder.raw_decode(log, position)
        except ValueError:
            position += 1
            continue
        if isinstance(event, dict) and "data" in event:
            found.append(event)
    return found


def readable(log: str) -> str:
    """A log as text; one that is no JSON stays as it is."""
    found = events(log)
    return credentials.clean("".join(str(event["data"]) for event in found) if found else log)


def follow(kernel: str) -> int:
    """Shows the log of a running session line by line until it ends; returns the client's exit code."""
    command = [sys.executable, "-P", "-u", "-m", "kaggle", "--no-warn", "kernels", "logs", kernel, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as child:
        assert child.stdout
        for line in child.stdout:
            print(credentials.clean(line), end="", flush=True)
    return child.returncode


def quota() -> Quota | None:
    """GPU hours of this week; None where Kaggle tells none."""
    rows = re.findall(r"^GPU,([\d.]+)h,([\d.]+)h,([\d.]+)h,(\S*)$", call("quota", "--csv"), re.MULTILINE)
    return Quota(*map(float, rows[0][:3]), rows[0][3]) if rows else None


# --- data sets --------------------------------------------------------------------------------------------------------


def dataset_status(dataset: str) -> str:
    """The state of "owner/slug", such as "ready"; "" where there is no such data set."""
    try:
        return call("datasets", "status", dataset).strip()
    except Refused as refusal:
        if _unknown(str(refusal)):
            return ""
        raise


def upload_dataset(folder: Path, notes: str, version: bool) -> str:
    """Uploads a folder with its dataset-metadata.json, as a new data set or a new version of it; returns its address.

    The folder must stay as it is until this has succeeded: the client finds a broken upload by path, size and time of
    its files and goes on with it. Raises Refused.
    """
    # The client's default leaves folders out in silence.
    arguments = ("-p", str(folder), "--dir-mode", "zip", "--keep-tabular")
    command = ("version", "-m", notes) if version else ("create",)
    said = call("datasets", *command, *arguments, seconds=LONG)
    if failed := re.findall(r"^Upload unsuccessful: (.*)$", said, re.MULTILINE):
        raise Refused(
            f"The upload of {', '.join(failed)} failed, and Kaggle may have the data set without it. Run the command "
            "again: it makes a new version with all files."
        )
    found = re.search(r"Please check progress at (\S+)", said)
    if not found:
        told = [line for line in said.splitlines() if "rror" in line or "not valid" in line]
        raise Refused(f"Kaggle refused the data set: {' '.join(told) or said.strip() or 'it said nothing'}")
    return found[1]
