"""A finding with its verdict; many of them as a table."""

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

Verdict = Literal["ok", "warning", "bad"]
_WIDTH = 100  # columns of the table: a notebook's output cell wraps longer lines


@dataclass(frozen=True)
class Finding:
    """The result of one check: a run fails on a `bad` one; `advice` has sentences that mend it."""

    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


Sections = Mapping[str, Sequence[Finding]]


def table(sections: Sections) -> str:
    """Returns aligned text: verdict, name, value, the advice below, and a count at the end."""
    findings = [*chain(*sections.values())]
    width = max(len(finding.name) for finding in findings)
    lines = []
    for title, group in sections.items():
        lines.append(title)
        lines += [_row(finding, width) for finding in group]
        lines.append("")
    count = Counter[str](finding.verdict for finding in findings)
    totals = []
    if count["bad"]:
        totals.append(f"{count['bad']} bad")
    if count["warning"]:
        totals.append(f"{count['warning']} to look at")
    return "\n".join([*lines, f"{count.total()} checks: {', '.join(totals) or 'all is well'}."])


def _row(finding: Finding, width: int) -> str:
    verdict = finding.verdict.replace("bad", "BAD")
    head = f"  {verdict:<7}  {finding.name:<{width}}  "
    advice = [f"> {line}" for line in finding.advice.splitlines()]
    lines = list[str]()
    for line in [*finding.value.splitlines(), *advice] or ["-"]:
        lines += textwrap.wrap(line, _WIDTH - len(head), break_on_hyphens=False)
    return head + f"\n{' ' * len(head)}".join(lines)


def run_check(name: str, check: Callable[[], Finding]) -> Finding:
    """Runs one check; an exception in it becomes a warning."""
    try:
        return check()
    except Exception as error:  # of drivers and file systems, in many classes
        return Finding(name, f"could not be checked ({type(error).__name__}: {error})", "warning")
