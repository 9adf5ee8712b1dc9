"""Runs the real `kaggle` client (version 2.2.4) as a child process, see child.py, and reads its output.

Importing it signs in, may end the process and keeps the credential in memory, so it is never imported
here. The client exits with 0 after most refusals, so its words decide about success, not its exit
code.
"""

import importlib.util
import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lib.errors import BadInput, TrainingFailed

SHORT = 300  # seconds that a query may take
LONG = 6 * 3600  # seconds that a transfer of files may take
ACTIVE = ("QUEUED", "RUNNING", "CANCEL_REQUESTED")
# The client joins a file's name to the folder unchecked: names that lead elsewhere are not requested.
_SAFE = r"^(?!/)(?!.*(^|/)\.\.(/|$))(?!.*[\\:])"
_PAGE = "100"  # files of an output in one listing; the client's default of 20 makes 25 requests for 500 files
PAUSE = 5.0  # seconds before a question is asked again
# Questions, a pause apart. What was just uploaded or pushed is denied (403) for 30 to 90 s; data is then unpacked.
SETTLING = 24
READY = 120
# What requests and urllib3 print of a connection that failed
_NETWORK = re.compile(
    r"Max retries|[Cc]onnection|[Tt]imed? ?out|RemoteDisconnected|ProtocolError|Temporary failure"
)
_DENIED = (403, 404)  # Kaggle answers the same for others' and for missing things
_FINAL = (400, 401, *_DENIED)  # codes whose question has the same answer a minute later
_SPOILED = ("failed", "deleted", "error")  # states of a data set that never becomes ready
_LATER = "Try again later."
_CORRECT = "Correct what it names."
_SECRET_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|_PAT)$")
_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")  # https://user:password@host
_SHORTEST_SECRET = 8  # a shorter value would be found everywhere; no service hands out one
# Files whose only purpose is to hold a credential
KEYS = (
    "kaggle.json",
    "access_token",
    "access_token.txt",
    "credentials.json",
    ".env",
    ".netrc",
    ".git-credentials",
)
Result = TypeVar("Result")


class Refused(BadInput):
    """Kaggle or its client refused a request, with its words. `code`: the HTTP code, 0 if unknown."""

    def __init__(self, text: str, code: int = 0):
        super().__init__(text)
        self.code = code


class NoAnswer(TrainingFailed):
    """A request with unknown outcome: network, server or client broke off. Exit code 1."""


@dataclass(frozen=True)
class Status:
    """The status of a notebook's newest session; `failure` is what Kaggle prints about its end."""

    word: str
    failure: str = ""

    @property
    def active(self) -> bool:
        return self.word in ACTIVE

    def __str__(self) -> str:
        if self.failure:
            return f"{self.word.lower()} ({self.failure})"
        return self.word.lower()


class Quota(NamedTuple):
    """GPU hours of this week."""

    used: float
    remaining: float
    total: float
    refreshes: str


def call(*arguments: str, seconds: float = SHORT, hold: int | None = None) -> str:
    """Runs the client; returns its clean output. The child inherits `hold`, a lock. Raises Refused or NoAnswer."""
    if importlib.util.find_spec("kaggle") is None:
        raise BadInput("The `kaggle` client is missing. Install it: pip install kaggle==2.2.4 six")
    try:
        exit_code, out, error = _execute(arguments, seconds, hold)
    except subprocess.TimeoutExpired:
        raise NoAnswer(
            f"`kaggle {' '.join(arguments)}` gave no answer in {seconds:.0f} s. {_LATER}"
        ) from None
    if not exit_code:
        return clean(out)
    text = clean(out + error)
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("Traceback", "  "))]
    reason = "\n".join(lines[-6:]).rstrip(". ") or "it printed nothing"
    failed = f"`kaggle {' '.join(arguments[:2])}` failed"
    codes = re.findall(r"\[HTTP (\d+)\]", text)  # which child.py adds to an error
    code = int(codes[-1]) if codes else 0
    if code == 429 or code >= 500 or (not code and _NETWORK.search(text)):
        raise NoAnswer(f"{failed}: {reason}. {_LATER}")
    if code == 401 or "uthenticat" in text:
        raise Refused(
            f"{failed}: it is not signed in. Run `kaggle auth login` once, or make a token at"
            " kaggle.com/settings and follow its text.",
            401,
        )
    if code in _DENIED or "was denied" in text:
        raise Refused(
            f"{failed}: {reason}. Kaggle answers so to wrong names, too: compare owner and slug with"
            " the browser's.",
            code or 403,
        )
    raise Refused(f"{failed}: {reason}. {_CORRECT}", code)


def _command(*arguments: str) -> list[str]:
    # -P: a folder called kaggle in the working folder is not the client
    child = str(Path(__file__).with_name("child.py"))
    return [sys.executable, "-P", "-u", child, "--no-warn", *arguments]


