"""Conversations as the tokenizer's own template renders them, with the tokens that are trained."""

import datetime
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk, platform
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
_NO_CALLS = "have calls: the chat template of the base does not show tool calls"
_NO_TOOLS = "have tools: the chat template of the base does not show tools"

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

    @property
    def answer(self) -> list[int]:
        """The tokens that are trained."""
        return [token for token, is_in in zip(self.ids, self.trained, strict=True) if is_in]


class Template:
    """A tokenizer with its chat template; masks are those of generation. Raises BadInput for one without an end.

    `date` is what a template writes that asks for today's.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[int] = (), date: str = ""):
        if not getattr(tokenizer, "chat_template", None):
            what = "The tokenizer of the base has no chat template"
            raise BadInput(
                f"{what}. Name a chat (instruct) model as workload.base, or put chat_template.jinja there."
            )
        self.tokenizer, self.encode = tokenizer, functools.lru_cache(_MOST_CACHED)(self._encode)
        self.source, self.form, self.date = str(tokenizer.chat_template), Form(), date
        self.specials = sorted(
            {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True
        )
        proof.prove(f"{self.source} {self.specials}", self._probes)
        head, _, tail = self.render([("user", "x"), ("assistant", _PROBE)]).partition(_PROBE)
        asked = self.render([("user", "x")], asks=True)
        # What the template writes before each answer, such as an empty thought
        self.opening = head.removeprefix(asked).strip() if head.startswith(asked) else ""
        self.end = self._end_of(tail)
        self.stops = sorted({*stops, tokenizer.eos_token_id, *self._numbers([self.end])} - {None})
        added = tokenizer.added_tokens_decoder.items()
        # Special tokens that an answer is read without; those of a call belong to it
        self.hidden = {
            *tokenizer.all_special_ids,
            *(number for number, token in added if token.special),
        }
        if "tool_calls" in self.source:
            self._learn_calls()

    def _probes(self) -> list[str]:
        """Returns conversations of several kinds as they are rendered, or the error of the template."""
        question = ("user", "x")
        answer = ("assistant", _PROBE)
        call = ("assistant", _probed_call())
        tools = TOOLS, as_json([{"type": "function", "function": {"name": "f", "parameters": {}}}])
        talks = [
            [question], [question, answer], [("system", "s"), question, answer], [question, answer] * _PROBED_TURNS,
            [tools, question, call, ("tool", "y"), answer],
        ]  # fmt: skip
        texts = list[str]()
        for turns in talks:
            try:
                texts.append(self.render(turns, asks=turns[-1] == question))
            except MemoryError:
                raise
            except Exception as error:  # of a template, in any class
                texts.append(type(error).__name__)
        return texts

    def _learn_calls(self) -> None:
        """Sets the form in which the template takes calls, and adds the token that ends them to the stops."""

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
        """Returns a conversation as text; with `asks` also what stands before the answer that is to come."""
        messages = list[dict[str, Any]]()
        options = dict[str, Any]()
        for role, content in turns:
            if role == TOOLS:
                options["tools"] = values_of_tools(content)
            else:
                messages.append({"role": role, **self.form.message(values_of(content))})
        if self.date and isinstance(self.tokenizer.chat_template, str):
            options["chat_template"] = _dated(self.tokenizer.chat_template, self.date)
        with proof.limited():
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=asks, **options)  # fmt: skip

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)[
            "input_ids"
        ]  # the template writes its own

    def prompt(self, turns: Turns) -> list[int]:
        """Returns the tokens after which the model answers. Raises BadInput where the template refuses."""
        try:
            return self.tokens(self.render(turns, asks=True))
        except BadInput:
            raise
        except Exception as error:  # of a template, in any class
            what = f"The chat template of the base refuses a conversation ({printable(error, most=200)})"
            raise BadInput(f"{what}: {printable(turns, most=200)}.") from None

    def decode(self, ids: Sequence[int]) -> str:
        end = next((place for place, token in enumerate(ids) if token in self.stops), len(ids))
        text = self.tokenizer.decode(
            [token for token in ids[:end] if token not in self.hidden]
        ).strip()
        text = text.removeprefix(self.opening).lstrip()
        if end < len(ids):
            return text
        return Unfinished(text)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def taken(self, row: Row, unread: Counter[str]) -> Row:
        """Returns a row without the keys of messages that the template does not read; these are counted."""
        if not any(isinstance(content, Message) for _, content in row.whole):
            return row
        answer = self._taken(row.last, unread) if row.answer else ""
        turns = tuple((role, self._taken(content, unread)) for role, content in row.turns)
        return placed(Row(turns, answer), row.origin)

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
        """Yields what a row has and its rendered text does not show."""
        if row.has_tools:
            functions = [tool["function"]["name"] for tool in values_of_tools(row.turns[0][1])]
        else:
            functions = []
        made = [
            [call["name"], call["arguments"]]
            for _, content in row.whole
            for call in calls_of(content)
        ]
        if functions and not (
            calls.is_shown(functions, text) and self.render(row.whole[1:]) != text
        ):
            yield "tools", "bad", _NO_TOOLS
        if made and not (
            calls.is_shown(made, text) and self.render([*map(_uncalled, row.whole)]) != text
        ):
            yield "calls", "bad", _NO_CALLS

    def apart(self, row: Row) -> list[Row]:
        """Returns a row, or one for each answer where the template writes earlier ones otherwise."""
        is_rewritten = any(name == "rewritten" for name, *_ in self.encode(row).notes)
        return answered(row) if is_rewritten else [row]

    def finished(self, row: Row) -> Row:
        """Returns a row whose answer is text: where it has more than text, as the template writes it."""
        if not isinstance(row.last, Message):
            return row
        text = Written(self.decode(self.encode(row._replace(answer=row.last)).answer))
        text.message = row.last
        return placed(Row(row.turns, text), row.origin, row.conversation, row.number)

    def _encode(self, row: Row) -> Encoded:
        """Returns a row's tokens, cut at the borders of what is trained as generation has them."""
        if row.turns[:1] and row.turns[0][0] == TEXT:
            ids = self.tokens(row.turns[0][1])
            return Encoded(tuple(ids), (False, *[True] * (len(ids) - 1)))
        try:
            text, spans, notes = self.spans(row.whole)
        except Rewritten as error:
            text, spans, notes = self._alone(row)
            what = f"have turns that the template writes otherwise {error}: each answer is trained after its own prompt"
            notes.append(("rewritten", "warning", what))
        ids = list[int]()
        trained = list[bool]()
        place = 0
        for begin, end in [*spans, (len(text), len(text))]:
            for piece, is_in in ((text[place:begin], False), (text[begin:end], True)):
                tokens = self.tokens(piece) if piece else []
                ids = ids + tokens
                trained = trained + [is_in] * len(tokens)
            place = end
        return Encoded(tuple(ids), tuple(trained), tuple(notes))

    def spans(self, turns: Turns) -> tuple[str, list[tuple[int, int]], list[Wrong]]:
        """Returns the text, where in it the model speaks, each with the token that ends it, and notes.

        It speaks where rendering with an answer goes on after rendering the turns before it with the generation prompt.
        Raises Rewritten where these are no beginning of the text.
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
        """Returns the prompt and the last answer alone, as generation has them, as `spans` does."""
        before = self.render(row.turns, asks=True)
        after = self.render(row.whole)
        if not after.startswith(before):  # as a prompt that begins a thought
            if not isinstance(row.last, Message):
                written = row.answer + self.end
                return before + written, [(len(before), len(before) + len(written))], []
            head = self.render([*row.turns, ("assistant", _PROBE)]).partition(_PROBE)[0]
            if not after.startswith(head):
                return (
                    after,
                    [],
                    [("rewritten call", "bad", "have a call that the template begins otherwise")],
                )
            after = before + after[len(head) :]
        length, notes = self._length(row.last, after[len(before) :])
        return after, [(len(before), len(before) + length)], notes

    def _length(self, content: str, written: str) -> tuple[int, list[Wrong]]:
        """Returns the letters of an answer with the token that ends it, in what follows its prompt, and notes."""
        text = values_of(content)["content"].strip()
        if isinstance(content, Message):
            place = written.rfind(text)
        else:
            place = written.find(text)
        notes = [*self._unseen(content, written)]
        close = place + len(text)
        if place < 0 and calls_of(content):
            what = "have text beside a call, which the chat template of the base leaves out"
            notes.append(("beside calls", "warning", what))
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
        """Yields what an answer has and the template did not write for it."""
        made = [[call["name"], call["arguments"]] for call in calls_of(content)]
        if not calls.is_shown(made, written):
            yield "calls", "bad", _NO_CALLS
        values = values_of(content)
        for name in REASONING:
            if name in values and not calls.is_shown(values[name], written):
                yield (
                    "reasoning",
                    "bad",
                    f"have {name}, which the chat template of the base does not show",
                )

    def _end_of(self, tail: str) -> str:
        """Returns the first special token after an answer; "" where there is none."""
        places = [
            (tail.index(token), -len(token), token) for token in self.specials if token in tail
        ]
        return min(places, default=(0, 0, ""))[2]

    def _last_end(self, written: str) -> str:
        """Returns the special token at the end of a call, which may have others inside; "" where there is none."""
        last = next((token for token in self.specials if written.rstrip().endswith(token)), "")
        return last or (self.end if self.end and self.end in written else "")

    def shown(self, row: Row, most: int) -> str:
        """Returns a row in one line, what is trained between ⟦ and ⟧, of each stretch at most so many characters."""
        encoded = self.encode(row)
        stretches = []
        for is_in, pairs in groupby(
            zip(encoded.trained, encoded.ids, strict=True), key=lambda pair: pair[0]
        ):
            text = printable(
                self.tokenizer.decode([token for _, token in pairs]).replace("\n", "↵"), most=10**6
            )
            if len(text) <= most:
                text = text
            else:
                text = f"{text[: most // 2]} ... {text[-(most // 2) :]}"
            stretches.append(f"⟦{text}⟧" if is_in else text)
        return "".join(stretches)


@functools.lru_cache(8)
def _dated(template: str, date: str) -> str:
    """Returns a template that writes a day in the place of today."""
    day = datetime.date.fromisoformat(date)
    return _NOW.sub(lambda match: as_json(day.strftime(match[2])), template)


def _uncalled(turn: tuple[str, str]) -> tuple[str, str]:
    values = {name: value for name, value in values_of(turn[1]).items() if name != "tool_calls"}
    if calls_of(turn[1]):
        return (turn[0], content_of(values))
    return turn


def _probed_call() -> str:
    call = {"id": "zk4probe", "type": "function", "function": calls.PROBE}
    return content_of({"content": "", "tool_calls": [call]})


@functools.lru_cache(2**12)
def values_of_tools(text: str) -> list[Any]:
    return Message(text).values  # type: ignore[return-value]


# --- of a base and of a run -------------------------------------------------------------------------------------------


def published(folder: Path, stops: Sequence[int]) -> dict[str, Any]:
    """Returns tokenizer and template of a base as values that a run keeps; the tokenizer is a file in the cache."""
    tokenizer, _ = encoders.tokenizer(folder)
    text = tokenizer.backend_tokenizer.to_str()
    path = (
        platform.detect().scratch_dir
        / "chat"
        / f"tokenizer-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    )
    if not _has(path, text):  # or a damaged one
        disk.make_folders(path.parent)
        disk.write_text(path, text)
    specials = {
        name: str(token)
        for name, token in tokenizer.special_tokens_map.items()
        if isinstance(token, str)
    }
    values = {
        "tokenizer": path,
        "template": tokenizer.chat_template,
        "specials": specials,
        "stops": [*stops],
    }
    if "strftime_now" in str(
        tokenizer.chat_template
    ):  # it writes the day, on which a resumed run would differ
        values["date"] = datetime.date.today().isoformat()
    return values


def _has(path: Path, text: str) -> bool:
    """Returns whether a file has a text."""
    content = text.encode()
    try:
        return untrusted.read(path, len(content)) == content
    except OSError:
        return False


def made_of(values: Any) -> Template:
    """Returns the template of the values that a run keeps, perhaps a stranger's. Raises BadInput."""
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(values["tokenizer"]), **values["specials"]
        )
        tokenizer.chat_template = values["template"]
    except Exception as error:  # tokenizers raises Exception itself
        raise BadInput(
            f"The tokenizer that the run keeps cannot be used ({_why(error)})."
        ) from None
    try:
        return Template(tokenizer, values["stops"], values.get("date", ""))
    except BadInput:
        raise
    except Exception as error:  # of a template, in any class
        raise BadInput(
            f"The chat template of the base cannot be used ({_why(error)}). Correct it."
        ) from None


def _why(error: Exception) -> str:
    return printable(str(error) or type(error).__name__, most=200)
