"""What needs no training, beside the tuned model: the nearest training answers, with the values of the question."""

import difflib
from collections.abc import Sequence

import numpy as np

from workloads.chat.rows import Row

_TRIED = 8  # nearest rows of which the one that fits best is taken


class Neighbours:
    """The training rows whose questions are nearest, by TF-IDF over words and pairs of words."""

    def __init__(self, rows: Sequence[Row]):
        from sklearn.feature_extraction.text import TfidfVectorizer
        self.rows = [row for row in rows if row.answer]
        self.vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"[^\s]+")
        self.matrix = self.vectors.fit_transform(row.question for row in self.rows)

    def nearest(self, row: Row, count: int) -> list[Row]:
        near = (self.matrix @ self.vectors.transform([row.question]).T).toarray()[:, 0]
        return [self.rows[place] for place in np.argsort(-near, kind="stable")[:count]]

    def prompted(self, row: Row, count: int) -> Row:
        """Returns a row after its nearest examples as earlier turns, the nearest last."""
        head, rest = ([turn for turn in row.turns if (turn[0] == "system") == is_head] for is_head in (True, False))
        for near in self.nearest(row, count):
            rest = [("user", near.question), ("assistant", near.answer), *rest]
        return Row((*head, *rest), row.answer)

    def replaced(self, row: Row) -> str:
        """Returns a near answer whose words that differ between the questions are those of this one. Of the nearest it
        is the one whose differing words all stand in its answer, and that shares most words."""
        best, score, words = "", (-np.inf, 0), row.question.split()
        for near in self.nearest(row, _TRIED):
            other, answer, lost, shared = near.question.split(), near.answer, 0, 0
            for kind, *places in difflib.SequenceMatcher(None, other, words, autojunk=False).get_opcodes():
                if kind == "equal":
                    shared += places[1] - places[0]
                    continue
                ranges = other[places[0] : places[1]], words[places[2] : places[3]]
                old, new = (" ".join(some).strip(",.:;?!") for some in ranges)
                if old and old in answer:
                    answer = answer.replace(old, new, 1)
                else:
                    lost += sum(map(len, ranges))
            if (-lost, shared) > score:
                best, score = answer, (-lost, shared)
        return best
