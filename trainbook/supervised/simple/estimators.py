"""Unfitted models of scikit-learn by their names here."""

from typing import Any

TREES = ("boosting", "forest")
GROWN = 60  # trees of a fold's forest: the answer has five forests
LEAVES = 500  # of a tree of a forest
ROUNDS = 100  # of boosting
_MOST_TREES = 300
_DEPTH = 6


def estimator(kind: Any, how: str, strength: float, balanced: bool, outputs: int) -> Any:
    """Returns a model: "margins", "linear", "boosting" or "forest".

    The first two are linear, of classes by the distance from a border or by likelihood. `strength` is the inverse of
    their penalty, the leaves of a tree of boosting, or the fewest rows of a leaf of a forest.
    """
    if kind.has_probabilities:
        return _classifier(how, strength, "balanced" if balanced else None, outputs)
    return _regressor(how, strength, outputs)


def _classifier(how: str, strength: float, weight: str | None, outputs: int) -> Any:
    from sklearn import ensemble, linear_model, svm

    if how == "margins":
        # tol: the solver's own default; 1e-4 takes three times as long for the same answers
        return svm.LinearSVC(C=strength, class_weight=weight, tol=0.1, dual=True, random_state=0)
    if how == "linear":
        return linear_model.LogisticRegression(C=strength, class_weight=weight)
    if how == "boosting":
        return ensemble.HistGradientBoostingClassifier(**_boosting(strength, outputs))
    options = _forest(strength, 1)
    return ensemble.RandomForestClassifier(class_weight=weight, max_features="sqrt", **options)


def _regressor(how: str, strength: float, outputs: int) -> Any:
    from sklearn import ensemble, linear_model

    if how in ("margins", "linear"):
        return linear_model.Ridge(alpha=1 / strength)
    if how == "boosting":
        return ensemble.HistGradientBoostingRegressor(**_boosting(strength, outputs))
    return ensemble.RandomForestRegressor(max_features=1 / 3, **_forest(strength, outputs))


def _boosting(leaves: float, outputs: int) -> dict[str, Any]:
    rounds = min(ROUNDS, max(10, _MOST_TREES // outputs))
    return {
        "max_leaf_nodes": int(leaves),
        "max_depth": _DEPTH,
        "max_iter": rounds,
        "early_stopping": False,
        "random_state": 0,
    }


def _forest(fewest: float, outputs: int) -> dict[str, Any]:
    return {
        "n_estimators": min(GROWN, max(10, _MOST_TREES // outputs)),
        "min_samples_leaf": int(fewest),
        "max_leaf_nodes": LEAVES,
        "random_state": 0,
    }
