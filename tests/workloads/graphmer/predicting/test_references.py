"""Which entities compete for a name, and what is said of them."""

import numpy as np
import pytest
import torch

from tests.workloads.graphmer.predicting.conftest import joined_with, tree_of
from workloads.graphmer.counts.answering import Answering
from workloads.graphmer.predicting import references
from workloads.graphmer.predicting.references import Asking
from workloads.graphmer.settings import OF_REFERENCES


def batches(asking, wanted, answering):
    with torch.inference_mode():
        return list(asking.ask(wanted, answering))


def asked(asking, wanted, answering):
    """{(head, name): {entity or None: features by name}} of references."""
    corpus, found = asking.corpus, {}
    for part in batches(asking, wanted, answering):
        for row, number in enumerate(part.reference):
            head = corpus.entities[corpus.head[corpus.window_of[wanted[number]]]]
            key = head.removeprefix("shop.main."), corpus.word_list[corpus.name[corpus.tail[wanted[number]]]]
            named = {corpus.entities[part.entity[p]]: part.features[p] for p in np.flatnonzero(part.question == row)}
            named[None] = part.of_none[row]
            found[key] = {e: dict(zip(OF_REFERENCES, values, strict=True)) for e, values in named.items()}
    return found


@pytest.fixture
def answers(joined, fitted):
    return answers_of(joined, fitted[1])


def answers_of(joined, model):
    """What competes for the names that could not be followed."""
    asking = Asking(joined.data, leave_out=True)
    triples = joined.triples[asking.is_unresolved(joined.triples)]
    return asked(asking, triples, Answering(joined.data, model))


def test_entities_of_the_name_compete_and_nothing_else(answers):
    names = {key: set(found) - {None} for key, found in answers.items()}
    assert names["visit", "open_slowly"] == {"shop.doors.Door.open_slowly"}
    assert names["visit", "paint"] == {"shop.doors.Door.paint", "shop.doors.Gate.paint"}
    assert names["visit", "nowhere_at_all"] == set() == names["Room", "Unknown"]
    assert names["local", "hidden"] == set(), "what another function defines within itself"


def test_features_say_how_the_name_stands_and_what_the_file_imports(answers):
    of_door, of_gate = (answers["visit", "paint"][f"shop.doors.{name}.paint"] for name in ("Door", "Gate"))
    assert of_door["imported"] == of_door["in the tree"] == 1 and of_gate["same file"] == of_door["same file"] == 0
    assert of_door["owner before"] == of_door["dotted function"] == of_door["own class"] == 0
    assert answers["visit", "paint"][None]["none of an object's"] == 1
    bare = answers["local", "make"][None]
    assert bare["none of a bare name"] == 1 and bare["none of an object's"] == 0
    assert of_door["counts"] != 0 and of_door["counts of an object's"] == of_door["counts"]


SUPER = """
class Room(Unknown):
    def paint(self):
        return super().paint()

    def greet(self):
        return super(Room, self).greet()

    def call(self, other):
        other.call(super().call())
"""


def test_what_follows_super_is_not_the_own_classs(fitted, tmp_path):
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "room.py").write_text(SUPER)
    joined = joined_with(fitted[0], tree_of(fitted[0], tmp_path / "house"))
    found = answers_of(joined, fitted[1])
    names = {word: set(entities) - {None} for (_, word), entities in found.items()}
    assert names["paint"] == names["greet"] == set()
    assert names["call"] == {"room.Room.call"}, "of another object it may be"


def known(joined, head):
    asking, corpus = Asking(joined.data, leave_out=True), joined.data.corpus
    triples = joined.triples[corpus.head[corpus.window_of[joined.triples]] == corpus.entities.index(head)]
    return asking, asking.known(triples)


def test_a_known_reference_is_hidden_and_its_tail_is_the_right_answer(joined, fitted):
    asking, wanted = known(joined, "shop.main.Room.enter")
    corpus, answering = joined.data.corpus, Answering(joined.data, fitted[1].eval())
    assert {corpus.entities[t] for t in corpus.tail[wanted]} == {"shop.main.Room.leave", "shop.doors.Door"}
    for part in batches(asking, wanted, answering):
        gold = part.gold
        assert (gold >= 0).all() and part.entity[gold].tolist() == corpus.tail[wanted[part.reference]].tolist()
        assert corpus.relations[part.relation[gold[0]]] in ("calls", "instantiates")
    found = asked(asking, wanted, answering)
    assert found["Room.enter", "leave"]["shop.main.Room.leave"]["own class"] == 1
    assert found["Room.enter", "leave"][None]["none after self"] == 1
    door = found["Room.enter", "Door"]["shop.doors.Door"]
    assert door["a class"] == door["imported"] == 1


def test_a_tail_that_no_other_fact_names_is_no_answer_to_its_own_question(joined, fitted):
    asking, wanted = known(joined, "shop.main.visit")
    corpus = joined.data.corpus
    golds = {}
    for part in batches(asking, wanted, Answering(joined.data, fitted[1])):
        golds |= {corpus.entities[corpus.tail[wanted[c]]]: g for c, g in zip(part.reference, part.gold, strict=True)}
    assert golds["posixpath.expanduser" if "posixpath.expanduser" in golds else "os.path.expanduser"] == -1
    assert golds["os.path.join"] >= 0  # training names it too


def test_the_encoder_adds_to_the_counts_and_an_answer_does_not_depend_on_what_else_is_asked(joined, fitted):
    asking = Asking(joined.data, leave_out=True)
    wanted = asking.known(joined.triples)
    answering = Answering(joined.data, fitted[1])
    together = asked(asking, wanted, answering)
    assert any(f["trust"] for found in together.values() for f in found.values())
    assert any(f["likeness"] for found in together.values() for f in found.values())
    for number in range(0, len(wanted), 3):
        for key, found in asked(asking, wanted[[number]], answering).items():
            for entity, features in found.items():
                assert features == pytest.approx(together[key][entity], abs=1e-4)


def test_questions_are_asked_in_batches_that_are_small_enough(joined, monkeypatch):
    asking, corpus = Asking(joined.data), joined.data.corpus
    wanted = asking.known(np.arange(len(corpus.relation)))
    whole = asking.batches(wanted)
    monkeypatch.setattr(references, "_MOST_SCORES", 100)
    monkeypatch.setattr(references, "_AT_ONCE", 10)
    parts = asking.batches(wanted)
    assert sorted(np.concatenate(parts).tolist()) == sorted(np.concatenate(whole).tolist()) == list(range(len(wanted)))
    for part in parts:
        assert len(part) <= 10 and len(set(corpus.relation[wanted[part]])) == 1
        width = asking.by_name.sizes(np.unique(corpus.name[corpus.tail[wanted[part]]])).sum()
        assert len(part) == 1 or len(part) * width <= 100
