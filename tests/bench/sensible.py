"""What a sensible person takes without a network, tuned by three folds of the training samples alone."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import compose, ensemble, impute, linear_model, pipeline, preprocessing, svm
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV

_SCORERS = {"rmse": "neg_root_mean_squared_error", "macro_f1": "f1_macro", "accuracy": "accuracy"}
_LEAVES = {"forest__min_samples_leaf": [1, 3, 10]}
_BOOSTED = {
    "boosting__learning_rate": [0.05, 0.1],
    "boosting__max_leaf_nodes": [8, 16, 31],
    "boosting__l2_regularization": [0, 5],
}
_FEWER = {"boosting__max_leaf_nodes": [8, 16], "boosting__l2_regularization": [0, 5]}
_MANY = 5  # classes: of more boosting has fewer rounds and settings


class Best(NamedTuple):
    """A tuned method: its score by folds, where more is better, and its answers to the test."""

    score: float
    guess: np.ndarray


def of_tables(metric: str, train: pd.DataFrame, test: pd.DataFrame) -> dict[str, Best]:
    """Tunes a linear model, a forest and boosting; the last column is `target`."""
    columns = train.columns.drop("target")
    words = [name for name in columns if not pd.api.types.is_numeric_dtype(train[name])]
    numbers = [name for name in columns if name not in words]
    targets = train["target"]
    is_number = metric == "rmse"
    models = _regressors() if is_number else _classifiers(targets.nunique())
    found = {}
    for name, (model, grid) in models.items():
        prepared = compose.make_column_transformer(
            (_numbers(name), numbers), (_words(name), words), sparse_threshold=0
        )
        steps = pipeline.Pipeline([("columns", prepared), (name, model)])
        found[name] = _tuned(steps, grid, metric, (train[columns], targets), test[columns])
    return found


def _numbers(name: str) -> Any:
    if name == "boosting":
        return "passthrough"
    return pipeline.make_pipeline(
        impute.SimpleImputer(add_indicator=True), preprocessing.StandardScaler()
    )


def _words(name: str) -> Any:
    if name == "boosting":
        return preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return preprocessing.OneHotEncoder(handle_unknown="ignore")


def _regressors() -> Mapping[str, tuple[Any, Mapping[str, Sequence[Any]]]]:
    return {
        "linear": (linear_model.Ridge(), {"linear__alpha": [0.1, 1, 10, 100]}),
        "forest": (ensemble.RandomForestRegressor(200, random_state=0), _LEAVES),
        "boosting": (
            ensemble.HistGradientBoostingRegressor(
                max_iter=300, early_stopping=True, random_state=0
            ),
            _BOOSTED,
        ),
    }


def _classifiers(classes: int) -> Mapping[str, tuple[Any, Mapping[str, Sequence[Any]]]]:
    rounds = 80 if classes > _MANY else 300
    boosting = ensemble.HistGradientBoostingClassifier(
        max_iter=rounds, early_stopping=True, random_state=0
    )
    return {
        "linear": (
            linear_model.LogisticRegression(max_iter=2000),
            {"linear__C": [0.01, 0.1, 1, 10]},
        ),
        "forest": (ensemble.RandomForestClassifier(200, random_state=0), _LEAVES),
        "boosting": (boosting, _FEWER if classes > _MANY else _BOOSTED),
    }


def of_pictures(
    metric: str, train: np.ndarray, targets: Sequence[str], test: np.ndarray
) -> dict[str, Best]:
    """Tunes a support vector machine on (pictures, pixels)."""
    grid = {"C": [1, 10, 100], "gamma": ["scale", 0.5, 2]}
    return {"support vectors": _tuned(svm.SVC(), grid, metric, (train, targets), test)}


def of_texts(
    metric: str, train: Sequence[str], targets: Sequence[str], test: Sequence[str]
) -> dict[str, Best]:
    """Tunes a linear model of words and pairs of words."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = linear_model.LogisticRegression(class_weight="balanced", max_iter=500)
    steps = pipeline.Pipeline([("words", words), ("linear", model)])
    grid = {"linear__C": [1, 10, 50]}
    return {"linear of words": _tuned(steps, grid, metric, (train, targets), test)}


def _tuned(
    model: Any, grid: Mapping[str, Sequence[Any]], metric: str, train: tuple[Any, Any], test: Any
) -> Best:
    search = GridSearchCV(model, {**grid}, scoring=_SCORERS[metric], cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that have not converged
        search.fit(*train)
    return Best(float(search.best_score_), search.predict(test))
