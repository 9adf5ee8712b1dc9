"""Conversations as the tokenizer's own template renders them, with the tokens that are trained, and what is wrong."""

import functools
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.report.findings import Finding
from lib.supervised import encoders
from workloads.chat.rows import ROLES, TEXT, Row, Turns, question

_PROBE = "Zk4 closing 92"  # words that no template has
_MOST_CACHED = 200_000  # rows
_SHOWN = 4  # rows that a sentence names
ADVICE = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text("utf-8"))

Wrong = tuple[str, str, str]  # name, verdict and description of what is wrong with rows


class Rewritten(Exception):
    """A turn is not written as generation would have it before, or as it is once others follow."""


class Unfinished(str):
    """A generated answer that came to no end."""


class Encoded(NamedTuple):
    """A row as tokens with what of them is trained, and what is wrong with it."""

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    notes: tuple[Wrong, ...] = ()


class Template:
    """A tokenizer with its chat template; masks are those of generation."""

    def __init__(self, tokenizer: Any, stops: Sequence[int] = ()):
        if not getattr(tokenizer, "chat_template", None):
            what = "The tokenizer of the base has no chat template"
            raise BadInput(f"{what}. Name a chat (instruct) model as workload.base, or put chat_template.jinja there.")
        self.tokenizer, self.encode = tokenizer, functools.lru_cache(_MOST_CACHED)(self._encode)
        self.specials = sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True)
        self.end = self._end_of(self.render([("user", "x"), ("assistant", _PROBE)]).partition(_PROBE)[2])
        ends = [tokenizer.convert_tokens_to_ids(self.end)] if self.end else []
        self.stops = sorted({*stops, tokenizer.eos_token_id, *ends} - {None})

    def render(self, turns: Sequence[tuple[str, str]], asks: bool = False) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # the template writes its own

    def prompt(self, turns: Turns) -> list[int]:
        """Returns the tokens after which the model answers."""
        return self.tokens(self.render(turns, asks=True))

    def decode(self, ids: Sequence[int]) -> str:
        end = next((place for place, token in enumerate(ids) if token in self.stops), len(ids))
        text = self.tokenizer.decode(ids[:end], skip_special_tokens=True).strip()
        return text if end < len(ids) else Unfinished(text)

    def _encode(self, row: Row) -> Encoded:
        """Returns a row's tokens, cut at the borders of what is trained as generation has them."""
        if row.turns[:1] and row.turns[0][0] == TEXT:
            ids = self.tokens(row.turns[0][1])
            return Encoded(tuple(ids), (False, *[True] * (len(ids) - 1)))
        try:
            text, spans, notes = self.spans(row.whole)
        except Rewritten as error:  # prompt and last answer alone, as generation has them
            what = f"have turns that the template writes otherwise {error}: the last answer alone is trained"
            text, notes = self.render(row.turns, asks=True), [("rewritten", "warning", what)]
            spans, text = [(len(text), len(text) + len(row.answer) + len(self.end))], text + row.answer + self.end
        ids, trained, place = list[int](), list[bool](), 0
        for begin, end in [*spans, (len(text), len(text))]:
            for piece, is_trained in ((text[place:begin], False), (text[begin:end], True)):
                tokens = self.tokens(piece) if piece else []
                ids, trained = ids + tokens, trained + [is_trained] * len(tokens)
            place = end
        return Encoded(tuple(ids), tuple(trained), tuple(notes))

    def spans(self, turns: Turns) -> tuple[str, list[tuple[int, int]], list[Wrong]]:
        """Returns the text, where in it the model speaks, each with the token that ends it, and notes.

        It speaks where rendering with an answer goes on after rendering the turns before it with the generation prompt.
        Raises Rewritten where these are no beginning of the text.
        """
        text, notes, spans = self.render(turns), list[Wrong](), []
        for number, (role, content) in enumerate(turns):
            if role != "assistant":
                continue
            before, after = self.render(turns[:number], asks=True), self.render(turns[: number + 1])
            if not text.startswith(after):
                raise Rewritten("once others follow")
            if not after.startswith(before):
                raise Rewritten("before it is generated")
            place = after.find(content.strip(), len(before))
            if place < 0:
                raise Rewritten("with another content")
            close = place + len(content.strip())
            end = self._end_of(after[close:])
            if not end:
                notes.append(("no end", "bad", "have no token that ends the answer"))
            spans.append((len(before), after.index(end, close) + len(end) if end else len(after)))
        return text, spans, notes

    def _end_of(self, tail: str) -> str:
        """Returns the first special token after an answer; "" where there is none."""
        places = [(tail.index(token), -len(token), token) for token in self.specials if token in tail]
        return min(places, default=(0, 0, ""))[2]

    def shown(self, row: Row, most: int) -> str:
        """Returns a row in one line, what is trained between ⟦ and ⟧, of each stretch at most so many characters."""
        encoded, stretches = self.encode(row), []
        for is_trained, pairs in groupby(zip(encoded.trained, encoded.ids, strict=True), key=lambda pair: pair[0]):
            text = printable(self.tokenizer.decode([token for _, token in pairs]).replace("\n", "↵"), most=10**6)
            text = text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"
            stretches.append(f"⟦{text}⟧" if is_trained else text)
        return "".join(stretches)


def published(folder: Path, stops: Sequence[int]) -> dict[str, Any]:
    """Returns tokenizer and template of a base as values that a run keeps; the tokenizer is a file in the cache."""
    tokenizer, _ = encoders.tokenizer(folder)
    text = tokenizer.backend_tokenizer.to_str()
    path = platform.detect().scratch_dir / "chat" / f"tokenizer-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        disk.make_folders(path.parent)
        disk.write_text(path, text)
    specials = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return {"tokenizer": path, "template": tokenizer.chat_template, "specials": specials, "stops": [*stops]}


def made_of(values: Any) -> Template:
    """Returns the template of the values that a run keeps, perhaps a stranger's. Raises BadInput."""
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(values["tokenizer"]), **values["specials"])
        tokenizer.chat_template = values["template"]
        return Template(tokenizer, values["stops"])
    except BadInput:
        raise
    except Exception as error:  # tokenizers raises Exception itself
        raise BadInput(f"The tokenizer that the run keeps cannot be used ({printable(error, most=200)}).") from None


# --- what is wrong with rows ------------------------------------------------------------------------------------------


def examine(
    parts: Mapping[str, Sequence[Row]], template: Template, limits: Mapping[str, int], words: int
) -> list[Finding]:
    """Returns findings, the bad ones first; `limits` are a row's tokens by part, `words` those that the model knows."""
    places = defaultdict[Wrong, list[tuple[str, str]]](list)
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


def _of_row(row: Row, template: Template, length: int) -> Iterator[Wrong]:
    """Yields what is wrong with a row alone."""
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
    yield from encoded.notes


def _of_pair(row: Row, part: str, first: dict[str, tuple[str, str]]) -> Iterator[Wrong]:
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
