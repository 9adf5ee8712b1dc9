"""How a name stands in a text, and what an entity of that name has to do with the words and imports around it."""

from dataclasses import dataclass
from functools import cached_property

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
        self.is_method = corpus.entity_type == kinds.get("Method", -1)
        in_modules = [kinds[name] for name in ("Function", "Class") if name in kinds]
        functions = [kinds[name] for name in ("Function", "Method") if name in kinds]
        is_function = np.isin(corpus.entity_type, functions)
        self.is_local = (corpus.parent >= 0) & is_function[np.maximum(corpus.parent, 0)]  # defined within a function
        self.is_builtin = corpus.owner == corpus.word_index("builtins")
        # Outside of the tree: os.write, and no zipfile.ZipFile.read or builtins.list.append
        is_outside = (corpus.entity_type == kinds.get("API", -1)) & ~(self.is_builtin | self._is_of_class())
        self.in_module = np.isin(corpus.entity_type, in_modules) | is_outside

    def of(self, window: np.ndarray, name: np.ndarray, question: np.ndarray, entity: np.ndarray, rows: Rows) -> Stands:
        """(Q) windows and names, (N) the question and entity of each answer, rows of the texts -> their features."""
        corpus = self.corpus
        is_place = rows.word == name[:, None]
        dotted, after_self = is_place & (rows.owner >= 0), is_place & (rows.is_self == 1)
        is_dotted, is_bare = dotted.any(1), is_place.any(1) & ~dotted.any(1)
        owner = corpus.owner[entity]
        owner_before = (dotted[question] & (rows.owner[question] == owner[:, None])).any(1)
        head = corpus.head[window]
        own_class = after_self.any(1)[question] & (corpus.parent[entity] == corpus.parent[head][question])
        file = corpus.window_file[window]
        named = np.bincount(question, owner_before, len(window)) > 0
        of_object = is_dotted & ~after_self.any(1) & ~named
        imported = self._imported(file[question], entity)
        in_file = corpus.entity_file[entity] == file[question]
        within = self._is_within(head[question], corpus.parent[entity])
        answer = [
            is_dotted[question] & self.in_module[entity] & ~owner_before,
            owner_before,
            self._alike(np.where(dotted, rows.owner, -1), question, owner),
            own_class,
            imported,
            in_file,
            corpus.entity_file[entity] >= 0,
            is_bare[question] & ~(imported | in_file | self.is_builtin[entity]),
        ]
        many = np.log1p(np.bincount(question, minlength=len(window)))
        none = [np.ones(len(window)), of_object, after_self.any(1), is_bare, many]
        is_method, parent = self.is_method[entity], corpus.parent[entity]
        is_local = self.is_local[entity] & ~within
        hidden = is_bare[question] & ((is_method & (parent != head[question])) | is_local)
        of_super = is_dotted & (~dotted | (rows.is_super == 1)).all(1)
        hidden |= of_super[question] & is_method & (parent == corpus.parent[head][question])
        return Stands(np.stack(answer, 1).astype(float), np.stack(none, 1).astype(float), of_object, ~hidden)

    def _is_of_class(self) -> np.ndarray:
        """(E) whether the part before the last of an entity's id is the name of a class, as far as its case tells."""
        corpus = self.corpus
        is_class = np.array([word[:1].isupper() for word in corpus.word_list])
        of_builtin = (corpus.package == corpus.word_index("builtins")) & (np.diff(corpus.part_offsets) > 2)
        return of_builtin | ((corpus.owner >= 0) & is_class[corpus.owner])

    def _alike(self, before: np.ndarray, question: np.ndarray, owner: np.ndarray) -> np.ndarray:
        """(Q, L) words before the name, (N) owners -> (N) whether one is the owner's name in another spelling."""
        words = len(self.corpus.word_list)
        row, place = np.nonzero(before >= 0)
        pairs = np.unique(row * words + self.plain[before[row, place]])
        return (find(pairs, question * words + self.plain[owner]) >= 0) & (owner >= 0)

    @cached_property
    def plain(self) -> np.ndarray:
        """(words) a number for each word, the same for words that differ in case and underscores alone."""
        numbers: dict[str, int] = {}
        found = [numbers.setdefault(w.replace("_", "").lower() or w, len(numbers)) for w in self.corpus.word_list]
        return np.array(found)

    def _is_within(self, head: np.ndarray, outer: np.ndarray) -> np.ndarray:
        """(N) heads and entities -> (N) whether the head is that entity, or stands in it."""
        found, at = np.zeros(len(head), bool), head
        for _ in range(_FAR):
            found |= at == outer
            at = np.where(at >= 0, self.corpus.parent[np.maximum(at, 0)], -1)
        return found & (outer >= 0)

    def _imported(self, file: np.ndarray, entity: np.ndarray) -> np.ndarray:
        """(N) files and entities -> (N) whether the file imports the entity or something that it stands in."""
        found = np.zeros(len(entity), bool)
        entities, at = len(self.corpus.entity_type), entity
        for _ in range(_FAR):
            found |= (at >= 0) & (find(self.imports, file * entities + at) >= 0)
            at = np.where(at >= 0, self.corpus.parent[np.maximum(at, 0)], -1)
        return found

    @cached_property
    def imports(self) -> np.ndarray:
        """The pairs of a file and an entity that it imports, ascending, as numbers."""
        corpus = self.corpus
        if "imports" not in corpus.relations:
            return np.zeros(0, np.int64)
        triples = np.flatnonzero(corpus.relation == corpus.relations.index("imports"))
        file = corpus.window_file[corpus.window_of[triples]].astype(np.int64)
        return np.unique(file * len(corpus.entity_type) + corpus.tail[triples])
