"""What is wrong with conversations under a template, found before anything is trained; seconds, no GPU."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from lib.errors import BadInput, printable
from lib.report.findings import Finding
from workloads.chat.rows import ROLES, Row, question
from workloads.chat.template import Template

Parts = Mapping[str, Sequence[Row]]
_SHOWN = 4  # rows that a sentence names
ADVICE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def examine(parts: Parts, template: Template, limits: Mapping[str, int], words: int) -> list[Finding]:
    """Returns findings, the bad ones first; `limits` are a row's tokens by part, `words` those that the model knows."""
    places = defaultdict[tuple[str, str, str], list[tuple[str, str]]](list)
    first: dict[str, tuple[str, str]] = {}
    for part, rows in parts.items():
        for number, row in enumerate(rows, 1):
            for finding in (*_of_row(row, template, limits[part]), *_of_pair(row, part, first)):
                places[finding].append((part, getattr(row, "origin", f"{part} {number}")))
    findings = list[Finding]()
    if (highest := max(template.tokenizer.get_vocab().values())) >= words:
        what = f"the tokenizer has numbers up to {highest:,}, and the model rows for {words:,}"
        findings.append(Finding("tokens without rows", what, "bad", "Take the tokenizer of this base."))
    for (name, verdict, what), found in places.items():
        counts = ", ".join(f"{count:,} in {part}" for part, count in Counter(part for part, _ in found).items())
        where = ", ".join([*(place for _, place in found[:_SHOWN]), *["..."] * (len(found) > _SHOWN)])
        findings.append(Finding(name, f"{len(found):,} rows {what} ({counts}: {where})", verdict, ADVICE.get(name, "")))
    return sorted(findings, key=lambda finding: ("bad", "warning", "ok").index(finding.verdict))


def refuse(findings: Sequence[Finding]) -> None:
    """Raises BadInput where rows would not teach what they should."""
    if bad := [f"- {f.name}: {f.value}. {f.advice}" for f in findings if f.verdict == "bad"]:
        raise BadInput("The conversations would not teach what they should:\n" + "\n".join(bad))


def _of_row(row: Row, template: Template, length: int) -> Iterator[tuple[str, str, str]]:
    """Yields name, verdict and description of what is wrong with a row alone."""
    roles, answers = [role for role, _ in row.whole], [text for role, text in row.whole if role == "assistant"]
    if not any(map(str.strip, answers)):
        yield "no answer", "bad", "have no answer, or empty ones"
        return
    if unknown := sorted({*roles} - {*ROLES}):
        yield "unknown role", "bad", f"have the role {printable(unknown[0], most=40)}"
        return
    if not all(map(str.strip, answers)):
        yield "empty answer", "warning", "have an empty answer among others"
    if roles[-1] != "assistant":
        yield "last turn", "warning", "end with a turn without its answer"
    if any(token in text for _, text in row.whole for token in template.specials):
        yield "marks in text", "warning", "contain special tokens of the template: they were rendered before"
    yield from _of_encoding(row, template, length)


def _of_encoding(row: Row, template: Template, length: int) -> Iterator[tuple[str, str, str]]:
    try:
        encoded = template.encode(row)
        rendered = template.render(row.whole)
    except Exception as error:  # of a template, in any class
        yield "template", "bad", f"are refused by the template ({printable(error, most=100)})"
        return
    for role in sorted({role for role, text in row.whole if text.strip() and text.strip() not in rendered}):
        yield "role", "bad", f"have turns of the role {role} that the template drops or changes"
    begin = template.tokenizer.bos_token_id
    if begin is not None and encoded.ids[:2] == (begin, begin):
        yield "doubled begin", "bad", "begin with two begin tokens"
    if len(encoded.ids) > length:
        yield "too long", "warning", f"have more than {length:,} tokens and are left out"
    for note in encoded.notes:
        if note.startswith("rewritten"):
            what = f"have turns that the template writes otherwise{note.partition(':')[2]}: the last answer alone"
            yield "rewritten", "warning", f"{what} is trained"
        elif note == "no end":
            yield "no end", "bad", "have no token that ends the answer"


def _of_pair(row: Row, part: str, first: dict[str, tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yields what is wrong with a row beside the first one with its question, or puts it there."""
    here = part, row.answer
    earlier = first.setdefault(question(row), here) if row.answer else here
    if earlier is here:
        return
    if earlier[0] != part:
        yield "in two splits", "bad", f"ask what is asked in {earlier[0]} too"
    elif earlier[1].strip() == row.answer.strip():
        yield "duplicate", "warning", "are there before"
    else:
        yield "contradiction", "warning", "answer a question of before otherwise"
