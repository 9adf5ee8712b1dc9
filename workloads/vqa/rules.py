"""Answers without a look at the picture: what a network that sees it has to beat."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

from lib.report.progress import working
from workloads.vqa.records import Record
from workloads.vqa.scoring import normal, words

MAJORITY, BY_TYPE, BY_QUESTION, BY_WORDS = "commonest answer", "by question type", "by question", "by words"
_SLOT = "_"  # in a question, for words that answers are made of
_MOST_ANSWERS, _MOST_PAIRS = 200, 20_000  # commonest answers and questions with one, of which the words learn
_MANY = 2000  # pairs, of which words that stand in one alone are left out


class Rules:
    """Rules that answer by the question alone, learned of training records; by their names."""

    def __init__(self, train: Sequence[Record]):
        self._answer_words = {word for one in train for word in words(one.answer)}
        self._spelling: dict[str, Counter[str]] = defaultdict(Counter)
        for one in train:
            self._spelling[normal(one.answer)][one.answer] += 1
        self._by_type = self._commonest(train, self.type_of)
        self._by_question = self._commonest(train, lambda one: normal(one.question))
        self._majority = self._commonest(train, lambda one: "")[""]
        # Of what the words learn: the commonest answers, and questions with one of them
        pairs = Counter((normal(one.question), normal(one.answer)) for one in train)
        total = Counter(normal(one.answer) for one in train)
        common = set(sorted(total, key=lambda answer: (-total[answer], answer))[:_MOST_ANSWERS])
        counted = [(*pair, count) for pair, count in pairs.items() if pair[1] in common]
        self._pairs = sorted(counted, key=lambda one: (-one[2], one))[:_MOST_PAIRS]

    def type_of(self, record: Record) -> str:
        """Returns the question's type: its own, else its wording without words that answers are made of."""
        if record.kind:
            return record.kind
        text = " ".join(_SLOT if word in self._answer_words else word for word in words(record.question))
        return re.sub(rf"{_SLOT}( {_SLOT})+", _SLOT, text)

    def answers(self, records: Sequence[Record]) -> dict[str, list[str]]:
        """Returns the answers of each rule, by its name."""
        questions = [normal(one.question) for one in records]
        of_type = [self._by_type.get(self.type_of(one), self._majority) for one in records]
        by_words = [self._pairs[0][1]] * len(records)
        if len({answer for _, answer, _ in self._pairs}) > 1:
            vectors, model = self._words
            by_words = list(map(str, model.predict(vectors.transform(questions))))
        by_question = [self._by_question.get(text, other) for text, other in zip(questions, of_type, strict=True)]
        spelled, majority = list(map(self._spelled, by_words)), [self._majority] * len(records)
        return {MAJORITY: majority, BY_TYPE: of_type, BY_QUESTION: by_question, BY_WORDS: spelled}

    @cached_property
    def _words(self) -> tuple[Any, Any]:
        """A linear classifier of answers by the words of a question, one to three in a row."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import RidgeClassifier

        questions, answers, counts = zip(*self._pairs, strict=True)
        least = 2 if len(questions) > _MANY else 1
        vectors = TfidfVectorizer(
            ngram_range=(1, 3), tokenizer=words, token_pattern=None, lowercase=False, min_df=least
        )  # fmt: skip
        # 6 s for 12,000 questions with 200 answers, for which a logistic regression takes 45
        model = RidgeClassifier(solver="sparse_cg", tol=1e-3)
        with working("Learning what questions alone answer"):
            return vectors, model.fit(vectors.fit_transform(questions), answers, sample_weight=counts)

    def _spelled(self, answer: str) -> str:
        own = self._spelling[answer]
        return min(own, key=lambda text: (-own[text], text))

    def _commonest(self, train: Sequence[Record], key: Callable[[Record], Hashable]) -> dict[Hashable, str]:
        counts: dict[Hashable, Counter[str]] = defaultdict(Counter)
        for one in train:
            counts[key(one)][normal(one.answer)] += 1
        # Of equally many the first by the alphabet, so that the order of records changes nothing
        return {name: self._spelled(min(own, key=lambda text: (-own[text], text))) for name, own in counts.items()}
