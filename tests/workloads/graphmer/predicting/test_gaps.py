"""Which facts are asked for, and what competes to be one."""

import numpy as np
import pytest

from workloads.graphmer.predicting.gaps import Filling
from workloads.graphmer.predicting.references import Asking


@pytest.fixture
def filling(joined):
    return Filling(joined.data, Asking(joined.data, leave_out=True), leave_out=True)


def named(filling, asked):
    corpus = filling.corpus
    heads = [corpus.entities[corpus.head[window]].removeprefix("shop.") for window in asked.window]
    return list(zip(heads, [corpus.relations[r] for r in asked.relation], strict=True))


def test_it_is_asked_what_a_function_returns_where_its_text_speaks_of_it(filling, joined):
    asked = named(filling, filling.questions(joined.windows))
    assert ("doors.Door.paint", "returns") in asked and ("doors.Door.open_slowly", "returns") not in asked
    assert {relation for _, relation in asked} == {"returns"}, "what is raised and caught stands in the graph"


def of(filling, joined, head):
    asked = filling.questions(joined.windows)
    return asked[np.array([named(filling, asked).index((head, "returns"))])]


def test_a_function_with_a_known_result_is_asked_only_where_that_is_hidden(filling, joined):
    known, door = of(filling, joined, "main.Room.enter"), filling.corpus.entities.index("shop.doors.Door")
    assert len(filling.open(known)) == 0 and len(filling.open(of(filling, joined, "main.local"))) == 1
    (answered,) = filling.ask(known)
    assert door not in answered.entity and answered.choices.gold.tolist() == [-1], "a known fact does not compete"
    known.tail[0] = door
    assert len(filling.open(known)) == 1
    (hidden,) = filling.ask(known)
    assert hidden.entity[hidden.choices.gold[0]] == door


def test_what_a_function_within_returns_is_not_missing_for_the_outer_one(filling, joined):
    gate = filling.corpus.entities.index("shop.doors.Gate")
    (outer,), (other,) = (filling.ask(of(filling, joined, head)) for head in ("doors.outer", "main.local"))
    assert gate not in outer.entity and gate in other.entity


def test_half_of_the_questions_have_a_known_fact_hidden_the_same_ones_each_time(filling):
    corpus = filling.corpus
    asked = filling.questions(np.arange(len(corpus)))
    hidden, again = filling.hiding(asked), filling.hiding(asked)
    assert np.array_equal(hidden.tail, again.tail)
    facts = {}
    for triple, window in enumerate(corpus.window_of):
        facts.setdefault((window, corpus.relation[triple]), set()).add(corpus.tail[triple])
    own = [facts.get((w, r), set()) for w, r in zip(asked.window, asked.relation, strict=True)]
    has = np.array([bool(tails) for tails in own])
    assert all(tail == -1 or tail in tails for tail, tails in zip(hidden.tail, own, strict=True))
    assert 0.2 < (hidden.tail[has] >= 0).mean() < 0.8 and has.sum() > 5
