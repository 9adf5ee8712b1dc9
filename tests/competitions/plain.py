"""What plain scikit-learn answers to the layouts: the fifteen lines of a public notebook, five folds averaged."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from scipy import ndimage, signal
from scipy.io import wavfile
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from tests.competitions.layouts import CALLS, SIDE, TAGS, _pixels, run_lengths

WORDS = ("district", "garage")


def averaged(
    fit: Callable[[np.ndarray], Callable[[], np.ndarray]], rows: int, seed: int
) -> np.ndarray:
    """Returns the mean answer to the test of five models; `fit` takes training rows, returns what answers."""
    folds = KFold(5, shuffle=True, random_state=seed).split(np.arange(rows))
    return np.mean([fit(train)() for train, _ in folds], 0)


def houses(data: Path, seed: int) -> pd.DataFrame:
    train, test = (_with_dates(pd.read_csv(data / f"{part}.csv")) for part in ("train", "test"))
    target = np.log1p(train.pop("SalePrice"))
    columns = [name for name in train.columns if name not in ("Id", *WORDS)]
    coded = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)

    def fit(rows: np.ndarray) -> Callable[[], np.ndarray]:
        encoder = make_column_transformer((coded, [*WORDS]), ("passthrough", columns))
        model = make_pipeline(encoder, HistGradientBoostingRegressor(random_state=seed))
        model.fit(train.iloc[rows], target.iloc[rows])
        return lambda: model.predict(test)

    return test[["Id"]].assign(SalePrice=np.expm1(averaged(fit, len(train), seed)))


def _with_dates(table: pd.DataFrame) -> pd.DataFrame:
    days = pd.to_datetime(table["sold"])
    return table.assign(sold=days.map(pd.Timestamp.toordinal), month=days.dt.month)


def comments(data: Path, seed: int) -> pd.DataFrame:
    train, test = (
        pd.read_csv(data / f"{part}.csv", dtype={"id": str}) for part in ("train", "test")
    )
    shares = {}
    for tag in TAGS:

        def fit(rows: np.ndarray, tag: str = tag) -> Callable[[], np.ndarray]:
            model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=4))
            model.fit(train["comment_text"].iloc[rows], train[tag].iloc[rows])
            return lambda: model.predict_proba(test["comment_text"])[:, 1]

        shares[tag] = averaged(fit, len(train), seed)
    return test[["id"]].assign(**shares)


def leaves(data: Path, seed: int) -> pd.DataFrame:
    table = pd.read_csv(data / "train.csv", dtype={"id": str})
    names = sorted(path.stem for path in (data / "test_images").glob("*.png"))
    train = _pictures([data / "train_images" / f"{name}.png" for name in table["id"]])
    test = _pictures([data / "test_images" / f"{name}.png" for name in names])
    classes, shares = _classified(train, table["label"], test, seed)
    return pd.DataFrame({"id": names, "label": classes[shares.argmax(1)]})


def birds(data: Path, seed: int) -> pd.DataFrame:
    table = pd.read_csv(data / "train.csv")
    names = sorted(path.name for path in (data / "test_audio").glob("*.wav"))
    train = _spectra([data / "train_audio" / name for name in table["filename"]])
    test = _spectra([data / "test_audio" / name for name in names])
    _, shares = _classified(train, table["label"], test, seed)
    return pd.DataFrame(shares, columns=[*CALLS]).assign(filename=names)[["filename", *CALLS]]


def _classified(
    train: np.ndarray, labels: pd.Series, test: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the classes, and (test, classes) the mean probabilities of five linear models."""
    classes = np.unique(labels)

    def fit(rows: np.ndarray) -> Callable[[], np.ndarray]:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=500))
        model.fit(train[rows], labels.iloc[rows])
        return lambda: model.predict_proba(test)

    return classes, averaged(fit, len(labels), seed)


def _pictures(paths: Sequence[Path]) -> np.ndarray:
    small = [np.asarray(Image.open(path).convert("RGB").resize((24, 24))) for path in paths]
    return np.stack(small).reshape(len(paths), -1) / 255


def _spectra(paths: Sequence[Path]) -> np.ndarray:
    """Returns mean and deviation over time of each frequency's logarithm."""
    rows = []
    for path in paths:
        rate, sound = wavfile.read(path)
        _, _, power = signal.spectrogram(sound / 32768, rate, nperseg=256)
        logarithm = np.log(power + 1e-10)
        rows.append(np.concatenate([logarithm.mean(1), logarithm.std(1)]))
    return np.stack(rows)


def salt(data: Path, seed: int) -> pd.DataFrame:
    """Classifies each pixel by its grey, and by the means around it, beside the picture's."""
    table = pd.read_csv(data / "train.csv", dtype=str, keep_default_na=False)
    names = sorted(path.stem for path in (data / "test").glob("*.png"))
    masks = np.zeros((len(table), SIDE * SIDE), int)
    for row, runs in zip(masks, table["rle_mask"], strict=True):
        row[[pixel - 1 for pixel in _pixels(runs)]] = 1  # down the columns
    train = np.stack([_around(data / "train" / f"{name}.png") for name in table["id"]])
    test = np.concatenate([_around(data / "test" / f"{name}.png") for name in names])
    some = np.random.default_rng(seed).permutation(SIDE * SIDE)[:200]

    def fit(rows: np.ndarray) -> Callable[[], np.ndarray]:
        model = HistGradientBoostingClassifier(random_state=seed)
        features = train[rows][:, some].reshape(-1, train.shape[-1])
        model.fit(features, masks[rows][:, some].ravel())
        return lambda: model.predict_proba(test)[:, 1]

    shares = averaged(fit, len(table), seed).reshape(len(names), SIDE, SIDE)
    runs = [run_lengths((share > 0.5).T.astype(int)) for share in shares]
    return pd.DataFrame({"id": names, "rle_mask": runs})


def _around(path: Path) -> np.ndarray:
    """Returns (pixels down the columns, features) of a picture."""
    grey = np.asarray(Image.open(path).convert("L"), float).T / 255
    means = [ndimage.uniform_filter(grey, side) for side in (3, 7, 15)]
    planes = [grey - grey.mean(), *(mean - grey.mean() for mean in means)]
    return np.stack(planes, -1).reshape(-1, len(planes))


PLAIN = {
    "leaves": leaves,
    "houses": houses,
    "comments": comments,
    "salt": salt,
    "birds": birds,
}
