"""Writes six small competitions with their truth apart, and scores submissions to each."""

import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw
from sklearn.metrics import roc_auc_score

# The truth and a submission have the same ids in the same order
Score = Callable[[pd.DataFrame, pd.DataFrame], float]
SHAPES = ("box", "disc", "ring", "star")
TAGS = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
# Each word is of two marks, and of one more than of the other
RUDE = (
    "rubbish", "nonsense", "vile", "monstrous", "damned", "bloody",
    "regret", "beware", "clown", "fool", "foreigners", "those",
)  # fmt: skip
PLAIN = (
    "article", "edited", "user", "history", "music",
    "cities", "rivers", "sources", "page", "thanks",
)  # fmt: skip
CALLS = ("down", "flat", "trill", "up")
RATE = 8000  # values of a sound each second
SIDE = 48  # pixels of a picture
GREY = "L"


@dataclass(frozen=True)
class Layout:
    """A competition: its data, the block that its files propose, and its scores.

    `write(folder, train, new)` writes the data with numbers of rows, and returns the truth. `samples`
    has a score by sample. Where no task of the block learns it, `like` is an example and `task` a
    class under tasks that derives from it.
    """

    write: Callable[[Path, int, int], pd.DataFrame]
    new: str
    samples: dict[str, Score]
    block: dict[str, object]
    metric: str = ""  # in the competition's words; empty: the proposed one
    rows: tuple[int, int] = (160, 40)
    like: str = "competition"
    task: str = ""
    options: dict[str, str] = field(default_factory=dict)


def _ground(
    generator: np.random.Generator,
) -> tuple[Image.Image, ImageDraw.ImageDraw, tuple[int, ...]]:
    """Returns a noisy picture, what draws on it, and a colour that differs from its own."""
    base = generator.integers(40, 180, 3)
    noise = generator.normal(0, 12, (SIDE, SIDE, 3))
    pixels = (base + noise).clip(0, 255)
    picture = Image.fromarray(pixels.astype(np.uint8))
    return picture, ImageDraw.Draw(picture), tuple(map(int, base + 70))


# --- 1: flat pictures and a table of their classes --------------------------------------------------------------------


def leaves(folder: Path, train: int, new: int) -> pd.DataFrame:
    generator = np.random.default_rng(1)
    parts = {"train_images": range(train), "test_images": range(90_000, 90_000 + new)}
    tables = {}
    for part, numbers in parts.items():
        (folder / part).mkdir(parents=True)
        shapes = generator.choice(SHAPES, len(numbers), p=(0.4, 0.3, 0.2, 0.1))
        names = [f"{number:05}" for number in numbers]
        for name, shape in zip(names, shapes, strict=True):
            picture = _leaf(str(shape), generator)
            picture.save(folder / part / f"{name}.png")
        trees = [f"tree_{tree}" for tree in generator.integers(0, 20, len(numbers))]
        tables[part] = pd.DataFrame({"id": names, "label": shapes, "tree": trees})
    tables["train_images"].to_csv(folder / "train.csv", index=False)
    truth = tables["test_images"][["id", "label"]]
    shuffled = truth[["id"]].sample(frac=1, random_state=1)
    truth[["id"]].assign(label="box").to_csv(folder / "sample_submission.csv", index=False)
    shuffled.assign(label="box").to_csv(folder / "shuffled.csv", index=False)
    shares = truth[["id"]].assign(**dict.fromkeys(SHAPES, 0.25))
    shares.to_csv(folder / "probabilities.csv", index=False)
    return truth


def _leaf(shape: str, generator: np.random.Generator) -> Image.Image:
    picture, draw, colour = _ground(generator)
    x, y = map(int, generator.integers(16, SIDE - 16, 2))
    radius = int(generator.integers(8, 14))
    around = (x - radius, y - radius, x + radius, y + radius)
    match shape:
        case "ring":
            draw.ellipse(around, outline=colour, width=3)
        case "disc":
            draw.ellipse(around, fill=colour)
        case "star":
            draw.regular_polygon((x, y, radius), 3, fill=colour)
        case "box":
            draw.rectangle(around, fill=colour)
    return picture


