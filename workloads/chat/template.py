"""Renders conversations by the tokenizer's template, and marks trained tokens."""

import datetime
import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk, platform
from trainbook import IGNORED
from trainbook.supervised import encoders
from workloads.chat import calls, proof
from workloads.chat.calls import Form
from workloads.chat.messages import (
    REASONING,
    TEXT,
    TOOLS,
    Message,
    Turns,
    as_json,
    calls_of,
    content_of,
    is_trained,
    values_of,
)
from workloads.chat.rows import Row, Written, answered, placed

_PROBE = "Zk4 closing 92"  # words that no template has
_PROBED_TURNS = 12
_MOST_CACHED = 200_000  # rows
_NOW = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
_REWRITTEN_CALL: "Wrong" = (
    "rewritten call",
    "bad",
    "have a call that the template begins otherwise",
)
_BESIDE_CALLS: "Wrong" = (
    "beside calls",
    "warning",
    "have text beside a call, which the chat template of the base leaves out",
)
_NO_CALLS = "have calls: the chat template of the base does not show tool calls"
_NO_TOOLS = "have tools: the chat template of the base does not show tools"

Wrong = tuple[
    str, Literal["ok", "warning", "bad"], str
]  # name, verdict and description of problems


class Rewritten(Exception):
    """The template writes a turn differently for generation, or once others follow."""


class Unfinished(str):
    """A generated answer without an end."""


class Encoded(NamedTuple):
    """A row as tokens with a mask of trained ones, and its problems."""

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    notes: tuple[Wrong, ...] = ()

    @property
    def answer(self) -> list[int]:
        """The trained tokens."""
        return [token for token in self.labels if token != IGNORED]

    @property
    def labels(self) -> list[int]:
        """The tokens, with `IGNORED` for untrained ones."""
        pairs = zip(self.ids, self.trained, strict=True)
        return [token if is_answer else IGNORED for token, is_answer in pairs]


