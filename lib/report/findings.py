"""A finding with its verdict; many of them as a table."""

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

Verdict = Literal["ok", "warning", "bad"]
_WIDTH = 100  # columns of the table: what a notebook's output cell shows without wrapping


@dataclass(frozen=True)
class Finding:
    """The result of one check: `bad` is what a run would fail on, `advice` says in sentences what to do."""

    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


Sections = Mapping[str, Sequence[Finding]]


def table(sections: Sections) -> str:
    """Returns aligned text: verdict, name and value in a line, what to do below it, and a count at the end."""
    width = max(len(finding.name) for finding in chain(*sections.values()))
    lines = []
    for title, findings in sections.items():
        lines.append(title)
        for finding in findings:
            head = f"  {finding.verdict.replace('bad', 'BAD'):<7}  {finding.name:<{width}}  "
            said = [
                *finding.value.splitlines(),
                *(f"> {line}" for line in finding.advice.splitlines()),
            ]
            wrapped = [
                textwrap.wrap(line, _WIDTH - len(head), break_on_hyphens=False)
                for line in said or ["-"]
            ]
            text = f"\n{' ' * len(head)}".join(chain(*wrapped))
            lines.append(head + text)
        lines.append("")
    count = Counter[str](finding.verdict for finding in chain(*sections.values()))
    words = {"bad": "bad", "warning": "to look at"}
    totals = ", ".join(
        f"{count[verdict]} {word}" for verdict, word in words.items() if count[verdict]
    )
    return "\n".join([*lines, f"{count.total()} checks: {totals or 'all is well'}."])


def run_check(name: str, check: Callable[[], Finding]) -> Finding:
    """Runs one check; an exception in it becomes a warning."""
    try:
        return check()
    except Exception as error:  # of drivers and file systems, in many classes
        return Finding(name, f"could not be checked ({type(error).__name__}: {error})", "warning")
