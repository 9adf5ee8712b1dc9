"""Words, regressions and the chain beside scikit-learn's and sums by hand; honest scores of training documents."""

import json
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from tests.workloads.legal.conftest import ROLES, judgment, judgments
from workloads.legal.counting import features
from workloads.legal.counting.features import Vocabulary
from workloads.legal.counting.stack import (
    Chain,
    Linear,
    Stack,
    by_steps,
    forward_backward,
    inner_parts,
    log_softmax,
)
from workloads.legal.documents import Document

TRAINING = judgments(10, ("civil", "tax"))
NEW = [judgment(number) for number in range(100, 120)]


@pytest.fixture(scope="module")
def fitted():
    return Stack.fit(TRAINING, ROLES)


def accuracy(scores, documents):
    truth = [ROLES.index(role) for document in documents for role in document.roles]
    return (np.concatenate(scores).argmax(1) == truth).mean()


def test_the_product_is_better_than_the_sentence_alone_on_new_documents(fitted):
    parts = [fitted.parts(document) for document in NEW]
    alone, context, chained = (accuracy([part[name] for part in parts], NEW) for name in ("sentence", "context", "crf"))
    assert accuracy([fitted.scores(document) for document in NEW], NEW) > alone + 0.05
    assert chained > alone and context > alone > 0.5
    for part in parts:
        assert all(np.exp(one).sum(1) == pytest.approx(1, abs=1e-5) for one in part.values())


def test_scores_of_a_training_document_do_not_know_its_roles(fitted):
    """Whatever roles one document has, its own held-out scores are the same, and those of others are not."""
    changed = replace(TRAINING[3], roles=("Ruling",) * len(TRAINING[3]))
    other = Stack.fit([changed if document is TRAINING[3] else document for document in TRAINING], ROLES)
    assert (fitted.held_out["j03"] == other.held_out["j03"]).all()
    part = dict(zip((document.name for document in TRAINING), inner_parts(TRAINING, 0), strict=True))
    for document in TRAINING:
        same = (fitted.held_out[document.name] == other.held_out[document.name]).all()
        assert same == (part[document.name] == part["j03"])
    assert (fitted.scores(TRAINING[3]) != other.scores(TRAINING[3])).any()


def test_what_is_read_again_and_a_fit_in_another_order_give_the_very_same_scores(fitted):
    kept = fitted.as_json()
    again = Stack.from_json(json.loads(json.dumps(kept)))
    for document in NEW[:3]:
        assert (again.scores(document) == fitted.scores(document)).all()
        assert all((again.parts(document)[name] == one).all() for name, one in fitted.parts(document).items())
    assert again.as_json() == Stack.fit(TRAINING[::-1], ROLES).as_json() == kept


@pytest.mark.parametrize("classes", [(0, 1, 2), (0, 1)])
def test_probabilities_are_scikit_learns(classes):
    truth = np.resize(classes, 30)
    matrix = sparse.csr_matrix(np.eye(4)[truth] + 0.5 * np.random.default_rng(0).normal(size=(30, 4)), dtype=np.float32)
    truth[:9] = 0  # of unequal classes
    found = Linear.fit(matrix, truth, len(classes), {"C": 1.0, "max_iter": 200}).scores(matrix)
    wanted = LogisticRegression(C=1.0, max_iter=200, class_weight="balanced").fit(matrix, truth).predict_proba(matrix)
    assert np.exp(log_softmax(found)) == pytest.approx(wanted, abs=1e-3)


def by_hand(emission, transition):
    """log partition, (sentences, classes) marginals and (classes, classes) expected steps of one document."""
    length, classes = emission.shape
    total, marginal, steps = 0.0, np.zeros(emission.shape), np.zeros(transition.shape)
    for roles in product(range(classes), repeat=length):
        score = sum(emission[place, role] for place, role in enumerate(roles))
        pairs = [*pairwise(roles)]
        weight = np.exp(score + sum(transition[pair] for pair in pairs))
        total += weight
        for place, role in enumerate(roles):
            marginal[place, role] += weight
        for pair in pairs:
            steps[pair] += weight
    return np.log(total), marginal / total, steps / total


def test_partition_marginals_and_steps_are_those_of_all_sequences_of_documents_of_any_length():
    draw = np.random.default_rng(0)
    lengths = [3, 1, 5, 3]
    emission, transition = draw.normal(size=(sum(lengths), 3)) * 2, draw.normal(size=(3, 3))
    counts, rows, before = by_steps(lengths)
    partition, marginal, steps = forward_backward(emission[rows], transition, counts, before)
    wanted = [by_hand(part, transition) for part in np.split(emission, np.cumsum(lengths)[:-1])]
    assert partition == pytest.approx(sum(one[0] for one in wanted))
    assert marginal == pytest.approx(np.concatenate([one[1] for one in wanted])[rows])
    assert steps == pytest.approx(sum(one[2] for one in wanted))
    scores = np.where(np.arange(6000)[:, None] % 2 == [0, 1], 800.0, -800.0)
    found = Chain(np.eye(3, 2), np.array([[5.0, -5.0], [-5.0, 5.0]])).log_marginals(scores, [6000])
    assert np.isfinite(found).all() and found.argmax(1)[:3].tolist() == [0, 1, 0], "however large and long"


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
