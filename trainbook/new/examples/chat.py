"""Answers in conversations, by adapters on a chat model: JSON Lines with messages, or prompt and answer, in each."""

import re

from workloads.chat import Chat, exact, stopped


def right_words(right, written):
    """The share of the right answer's words that the model wrote: a score of your own, of two texts."""
    words = set(re.findall(r"\w+", right.lower()))
    found = words.intersection(re.findall(r"\w+", written.lower()))
    return len(found) / max(1, len(words))


class Answers(Chat):
    metrics = (exact, right_words, stopped)
    selection = ("exact", "max")  # the best weights are kept by it
