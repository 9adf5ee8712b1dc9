"""Turns rows into columns: numbers scaled, texts as TF-IDF, words as marks of themselves and their neighbours.

Each view is made from training rows by `fit`, and again from its arrays, which are all that it knows.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from trainbook.supervised.simple.encoded import SEEN, VECTOR

_MOST_TERMS = {"words": 200_000, "characters": 60_000}  # of texts, the commonest
_MOST_MARKS = 2_000_000  # of words, the commonest
ENCODER = "encoder"  # the array with the encoder's vector of a task's example
_EDGE = "edge"  # the only mark beyond a text's ends
_OF_WORD = ("w=", "#")  # begin the marks that tell one word from all others
_OF_NEIGHBOUR = ("l=", "s2=", "s3=", "h=", "#", _EDGE)
_PREFIXES = 3
_SUFFIXES = 4
_MOST_SHAPE = 10  # letters
_BETWEEN = "\0"  # terms in an array


def joined(terms: Iterable[str]) -> np.ndarray:
    """Returns terms as an array of bytes, which `separated` takes."""
    text = _BETWEEN.join(terms)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def separated(array: np.ndarray) -> list[str]:
    """Returns the terms of `joined`. Raises ValueError for other bytes, and for a term that comes twice."""
    terms = array.tobytes().decode("utf-8", "surrogatepass").split(_BETWEEN)
    if len({*terms}) < len(terms):
        raise ValueError("terms has a text twice")
    return terms


class View:
    """How rows of one form become columns. `arrays` are learned from training rows."""

    form: ClassVar[str]  # of the rows
    needs: ClassVar[Mapping[str, Any]]  # the type of each array
    is_encoded: ClassVar[bool] = False  # whether rows are pairs of what is seen and a vector

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays

    @classmethod
    def fit(cls, rows: np.ndarray) -> "View":
        """Raises ValueError if no column is left."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        raise NotImplementedError

    def columns(self, rows: np.ndarray) -> Any:
        """Returns (rows, width), sparse of texts and words."""
        raise NotImplementedError

    def fits(self, rows: np.ndarray) -> bool:
        """Returns whether rows of the form have what columns are made of."""
        return True

    def check(self) -> None:
        """Raises ValueError for arrays that do not fit each other."""


class Numbers(View):
    """Numbers with mean 0 and deviation 1; unknown ones are 0."""

    form = "numbers"
    needs: ClassVar = {"middle": np.float32, "spread": np.float32}

    @classmethod
    def fit(cls, rows: np.ndarray) -> View:
        middle = np.nan_to_num(np.nanmean(rows, 0, dtype=np.float64))
        spread = np.nan_to_num(np.nanstd(rows, 0, dtype=np.float64))
        spread[spread < 1e-9] = 1
        return cls({"middle": middle.astype(np.float32), "spread": spread.astype(np.float32)})

    @property
    def width(self) -> int:
        return len(self.arrays["middle"])

    def fits(self, rows: np.ndarray) -> bool:
        return rows.shape[1] == self.width

    def columns(self, rows: np.ndarray) -> np.ndarray:
        scaled = (rows - self.arrays["middle"]) / self.arrays["spread"]
        return np.nan_to_num(scaled).astype(np.float32)

    def check(self) -> None:
        middle, spread = self.arrays["middle"], self.arrays["spread"]
        if middle.ndim != 1 or middle.shape != spread.shape or not len(middle):
            raise ValueError(
                f"middle {middle.shape} and spread {spread.shape} do not fit each other"
            )
        if (spread <= 0).any():
            raise ValueError("spread has a number that is not above 0")


class Pooled(Numbers):
    form = "pooled pixels"


class Surroundings(Numbers):
    form = "surroundings"


