"""Which facts are asked for, and what competes to be one."""

import numpy as np
import pytest

from lib.tasks.graphmer.predicting.gaps import Filling
from lib.tasks.graphmer.predicting.references import Asking


@pytest.fixture
def filling(joined):
    return Filling(joined.data, Asking(joined.data, leave_out=True), leave_out=True)


def named(filling, asked):
    corpus = filling.corpus
    heads = [corpus.entities[corpus.head[window]].removeprefix("shop.") for window in asked.window]
    return list(zip(heads, [corpus.relations[r] for r in asked.relation], strict=True))


def test_it_is_asked_where_the_text_speaks_of_such_a_fact(filling, joined):
    asked = named(filling, filling.questions(joined.windows))
    assert ("main.Room.leave", "raises") in asked and ("doors.Door.open_slowly", "raises") in asked
    assert ("doors.Door.paint", "returns") in asked and ("doors.Door.paint", "raises") not in asked
    assert {relation for _, relation in asked} == {"raises", "returns"}  # catches is in no file of training


def test_known_facts_do_not_compete_and_a_hidden_one_is_right(filling, joined):
    corpus = filling.corpus
    asked = filling.questions(joined.windows)
    at = named(filling, asked).index(("doors.Door.open_slowly", "raises"))
    one = asked[np.array([at])]
    error = corpus.entities.index("builtins.ValueError")
    (known,) = filling.ask(one)
    assert error not in known.entity and known.choices.gold.tolist() == [-1]
    one.tail[0] = error
    (hidden,) = filling.ask(one)
    assert hidden.entity[hidden.choices.gold[0]] == error


def test_what_a_method_raises_is_not_missing_for_its_class(filling, joined):
    corpus = filling.corpus
    asked = filling.questions(joined.windows)
    names = named(filling, asked)
    assert ("doors.Door", "raises") in names or ("doors", "raises") in names
    error = corpus.entities.index("builtins.ValueError")
    for part in filling.ask(asked):
        for row, number in enumerate(part.chosen):
            if names[number] in (("doors.Door", "raises"), ("doors", "raises")):
                assert error not in part.entity[part.choices.question == row]
            if names[number] == ("main.Room.leave", "raises"):
                assert error in part.entity[part.choices.question == row]


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
    assert 0.2 < (hidden.tail[has] >= 0).mean() < 0.8 and has.sum() > 20
