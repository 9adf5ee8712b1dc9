"""Answers without a look at the picture: what a network that sees it has to beat."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from lib.tasks.vqa.records.record import Record
from lib.tasks.vqa.scoring import normal, words

MAJORITY, BY_TYPE, BY_QUESTION, BY_WORDS = "commonest answer", "by question type", "by question", "by words"
_SLOT = "_"  # in a question, for words that answers are made of
_MOST_ANSWERS = 1000  # that the words choose from
_REGULARIZATION = 10.0  # C of the logistic regression


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
        self._model = _Words(train)
        self.rules: dict[str, Callable[[Record], str]] = {
            MAJORITY: lambda one: self._majority,
            BY_TYPE: self._of_type,
            BY_QUESTION: lambda one: self._by_question.get(normal(one.question)) or self._of_type(one),
            BY_WORDS: lambda one: self._spelled(self._model.answer(one.question)),
        }

    def type_of(self, record: Record) -> str:
        """Returns the question's type: its own, else its wording without words that answers are made of."""
        if record.kind:
            return record.kind
        text = " ".join(_SLOT if word in self._answer_words else word for word in words(record.question))
        return re.sub(rf"{_SLOT}( {_SLOT})+", _SLOT, text)

    def answers(self, records: Sequence[Record]) -> dict[str, list[str]]:
        """Returns the answers of each rule."""
        return {name: [rule(one) for one in records] for name, rule in self.rules.items()}

    def answer(self, record: Record, name: str = BY_TYPE) -> str:
        return self.rules[name](record)

    def _of_type(self, record: Record) -> str:
        return self._by_type.get(self.type_of(record), self._majority)

    def _spelled(self, answer: str) -> str:
        own = self._spelling[answer]
        return min(own, key=lambda text: (-own[text], text))

    def _commonest(self, train: Sequence[Record], key: Callable[[Record], Hashable]) -> dict[Hashable, str]:
        counts: dict[Hashable, Counter[str]] = defaultdict(Counter)
        for one in train:
            counts[key(one)][normal(one.answer)] += 1
        # Of equally many the first by the alphabet, so that the order of records changes nothing
        return {name: self._spelled(min(own, key=lambda text: (-own[text], text))) for name, own in counts.items()}


class _Words:
    """A logistic regression from the words of a question, one to three in a row, to the answer."""

    def __init__(self, train: Sequence[Record]):
        pairs = Counter((normal(one.question), normal(one.answer)) for one in train)
        total: Counter[str] = Counter()
        for (_, answer), count in pairs.items():
            total[answer] += count
        kept = {answer for answer, _ in total.most_common(_MOST_ANSWERS)}
        self._pairs = [
            (question, answer, count) for (question, answer), count in sorted(pairs.items()) if answer in kept
        ]
        self._fitted: Any = None
        self._known: dict[str, str] = {}

    def answer(self, question: str) -> str:
        question = normal(question)
        if question not in self._known:
            self._known[question] = self._answer(question)
        return self._known[question]

    def _answer(self, question: str) -> str:
        if len({answer for _, answer, _ in self._pairs}) == 1:
            return self._pairs[0][1]
        if self._fitted is None:
            self._fitted = self._fit()
        vectors, model = self._fitted
        return str(model.predict(vectors.transform([question]))[0])

    def _fit(self) -> tuple[Any, Any]:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        questions, answers, counts = zip(*self._pairs, strict=True)
        vectors = TfidfVectorizer(ngram_range=(1, 3), tokenizer=words, token_pattern=None, lowercase=False)
        model = LogisticRegression(C=_REGULARIZATION, max_iter=300)
        return vectors, model.fit(vectors.fit_transform(questions), answers, sample_weight=counts)
