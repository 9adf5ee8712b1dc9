"""Examines conversations before training: problems of rows by name, split and place."""

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
Place = tuple[str, str]  # a part, and the row's file and line
ADVICE = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text("utf-8"))


def examine(
    parts: Mapping[str, Sequence[Row]], template: Template, limits: Mapping[str, int], words: int
) -> list[Finding]:
    """Returns findings, bad ones first; `limits` are most tokens of a row by split, `words` the model's vocabulary."""
    places = defaultdict[Wrong, list[Place]](list)
    first: dict[str, tuple[str, str]] = {}
    for part, rows in parts.items():
        for number, row in enumerate(rows, 1):
            place = (part, row.origin or f"{part} {number}")
            wrong = [*_of_row(row, template, limits[part]), *_of_pair(row, part, first)]
            for each in wrong:
                places[each].append(place)
    findings = []
    highest = max(template.tokenizer.get_vocab().values())
    if highest >= words:
        value = f"the tokenizer has numbers up to {highest:,}, and the model rows for {words:,}"
        advice = "Take the tokenizer of this base."
        findings.append(Finding("tokens without rows", value, "bad", advice))
    findings += [_finding(wrong, places[wrong]) for wrong in places]
    return sorted(findings, key=lambda finding: ("bad", "warning", "ok").index(finding.verdict))


def _finding(wrong: Wrong, places: Sequence[Place]) -> Finding:
    name, verdict, description = wrong
    by_part = Counter(part for part, _ in places)
    counts = ", ".join(f"{count:,} in {part}" for part, count in by_part.items())
    shown = [place for _, place in places[:_SHOWN]]
    if len(places) > _SHOWN:
        shown.append("...")
    value = f"{len(places):,} rows {description} ({counts}: {', '.join(shown)})"
    return Finding(name, value, verdict, ADVICE.get(name, ""))


def refuse(findings: Sequence[Finding]) -> None:
    """Raises BadInput for rows that would train badly."""
    bad = [finding for finding in findings if finding.verdict == "bad"]
    if bad:
        lines = [f"- {f.name}: {f.value}. {f.advice}" for f in bad]
        raise BadInput("The conversations would not teach what they should:\n" + "\n".join(lines))


def _of_row(row: Row, template: Template, length: int) -> Iterator[Wrong]:
    """Yields the problems of a single row."""
    texts = [text_of(content) for role, content in row.whole if role != TOOLS]
    if any(token in text for text in texts for token in template.specials):
        description = "contain special tokens of the template: they were rendered before"
        yield "marks in text", "warning", description
    try:
        encoded = template.encode(row)
        rendered = template.render(row.whole)
    except BadInput:
        raise
    except Rewritten as error:
        yield "template", "bad", f"are written by the template {error}"
        return
    except Exception as error:  # a template raises any class
        yield "template", "bad", f"are refused by the template ({printable(error, most=100)})"
        return
    notes = [note for each in template.apart(row) for note in template.encode(each).notes]
    yield from dict.fromkeys([*encoded.notes, *notes, *template.lacking(row, rendered)])
    lost = {role for role, content in row.whole if not _is_there(role, content, rendered)}
    for role in sorted(lost):
        yield "role", "bad", f"have turns of the role {role} that the template drops or changes"
    begin = template.tokenizer.bos_token_id
    if begin is not None and encoded.ids[:2] == (begin, begin):
        yield "doubled begin", "bad", "begin with two begin tokens"
    if len(encoded.ids) > length:
        yield "too long", "warning", f"have more than {length:,} tokens and are left out"


def _is_there(role: str, content: str, rendered: str) -> bool:
    """Returns whether a conversation contains a turn's text, a tool's perhaps as JSON."""
    if role == TOOLS or calls_of(content):
        return True
    text = values_of(content)["content"].strip()
    return text in rendered or (role == "tool" and is_shown(text, rendered))


def _of_pair(row: Row, part: str, first: dict[str, tuple[str, str]]) -> Iterator[Wrong]:
    """Yields the problems of a row beside the first row of its question, or registers it as first."""
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
