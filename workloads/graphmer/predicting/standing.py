"""How a name stands in a text, and what an entity of that name has to do with the words and imports around it."""

from dataclasses import dataclass

import numpy as np

from workloads.graphmer.corpus import Corpus
from workloads.graphmer.ragged import find
from workloads.graphmer.rows import Rows

_FAR = 6  # levels of what stands in what that are looked through


@dataclass(frozen=True)
class Stands:
    """Features of (N) answers and of none (Q), and (Q) which references are of an object that no answer belongs to.

    The features are those of settings.OF_REFERENCES from "dotted function" on. `visible` (N) is False where a bare name
    cannot mean an answer (a method, or what another function defines within itself), and after `super().` one of the
    own class.
    """

    answer: np.ndarray
    none: np.ndarray
    of_object: np.ndarray
    visible: np.ndarray


class Standing:
    """Describes references by their text: bare, after `self.`, after the name of an owner, or after an object's."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        kinds = {name: number for number, name in enumerate(corpus.types)}

        def is_kind(*names: str) -> np.ndarray:
            return np.isin(corpus.entity_type, [kinds[name] for name in names if name in kinds])

        self.is_method = is_kind("Method")
        self.is_local = (corpus.parent >= 0) & is_kind("Function", "Method")[np.maximum(corpus.parent, 0)]
        self.is_builtin = corpus.owner == corpus.word_index("builtins")
        # Outside of the tree: os.write, and no zipfile.ZipFile.read or builtins.list.append; a class as its case tells
        is_class = np.array([word[:1].isupper() for word in corpus.word_list])
        of_class = (corpus.package == corpus.word_index("builtins")) & (np.diff(corpus.part_offsets) > 2)
        of_class |= (corpus.owner >= 0) & is_class[corpus.owner]
        self.in_module = is_kind("Function", "Class") | (is_kind("API") & ~(self.is_builtin | of_class))
        # A number for each word, the same for words that differ in case and underscores alone
        plain: dict[str, int] = {}
        self.plain = np.array([plain.setdefault(w.replace("_", "").lower() or w, len(plain)) for w in corpus.word_list])
        # The pairs of a file and an entity that it imports, ascending, as numbers
        number = corpus.relations.index("imports") if "imports" in corpus.relations else -1
        triples = np.flatnonzero(corpus.relation == number)
        file = corpus.window_file[corpus.window_of[triples]].astype(np.int64)
        self.imports = np.unique(file * len(corpus.entity_type) + corpus.tail[triples])

    def of(self, window: np.ndarray, name: np.ndarray, question: np.ndarray, entity: np.ndarray, rows: Rows) -> Stands:
        """(Q) windows and names, (N) the question and entity of each answer, rows of the texts -> their features."""
        corpus = self.corpus
        is_place = rows.word == name[:, None]
        dotted, after_self = is_place & (rows.owner >= 0), (is_place & (rows.is_self == 1)).any(1)
        is_dotted, is_bare = dotted.any(1), is_place.any(1) & ~dotted.any(1)
        owner, parent, is_method = corpus.owner[entity], corpus.parent[entity], self.is_method[entity]
        owner_before = (dotted[question] & (rows.owner[question] == owner[:, None])).any(1)
        head, file = corpus.head[window], corpus.window_file[window][question]
        of_object = is_dotted & ~after_self & ~(np.bincount(question, owner_before, len(window)) > 0)
        in_file = corpus.entity_file[entity] == file
        is_inner, imported = np.zeros(len(entity), bool), np.zeros(len(entity), bool)
        outer, at, code = head[question], entity, file.astype(np.int64) * len(corpus.entity_type)
        for _ in range(_FAR):
            is_inner |= (outer == parent) & (parent >= 0)  # the head is what the entity stands in, or is within it
            imported |= (at >= 0) & (find(self.imports, code + at) >= 0)  # the entity, or what it stands in
            outer, at = (np.where(e >= 0, corpus.parent[np.maximum(e, 0)], -1) for e in (outer, at))
        # The owner's name in another spelling before the name
        row, place = np.nonzero(dotted)
        words = len(corpus.word_list)
        spelled = np.unique(row * words + self.plain[rows.owner[row, place]])
        answer = [
            is_dotted[question] & self.in_module[entity] & ~owner_before,
            owner_before,
            (find(spelled, question * words + self.plain[owner]) >= 0) & (owner >= 0),
            after_self[question] & (parent == corpus.parent[head][question]),
            imported,
            in_file,
            corpus.entity_file[entity] >= 0,
            is_bare[question] & ~(imported | in_file | self.is_builtin[entity]),
        ]
        many = np.log1p(np.bincount(question, minlength=len(window)))
        none = [np.ones(len(window)), of_object, after_self, is_bare, many]
        is_local = self.is_local[entity] & ~is_inner
        hidden = is_bare[question] & ((is_method & (parent != head[question])) | is_local)
        of_super = is_dotted & (~dotted | (rows.is_super == 1)).all(1)
        hidden |= of_super[question] & is_method & (parent == corpus.parent[head][question])
        return Stands(np.stack(answer, 1).astype(float), np.stack(none, 1).astype(float), of_object, ~hidden)