class Texts(View):
    """TF-IDF of words, one and two in a row, with logarithms of their counts; characters in words, 2 to 5 in a row."""

    form = "texts"
    parts: ClassVar[Sequence[str]] = ("words",)
    most_often: ClassVar[float] = 1.0  # the share of rows above which a term is left out

    @classmethod
    def fit(cls, rows: np.ndarray) -> View:
        arrays = {}
        for part in cls.parts:
            most = _MOST_TERMS[part]
            vectors = _vectors(part, max_features=most, max_df=cls.most_often).fit(rows)
            arrays[part] = joined(vectors.get_feature_names_out())
            arrays[f"{part} weighed"] = vectors.idf_.astype(np.float32)
        return cls(arrays)

    @property
    def width(self) -> int:
        return sum(len(self.arrays[f"{part} weighed"]) for part in self.parts)

    @cached_property
    def _parts(self) -> list[Any]:
        made = []
        for part in self.parts:
            vectors = _vectors(part, vocabulary=separated(self.arrays[part]))
            vectors.idf_ = self.arrays[f"{part} weighed"].astype(np.float64)
            made.append(vectors)
        return made

    def columns(self, rows: np.ndarray) -> Any:
        return sparse.hstack([vectors.transform(rows) for vectors in self._parts], "csr")

    def check(self) -> None:
        for part in self.parts:
            terms = len(separated(self.arrays[part]))
            weighed = self.arrays[f"{part} weighed"]
            if weighed.shape != (terms,):
                raise ValueError(f"{terms:,} terms do not fit weights of shape {weighed.shape}")


class Words(Texts):
    needs: ClassVar = {"words": np.uint8, "words weighed": np.float32}


class Characters(Texts):
    parts = ("words", "characters")
    needs: ClassVar = {
        **Words.needs,
        "characters": np.uint8,
        "characters weighed": np.float32,
    }


class Ids(Words):
    """Tokens by number, as texts. A token that fills most texts is not a word."""

    form = "ids"
    most_often = 0.9


class Neighbours(View):
    """A mark, 0 or 1, for each property of a word, and for some of each neighbour's."""

    form = "neighbours"
    needs: ClassVar = {"terms": np.uint8, "around": np.uint8}  # how many neighbours count
    is_alone: ClassVar[bool] = False

    @classmethod
    def fit(cls, rows: np.ndarray) -> View:
        around = 0 if cls.is_alone else rows.shape[1] - 1
        counts = Counter[str]()
        for word, number in Counter(rows[:, 0].tolist()).items():
            counts.update(dict.fromkeys(cls.kept(marks(word)), number))
        common = [term for term, _ in counts.most_common(_MOST_MARKS) if _BETWEEN not in term]
        terms = joined(sorted({*common, _EDGE}))
        return cls({"terms": terms, "around": np.array([around], np.uint8)})

    @classmethod
    def kept(cls, terms: Sequence[str]) -> Sequence[str]:
        return terms

    @cached_property
    def _vectors(self) -> Any:
        # a second that a process without it does not need
        from sklearn.feature_extraction.text import CountVectorizer

        terms = separated(self.arrays["terms"])
        return CountVectorizer(analyzer=marks, binary=True, vocabulary=terms, dtype=np.float64)

    @cached_property
    def _near(self) -> np.ndarray:
        """The places of terms that are seen of neighbours."""
        terms = enumerate(separated(self.arrays["terms"]))
        return np.array([place for place, term in terms if term.startswith(_OF_NEIGHBOUR)])

    @property
    def width(self) -> int:
        return len(self._vectors.vocabulary) + self._around * len(self._near)

    @property
    def _around(self) -> int:
        return int(self.arrays["around"][0])

    def fits(self, rows: np.ndarray) -> bool:
        return rows.shape[1] > self._around

    def columns(self, rows: np.ndarray) -> Any:
        numbers = dict[Any, int]()
        every = [numbers.setdefault(word, len(numbers)) for word in rows.ravel().tolist()]
        places = np.array(every, np.int64).reshape(rows.shape)
        own = self._vectors.transform(numbers)  # a row for each different word
        near = own[:, self._near]
        blocks = [own[places[:, 0]]]
        blocks += [near[places[:, side]] for side in range(1, 1 + self._around)]
        return sparse.hstack(blocks, "csr")

    def check(self) -> None:
        if _EDGE not in separated(self.arrays["terms"]):
            raise ValueError("terms lacks what is beyond the ends of a text")
        if self.arrays["around"].shape != (1,):
            raise ValueError("around is no single number")


