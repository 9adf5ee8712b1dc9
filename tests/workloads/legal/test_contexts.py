"""What stands beside a sentence in the encoder's input, and what is cut where there is no room."""

import numpy as np
import pytest

from lib.training.order import buckets
from workloads.legal.contexts import MODES, Inputs, Texts, padding

CLS, SEP = 1, 2
# Two documents; the tokens of a sentence say which one it is
DOCUMENTS = [[[10, 11, 12], [20, 21, 22, 23], [30, 31]], [[40, 41, 42, 43, 44, 45], [50]]]


def inputs(mode, length):
    return Inputs(Texts(DOCUMENTS), mode, length, CLS, SEP)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("single", [CLS, 20, 21, 22, 23, SEP]),
        ("prev", [CLS, 20, 21, 22, 23, SEP, 10, 11, 12, SEP]),
        ("prev_two", [CLS, 20, 21, 22, 23, SEP, 10, 11, 12, SEP]),
        ("surrounding", [CLS, 20, 21, 22, 23, SEP, 10, 11, 12, SEP, 30, 31, SEP]),
    ],
)
def test_neighbours_follow_the_sentence_as_second_segment(mode, wanted):
    tokens, own = inputs(mode, 64).of(1)
    assert tokens.tolist() == wanted and own == 6


def test_two_before_stand_in_the_order_of_the_document():
    assert inputs("prev_two", 64).of(2)[0].tolist() == [CLS, 30, 31, SEP, 10, 11, 12, SEP, 20, 21, 22, 23, SEP]


@pytest.mark.parametrize("mode", MODES)
def test_no_neighbour_is_of_another_document(mode):
    for sentence, first in ((0, 10), (3, 40)):
        others = [token for token in inputs(mode, 64).of(sentence)[0] if token > SEP]
        assert {token // 40 for token in others} == {first // 40}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [8, 9, 11, 64])
def test_the_sentence_is_never_cut_before_its_neighbours(mode, length):
    made = inputs(mode, length)
    for sentence, tokens in enumerate(token for document in DOCUMENTS for token in document):
        found, own = made.of(sentence)
        assert len(found) == made.lengths[sentence] <= length
        assert found[:own].tolist() == [CLS, *tokens, SEP]


def test_the_nearest_neighbour_has_the_room_that_there_is_and_keeps_the_end_that_touches():
    # 10 tokens: [CLS] 30 31 [SEP] leave 6, of which the sentence before takes 4 and a [SEP]; nothing is left for 10
    assert inputs("prev_two", 9).of(2)[0].tolist() == [CLS, 30, 31, SEP, 20, 21, 22, 23, SEP]
    assert inputs("prev", 8).of(2)[0].tolist() == [CLS, 30, 31, SEP, 21, 22, 23, SEP]
    assert inputs("surrounding", 8).of(0)[0].tolist() == [CLS, 10, 11, 12, SEP, 20, 21, SEP]


def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end():
    long = Inputs(Texts([[list(range(100, 20_100))]]), "prev", 12, CLS, SEP)
    assert long.of(0)[0].tolist() == [CLS, 100, 101, 102, 103, 104, 105, 106, 20_097, 20_098, 20_099, SEP]
    assert long.lengths.tolist() == [12]


def test_a_sentence_without_tokens_is_an_input_all_the_same():
    assert Inputs(Texts([[[], [7]]]), "surrounding", 8, CLS, SEP).of(0)[0].tolist() == [CLS, SEP, 7, SEP]


def test_padding_is_what_batches_have_beyond_their_tokens():
    assert padding(np.array([2, 4, 3, 3, 6]), 2) == pytest.approx(1 - 18 / (8 + 6 + 6))
    assert padding(np.full(8, 5), 3) == 0


def test_buckets_of_fifty_batches_leave_under_a_tenth_of_padding():
    """Lengths as those of the sample corpus: median 29, 5 % above 85."""
    lengths = np.clip(np.random.default_rng(0).lognormal(3.37, 0.65, 6000), 3, 256).astype(int)
    assert padding(lengths[buckets(lengths, 0, 0, 32, 50)], 32) < 0.1 < padding(lengths, 32)