def _pipes() -> dict[str, Any]:
    """Returns the options of a child's pipes: UTF-8 in any locale, also for the files that it writes."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    encoding = {"encoding": "utf-8", "errors": "replace"}
    return {"stdin": subprocess.DEVNULL, "env": environment, **encoding}


def _execute(arguments: tuple[str, ...], seconds: float, hold: int | None) -> tuple[int, str, str]:
    options = _pipes()
    if hold is not None:
        options["pass_fds"] = (hold,)
    command = _command(*arguments)
    done = subprocess.run(command, timeout=seconds, check=False, capture_output=True, **options)
    return done.returncode, done.stdout, done.stderr


def insist(
    question: Callable[[], Result],
    pause: float | None = None,
    tries: int = 4,
    unclear: int = 1,
    denied: int = 1,
) -> Result:
    """Asks `tries` times without an answer, and `unclear` times if a refusal may not last.

    Raises the last refusal. Kaggle denies new things for a while: a denied question is asked `denied`
    times.
    """
    if pause is None:
        pause = PAUSE
    number = 0
    while True:
        number += 1
        try:
            return question()
        except (Refused, NoAnswer) as refusal:
            most = _most(refusal, tries, unclear, denied)
            if number >= most:
                raise
            if number == 1:
                sentence = str(refusal).removesuffix(_LATER).rstrip()
                retries = f"every {pause:g} s, at most {most} times"
                print(f"{sentence} Asking again {retries}.", flush=True)
            time.sleep(pause)


def _most(refusal: BadInput | TrainingFailed, tries: int, unclear: int, denied: int) -> int:
    """Returns how often a question with this answer is asked."""
    if isinstance(refusal, NoAnswer):
        return tries
    code = getattr(refusal, "code", 0)
    if code in _DENIED:
        return denied
    return 1 if code in _FINAL else unclear


def username() -> str:
    match = re.search(r"^- username: (\S+)$", call("config", "view"), re.MULTILINE)
    if not match or match[1] == "None":
        raise BadInput(
            "The kaggle client is not signed in. Run `kaggle auth login` once, or give --owner."
        )
    return match[1]


def push(folder: Path, hold: int | None = None) -> tuple[int, str]:
    text = call("kernels", "push", "-p", str(folder), hold=hold)
    # The client prints "successfully pushed" also if the server dropped unknown data.
    if left_out := re.search(r"not valid (\w+ sources).*?: (\[.*\])", text):
        raise Refused(
            f"Kaggle pushed the notebook without some of its {left_out[1]}: {left_out[2]}. A session"
            " may be running: stop it in the browser, correct the names, push again."
        )
    pushed = r"Kernel version (\d+) successfully pushed\.\s+Please check progress at (\S+)"
    match = re.search(pushed, text)
    if not match:
        reason = " ".join(text.split()).rstrip(". ")
        raise Refused(f"Kaggle refused the notebook: {reason}. {_CORRECT}")
    return int(match[1]), match[2]


def status(kernel: str) -> Status:
    text = call("kernels", "status", kernel)
    match = re.search(r'has status "(?:KernelWorkerStatus\.)?(\w+)"', text)
    if not match:
        raise Refused(
            f"The kaggle client answered the query for the status of {kernel} with {text!r}."
        )
    failure = re.search(r'^Failure message: "(.*)"$', text, re.MULTILINE | re.DOTALL)
    return Status(match[1].upper(), failure[1] if failure else "")


def unless_denied(question: Callable[[], Result]) -> Result | None:
    """Returns an answer; None if Kaggle denies access, also to missing things. Raises Refused."""
    try:
        return question()
    except Refused as refusal:
        if refusal.code in _DENIED:
            return None
        raise


def find(kernel: str, was_pushed: bool = False) -> Status | None:
    """Returns a notebook's status, None without one; Kaggle may deny a pushed one for a while."""
    denied = SETTLING if was_pushed else 1
    return unless_denied(lambda: insist(lambda: status(kernel), tries=1, denied=denied))


