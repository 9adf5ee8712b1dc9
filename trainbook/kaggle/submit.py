"""Sends a submission to a competition, and reads scores back beside what was expected."""

import argparse
import csv
import re
from pathlib import Path
from typing import NamedTuple

from lib.errors import BadInput, printable
from lib.text import aligned
from trainbook.kaggle import client, kernel

# Of a description: what `expected.Expected` prints
_EXPECTED = re.compile(r"expected: (\S+) (-?[\d.]+)(?: \[(-?[\d.]+), (-?[\d.]+)\])?")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_SENT = re.compile(r"[Ss]uccessfully submitted")
_LEFT = re.compile(r"^(\d+) submissions remaining today", re.MULTILINE)


class Scored(NamedTuple):
    """A submission as Kaggle lists it; a score is "" until it is known."""

    file: str
    date: str
    status: str
    public: str
    private: str
    description: str


def submit(options: argparse.Namespace) -> int:
    """Sends a submission, with what is expected of it as its message."""
    from trainbook.supervised import expected, tables  # not at the top: pandas takes a second
    from trainbook.supervised.notes import collecting

    kernel.check_competition(options.competition)
    path = Path(options.file)
    if not path.is_file():
        raise BadInput(
            f"There is no file {printable(path)}. `trainbook predict RUNS DATA OUT --sample FILE` "
            "writes a submission."
        )
    with collecting():
        table = tables.read(path, f"The submission {printable(path)}")
    if not table.rows:
        raise BadInput(f"{printable(path)} has no rows below its first line. Nothing was sent.")
    client.refuse(path, path.read_bytes())
    of_file = expected.read(path.parent)
    message = options.message or (str(of_file) if of_file else "sent by trainbook")
    about = f"{printable(path)}, {len(table.rows):,} rows of {', '.join(table.columns)}"
    if options.dry_run:
        print(f"Nothing was sent (--dry-run). It would send {printable(about)}")
        print(f"to {options.competition}, with the message: {printable(message)}")
        return 0
    text = send(options.competition, path, message)
    left = _LEFT.search(text)
    print(f"Sent to {options.competition}: {printable(about)}. Message: {printable(message)}.")
    if left:
        print(f"{left[1]} submissions are left today.")
    print(f"Its score: trainbook kaggle score {options.competition}")
    return 0


def send(competition: str, path: Path, message: str) -> str:
    """Returns what the client prints of a submission. Raises Refused, or NoAnswer: it may have arrived."""
    arguments = ("competitions", "submit", competition, "-f", str(path), "-m", message)
    try:
        text = client.call(*arguments, seconds=client.LONG)
    except client.NoAnswer as silence:
        raise client.NoAnswer(
            f"{silence} It may have arrived: look with `trainbook kaggle score {competition}` first."
        ) from None
    if not _SENT.search(text):
        reason = " ".join(text.split()).rstrip(". ") or "it printed nothing"
        raise client.Refused(
            f"Kaggle refused the submission: {reason}. Accept the competition's rules in the "
            "browser, and compare its name with the address."
        )
    return text


def score(options: argparse.Namespace) -> int:
    """Prints the scores of the newest submissions, each beside what was expected of it."""
    kernel.check_competition(options.competition)
    listed = submissions(options.competition)
    if not listed:
        print(f"There is no submission to {options.competition} yet.")
        return 0
    rows = [("date", "file", "status", "public", "private", "expected", "the public score")]
    for each in listed:
        match = _EXPECTED.search(each.description)
        hoped = match[0].removeprefix("expected: ") if match else ""
        beside = _beside(each.public, match)
        rows.append((each.date, each.file, each.status, each.public, each.private, hoped, beside))
    print(aligned([[*map(printable, row)] for row in rows], left={0, 1, 2, 5, 6}))
    return 0


def submissions(competition: str) -> list[Scored]:
    """Returns the newest submissions to a competition."""
    text = client.insist(lambda: client.call("competitions", "submissions", competition, "--csv"))
    lines = text.strip().splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith("ref,")]
    if not places:
        return []
    found = []
    for row in csv.DictReader(lines[places[0] :]):
        status = str(row["status"]).rpartition(".")[2].lower()
        date = str(row["date"]).partition(".")[0]
        scores = (row["publicScore"] or "", row["privateScore"] or "")
        found.append(Scored(row["fileName"] or "", date, status, *scores, row["description"] or ""))
    return found


def _beside(public: str, match: re.Match[str] | None) -> str:
    """Returns where a public score lies, by the interval that was expected."""
    if match is None or match[3] is None or not _NUMBER.fullmatch(public):
        return ""
    low, high = float(match[3]), float(match[4])
    if float(public) < low:
        return "below the interval"
    return "above the interval" if float(public) > high else "in the interval"