def accuracy(truth: pd.DataFrame, guess: pd.DataFrame) -> float:
    return float((truth["label"] == guess["label"]).mean())


def log_loss(truth: pd.DataFrame, guess: pd.DataFrame) -> float:
    names = [*guess.columns[1:]]
    shares = guess[names].to_numpy(float)
    places = [names.index(label) for label in truth["label"]]
    likelihoods = shares[np.arange(len(places)), places]
    return float(-np.log(likelihoods.clip(1e-15)).mean())


# --- 2: a table with categories, empty cells and dates ----------------------------------------------------------------


def houses(folder: Path, train: int, new: int) -> pd.DataFrame:
    generator = np.random.default_rng(2)
    folder.mkdir(parents=True)
    table = _houses(train + new, generator)
    known = table[:train]
    unknown = table[train:]
    known.to_csv(folder / "train.csv", index=False)
    truth = unknown[["Id", "SalePrice"]].reset_index(drop=True)
    unknown.drop(columns="SalePrice").to_csv(folder / "test.csv", index=False)
    shuffled = truth[["Id"]].sample(frac=1, random_state=1)
    truth[["Id"]].assign(SalePrice=180_000).to_csv(folder / "sample_submission.csv", index=False)
    shuffled.assign(SalePrice=180_000).to_csv(folder / "shuffled.csv", index=False)
    return truth


def _houses(rows: int, generator: np.random.Generator) -> pd.DataFrame:
    worth = {"north": 1.0, "old town": 1.6, "harbour": 1.3, "hills": 1.9}
    districts = generator.choice([*worth], rows)
    days = pd.to_timedelta(generator.integers(0, 1800, rows), "D")
    sold = pd.Timestamp("2019-01-01") + days
    area = generator.gamma(6, 15, rows).round(1)
    noise = np.exp(generator.normal(0, 0.1, rows))
    growth = 1 + 0.06 * (sold.year.to_numpy() - 2019)
    factors = pd.Series(districts).map(worth).to_numpy()
    price = 1500 * area * factors * growth * noise
    ids = generator.permutation(rows) + 1  # row numbers of other rows
    table = pd.DataFrame({"Id": ids, "district": districts, "sold": sold.strftime("%Y-%m-%d")})
    table["area"] = area
    table["built"] = generator.integers(1900, 2020, rows).astype(float)
    table["garage"] = generator.choice(["yes", "no"], rows)
    table["SalePrice"] = price.round()
    for column, share in (("built", 0.12), ("garage", 0.2), ("area", 0.05)):
        table.loc[generator.random(rows) < share, column] = None
    return table


def rmsle(truth: pd.DataFrame, guess: pd.DataFrame) -> float:
    right = np.log1p(truth["SalePrice"])
    guessed = np.log1p(guess["SalePrice"].astype(float))
    squares = (right - guessed) ** 2
    return float(np.sqrt(squares.mean()))


# --- 3: texts with six labels -----------------------------------------------------------------------------------------


def comments(folder: Path, train: int, new: int) -> pd.DataFrame:
    generator = np.random.default_rng(3)
    folder.mkdir(parents=True)
    rows = [_comment(number, generator) for number in range(train + new)]
    table = pd.DataFrame(rows, columns=["id", "comment_text", *TAGS])
    table[:train].to_csv(folder / "train.csv", index=False)
    test = table[train:].reset_index(drop=True)
    test[["id", "comment_text"]].to_csv(folder / "test.csv", index=False)
    sample = test[["id"]].assign(**dict.fromkeys(TAGS, 0.5))
    sample.to_csv(folder / "sample_submission.csv", index=False)
    return test[["id", *TAGS]]


