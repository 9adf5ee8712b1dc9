"""Which entity of a name a reference means: questions, competing answers, features, and their probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lib.training.order import mix, permutation
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.counts.ragged import Groups, find
from workloads.graphmer.counts.rows import Rows
from workloads.graphmer.data import Data
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.settings import OF_REFERENCES, Array

UNRESOLVED = "Name"  # the type of what stands for a reference that is not resolved
_TOGETHER = ("calls", "instantiates")  # an unresolved call does not know whether it is that of a class
_AT_ONCE = 64  # questions that are read together
SURE = 0.9
_FAR = 6  # levels of what stands in what that are looked through
_MOST = 4000  # questions: as many as say something, and no more time
_SHRINKAGE = 0.3  # of the weights, in units of squared weight: what few questions say is not believed at once
_STEPS = 60  # of Newton's method at most
_OF_ENCODER = ("trust", "likeness")


@dataclass(frozen=True)
class Choices:
    """Q questions with N answers in all, of which the first of each question is that none is right.

    `question` (N) is ascending, `features` (N, F), `entity` (N, -1: none) and `relation` (N) are those of answers.
    `gold` (Q) is the place of the right answer among the N, `reference` (Q) the number of what is asked, and
    `of_object` (Q) says which are attributes of something that the text does not name.
    """

    question: Array
    features: Array
    entity: Array
    relation: Array
    gold: Array
    reference: Array
    of_object: Array

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def begin(self) -> Array:
        """(Q) where the answers of each question begin."""
        return np.searchsorted(self.question, np.arange(len(self)))

    def __getitem__(self, chosen: Array) -> "Choices":
        """Returns the questions for which `chosen` (Q) is True."""
        answers = chosen[self.question]
        of_answers = (value[answers] for value in (self.features, self.entity, self.relation))
        question, gold = (np.cumsum(chosen) - 1)[self.question[answers]], (np.cumsum(answers) - 1)[self.gold[chosen]]
        return Choices(question, *of_answers, gold, self.reference[chosen], self.of_object[chosen])

    @classmethod
    def joined(cls, parts: Sequence["Choices"]) -> "Choices":
        answers = np.cumsum([0, *(len(part.question) for part in parts)])
        questions = np.cumsum([0, *(len(part) for part in parts)])
        together = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
        together["question"] += np.repeat(questions[:-1], np.diff(answers))
        together["gold"] += np.repeat(answers[:-1], np.diff(questions))
        return cls(**together)

    def probabilities(self, weights: Array) -> Array:
        """(F) weights -> (N) the probability of each answer."""
        scores, begin = self.features @ weights, self.begin
        part = np.exp(scores - np.maximum.reduceat(scores, begin)[self.question])
        return part / np.add.reduceat(part, begin)[self.question]

    def loss(self, weights: Array) -> float:
        """Returns the mean of minus log of the probability of what is right."""
        return float(-np.log(np.maximum(self.probabilities(weights)[self.gold], 1e-12)).mean()) if len(self) else 0.0

    def best(self, scores: Array) -> Array:
        """(N) scores of answers -> (Q) the place of the best answer of each question."""
        return np.lexsort((-scores, self.question))[self.begin]

    def judged(self, weights: Array) -> tuple[float, float]:
        """Returns the share of right answers: of all, and of those given SURE or more, NaN where none is."""
        probabilities = self.probabilities(weights)
        place = self.best(probabilities)
        right, sure = place == self.gold, probabilities[place] >= SURE
        return float(right.mean()), float(right[sure].mean()) if sure.any() else float("nan")


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
        self.is_local = (corpus.parent >= 0) & np.isin(kind, ("Function", "Method"))[np.maximum(corpus.parent, 0)]
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
        hidden = is_bare[question] & ((is_method & (parent != head[question])) | (self.is_local[entity] & ~is_inner))
        is_super = dotted & (rows.is_super == 1)
        hidden |= (is_super.any(1) & ~(dotted & ~is_super & (rows.is_self == 1)).any(1))[question] & is_method & is_own
        return np.stack(answer, 1).astype(float), np.stack(none, 1).astype(float), of_object, ~hidden


def fit(choices: Choices, start: Array, free: Array) -> Array:
    """Returns (F) weights of most likelihood near `start`, of which those not `free` stay, by Newton's method."""
    weights = start.astype(float)
    if not len(choices) or not free.any():
        return weights
    features, begin, prior = choices.features[:, free], choices.begin, _SHRINKAGE * np.eye(int(free.sum()))
    for _ in range(_STEPS):
        shares = choices.probabilities(weights)[:, None]
        mean = np.add.reduceat(shares * features, begin)
        gradient = (mean - features[choices.gold]).sum(0) + prior @ (weights - start)[free]
        spread = features - mean[choices.question]
        step = np.linalg.solve(prior + (spread * shares).T @ spread, gradient)
        step *= min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))  # far from the minimum a whole step overshoots
        weights[free] -= step
        if np.abs(step).max() < 1e-6:
            break
    return weights


