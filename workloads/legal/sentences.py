"""The sentences of a judgment's running text. A full stop after an abbreviation of the courts ends none."""

import re
from itertools import pairwise
from pathlib import Path

import yaml

_BREAK = re.compile(r"[.?!][\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9]|\(([ivxlc]{1,6}|[a-z])\))")
_LIST_MARK = re.compile(r"[\"'“‘(\[]*(\d{1,3}|[ivxlc]{1,6}|[a-z])[.)]+", re.IGNORECASE)
_OPEN, _SHUT = "\"'“‘([", "\"'”’)]"
_ABBREVIATIONS = frozenset(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).split())
_WRAPPED = 0.4  # share of lines that begin in lower case from which on lines end anywhere
_SPLIT = 1.25  # sentences a line up to which a file has one sentence a line


def one_line(text: str) -> str:
    """Returns a text with single spaces for every run of spaces, tabs and line ends."""
    return " ".join(text.split())


def split_text(text: str) -> list[str]:
    """Returns the sentences of a text with one a line, a paragraph a line, or lines that end anywhere."""
    lines = [line.strip() for line in text.split("\n")]
    following = [line for before, line in pairwise(lines) if before and line]
    if sum(line[0].islower() for line in following) > _WRAPPED * len(following):
        return [sentence for paragraph in re.split(r"\n\s*\n", text) for sentence in split_sentences(paragraph)]
    filled = [one_line(line) for line in lines if line]
    sentences = [sentence for line in filled for sentence in split_sentences(line)]
    return filled if len(filled) > 1 and len(sentences) < _SPLIT * len(filled) else sentences


def split_sentences(text: str) -> list[str]:
    bounds = [0]
    for match in _BREAK.finditer(text):
        if _ends_sentence(text[bounds[-1] : match.end()].rstrip()):
            bounds.append(match.end())
    pieces = (text[begin:end] for begin, end in pairwise([*bounds, len(text)]))
    return [one_line(piece) for piece in pieces if piece.strip()]


def _ends_sentence(before: str) -> bool:
    """Says whether a sentence ends with a text that ends in a full stop or another mark."""
    if _LIST_MARK.fullmatch(before):  # 12. or (iv)
        return False
    last = before.split()[-1].rstrip(_SHUT).lstrip(_OPEN)
    word = last.removesuffix(".").lower()
    is_short = word in _ABBREVIATIONS or re.fullmatch(r"[a-z]|(\w{1,3}\.)+\w{1,3}", word)
    return last.endswith(("?", "!")) or not is_short or word.replace(".", "").isdigit()
