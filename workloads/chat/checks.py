"""Examines conversations before anything is trained: what is wrong with rows, by name, part and place."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from lib.errors import BadInput, printable
from lib.report.findings import Finding
from workloads.chat.calls import is_shown
from workloads.chat.messages import TOOLS, calls_of, text_of, values_of
from workloads.chat.rows import Row, question
from workloads.chat.template import Rewritten, Template, Wrong

_SHOWN = 4  # rows that a sentence names
ADVICE = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text("utf-8"))


def examine(
    parts: Mapping[str, Sequence[Row]], template: Template, limits: Mapping[str, int], words: int
) -> list[Finding]:
    """Returns findings, the bad ones first; `limits` are a row's tokens by part, `words` those that the model knows."""
    places = defaultdict[Wrong, list[tuple[str, str]]](list)
    first: dict[str, tuple[str, str]] = {}
    for part, rows in parts.items():
        for number, row in enumerate(rows, 1):
            for finding in (*_of_row(row, template, limits[part]), *_of_pair(row, part, first)):
                places[finding].append((part, row.origin or f"{part} {number}"))
    findings = list[Finding]()
    if (highest := max(template.tokenizer.get_vocab().values())) >= words:
        what = f"the tokenizer has numbers up to {highest:,}, and the model rows for {words:,}"
        findings.append(
            Finding("tokens without rows", what, "bad", "Take the tokenizer of this base.")
        )
    for (name, verdict, what), found in places.items():
        counts = ", ".join(
            f"{count:,} in {part}" for part, count in Counter(part for part, _ in found).items()
        )
        where = ", ".join(
            [*(place for _, place in found[:_SHOWN]), *["..."] * (len(found) > _SHOWN)]
        )
        findings.append(
            Finding(
                name,
                f"{len(found):,} rows {what} ({counts}: {where})",
                verdict,
                ADVICE.get(name, ""),
            )
        )
    return sorted(findings, key=lambda finding: ("bad", "warning", "ok").index(finding.verdict))


def refuse(findings: Sequence[Finding]) -> None:
    """Raises BadInput where rows would not teach what they should."""
    if bad := [f"- {f.name}: {f.value}. {f.advice}" for f in findings if f.verdict == "bad"]:
        raise BadInput("The conversations would not teach what they should:\n" + "\n".join(bad))


def _of_row(row: Row, template: Template, length: int) -> Iterator[Wrong]:
    """Yields what is wrong with a row alone."""
    if any(
        token in text_of(content)
        for role, content in row.whole
        if role != TOOLS
        for token in template.specials
    ):
        yield (
            "marks in text",
            "warning",
            "contain special tokens of the template: they were rendered before",
        )
    try:
        encoded = template.encode(row)
        rendered = template.render(row.whole)
    except BadInput:
        raise
    except Rewritten as error:
        yield "template", "bad", f"are written by the template {error}"
        return
    except Exception as error:  # of a template, in any class
        yield "template", "bad", f"are refused by the template ({printable(error, most=100)})"
        return
    notes = [note for each in template.apart(row) for note in template.encode(each).notes]
    yield from dict.fromkeys([*encoded.notes, *notes, *template.lacking(row, rendered)])
    for role in sorted(
        {role for role, content in row.whole if not _is_there(role, content, rendered)}
    ):
        yield "role", "bad", f"have turns of the role {role} that the template drops or changes"
    begin = template.tokenizer.bos_token_id
    if begin is not None and encoded.ids[:2] == (begin, begin):
        yield "doubled begin", "bad", "begin with two begin tokens"
    if len(encoded.ids) > length:
        yield "too long", "warning", f"have more than {length:,} tokens and are left out"


def _is_there(role: str, content: str, rendered: str) -> bool:
    """Returns whether a turn's text stands in a conversation; that of a tool perhaps as JSON."""
    if role == TOOLS or calls_of(content):
        return True
    text = values_of(content)["content"].strip()
    return text in rendered or (role == "tool" and is_shown(text, rendered))


def _of_pair(row: Row, part: str, first: dict[str, tuple[str, str]]) -> Iterator[Wrong]:
    """Yields what is wrong with a row beside the first one with its question, or puts it there."""
    here = part, text_of(row.last).strip()
    earlier = first.setdefault(question(row), here) if row.answer else here
    if earlier is here:
        return
    if earlier[0] != part:
        yield "in two splits", "bad", f"ask what is asked in {earlier[0]} too"
    elif earlier[1] == here[1]:
        yield "duplicate", "warning", "are there before"
    else:
        yield "contradiction", "warning", "answer a question of before otherwise"