class Template:
    """A tokenizer with its chat template; masks follow generation. Raises BadInput without an end token.

    `date` replaces today's date in a template.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[int] = (), date: str = ""):
        if not getattr(tokenizer, "chat_template", None):
            raise BadInput(
                "The tokenizer of the base has no chat template. "
                "Name a chat (instruct) model as workload.base, or put chat_template.jinja there."
            )
        self.tokenizer = tokenizer
        self.encode = functools.lru_cache(_MOST_CACHED)(self._encode)
        self.source = str(tokenizer.chat_template)
        self.form = Form()
        self.date = date
        specials = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
        self.specials = sorted(specials, key=len, reverse=True)
        proof.prove(f"{self.source} {self.specials}", self._probes)
        head, _, tail = self.render([("user", "x"), ("assistant", _PROBE)]).partition(_PROBE)
        asked = self.render([("user", "x")], asks=True)
        # What the template writes before each answer, such as an empty thought
        self.opening = head.removeprefix(asked).strip() if head.startswith(asked) else ""
        self.end = self._end_of(tail)
        ends = {*stops, tokenizer.eos_token_id, *self._numbers([self.end])}
        self.stops = sorted(ends - {None})
        added = tokenizer.added_tokens_decoder.items()
        # Special tokens that are removed from an answer; a call's belong to it
        self.hidden = {number for number, token in added if token.special}
        self.hidden |= {*tokenizer.all_special_ids}
        if "tool_calls" in self.source:
            self._learn_calls()

    def _probes(self) -> list[str]:
        """Renders conversations of several kinds; returns texts, or the error of the template."""
        question = ("user", "x")
        answer = ("assistant", _PROBE)
        call = ("assistant", _probed_call())
        function = {"name": "f", "parameters": {}}
        tools = (TOOLS, as_json([{"type": "function", "function": function}]))
        talks = [[question], [question, answer], [("system", "s"), question, answer]]
        talks += [[question, answer] * _PROBED_TURNS]
        talks += [[tools, question, call, ("tool", "y"), answer]]
        texts = list[str]()
        for turns in talks:
            try:
                texts.append(self.render(turns, asks=turns[-1] == question))
            except MemoryError:
                raise
            except Exception as error:  # a template raises any class
                texts.append(type(error).__name__)
        return texts

    def _learn_calls(self) -> None:
        """Finds the template's form of calls, and adds their end token to the stops."""

        def rendered(form: Form) -> str:
            self.form = form
            return self.render(turns)

        turns = ("user", "x"), ("assistant", _probed_call())
        form = calls.form_of(rendered)
        self.form = form or Form()
        if not form:
            return
        head = self.render([turns[0], ("assistant", _PROBE)]).partition(_PROBE)[0]
        written = self.render(turns).removeprefix(head)
        end = self._last_end(written)
        self.stops = sorted({*self.stops, *self._numbers([end])})
        self.hidden -= {*self.tokens(written)} - {*self.stops}

    def _numbers(self, tokens: Sequence[str]) -> list[int]:
        return [self.tokenizer.convert_tokens_to_ids(token) for token in tokens if token]

    def render(self, turns: Sequence[tuple[str, str]], asks: bool = False) -> str:
        """Renders a conversation as text; with `asks` adds the generation prompt."""
        messages = list[dict[str, Any]]()
        options = dict[str, Any]()
        for role, content in turns:
            if role == TOOLS:
                options["tools"] = values_of_tools(content)
            else:
                messages.append({"role": role, **self.form.message(values_of(content))})
        if self.date and isinstance(self.tokenizer.chat_template, str):
            options["chat_template"] = _dated(self.tokenizer.chat_template, self.date)
        options["add_generation_prompt"] = asks
        with proof.limited():
            return self.tokenizer.apply_chat_template(messages, tokenize=False, **options)

    def tokens(self, text: str) -> list[int]:
        # The template adds special tokens
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def prompt(self, turns: Turns) -> list[int]:
        """Returns the tokens of a prompt. Raises BadInput if the template refuses."""
        try:
            return self.tokens(self.render(turns, asks=True))
        except BadInput:
            raise
        except Exception as error:  # a template raises any class
            raise BadInput(
                f"The chat template of the base refuses a conversation ({printable(error, most=200)}): "
                f"{printable(turns, most=200)}."
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of generated tokens up to the first stop; `Unfinished` without one."""
        written = [*itertools.takewhile(lambda token: token not in self.stops, ids)]
        visible = [token for token in written if token not in self.hidden]
        text = self.tokenizer.decode(visible).strip()
        text = text.removeprefix(self.opening).lstrip()
        if len(written) < len(ids):
            return text
        return Unfinished(text)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def taken(self, row: Row, unread: Counter[str]) -> Row:
        """Drops and counts message keys that the template does not read."""
        if not any(isinstance(content, Message) for _, content in row.whole):
            return row
        answer = self._taken(row.last, unread) if row.answer else ""
        turns = [(role, self._taken(content, unread)) for role, content in row.turns]
        return placed(Row(tuple(turns), answer), row.origin)

    def _taken(self, content: str, unread: Counter[str]) -> str:
        if not isinstance(content, Message):
            return content
        values = dict[str, Any]()
        for name, value in content.values.items():
            if name in REASONING:  # a template reads it by one of its names
                name = next((other for other in (name, *REASONING) if other in self.source), name)
            if name in ("content", "tool_calls", "weight", *REASONING) or name in self.source:
                values[name] = value
            else:
                unread[name] += 1
        return content_of(values)

    def lacking(self, row: Row, text: str) -> Iterator[Wrong]:
        """Yields content of a row that its rendered text lacks."""
        if row.has_tools:
            tools = values_of_tools(row.turns[0][1])
            names = [tool["function"]["name"] for tool in tools]
            are_shown = calls.is_shown(names, text)
            if tools and not (are_shown and self.render(row.whole[1:]) != text):
                yield "tools", "bad", _NO_TOOLS
        made = [call for _, content in row.whole for call in _made(content)]
        if made:
            without_calls = [*map(_uncalled, row.whole)]
            are_shown = calls.is_shown(made, text)
            if not (are_shown and self.render(without_calls) != text):
                yield "calls", "bad", _NO_CALLS

    def apart(self, row: Row) -> list[Row]:
        """Returns a row, or one for each answer if the template rewrites earlier answers."""
        names = [name for name, *_ in self.encode(row).notes]
        if "rewritten" in names:
            return answered(row)
        return [row]

    def finished(self, row: Row) -> Row:
        """Returns a row whose answer is text, rendered by the template if it has more than text."""
        if not isinstance(row.last, Message):
            return row
        text = Written(self.decode(self.encode(row._replace(answer=row.last)).answer))
        text.message = row.last
        return placed(Row(row.turns, text), row.origin, row.conversation, row.number)

    def _encode(self, row: Row) -> Encoded:
        """Returns a row's tokens, cut at the borders of trained spans as in generation."""
        if row.turns[:1] and row.turns[0][0] == TEXT:
            ids = self.tokens(row.turns[0][1])
            return Encoded(tuple(ids), (False, *[True] * (len(ids) - 1)))
        try:
            text, spans, notes = self.spans(row.whole)
        except Rewritten as error:
            text, spans, notes = self._alone(row)
            description = (
                f"have turns that the template writes otherwise {error}: "
                f"each answer is trained after its own prompt"
            )
            notes.append(("rewritten", "warning", description))
        bounds = [0, *itertools.chain.from_iterable(spans), len(text)]
        ids = []
        trained: list[bool] = []
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            tokens = self.tokens(text[begin:end]) if begin < end else []
            ids += tokens
            is_answer = number % 2 == 1
            trained += [is_answer] * len(tokens)
        return Encoded(tuple(ids), tuple(trained), tuple(notes))

    def spans(self, turns: Turns) -> tuple[str, list[tuple[int, int]], list[Wrong]]:
        """Returns the text, the spans of the model's answers, each with its end token, and notes.

        A span follows the preceding turns, rendered with the generation prompt. Raises Rewritten unless the text begins
        with these.
        """
        text = self.render(turns)
        notes = list[Wrong]()
        spans = []
        for number, (role, content) in enumerate(turns):
            if role != "assistant" or not is_trained(content):
                continue
            before = self.render(turns[:number], asks=True)
            after = self.render(turns[: number + 1])
            if not text.startswith(after):
                raise Rewritten("once others follow")
            if not after.startswith(before):
                raise Rewritten("before it is generated")
            length, wrong = self._length(content, after[len(before) :])
            notes += wrong
            spans.append((len(before), len(before) + length))
        return text, spans, notes

    def _alone(self, row: Row) -> tuple[str, list[tuple[int, int]], list[Wrong]]:
        """Returns spans, as `spans` does, of the prompt and the last answer, as in generation."""
        before = self.render(row.turns, asks=True)
        after = self.render(row.whole)
        begin = len(before)
        if not after.startswith(before):  # as a prompt that begins a thought
            if not isinstance(row.last, Message):
                text = before + row.answer + self.end
                return text, [(begin, len(text))], []
            head = self.render([*row.turns, ("assistant", _PROBE)]).partition(_PROBE)[0]
            if not after.startswith(head):
                return after, [], [_REWRITTEN_CALL]
            after = before + after[len(head) :]
        length, notes = self._length(row.last, after[begin:])
        return after, [(begin, begin + length)], notes

    def _length(self, content: str, written: str) -> tuple[int, list[Wrong]]:
        """Returns the length of an answer with its end token in the text after the prompt, and notes."""
        text = values_of(content)["content"].strip()
        if isinstance(content, Message):
            place = written.rfind(text)
        else:
            place = written.find(text)
        notes = [*self._unseen(content, written)]
        close = place + len(text)
        if place < 0 and calls_of(content):
            notes.append(_BESIDE_CALLS)
        elif place < 0:
            raise Rewritten("with another content")
        end = self._end_of(written[close:])
        if calls_of(content):
            end = self._last_end(written)
            close = written.rindex(end) if end else len(written)
        if not end:
            notes.append(("no end", "bad", "have no token that ends the answer"))
            return len(written), notes
        return written.index(end, close) + len(end), notes

    def _unseen(self, content: str, written: str) -> Iterator[Wrong]:
        """Yields content of an answer that the template did not write."""
        if not calls.is_shown(_made(content), written):
            yield "calls", "bad", _NO_CALLS
        values = values_of(content)
        for name in REASONING:
            if name in values and not calls.is_shown(values[name], written):
                description = f"have {name}, which the chat template of the base does not show"
                yield "reasoning", "bad", description

    def _end_of(self, tail: str) -> str:
        """Returns the first special token after an answer, or ""."""
        tokens = [token for token in self.specials if token in tail]  # the longest first
        return min(tokens, key=tail.index, default="")

    def _last_end(self, written: str) -> str:
        """Returns the special token that ends a call, which may contain others; "" without one."""
        for token in self.specials:
            if written.rstrip().endswith(token):
                return token
        return self.end if self.end in written else ""

    def shown(self, row: Row, most: int) -> str:
        """Returns a row in one line, trained text between ⟦ and ⟧, at most `most` characters a stretch."""
        encoded = self.encode(row)
        pairs = zip(encoded.trained, encoded.ids, strict=True)
        half = most // 2
        stretches = []
        for is_answer, stretch in itertools.groupby(pairs, key=lambda pair: pair[0]):
            decoded = self.tokenizer.decode([token for _, token in stretch])
            text = printable(decoded.replace("\n", "↵"), most=10**6)
            if len(text) > most:
                text = f"{text[:half]} ... {text[-half:]}"
            stretches.append(f"⟦{text}⟧" if is_answer else text)
        return "".join(stretches)


@functools.lru_cache(8)
def _dated(template: str, date: str) -> str:
    """Replaces today's date in a template."""
    day = datetime.date.fromisoformat(date)
    return _NOW.sub(lambda match: as_json(day.strftime(match[2])), template)


def _made(content: str) -> list[list[Any]]:
    """Returns names and arguments of a turn's calls."""
    return [[call["name"], call["arguments"]] for call in calls_of(content)]


def _uncalled(turn: tuple[str, str]) -> tuple[str, str]:
    role, content = turn
    if not calls_of(content):
        return turn
    values = dict(values_of(content))
    del values["tool_calls"]
    return role, content_of(values)


def _probed_call() -> str:
    call = {"id": "zk4probe", "type": "function", "function": calls.PROBE}
    return content_of({"content": "", "tool_calls": [call]})


@functools.lru_cache(2**12)
def values_of_tools(text: str) -> list[Any]:
    return Message(text).values  # type: ignore[return-value]


# --- of a base and of a run -------------------------------------------------------------------------------------------


def published(folder: Path, stops: Sequence[int]) -> dict[str, Any]:
    """Returns a base's tokenizer, a file in the cache, and template as values that a run keeps."""
    tokenizer, _ = encoders.tokenizer(folder)
    text = tokenizer.backend_tokenizer.to_str()
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = platform.detect().scratch_dir / "chat" / f"tokenizer-{digest}.json"
    if not _has(path, text):  # or a damaged one
        disk.make_folders(path.parent)
        disk.write_text(path, text)
    specials = tokenizer.special_tokens_map.items()
    values = {
        "tokenizer": path,
        "template": tokenizer.chat_template,
        "specials": {name: str(token) for name, token in specials if isinstance(token, str)},
        "stops": [*stops],
    }
    # A template may write the day, on which a resumed run would differ
    if "strftime_now" in str(tokenizer.chat_template):
        values["date"] = datetime.date.today().isoformat()
    return values


def _has(path: Path, text: str) -> bool:
    """Returns whether a file contains a text."""
    content = text.encode()
    try:
        return untrusted.read(path, len(content)) == content
    except OSError:
        return False


def made_of(values: Any) -> Template:
    """Builds the template from a run's values, which are untrusted. Raises BadInput."""
    from transformers import PreTrainedTokenizerFast

    try:
        file = str(values["tokenizer"])
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, **values["specials"])
        tokenizer.chat_template = values["template"]
    except Exception as error:  # tokenizers raises Exception itself
        raise BadInput(
            f"The tokenizer that the run keeps cannot be used ({_why(error)})."
        ) from None
    try:
        return Template(tokenizer, values["stops"], values.get("date", ""))
    except BadInput:
        raise
    except Exception as error:  # a template raises any class
        raise BadInput(
            f"The chat template of the base cannot be used ({_why(error)}). Correct it."
        ) from None


def _why(error: Exception) -> str:
    return printable(str(error) or type(error).__name__, most=200)
