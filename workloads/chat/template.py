"""Conversations as the model reads them: rendered by the tokenizer's own template, with the tokens that are trained."""

import functools
import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.supervised import encoders
from workloads.chat.rows import TEXT, Row, Turns

_PROBE = "Zk4 closing 92"  # words that no template has
_MOST_CACHED = 200_000  # rows


class Rewritten(Exception):
    """A turn is not written as generation would have it before, or as it is once others follow."""


class Encoded(NamedTuple):
    """A row as tokens with what of them is trained, and what a reader should know of it."""

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    notes: tuple[str, ...] = ()


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

    def decode(self, ids: Sequence[int]) -> tuple[str, bool]:
        end = next((place for place, token in enumerate(ids) if token in self.stops), len(ids))
        return self.tokenizer.decode(ids[:end], skip_special_tokens=True).strip(), end < len(ids)

    def _encode(self, row: Row) -> Encoded:
        """Returns a row's tokens, cut at the borders of what is trained as generation has them."""
        if row.turns[:1] and row.turns[0][0] == TEXT:
            ids = self.tokens(row.turns[0][1])
            return Encoded(tuple(ids), (False, *[True] * (len(ids) - 1)))
        try:
            text, spans, notes = self.spans(row.whole)
        except Rewritten as error:  # prompt and last answer alone, as generation has them
            text, notes = self.render(row.turns, asks=True), [f"rewritten: {error}"]
            spans, text = [(len(text), len(text) + len(row.answer) + len(self.end))], text + row.answer + self.end
        ids, trained, place = list[int](), list[bool](), 0
        for begin, end in [*spans, (len(text), len(text))]:
            for piece, is_trained in ((text[place:begin], False), (text[begin:end], True)):
                tokens = self.tokens(piece) if piece else []
                ids, trained = ids + tokens, trained + [is_trained] * len(tokens)
            place = end
        return Encoded(tuple(ids), tuple(trained), tuple(notes))

    def spans(self, turns: Turns) -> tuple[str, list[tuple[int, int]], list[str]]:
        """Returns the text, where in it the model speaks, each with the token that ends it, and notes.

        It speaks where rendering with an answer goes on after rendering the turns before it with the generation prompt.
        Raises Rewritten where these are no beginning of the text.
        """
        text, notes, spans = self.render(turns), list[str](), []
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
                notes.append("no end")
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