class Alone(Neighbours):
    """A mark for each different word."""

    is_alone = True

    @classmethod
    def kept(cls, terms: Sequence[str]) -> Sequence[str]:
        return [term for term in terms if term.startswith(_OF_WORD)]


class Encoded(Numbers):
    """The encoder's vectors alone, as numbers."""

    form = "pooled pixels"
    needs: ClassVar = {**Numbers.needs, ENCODER: np.float32}
    is_encoded = True

    @classmethod
    def fit(cls, rows: np.ndarray) -> View:
        return super().fit(rows[VECTOR])

    def fits(self, rows: np.ndarray) -> bool:
        return super().fits(rows[VECTOR])

    def columns(self, rows: np.ndarray) -> np.ndarray:
        return super().columns(rows[VECTOR])


class Beside(View):
    """The encoder's vectors, each of the same length, beside the columns of another view."""

    is_encoded = True
    length: ClassVar[float] = 0.5

    @classmethod
    def fit(cls, rows: np.ndarray) -> View:
        return super().fit(rows[SEEN])

    @property
    def width(self) -> int:
        return super().width + len(self.arrays[ENCODER])

    def fits(self, rows: np.ndarray) -> bool:
        has_width = rows[VECTOR].shape[1] == len(self.arrays[ENCODER])
        return has_width and super().fits(rows[SEEN])

    def columns(self, rows: np.ndarray) -> Any:
        vectors = rows[VECTOR]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled = vectors * (self.length / np.maximum(lengths, 1e-9))
        return sparse.hstack([super().columns(rows[SEEN]), sparse.csr_array(scaled)], "csr")

    def check(self) -> None:
        super().check()
        if self.arrays[ENCODER].ndim != 1:
            raise ValueError("encoder is no single vector")


class EncodedWords(Beside, Words):
    needs: ClassVar = {**Words.needs, ENCODER: np.float32}


class EncodedNeighbours(Beside, Neighbours):
    needs: ClassVar = {**Neighbours.needs, ENCODER: np.float32}


VIEWS: Mapping[str, type[View]] = {
    "numbers": Numbers,
    "pooled pixels": Pooled,
    "surroundings": Surroundings,
    "words": Words,
    "words and characters": Characters,
    "ids": Ids,
    "neighbours": Neighbours,
    "word": Alone,
    "encoder": Encoded,
    "words and encoder": EncodedWords,
    "neighbours and encoder": EncodedNeighbours,
}


def marks(word: Any) -> list[str]:
    """Returns the properties of a word, which may be a number; None is beyond the ends of a text."""
    if word is None:
        return [_EDGE]
    if not isinstance(word, str):
        return [f"#{word}"]
    low = word.lower()
    ends = range(1, 1 + min(_SUFFIXES, len(low)))
    begins = range(1, 1 + min(_PREFIXES, len(low)))
    return [
        f"w={word}",
        f"l={low}",
        *(f"s{size}={low[-size:]}" for size in ends),
        *(f"p{size}={low[:size]}" for size in begins),
        f"h={shape_of(word)}",
    ]


def shape_of(word: str) -> str:
    """Returns capitals as X, small letters as x, digits as d, other letters as y; a run counts twice at most."""
    shape = re.sub(r"[A-Z]", "X", word)
    shape = re.sub(r"[a-z]", "x", shape)
    shape = re.sub(r"\d", "d", shape)
    shape = re.sub(r"[^Xxd\W_]", "y", shape)
    return re.sub(r"(.)\1{2,}", r"\1\1", shape)[:_MOST_SHAPE]


def _vectors(part: str, **options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    if part == "characters":
        options = {"analyzer": "char_wb", "ngram_range": (2, 5), **options}
    else:
        options = {"token_pattern": r"\w+|[^\w\s]+", "ngram_range": (1, 2), **options}
    return TfidfVectorizer(sublinear_tf=True, **options)
