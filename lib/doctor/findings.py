"""A finding with its verdict; many of them as a table or as JSON."""

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "bad"]

_WIDTH = 100  # columns of the table: what a notebook's output cell shows without wrapping


@dataclass(frozen=True)
class Finding:
    """One finding: `bad` is what a run would fail on, `advice` says in sentences what to do."""

    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


Sections = Mapping[str, Sequence[Finding]]


def table(sections: Sections) -> str:
    """Aligned text for a terminal or a notebook: verdict, name and value in a line, what to do below it."""
    name_width = max(len(check.name) for checks in sections.values() for check in checks)
    lines = []
    for title, checks in sections.items():
        lines += [title, *(line for check in checks for line in _rows(check, name_width)), ""]
    return "\n".join([*lines, _summary([check for checks in sections.values() for check in checks])])


def _rows(check: Finding, name_width: int) -> list[str]:
    shown = "BAD" if check.verdict == "bad" else check.verdict
    head = f"  {shown:<7}  {check.name:<{name_width}}  "
    advice = _wrapped(check.advice, len(head), "> ") if check.advice else []
    value = _wrapped(check.value, len(head))
    return [head + value[0].lstrip(), *value[1:], *advice]


def _wrapped(text: str, indent: int, mark: str = "") -> list[str]:
    blank = " " * indent
    wrapped: list[str] = []
    for line in text.splitlines() or [""]:
        wrapped += textwrap.wrap(
            line, _WIDTH, initial_indent=blank + mark, subsequent_indent=blank + " " * len(mark), break_on_hyphens=False
        )
    return wrapped or [""]


def _summary(checks: Sequence[Finding]) -> str:
    count = Counter(check.verdict for check in checks)
    words = {"bad": "bad", "warning": "to look at"}
    told = [f"{count[verdict]} {word}" for verdict, word in words.items() if count[verdict]]
    return f"{len(checks)} checks: {', '.join(told) or 'all is well'}."


def as_json(sections: Sections) -> str:
    """{"verdict": the worst one, "checks": [{"section", "name", "value", "verdict", "advice"}, ...]}."""
    rows = [{"section": title.lower(), **asdict(check)} for title, checks in sections.items() for check in checks]
    worst = max((check.verdict for checks in sections.values() for check in checks), key=_severity)
    return json.dumps({"verdict": worst, "checks": rows}, indent=1)


def _severity(verdict: Verdict) -> int:
    return ("ok", "warning", "bad").index(verdict)


def exit_code(sections: Sections) -> int:
    """2 where anything is bad, otherwise 0: a warning does not keep a run from its end."""
    return 2 if any(check.verdict == "bad" for checks in sections.values() for check in checks) else 0


def run_check(name: str, check: Callable[[], Finding]) -> Finding:
    """The check's finding; that it could not be had is one too: a doctor who faints helps nobody."""
    try:
        return check()
    except Exception as error:  # of drivers and file systems, in many classes
        return Finding(name, f"could not be found out ({type(error).__name__}: {error})", "warning")
