"""The sentences of a judgment's running text. A full stop after an abbreviation of the courts ends none."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise

_BREAK = re.compile(r"[.?!][\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9]|\(([ivxlc]{1,6}|[a-z])\))")
_LIST_MARK = re.compile(r"[\"'“‘(\[]*(\d{1,3}|[ivxlc]{1,6}|[a-z])[.)]+", re.IGNORECASE)
_OPEN, _SHUT = "\"'“‘([", "\"'”’)]"
MARKS = ".?!" + _SHUT


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A full stop after these ends no sentence
_ABBREVIATIONS = _words(
    "mr mrs ms m/s messrs dr prof shri smt sri kum km hon hon'ble st lt col gen maj capt adv ld asst addl dy sr jr jt "
    "no nos v vs art arts sec secs s ss cl cls sub-s sub-sec r rr o ord reg regn sch para paras p pp pg vol vols ed "
    "ch pt exh exs ex annex fig sl app appl appln pet cr crl civ misc wp slp c.a ref rs re cf viz i.e e.g ibid supra "
    "supp suppl scc scr air scale bom cal mad del ker kar pat ori raj guj jj cj jan feb mar apr jun jul aug sept sep "
    "oct nov dec edn p.w d.w a.i.r s.c.c s.c.r"
)
# After these it does where one of the words below follows, as after letters with full stops within (U.P., I.P.C.)
_ENDINGS = _words("ltd pvt co corp inc ors anr etc bros govt dept dist edn j ca act")
_BEGINNINGS = _words(
    "the this that these those it its he she they we in on at by for from as an a there thus hence therefore however "
    "but when where while if since after before accordingly learned having under according to against aggrieved his "
    "her their our such even mere both neither one section"
)
_WRAPPED = 0.4  # share of lines that begin in lower case from which on lines end anywhere
_SPLIT = 1.25  # sentences a line up to which a file has one sentence a line
_RARE = 0.01  # share of a corpus' sentences


def one_line(text: str) -> str:
    """Returns a text with single spaces for every run of spaces, tabs and line ends."""
    return " ".join(text.split())


def split_text(text: str) -> list[tuple[int, str]]:
    """Returns the sentences of a text of any form, each with the number of the line that it begins in."""
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    following = [line for (_, before), (_, line) in pairwise(lines) if before and line]
    if sum(line[0].islower() for line in following) > _WRAPPED * len(following):
        paragraphs = [list(own) for is_filled, own in groupby(lines, key=lambda line: bool(line[1])) if is_filled]
        return [sentence for paragraph in paragraphs for sentence in _split_lines(paragraph)]
    filled = [(number, line) for number, line in lines if line]
    sentences = [sentence for line in filled for sentence in _split_lines([line])]
    if len(filled) > 1 and len(sentences) < _SPLIT * len(filled):
        return [(number, one_line(line)) for number, line in filled]
    return sentences


def split_sentences(text: str) -> list[str]:
    bounds = [0]
    for match in _BREAK.finditer(text):
        if _ends_sentence(text[bounds[-1] : match.end()].rstrip(), text[match.end() : match.end() + 40]):
            bounds.append(match.end())
    pieces = (text[begin:end] for begin, end in pairwise([*bounds, len(text)]))
    return [one_line(piece) for piece in pieces if piece.strip()]


def _ends_sentence(before: str, after: str) -> bool:
    """Says whether a sentence ends between two texts, of which the first ends in a full stop or another mark."""
    if _LIST_MARK.fullmatch(before):  # 12. or (iv)
        return False
    last = before.split()[-1].rstrip(_SHUT).lstrip(_OPEN)
    if last.endswith(("?", "!")):
        return True
    word = last.removesuffix(".").lower()
    following = re.match(r"[\W_]*(\w*)", after)
    begins = following is not None and following[1].lower() in _BEGINNINGS and following[1][:1].isupper()
    if word in _ENDINGS or (re.fullmatch(r"(\w{1,3}\.)+\w{1,3}", word) and not word.replace(".", "").isdigit()):
        return begins and word not in _ABBREVIATIONS
    return word not in _ABBREVIATIONS and not re.fullmatch(r"[a-z]", word)


def _split_lines(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    starts, text = [], ""
    for _, line in lines:
        starts.append(len(text))
        text += f"{one_line(line)} "
    sentences, place = [], 0
    for sentence in split_sentences(text):
        place = text.index(sentence, place)
        sentences.append((lines[bisect_right(starts, place) - 1][0], sentence))
        place += len(sentence)
    return sentences


def final_marks(sentences: Sequence[str]) -> str:
    """Returns the marks that end sentences of a corpus: others were taken off when it was made."""
    last = Counter(sentence[-1:] for sentence in sentences)
    return "".join(mark for mark in MARKS if last[mark] > _RARE * len(sentences))


def as_in_corpus(sentence: str, marks: str) -> str:
    """Returns a sentence as a corpus has it whose sentences end in these marks alone."""
    return sentence.rstrip("".join({*MARKS, " "} - {*marks})) or sentence
