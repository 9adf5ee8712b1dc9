"""The recipe of the small base: its chats and its rows."""

import json

import pytest

from trainbook import IGNORED
from workloads.chat.base.chats import STOP, Chats
from workloads.chat.base.rows import Rows, tokenizer_of
from workloads.chat.generated import API, split_of

LEXICON = ["alpha", "beta", "gamma", "delta"]


@pytest.fixture(scope="module")
def rows():
    chats = Chats(1, LEXICON)
    texts = [chats.text() for _ in range(200)]
    return Rows(tokenizer_of(texts, 400), chats, ["A docstring of a function.\n" * 40])


def test_chats_are_those_of_their_seed_without_functions_or_held_out_values_of_the_task():
    chats = Chats(1, LEXICON)
    texts = [chats.text() for _ in range(50)]
    again = Chats(1, LEXICON)
    assert [again.text() for _ in range(50)] == texts
    assert not {function.name for function in chats.functions} & {*API}
    values = [chats.value() for _ in range(200)]
    assert all(split_of(value) == "train" or value.endswith(":00") for value in values)


def test_an_example_asks_in_one_form_and_is_answered_in_one():
    chats = Chats(3, LEXICON)
    turns = [chats.by_example() for _ in range(20)]
    for talk in turns:
        assert len({question.split()[0] for question, _ in talk}) == 1
    answers = [answer for talk in turns for _, answer in talk if answer.startswith("{")]
    assert all(map(json.loads, answers))


def test_rows_train_the_second_copy_the_answers_and_whole_docstrings(rows):
    ids, labels = rows.copy(64)
    answer = [label for label in labels if label != IGNORED]
    assert len(ids) == len(labels) == 64
    assert answer[-1] == rows.stop
    copied = answer[:-1]
    assert ids[len(rows.head) : len(rows.head) + len(copied)] == copied
    ids, labels = rows.chat(200, 1.0, 4)
    trained = [label for label in labels if label != IGNORED]
    assert 0 < len(trained) < len(ids)
    assert STOP in rows.tokenizer.decode(trained)
    ids, labels = rows.doc(32)
    assert ids == labels


def test_a_batch_has_copies_chats_and_docstrings_by_their_share(rows):
    ids, labels, chats = rows.batch(960, 96, 0.8, 1.0, 4)
    assert ids.shape == labels.shape == (10, 96)
    assert chats == 8
    assert (ids[8:] == labels[8:]).all()
