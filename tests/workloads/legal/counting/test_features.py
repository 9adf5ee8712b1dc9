"""TF-IDF beside scikit-learn's, the words of neighbours, and positions."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from tests.workloads.legal.judgments import judgments
from workloads.legal.counting import features
from workloads.legal.counting.features import Vocabulary
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


def test_the_context_has_the_words_of_neighbours_in_the_same_document_in_their_own_blocks():
    documents = [of("apple apple", "pear", "plum pear", "apple", "plum"), of("pear")]
    vocabulary = Vocabulary.of(documents, 100)
    assert vocabulary.terms == ("apple", "pear", "plum")
    found = vocabulary.in_context(documents, vocabulary.own(documents)).toarray()
    assert found.shape == (6, vocabulary.width) and np.isfinite(found).all()
    blocks = found[:, : -features.POSITIONS].reshape(6, 7, 3)
    own = blocks[:, 0]
    assert blocks[1, 1] == pytest.approx(0.6 * own[0]) and not blocks[0, 1].any()  # the one before
    assert blocks[1, 2] == pytest.approx(0.6 * own[2])  # the one after
    assert blocks[3, 3] == pytest.approx(0.6 * own[1]) and blocks[1, 4] == pytest.approx(0.6 * own[3])
    bag = own[2] + own[3] + own[4]
    assert blocks[0, 6] == pytest.approx(0.6 * bag / np.linalg.norm(bag))
    assert not blocks[5, 1:].any() and not blocks[4, 2].any(), "of another document nothing"