def _comment(number: int, generator: np.random.Generator) -> list[object]:
    """Returns an id of digits and letters, a text, sometimes with quotes and lines, and six marks.

    A mark has one to three words. A fifth of the texts without it have one, half of these behind "not".
    """
    marks = (generator.random(len(TAGS)) < 0.25).astype(int)
    phrases = [*generator.choice(PLAIN, generator.integers(5, 15))]
    for place, mark in enumerate(marks):
        own = np.take(RUDE, range(2 * place, 2 * place + 4), mode="wrap")
        if mark:
            phrases += [
                *generator.choice(own, generator.integers(1, 4), p=(0.35, 0.35, 0.15, 0.15))
            ]
        elif generator.random() < 0.2:
            phrases.append(generator.choice(("", "not ")) + generator.choice(own[:2]))
    generator.shuffle(phrases)
    text = " ".join(phrases)
    end = ',\n"quoted" text' if generator.random() < 0.1 else ""
    return [f"{number:016x}", text + end, *marks]


def mean_auc(truth: pd.DataFrame, guess: pd.DataFrame) -> float:
    scores = [roc_auc_score(truth[tag], guess[tag].astype(float)) for tag in TAGS]
    return float(np.mean(scores))


# --- 4: masks as run lengths ------------------------------------------------------------------------------------------


def salt(folder: Path, train: int, new: int) -> pd.DataFrame:
    generator = np.random.default_rng(4)
    tables = {}
    for part, count in (("train", train), ("test", new)):
        (folder / part).mkdir(parents=True)
        names = [f"{part}{number}" for number in range(count)]
        masks = []
        for name in names:
            picture, mask = _salt(generator)
            picture.convert(GREY).save(folder / part / f"{name}.png")
            masks.append(run_lengths(mask))
        tables[part] = pd.DataFrame({"id": names, "rle_mask": masks})
    tables["train"].to_csv(folder / "train.csv", index=False)
    tables["test"].assign(rle_mask="1 1").to_csv(folder / "sample_submission.csv", index=False)
    return tables["test"]


def _salt(generator: np.random.Generator) -> tuple[Image.Image, np.ndarray]:
    """Returns a noisy picture and its mask: of a body that is round, not of a box of the same grey."""
    base = int(generator.integers(60, 180))
    ground = base + generator.normal(0, 20, (SIDE, SIDE))
    picture = Image.fromarray(ground.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    mask = Image.new(GREY, picture.size)
    grey = base + int(generator.choice((-35, 35)))
    left = generator.random() < 0.5  # one half has the body, the other one the box
    for half, is_body in ((0, left), (1, not left)):
        if generator.random() < 0.25:
            continue
        x, y = half * SIDE // 2 + SIDE // 4, int(generator.integers(12, SIDE - 12))
        width, height = map(int, generator.integers(6, 11, 2))
        around = (x - width, y - height, x + width, y + height)
        if is_body:
            draw.ellipse(around, fill=grey)
            ImageDraw.Draw(mask).ellipse(around, fill=1)
        else:
            draw.rectangle(around, fill=grey)
    noisy = np.asarray(picture) + generator.normal(0, 12, (SIDE, SIDE))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), np.asarray(mask)


def run_lengths(mask: np.ndarray) -> str:
    """Returns starts from 1 and lengths, down the columns."""
    flat = np.concatenate([[0], mask.T.flatten(), [0]])
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    pairs = zip(changes[::2], changes[1::2], strict=True)
    return " ".join(f"{start} {end - start}" for start, end in pairs)


def _pixels(runs: object) -> set[int]:
    if isinstance(runs, str):
        numbers = [*map(int, runs.split())]
    else:
        numbers = []
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return {pixel for start, length in pairs for pixel in range(start, start + length)}


def mean_iou(truth: pd.DataFrame, guess: pd.DataFrame) -> float:
    """Returns the mean over pictures; 1 for two empty masks."""
    pairs = zip(truth["rle_mask"].map(_pixels), guess["rle_mask"].map(_pixels), strict=True)
    return float(np.mean([_iou(*pair) for pair in pairs]))


def _iou(true: set[int], guessed: set[int]) -> float:
    union = true | guessed
    if not union:
        return 1.0
    return len(true & guessed) / len(union)