def source(kernel: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        call("kernels", "pull", kernel, "-p", folder)
        files = [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
        return "".join(path.read_text("utf-8") for path in files)


def output(kernel: str, folder: Path, pattern: str) -> list[Path]:
    """Downloads the newest session's files whose names match, and its log as SLUG.log; returns those in the folder."""
    options = "--force", "--page-size", _PAGE, "--file-pattern", f"{_SAFE}.*(?:{pattern})"
    call("kernels", "output", kernel, "-p", str(folder), *options, seconds=LONG)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def log(kernel: str) -> str:
    return readable(call("kernels", "logs", kernel))


def readable(log: str) -> str:
    """Returns Kaggle's log, a JSON list that may be unfinished, as text without credentials.

    Other text is returned as it is.
    """
    decoder = json.JSONDecoder()
    lines = ""
    position = 0
    while (position := log.find("{", position)) >= 0:
        try:
            event, position = decoder.raw_decode(log, position)
            lines += str(event.get("data", ""))
        except ValueError:
            position += 1
    return clean(lines or log)


def follow(kernel: str) -> None:
    command = _command("kernels", "logs", kernel, "--follow")
    with subprocess.Popen(command, stdout=subprocess.PIPE, **_pipes()) as child:
        for line in child.stdout or ():
            print(clean(line), end="", flush=True)


def wait(kernel: str, words: Sequence[str]) -> Status:
    """Returns the status of a notebook once it is another word."""
    while (answer := insist(lambda: status(kernel))).word in words:
        time.sleep(PAUSE)
    return answer


def wait_until_ready(dataset: str) -> None:
    """Waits until a user's data set can be attached: a push before that starts a session without it.

    Raises BadInput if Kaggle does not have or cannot read it, NoAnswer if it takes too long.
    """
    word = insist(lambda: _word_of(dataset), denied=SETTLING)
    if word not in _SPOILED and word != "ready":
        limit = f"at most {READY * PAUSE / 60:.0f} minutes"
        print(
            f"{dataset} is not ready yet ({word}): waiting until it can be attached, {limit}.",
            flush=True,
        )
    for _ in range(READY):
        if word == "ready":
            return
        if word in _SPOILED:
            raise BadInput(
                f"{dataset} is {word} on Kaggle. Upload it again: trainbook kaggle dataset."
            )
        time.sleep(PAUSE)
        word = insist(lambda: _word_of(dataset), denied=SETTLING)
    raise NoAnswer(
        f"{dataset} is still not ready ({word}); nothing was pushed. Push again when Kaggle shows its files."
    )


def _word_of(dataset: str) -> str:
    """Returns Kaggle's word for the status of a data set, in small letters: ready, pending, failed ..."""
    lines = call("datasets", "status", dataset).split()
    if lines:
        return lines[-1].lower()
    return "without a status"


def quota() -> Quota | None:
    form = r"^GPU,([\d.]+)h,([\d.]+)h,([\d.]+)h,(\S*)$"
    match = re.search(form, call("quota", "--csv"), re.MULTILINE)
    if match:
        used, remaining, total = map(float, match.groups()[:3])
        return Quota(used, remaining, total, match[4])
    return None


def has_dataset(dataset: str) -> bool:
    status = insist(lambda: unless_denied(lambda: call("datasets", "status", dataset)))
    return bool(status)


def upload(folder: Path, dataset: str) -> str:
    command = ("version", "-m", "A new version") if has_dataset(dataset) else ("create",)
    # Without --dir-mode the client leaves folders out and prints nothing about it.
    options = ("-p", str(folder), "--dir-mode", "zip", "--keep-tabular")
    text = call("datasets", *command, *options, seconds=LONG)
    if failed := re.findall(r"^Upload unsuccessful: (.*)$", text, re.MULTILINE):
        raise Refused(
            f"The upload of {', '.join(failed)} failed, and Kaggle may have the data set without it."
            " Run the command again: it makes a new version with all files."
        )
    match = re.search(r"Please check progress at (\S+)", text)
    if not match:
        raise Refused(f"Kaggle refused the data set: {text.strip().rstrip('. ')}. {_CORRECT}")
    return match[1]


# --- credentials: output of the client is cleaned, and uploads are searched -------------------------------------------


def secrets(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the credentials of environment variables: by their names, and in addresses; longest first."""
    hidden = {value for name, value in environment.items() if _SECRET_NAMES.search(name.upper())}
    hidden |= {match[1] for value in environment.values() if (match := _IN_ADDRESS.search(value))}
    long = [secret for secret in hidden if len(secret) >= _SHORTEST_SECRET]
    return sorted(long, key=len, reverse=True)


def clean(text: str) -> str:
    for value in secrets():
        text = text.replace(value, "[hidden]")
    return text


def refuse(where: object, content: bytes | mmap.mmap) -> None:
    """Raises BadInput if the content holds the value of a credential of the environment."""
    if any(content.find(value.encode()) >= 0 for value in secrets()):
        raise BadInput(
            f"{where} contains the value of a credential of your environment. Remove it; nothing was sent."
        )


def refuse_in_files(paths: Iterable[Path]) -> None:
    """Raises BadInput for the first file that holds such a value, or is made for credentials."""
    for path in paths:
        if path.name in KEYS:
            raise BadInput(
                f"{path} is a file for credentials. Remove it from the folder; nothing was sent."
            )
        if path.stat().st_size:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                refuse(path, content)
