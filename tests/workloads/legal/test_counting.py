"""Words, regressions and the chain beside scikit-learn's and sums by hand; honest scores of training documents."""

import json
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from tests.workloads.legal.conftest import ROLES, judgment, judgments
from workloads.legal import counting
from workloads.legal.counting import Stack, by_steps, forward_backward
from workloads.legal.documents import Document
from workloads.legal.settings import POSITIONS

TRAINING = judgments(10, ("civil", "tax"))
NEW = [judgment(number) for number in range(100, 120)]


def fit(documents):
    return Stack.fit(documents, ROLES, kept=[document.name for document in TRAINING])


@pytest.fixture(scope="module")
def stack():
    return fit(TRAINING)


def accuracy(scores, documents):
    truth = [ROLES.index(role) for document in documents for role in document.roles]
    return (np.concatenate(scores).argmax(1) == truth).mean()


def test_the_product_is_better_than_the_sentence_alone_on_new_documents(stack):
    parts = [stack.parts(document) for document in NEW]
    alone, context, chained = (
        accuracy([part[name] for part in parts], NEW) for name in ("sentence", "context", "crf")
    )
    assert accuracy([stack.scores(document) for document in NEW], NEW) > alone + 0.05
    assert chained > alone
    assert context > alone > 0.5
    for part in parts:
        assert all(np.exp(one).sum(1) == pytest.approx(1, abs=1e-5) for one in part.values())


def test_scores_of_a_training_document_do_not_know_its_roles(monkeypatch):
    """Whatever roles one document has, its own held-out scores are the same, and those of others are not.

    All documents choose the method, so that is held.
    """
    monkeypatch.setattr(counting, "_sure_gains", lambda *_: np.zeros(len(counting.METHODS)))
    stack = fit(TRAINING)
    changed = replace(TRAINING[3], roles=("Ruling",) * len(TRAINING[3]))
    other = fit([changed if document is TRAINING[3] else document for document in TRAINING])
    assert (stack.held_out["j03"] == other.held_out["j03"]).all()
    part = dict(
        zip(
            (document.name for document in TRAINING), counting.inner_parts(TRAINING, 0), strict=True
        )
    )
    for document in TRAINING:
        same = (stack.held_out[document.name] == other.held_out[document.name]).all()
        assert same == (part[document.name] == part["j03"])
    assert (stack.scores(TRAINING[3]) != other.scores(TRAINING[3])).any()


def test_what_is_read_again_and_a_fit_in_another_order_give_the_very_same_scores(stack):
    kept = stack.as_json()
    again = Stack.from_json(json.loads(json.dumps(kept)))
    for document in NEW[:3]:
        assert (again.scores(document) == stack.scores(document)).all()
        parts = again.parts(document)
        for name, scores in stack.parts(document).items():
            assert (parts[name] == scores).all()
    assert again.as_json() == fit(TRAINING[::-1]).as_json() == kept


def test_a_role_of_one_document_and_sentences_without_a_common_term_are_counted():
    few = []
    alone = []
    for n in range(12):
        name = f"d{n}"
        few.append(Document(name, "civil", (f"word{n}", "said"), (ROLES[0], ROLES[n == 3])))
        alone.append(Document(name, "civil", (f"word{n}",), (ROLES[n % 2],)))
    for documents in (few, alone):
        found = Stack.fit(documents, ROLES, kept=[]).scores(documents[0])
        assert found.shape == (len(documents[0]), len(ROLES))
        assert np.isfinite(found).all()


@pytest.mark.parametrize("classes", [(0, 1, 2), (0, 1)])
def test_probabilities_are_scikit_learns(classes):
    truth = np.resize(classes, 30)
    noise = 0.5 * np.random.default_rng(0).normal(size=(30, 4))
    matrix = sparse.csr_matrix(np.eye(4)[truth] + noise, dtype=np.float32)
    truth[:9] = 0  # of unequal classes
    options = {"C": 1.0, "max_iter": 200}
    found = counting.scored(matrix, counting.fitted(matrix, truth, len(classes), options))
    reference = LogisticRegression(class_weight="balanced", **options).fit(matrix, truth)
    wanted = reference.predict_proba(matrix)
    assert softmax(found, 1) == pytest.approx(wanted, abs=1e-3)


def by_hand(emission, transition):
    """log partition, (sentences, classes) marginals and (classes, classes) expected steps of one document."""
    length, classes = emission.shape
    total = 0.0
    marginal = np.zeros(emission.shape)
    steps = np.zeros(transition.shape)
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
    emission = draw.normal(size=(sum(lengths), 3)) * 2
    transition = draw.normal(size=(3, 3))
    counts, rows, before = by_steps(lengths)
    partition, marginal, steps = forward_backward(emission[rows], transition, counts, before)
    wanted = [by_hand(part, transition) for part in np.split(emission, np.cumsum(lengths)[:-1])]
    assert partition == pytest.approx(sum(one[0] for one in wanted))
    assert marginal == pytest.approx(np.concatenate([one[1] for one in wanted])[rows])
    assert steps == pytest.approx(sum(one[2] for one in wanted))
    scores = np.where(np.arange(6000)[:, None] % 2 == [0, 1], 800.0, -800.0)
    transition = np.array([[5.0, -5.0], [-5.0, 5.0]])
    found = counting.chained((np.eye(3, 2), transition), scores, [6000])
    assert np.isfinite(found).all(), "however large and long"
    assert found.argmax(1)[:3].tolist() == [0, 1, 0], "however large and long"


def test_the_words_of_a_sentence_are_scikit_learns_tf_idf(stack):
    texts = [
        sentence
        for document in sorted(TRAINING, key=lambda one: one.name)
        for sentence in document.sentences
    ]
    reference = TfidfVectorizer(**counting.WORDS, sublinear_tf=True, min_df=2)
    wanted = reference.fit_transform(texts).toarray()
    assert list(stack.terms) == reference.get_feature_names_out().tolist()
    assert stack.own(texts).toarray() == pytest.approx(wanted, abs=1e-6)
    terms, counts = counting.frequent(["b a", "b a", "b c d", "b c d", "c d"], 2)
    assert terms == ["b", "c"], "b 4; c, c d and d 3"
    assert counts.tolist() == [4, 3], "b 4; c, c d and d 3"
    assert counting.frequent(["...", "--- (", "("], 10)[0] == ["("]


def test_the_words_around_a_sentence_are_those_of_its_own_document():
    documents = [Document(name, "", ("x",) * length) for name, length in (("a", 1), ("b", 3))]
    own = sparse.csr_matrix(np.eye(4, dtype=np.float32))
    found = counting.in_context(own, np.arange(4), documents).toarray()
    assert found.shape == (4, 4 * 7 + POSITIONS)
    before = found[:, 4:8] / 0.6
    after = found[:, 8:12] / 0.6
    assert before == pytest.approx(np.diag([0, 1, 1], -1))
    assert after == pytest.approx(np.diag([0, 1, 1], 1))
    assert found[1, 24:28] / 0.6 == pytest.approx([0, 0, 0, 1]), "two or more after it"