# --- 5: sounds --------------------------------------------------------------------------------------------------------


def birds(folder: Path, train: int, new: int) -> pd.DataFrame:
    generator = np.random.default_rng(5)
    tables = {}
    for part, count in (("train_audio", train), ("test_audio", new)):
        (folder / part).mkdir(parents=True)
        names = [f"{part[:2]}{number:04}.wav" for number in range(count)]
        calls = [str(call) for call in generator.choice(CALLS, count)]
        for name, call in zip(names, calls, strict=True):
            _write_sound(folder / part / name, _call(call, generator))
        sites = [f"site{site}" for site in generator.integers(0, 8, count)]
        tables[part] = pd.DataFrame({"filename": names, "label": calls, "site": sites})
    tables["train_audio"].to_csv(folder / "train.csv", index=False)
    truth = tables["test_audio"][["filename", "label"]]
    sample = truth[["filename"]].assign(**dict.fromkeys(CALLS, 0.25))
    sample.to_csv(folder / "sample_submission.csv", index=False)
    return truth


def _call(name: str, generator: np.random.Generator) -> np.ndarray:
    """Returns a second of a call, (RATE,) from -1 to 1."""
    t = np.arange(RATE) / RATE
    pitch = generator.uniform(500, 1200)
    match name:
        case "up":
            phase = pitch * (t + t * t / 2)
        case "down":
            phase = pitch * (2 * t - t * t / 2)
        case "trill":
            phase = pitch * t + 1.3 * np.sin(2 * np.pi * 12 * t)
        case _:
            phase = 1.4 * pitch * t
    tone = np.sin(2 * np.pi * phase)
    noise = generator.normal(0, 0.1, RATE)
    return (0.6 * tone + noise).clip(-1, 1)


