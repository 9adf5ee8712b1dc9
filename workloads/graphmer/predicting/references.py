"""Which entity of a name a reference means: questions, the answers that compete, and the features of both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.counts.answering import Answering
from workloads.graphmer.counts.ragged import Groups, find, offsets
from workloads.graphmer.counts.rows import Rows
from workloads.graphmer.data import Data
from workloads.graphmer.settings import OF_REFERENCES, Array

UNRESOLVED = "Name"  # the type of what stands for a reference that is not resolved
_TOGETHER = ("calls", "instantiates")  # an unresolved call does not know whether it is that of a class
_AT_ONCE = 128  # questions that are read together
_MOST_SCORES = 2**20  # of questions and candidates at once: thousands are called `__init__`
SURE = 0.9
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
_OF_ANSWERS = ("question", "features", "entity", "relation")
_FAR = 6  # levels of what stands in what that are looked through


@dataclass(frozen=True)
class Choices:
    """Q questions with N answers in all, and beside them the answer that none of these is right.

    `question` (N) is ascending, `features` (N, F) are those of answers and `of_none` (Q, F) those of none. `gold` (Q)
    is the place of the right answer among the N, -1 where none is right. `entity` and `relation` (N) are those of each
    answer, `reference` (Q) is the number of what is asked, and `of_object` (Q) says which are attributes of something
    that the text does not name.
    """

    question: Array
    features: Array
    of_none: Array
    gold: Array
    entity: Array
    relation: Array
    reference: Array
    of_object: Array

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def begin(self) -> Array:
        """(Q + 1) where the answers of each question begin."""
        return offsets(self.question, len(self))

    def __getitem__(self, chosen: Array) -> "Choices":
        """Returns the questions for which `chosen` (Q) is True."""
        answers = chosen[self.question]
        parts = {name: value[answers if name in _OF_ANSWERS else chosen] for name, value in vars(self).items()}
        number, place = np.cumsum(chosen) - 1, np.cumsum(answers) - 1
        gold = np.where(self.gold >= 0, place[self.gold], -1)[chosen]
        return Choices(**{**parts, "question": number[parts["question"]], "gold": gold})

    @classmethod
    def joined(cls, parts: Sequence["Choices"]) -> "Choices":
        answers = np.cumsum([0, *(len(part.question) for part in parts)])
        questions = np.cumsum([0, *(len(part) for part in parts)])
        together = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
        question = [part.question + first for part, first in zip(parts, questions, strict=False)]
        gold = [np.where(p.gold >= 0, p.gold + first, -1) for p, first in zip(parts, answers, strict=False)]
        return cls(**{**together, "question": np.concatenate(question), "gold": np.concatenate(gold)})

    def probabilities(self, weights: Array) -> tuple[Array, Array]:
        """(F) weights -> (N) the probability of each answer, (Q) that none is right."""
        scores, none = self.features @ weights, self.of_none @ weights
        most = none.copy()
        np.maximum.at(most, self.question, scores)
        part, rest = np.exp(scores - most[self.question]), np.exp(none - most)
        total = rest + np.bincount(self.question, part, len(self))
        return part / total[self.question], rest / total

    def loss(self, weights: Array) -> float:
        """Returns the mean of minus log of the probability of what is right."""
        of_answer, of_none = self.probabilities(weights)
        right = np.where(self.gold >= 0, of_answer[self.gold], of_none)
        return float(-np.log(np.maximum(right, 1e-12)).mean()) if len(self) else 0.0

    def first(self, weights: Array) -> Array:
        """Returns (Q) the place of the most probable answer of each question, -1 where it has none."""
        order, begin = np.lexsort((-(self.features @ weights), self.question)), self.begin
        has, first = np.diff(begin) > 0, np.full(len(self), -1)
        first[has] = order[begin[:-1][has]]
        return first

    def best(self, weights: Array) -> tuple[Array, Array]:
        """Returns (Q) the most probable answer of each question, -1: that none is right, and its probability."""
        of_answer, of_none = self.probabilities(weights)
        first, most = self.first(weights), np.full(len(self), -1.0)
        most[first >= 0] = of_answer[first[first >= 0]]
        return np.where(most > of_none, first, -1), np.maximum(most, of_none)

    def judged(self, weights: Array) -> dict[str, float]:
        """Returns shares of right answers: of all, of several possible ones, of the sure; calibration error."""
        place, probability = self.best(weights)
        right = np.where(self.gold >= 0, place == self.gold, place < 0)
        is_first = (self.first(weights) == self.gold)[(self.gold >= 0) & (np.diff(self.begin) > 1)]
        sure = probability >= SURE
        return {
            "number": len(self), "right": float(right.mean()),
            "resolved": float(is_first.mean()) if len(is_first) else float("nan"), "sure": float(sure.mean()),
            "right of the sure": float(right[sure].mean()) if sure.any() else float("nan"),
            "calibration error": calibration_error(probability, right),
        }  # fmt: skip


def calibration_error(probability: Array, right: Array) -> float:
    """(N) probabilities and whether each answer is right -> the mean gap of predicted and observed shares, by BINS.

    Naeini et al., Obtaining Well Calibrated Probabilities Using Bayesian Binning, AAAI 2015.
    """
    place = np.clip(np.searchsorted(BINS, probability, "right") - 1, 0, len(BINS) - 2)
    gaps = np.bincount(place, probability) - np.bincount(place, right)
    return float(np.abs(gaps).sum() / max(1, len(right)))


class Standing:
    """Describes Q references with N answers by their text: bare, after `self.`, after an owner's name, or an object's.

    The features are those of settings.OF_REFERENCES from "dotted function" on. A reference is of an object if that
    belongs to no answer. Invisible are answers that a bare name cannot mean (a method, or what another function defines
    within itself), and those of the own class after `super().`, unless `self.` has them too.
    """

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        kind = np.array(corpus.types)[corpus.entity_type]
        self.is_method = kind == "Method"
        is_function = np.isin(kind, ("Function", "Method"))
        self.is_local = (corpus.parent >= 0) & is_function[np.maximum(corpus.parent, 0)]
        self.is_builtin = corpus.owner == corpus.word_index("builtins")
        # Outside of the tree: os.write, and no zipfile.ZipFile.read or builtins.list.append; a class as its case tells
        is_class = np.array([word[:1].isupper() for word in corpus.word_list])
        of_class = (corpus.package == corpus.word_index("builtins")) & (np.diff(corpus.part_offsets) > 2)
        of_class |= (corpus.owner >= 0) & is_class[corpus.owner]
        self.in_module = np.isin(kind, ("Function", "Class")) | ((kind == "API") & ~(self.is_builtin | of_class))
        # A number for each word, the same for words that differ in case and underscores alone
        plain: dict[str, int] = {}
        self.plain = np.array([plain.setdefault(w.replace("_", "").lower() or w, len(plain)) for w in corpus.word_list])
        # The pairs of a file and an entity that it imports, ascending, as numbers
        triples = np.flatnonzero(np.array(corpus.relations)[corpus.relation] == "imports")
        file = corpus.window_file[corpus.window_of[triples]].astype(np.int64)
        self.imports = np.unique(file * len(corpus.entity_type) + corpus.tail[triples])

    def of(
        self, window: Array, name: Array, question: Array, entity: Array, rows: Rows
    ) -> tuple[Array, Array, Array, Array]:
        """Returns the features of answers (N, 8) and of none (Q, 5), (Q) what is of an object, (N) what is visible."""
        corpus, is_place = self.corpus, rows.word == name[:, None]
        dotted, after_self = is_place & (rows.owner >= 0), (is_place & (rows.is_self == 1)).any(1)
        is_dotted, is_bare = dotted.any(1), is_place.any(1) & ~dotted.any(1)
        owner, parent, is_method = corpus.owner[entity], corpus.parent[entity], self.is_method[entity]
        owner_before = (dotted[question] & (rows.owner[question] == owner[:, None])).any(1)
        head, file = corpus.head[window], corpus.window_file[window][question]
        of_object = is_dotted & ~after_self & ~(np.bincount(question, owner_before, len(window)) > 0)
        in_file, is_own = corpus.entity_file[entity] == file, parent == corpus.parent[head][question]
        is_inner, imported = np.zeros(len(entity), bool), np.zeros(len(entity), bool)
        outer, at, code = head[question], entity, file.astype(np.int64) * len(corpus.entity_type)
        for _ in range(_FAR):
            is_inner |= (outer == parent) & (parent >= 0)  # the head is what the entity stands in, or is within it
            imported |= (at >= 0) & (find(self.imports, code + at) >= 0)  # the entity, or what it stands in
            outer, at = (np.where(e >= 0, corpus.parent[np.maximum(e, 0)], -1) for e in (outer, at))
        # The owner's name in another spelling before the name
        (row, place), words = np.nonzero(dotted), len(corpus.word_list)
        spelled = np.unique(row * words + self.plain[rows.owner[row, place]])
        answer = [
            is_dotted[question] & self.in_module[entity] & ~owner_before, owner_before,
            (find(spelled, question * words + self.plain[owner]) >= 0) & (owner >= 0), after_self[question] & is_own,
            imported, in_file, corpus.entity_file[entity] >= 0,
            is_bare[question] & ~(imported | in_file | self.is_builtin[entity]),
        ]  # fmt: skip
        many = np.log1p(np.bincount(question, minlength=len(window)))
        none = [np.ones(len(window)), of_object, after_self, is_bare, many]
        is_method_of_another = is_method & (parent != head[question])
        hidden = is_bare[question] & (is_method_of_another | (self.is_local[entity] & ~is_inner))
        is_super = dotted & (rows.is_super == 1)
        of_super = is_super.any(1) & ~(dotted & ~is_super & (rows.is_self == 1)).any(1)
        hidden |= of_super[question] & is_method & is_own
        return np.stack(answer, 1).astype(float), np.stack(none, 1).astype(float), of_object, ~hidden


class Asking:
    """Makes choices of references by what the counts and a model say of the entities of their names.

    `leave_out` leaves each reference's own file out of the counts. A known tail that no other fact of the graph names,
    that no file defines and that is not Python's own would not be known without its fact: it is no answer, so that none
    is right.
    """

    def __init__(self, data: Data, leave_out: bool = False):
        self.data, self.leave_out = data, leave_out
        self.corpus = corpus = data.corpus
        self.unresolved_kind = corpus.types.index(UNRESOLVED) if UNRESOLVED in corpus.types else -1
        self.possible = np.flatnonzero(corpus.entity_type != self.unresolved_kind)
        self.by_name = Groups(corpus.name[self.possible])
        mentions = np.bincount(corpus.tail, minlength=len(corpus.entity_type))
        is_builtin = corpus.package == corpus.word_index("builtins")
        self.is_told_once = (corpus.entity_file < 0) & (mentions < 2) & ~is_builtin
        self.together = [corpus.relations.index(name) for name in _TOGETHER if name in corpus.relations]
        self.standing = Standing(corpus)
        # The relations that an unresolved reference has, and those that it may turn out to be of
        relations = np.flatnonzero(data.allowed[:, self.unresolved_kind]) if self.unresolved_kind >= 0 else []
        self.relations = np.union1d(relations, self.together if np.isin(self.together, relations).any() else [])

    def is_unresolved(self, triples: Array) -> Array:
        return self.corpus.entity_type[self.corpus.tail[triples]] == self.unresolved_kind

    def known(self, triples: Array) -> Array:
        """Returns those of the triples that are resolved references, to be hidden."""
        return triples[np.isin(self.corpus.relation[triples], self.relations) & ~self.is_unresolved(triples)]

    def batches(self, triples: Array) -> list[Array]:
        """Returns which references are asked together: those of one relation and of names that are near."""
        relation, name = self.corpus.relation[triples], self.corpus.name[self.corpus.tail[triples]]
        order, sizes = np.lexsort((name, relation)), self.by_name.sizes(name).tolist()
        batches: list[list[int]] = []
        width, last = 0, (-1, -1)
        for number in order.tolist():
            at = int(relation[number]), int(name[number])
            more = sizes[number] if at != last else 0
            full = batches and (len(batches[-1]) + 1) * (width + more) > _MOST_SCORES
            if not batches or full or len(batches[-1]) == _AT_ONCE or at[0] != last[0]:
                batches.append([])
                width, more = 0, sizes[number]
            batches[-1].append(number)
            width, last = width + more, at
        return [np.array(numbers) for numbers in batches]

    def ask(self, triples: Array, answering: Answering) -> Iterator[Choices]:
        """Yields the choices of references, in batches: of triples whose tails are hidden, if they are known."""
        corpus, nothing = self.corpus, np.zeros(0, np.int64)
        for chosen in self.batches(triples):
            part = triples[chosen]
            window, tail, asked = corpus.window_of[part], corpus.tail[part], int(corpus.relation[part[0]])
            relations = self.together if asked in self.together else [asked]
            number, place = self.by_name.places(corpus.name[tail])
            parts = [self._scored(part, relation, number, self.possible[place], answering) for relation in relations]
            question, entity, relation, features = (np.concatenate(values) for values in zip(*parts, strict=True))
            order = np.lexsort((relation, entity, question))
            question, entity, relation, features = question[order], entity[order], relation[order], features[order]
            rows = self.data.layout.rows(window, np.ones(len(part), bool), nothing, nothing)
            stands, none, of_object, seen = self.standing.of(window, corpus.name[tail], question, entity, rows)
            features[:, 1] = features[:, 0] * of_object[question]
            features = np.concatenate([features, stands, np.zeros((len(entity), none.shape[1]))], 1)
            question, entity, relation, features = question[seen], entity[seen], relation[seen], features[seen]
            none = np.concatenate([np.zeros((len(part), len(OF_REFERENCES) - none.shape[1])), none], 1)
            right = np.flatnonzero((entity == tail[question]) & (relation == asked))
            gold = np.full(len(part), -1)
            gold[question[right]] = right
            yield Choices(question, features, none, gold, entity, relation, chosen, of_object)

    def _scored(
        self, triples: Array, relation: int, question: Array, entity: Array, answering: Answering
    ) -> tuple[Array, Array, Array, Array]:
        """Returns the answers that are possible as tails of a relation: question, entity, relation, five features."""
        window, tail = self.corpus.window_of[triples], self.corpus.tail[triples]
        asked = Questions(window, *(np.full(len(triples), value) for value in (relation, FULL_TEXT, -1)))
        may = self.data.scorer.is_allowed(asked.relation[:1], entity)[0]
        may &= ~(self.is_told_once[entity] & (entity == tail[question]))
        row, other = self.data.scorer.true_tails(asked)  # facts of the graph beside the one that is hidden
        code, entities = row * len(self.corpus.entity_type) + other, len(self.corpus.entity_type)
        may &= ~np.isin(question * entities + entity, code[other != tail[row]])
        question, entity = question[may], entity[may]
        features = np.zeros((len(entity), OF_REFERENCES.index("a class") + 1))
        features[:, -1] = self.together[1:] == [relation]
        if len(entity):
            among = CandidateSet(self.corpus, np.unique(entity))
            counted, encoded = answering.encoded(asked, among, self.leave_out)
            trusting = encoded(1.0, 0.0)
            values = {"counts": counted, "trust": trusting - counted, "likeness": encoded(1.0, 1.0) - trusting}
            for name, scores in values.items():
                features[:, OF_REFERENCES.index(name)] = scores[question, among.place[entity]]
        return question, entity, np.full(len(entity), relation), features