def weights_of(model: nn.Module) -> Array:
    """Returns (F) the weights of probabilities that were chosen on validation."""
    return model.get_buffer("of_references").double().cpu().numpy()


class Calibration:
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
        order = np.lexsort((name, relation))
        alike = np.split(order, np.flatnonzero(np.diff(relation[order])) + 1)
        return [part[first : first + _AT_ONCE] for part in alike for first in range(0, len(part), _AT_ONCE)]

    def ask(self, triples: Array, answering: Answering) -> Iterator[Choices]:
        """Yields the choices of references, in batches: of triples whose tails are hidden, if they are known."""
        corpus, nothing = self.corpus, np.zeros(0, np.int64)
        for chosen in self.batches(triples):
            part, every = triples[chosen], np.arange(len(chosen))
            window, tail, asked = corpus.window_of[part], corpus.tail[part], int(corpus.relation[part[0]])
            relations = self.together if asked in self.together else [asked]
            number, place = self.by_name.places(corpus.name[tail])
            parts = [self._scored(part, relation, number, self.possible[place], answering) for relation in relations]
            question, entity, relation, features = (np.concatenate(values) for values in zip(*parts, strict=True))
            rows = self.data.layout.rows(window, np.ones(len(part), bool), nothing, nothing)
            stands, none, of_object, seen = self.standing.of(window, corpus.name[tail], question, entity, rows)
            features[:, 1] = features[:, 0] * of_object[question]
            size = features.shape[1] + stands.shape[1]
            table = np.zeros((len(part) + int(seen.sum()), len(OF_REFERENCES)))  # first that none is right
            table[: len(part), size:] = none
            table[len(part) :, :size] = np.concatenate([features, stands], 1)[seen]
            question, entity = np.concatenate([every, question[seen]]), np.concatenate([every * 0 - 1, entity[seen]])
            relation = np.concatenate([np.full(len(part), asked), relation[seen]])
            order = np.lexsort((relation, entity, question))
            question, entity, relation = question[order], entity[order], relation[order]
            gold = np.searchsorted(question, every)
            right = np.flatnonzero((entity == tail[question]) & (relation == asked))
            gold[question[right]] = right
            yield Choices(question, table[order], entity, relation, gold, chosen, of_object)

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
            encoded = answering.scores(asked, among, self.leave_out)
            counted, trusting = encoded(0.0, 0.0), encoded(1.0, 0.0)
            values = {"counts": counted, "trust": trusting - counted, "likeness": encoded(1.0, 1.0) - trusting}
            for name, scores in values.items():
                features[:, OF_REFERENCES.index(name)] = scores[question, among.place[entity]]
        return question, entity, np.full(len(entity), relation), features

    def fit(self, model: nn.Module) -> None:
        """Fits the weights of probabilities on validation; the encoder takes part if it helps unseen files."""
        choices, files = self.hidden(self.corpus.triples_of("validation"), Answering(self.data, model))
        if choices is None:
            return
        half = files % 2 == 0
        start = np.array([float(name == "counts") for name in OF_REFERENCES])
        alone = np.array([name not in _OF_ENCODER for name in OF_REFERENCES])
        free, losses = {"alone": alone, "with": np.ones_like(alone)}, {}
        for name, mask in free.items():  # the mean loss of each half of the files with weights of the other one
            halves = ((half, ~half), (~half, half))
            total = sum(choices[b].loss(fit(choices[a], start, mask)) * b.sum() for a, b in halves)
            losses[name] = total / max(1, len(half))
        best = min(losses, key=lambda name: (round(losses[name], 4), name))
        model.get_buffer("of_references").copy_(torch.from_numpy(fit(choices, start, free[best])))

    def hidden(
        self, triples: Array, answering: Answering, most: int = _MOST
    ) -> tuple[Choices, Array] | tuple[None, None]:
        """Returns known references with what a model says, and their files; None twice if there are none."""
        corpus, known = self.corpus, self.known(triples)
        if not len(known):
            return None, None
        known = known[np.sort(permutation(mix(len(known)), 0, len(known))[:most])]  # the same ones in every run
        with torch.no_grad():
            choices = Choices.joined([*self.ask(known, answering)])
        return choices, corpus.window_file[corpus.window_of[known[choices.reference]]]