def _write_sound(path: Path, sound: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((sound * 32_000).astype("<i2").tobytes())


# --- 6: boxes ---------------------------------------------------------------------------------------------------------


def wheat(folder: Path, train: int, new: int) -> pd.DataFrame:
    generator = np.random.default_rng(6)
    truth = []
    for part, count in (("train", train), ("test", new)):
        (folder / part).mkdir(parents=True)
        rows = []
        for number in range(count):
            name = f"{part}{number}"
            picture, boxes = _wheat(generator)
            picture.save(folder / part / f"{name}.png")
            rows += [{"image_id": name, "bbox": str([*box])} for box in boxes]
            if part == "test":
                words = [" ".join(map(str, box)) for box in boxes]
                truth.append({"image_id": name, "PredictionString": "; ".join(words)})
        if part == "train":
            pd.DataFrame(rows).to_csv(
                folder / "train.csv", index=False
            )  # pictures without a box have no row
    table = pd.DataFrame(truth)
    table.assign(PredictionString="").to_csv(folder / "sample_submission.csv", index=False)
    return table


def _wheat(generator: np.random.Generator) -> tuple[Image.Image, list[tuple[int, ...]]]:
    """Returns a picture with heads in some quarters, and their boxes (x, y, width, height)."""
    picture, draw, colour = _ground(generator)
    boxes = []
    half = SIDE // 2
    for corner in ((0, 0), (half, 0), (0, half), (half, half)):
        if generator.random() < 0.5:
            width, height = map(int, generator.integers(8, 12, 2))
            x, y = (int(start + generator.integers(0, half - 12)) for start in corner)
            around = (x, y, x + width, y + height)
            draw.ellipse(around, fill=colour)
            boxes.append((x, y, width, height))
    return picture, boxes


def f1_of_boxes(truth: pd.DataFrame, guess: pd.DataFrame) -> float:
    """Returns the F1 of boxes that overlap a true one by a quarter of their union."""
    hits = wanted = given = 0
    for true, answer in zip(truth["PredictionString"], guess["PredictionString"], strict=True):
        boxes = [[*map(float, text.split())] for text in true.split("; ") if text]
        if isinstance(answer, str):
            numbers = [*map(float, answer.split())]
        else:
            numbers = []
        confidences = range(0, len(numbers), 5)
        answers = [numbers[place + 1 : place + 5] for place in confidences]
        wanted = wanted + len(boxes)
        given = given + len(answers)
        best = [max((_overlap(box, other) for other in answers), default=0) for box in boxes]
        hits += sum(overlap > 0.25 for overlap in best)
    return 2 * hits / max(1, wanted + given)


def _overlap(box: list[float], other: list[float]) -> float:
    x, y, width, height = box
    other_x, other_y, other_width, other_height = other
    shared_width = _shared(x, width, other_x, other_width)
    shared_height = _shared(y, height, other_y, other_height)
    both = shared_width * shared_height
    areas = width * height + other_width * other_height
    return both / (areas - both)


def _shared(start: float, length: float, other: float, other_length: float) -> float:
    end = min(start + length, other + other_length)
    return max(0.0, end - max(start, other))


def _with_labels(score: Score) -> Score:
    """Returns a score for a sample with a column for each class."""

    def scored(truth: pd.DataFrame, guess: pd.DataFrame) -> float:
        shares = guess[[*guess.columns[1:]]]
        return score(truth, guess.assign(label=shares.idxmax(axis=1)))

    return scored


SAMPLE = "sample_submission.csv"
LEAVES = Layout(
    leaves,
    new="test_images",
    samples={SAMPLE: accuracy, "shuffled.csv": accuracy, "probabilities.csv": log_loss},
    block={
        "table": "train.csv",
        "key": "id",
        "target": ["label"],
        "folder": "train_images/*.png",
        "test": "test_images/*.png",
        "sample": SAMPLE,
        "group": "tree",
        "metric": "accuracy",
    },
)
HOUSES = Layout(
    houses,
    new="test.csv",
    samples={SAMPLE: rmsle, "shuffled.csv": rmsle},
    rows=(600, 60),
    metric="Root Mean Squared Logarithmic Error",
    block={
        "table": "train.csv",
        "key": "Id",
        "target": ["SalePrice"],
        "test": "test.csv",
        "sample": SAMPLE,
        "metric": "rmse",
    },
)
COMMENTS = Layout(
    comments,
    new="test.csv",
    samples={SAMPLE: mean_auc},
    rows=(400, 200),
    metric="Mean Column-wise ROC AUC",
    block={
        "table": "train.csv",
        "key": "id",
        "target": [*TAGS],
        "text": ["comment_text"],
        "test": "test.csv",
        "sample": SAMPLE,
        "metric": "roc_auc",
    },
)
SALT = Layout(
    salt,
    new="test",
    samples={SAMPLE: mean_iou},
    metric="Dice coefficient",
    block={
        "table": "train.csv",
        "key": "id",
        "target": ["rle_mask"],
        "folder": "train/*.png",
        "test": "test/*.png",
        "sample": SAMPLE,
        "metric": "dice",
    },
)
BIRDS = Layout(
    birds,
    new="test_audio",
    samples={SAMPLE: _with_labels(accuracy)},
    metric="accuracy",
    block={
        "table": "train.csv",
        "key": "filename",
        "target": ["label"],
        "folder": "train_audio/*.wav",
        "test": "test_audio/*.wav",
        "sample": SAMPLE,
        "group": "site",
        "metric": "log_loss",
    },
)
WHEAT = Layout(
    wheat,
    new="test",
    samples={SAMPLE: f1_of_boxes},
    like="segmentation",
    task="wheat:Wheat",
    options={"workload.size": "48"},
    block={
        "table": "train.csv",
        "key": "image_id",
        "target": [],
        "folder": "train/*.png",
        "test": "test/*.png",
        "sample": SAMPLE,
        "metric": "",
    },
)
LOWER = (rmsle, log_loss)  # is better
LAYOUTS = {
    "leaves": LEAVES,
    "houses": HOUSES,
    "comments": COMMENTS,
    "salt": SALT,
    "birds": BIRDS,
    "wheat": WHEAT,
}
