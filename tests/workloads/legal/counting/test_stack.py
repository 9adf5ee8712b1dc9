"""The whole of the counts and its regressions: honest scores of training documents, and what is kept of it."""

import base64
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from lib.errors import BadInput
from tests.workloads.legal.judgments import ROLES, judgment, judgments
from workloads.legal import judging
from workloads.legal.counting.stack import Fitting, Linear, Stack, best_offsets, inner_parts, log_softmax

TRAINING = judgments(10, ("civil", "tax"))
NEW = [judgment(number) for number in range(100, 120)]


@pytest.fixture(scope="module")
def fitted():
    return Stack.fit(TRAINING, ROLES)


def accuracy(scores, documents):
    truth = [np.array([ROLES.index(role) for role in document.roles]) for document in documents]
    counts = judging.confusions(truth, [one.argmax(1) for one in scores], len(ROLES))
    return judging.scores(counts.sum(0))[2]


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


def test_offsets_lift_the_macro_f1_of_the_scores_that_they_are_tuned_on():
    draw = np.random.default_rng(0)
    truth = draw.choice(3, 400, p=[0.8, 0.15, 0.05])
    scores = np.eye(3)[truth] + draw.normal(size=(400, 3)) + np.log([0.8, 0.15, 0.05])
    offsets = best_offsets(scores, truth)
    before, after = (
        judging.scores(judging.confusions([truth], [one.argmax(1)], 3)[0])[0] for one in (scores, scores + offsets)
    )
    assert after > before + 0.02
    assert best_offsets(10 * np.eye(3)[truth], truth).tolist() == [0, 0, 0], "nothing to gain"


def test_few_documents_are_enough_and_a_class_may_have_no_example():
    found = Stack.fit(TRAINING[:2], (*ROLES, "Dissent"))
    scores = found.scores(NEW[0])
    assert scores.shape == (12, 4) and np.isfinite(scores).all() and (scores.argmax(1) != 3).all()
    assert {*found.held_out} == {"j00", "j01"}
    with pytest.raises(BadInput, match="two documents or more, and there are 1"):
        Stack.fit(TRAINING[:1], ROLES)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept.pop("scale"),
        lambda kept: kept.update(version=99),
        lambda kept: kept.update(offsets=[0.0, None, 1.0]),
        lambda kept: kept["context"].update(weights=kept["sentence"]["weights"]),
        lambda kept: kept.update(frequency="no base64!"),
        lambda kept: kept.update(frequency=base64.b64encode(b"no zlib").decode()),
        lambda kept: kept.update(frequency=base64.b64encode(zlib.compress(bytes(10**6))).decode()),
    ],
)
def test_a_damaged_copy_is_refused(fitted, damage):
    kept = json.loads(json.dumps(fitted.as_json()))
    damage(kept)
    with pytest.raises(BadInput, match="The counts of this checkpoint cannot be read"):
        Stack.from_json(kept)


@pytest.mark.parametrize(
    ("classes", "class_weight"), [((0, 1, 2), None), ((0, 1, 2), "balanced"), ((0, 1), "balanced")]
)
def test_probabilities_are_scikit_learns(classes, class_weight):
    truth = np.resize(classes, 30)
    matrix = sparse.csr_matrix(np.eye(4)[truth] + 0.5 * np.random.default_rng(0).normal(size=(30, 4)), dtype=np.float32)
    truth[:9] = 0  # of unequal classes
    found = Linear.fit(matrix, truth, len(classes), Fitting(1.0, 200, class_weight)).scores(matrix)
    wanted = LogisticRegression(C=1.0, max_iter=200, class_weight=class_weight).fit(matrix, truth).predict_proba(matrix)
    assert np.exp(log_softmax(found)) == pytest.approx(wanted, abs=1e-3)
