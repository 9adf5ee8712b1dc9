"""TF-IDF beside scikit-learn's, the words of neighbours, and positions."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from tests.workloads.legal.judgments import judgments
from workloads.legal.counting import features
from workloads.legal.counting.features import Vocabulary, neighbours, position_features
from workloads.legal.documents import Document


def of(*sentences, name="a"):
    return Document(name, "", sentences, ("x",) * len(sentences))


def test_the_words_of_a_sentence_are_scikit_learns_tf_idf():
    documents = judgments(4)
    texts = [sentence for document in documents for sentence in document.sentences]
    reference = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2, token_pattern=features.TOKEN)
    wanted = reference.fit_transform(texts).toarray()
    vocabulary = Vocabulary.of(documents, 10_000)
    assert list(vocabulary.terms) == reference.get_feature_names_out().tolist()
    assert vocabulary.own(documents).toarray() == pytest.approx(wanted, abs=1e-6)
    assert Vocabulary.of([of("b a", "b a", "b c d", "b c d", "c d")], 2).terms == ("b", "c"), "b 4; c, c d and d 3"
    empty = Vocabulary.of([of("...", "---")], 10)
    assert empty.terms == () and empty.in_context([of("...")], empty.own([of("...")])).shape == (1, features.POSITIONS)


def test_a_neighbour_is_one_of_the_same_document():
    around = neighbours([2, 3], [-1]).toarray()
    assert np.argwhere(around).tolist() == [[1, 0], [3, 2], [4, 3]]
    assert np.argwhere(neighbours([2, 3], range(2, 7)).toarray()).tolist() == [[2, 4]]
    assert np.argwhere(neighbours([2], range(-6, -1)).toarray()).tolist() == []


def test_the_context_has_the_neighbours_words_in_their_own_blocks():
    document = of("apple apple", "pear", "plum pear", "apple", "plum")
    vocabulary = Vocabulary.of([document], 100)
    assert vocabulary.terms == ("apple", "pear", "plum")
    found = vocabulary.in_context([document], vocabulary.own([document])).toarray()
    assert found.shape == (5, vocabulary.width)
    blocks = found[:, : -features.POSITIONS].reshape(5, 7, 3)
    own = blocks[:, 0]
    assert blocks[1, 1] == pytest.approx(0.6 * own[0]) and not blocks[0, 1].any()  # the one before
    assert blocks[1, 2] == pytest.approx(0.6 * own[2])  # the one after
    assert blocks[3, 3] == pytest.approx(0.6 * own[1]) and blocks[1, 4] == pytest.approx(0.6 * own[3])
    bag = own[2] + own[3] + own[4]
    assert blocks[0, 6] == pytest.approx(0.6 * bag / np.linalg.norm(bag))


def test_a_position_is_told_from_the_beginning_and_from_the_end():
    document = judgments(1, length=40)[0]
    found = position_features(document)
    assert found.shape == (40, features.POSITIONS) and np.isfinite(found).all() and found.max() < 2
    longer = position_features(judgments(1, length=80)[0])
    is_last = found.shape[1] - features.POSITIONS + 10 + 3
    assert found[:, is_last].tolist() == [0.0] * 39 + [1.0] and longer[:, is_last].sum() == 1
    first, last = found[0], found[-1]
    assert (first != last).sum() > 8
    one = replace(document, sentences=("alone",), roles=("Facts",))
    assert np.isfinite(position_features(one)).all()
