"""How near an answer is to the right one: equal, or by the words that both have. Accents always count."""

import unicodedata
from collections import Counter


def normal(text: str) -> str:
    """Returns a text as it is compared: NFC, small letters, single spaces, without punctuation around it."""
    text = " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).lower()).split())
    begin, end, is_outer = 0, len(text), [unicodedata.category(letter)[0] in "PZC" for letter in text]
    while begin < end and is_outer[begin] and not text[begin + 1 : begin + 2].isdecimal():  # the sign of -5
        begin += 1
    while end > begin and is_outer[end - 1]:
        end -= 1
    return text[begin:end] or text


def words(text: str) -> list[str]:
    """Returns the words of a text in order, with their accents: neither punctuation nor signs are any."""
    return "".join(one if one.isalnum() or unicodedata.category(one)[0] == "M" else " " for one in normal(text)).split()


def exact(answer: str, right: str) -> float:
    return float(normal(answer) == normal(right))


def token_f1(answer: str, right: str) -> float:
    """Returns the harmonic mean of precision and recall of words, as SQuAD has it, without leaving any word out."""
    given, wanted = words(answer), words(right)
    return _f1(sum((Counter(given) & Counter(wanted)).values()), given, wanted, answer, right)


def rouge_l(answer: str, right: str) -> float:
    """Returns the harmonic mean over the longest common subsequence of words (Lin, 2004, with beta 1)."""
    given, wanted = words(answer), words(right)
    row = [0] * (len(wanted) + 1)
    for word in given:
        above, row = row, [0]
        for place, other in enumerate(wanted):
            row.append(above[place] + 1 if word == other else max(above[place + 1], row[place]))
    return _f1(row[-1], given, wanted, answer, right)


def _f1(common: int, given: list[str], wanted: list[str], answer: str, right: str) -> float:
    if not given or not wanted:  # signs alone, "-" or "+"
        return exact(answer, right)
    return 2 * common / (len(given) + len(wanted))
