"""Conversations as the model reads them: rendered by the tokenizer's own template, with the tokens that are trained."""

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.supervised import encoders
from workloads.chat.rows import TEXT, Row, Turns

_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PROBE = "Zk4 closing 92"  # words that no template has
_MOST_CACHED = 200_000  # rows
_COLOURS, _PLAIN = ("\x1b[90m", "\x1b[32m", "\x1b[1;31m"), "\x1b[0m"  # not trained, trained, an end


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

        It speaks where the template marks its generation, else where rendering with an answer goes on after rendering
        the turns before it with the generation prompt. Raises Rewritten where these are no beginning of the text.
        """
        text, notes = self.render(turns), list[str]()
        marks = iter(self._marked(turns))
        spans = []
        for number, (role, content) in enumerate(turns):
            if role != "assistant":
                continue
            before, after = self.render(turns[:number], asks=True), self.render(turns[: number + 1])
            if not text.startswith(after):
                raise Rewritten("once others follow")
            if not after.startswith(before):
                raise Rewritten("before it is generated")
            begin = next(marks, len(before))
            place = after.find(content.strip(), len(before))
            if place < 0:
                raise Rewritten("with another content")
            if text[begin:place].strip():
                notes.append("boilerplate")
            close = place + len(content.strip())
            end = self._end_of(after[close:])
            if not end:
                notes.append("no end")
            spans.append((begin, after.index(end, close) + len(end) if end else len(after)))
        return text, spans, notes

    def _marked(self, turns: Turns) -> Iterator[int]:
        """Yields where each answer begins by the template's own marks; nothing where it has none."""
        if not _MARKED.search(self.tokenizer.chat_template):
            return
        from transformers.utils.chat_template_utils import render_jinja_template

        messages = [{"role": role, "content": content} for role, content in turns]
        template, specials = self.tokenizer.chat_template, self.tokenizer.special_tokens_map
        options: Any = {"chat_template": template, "return_assistant_tokens_mask": True, **specials}
        rendered: Any = render_jinja_template([messages], **options)
        yield from (begin for begin, _ in rendered[1][0])

    def _end_of(self, tail: str) -> str:
        """Returns the first special token after an answer; "" where there is none."""
        places = [(tail.index(token), -len(token), token) for token in self.specials if token in tail]
        return min(places, default=(0, 0, ""))[2]

    def shown(self, row: Row, most: int, in_colour: bool) -> str:
        """Returns a row in one line: what is trained in green or between ⟦ and ⟧, its ends in red, the rest in grey.

        Of each stretch at most so many characters are there, of its beginning and its end.
        """
        encoded, stretches = self.encode(row), []
        kinds = ((token in self.stops) + 1 if is_trained else 0 for token, is_trained in zip(*encoded[:2], strict=True))
        for kind, pairs in groupby(zip(kinds, encoded.ids, strict=True), key=lambda pair: pair[0]):
            text = printable(self.tokenizer.decode([token for _, token in pairs]).replace("\n", "↵"), most=10**6)
            text = text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"
            before, after = (_COLOURS[kind], _PLAIN) if in_colour else ("⟦", "⟧") if kind else ("", "")
            stretches.append(f"{before}{text}{after}")
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
