import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.competitions import layouts, play
from trainbook.supervised.submission import checked


@pytest.mark.parametrize(
    ("name", "rows", "sample"),
    [("leaves", (60, 12), "probabilities.csv")],
)
def test_a_submission_has_the_score_of_the_answers_joined_by_hand(name, rows, sample, tmp_path):
    layout = layouts.LAYOUTS[name]
    layout = replace(layout, rows=rows, samples={sample: layout.samples[sample]})
    assert [*play.pairs(layout, tmp_path, steps=4)] == [*layout.samples]


def test_the_page_s_script_writes_labels_and_turns_answers_into_a_submission(tmp_path, monkeypatch):
    truth = layouts.wheat(tmp_path, 10, 6)
    monkeypatch.chdir(tmp_path)
    page = (play.ROOT / "docs" / "competition.md").read_text("utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    Path("boxes.py").write_text(script, "utf-8")
    subprocess.run([sys.executable, "boxes.py", "labels"], check=True)
    lines = [line for path in Path("train").glob("*.txt") for line in path.read_text().splitlines()]
    shares = [[*map(float, line.split())] for line in lines]
    assert len(shares) == len(pd.read_csv("train.csv"))
    assert len([*Path("train").glob("*.txt")]) == 10
    assert all(0 < share < 1 for row in shares for share in row[1:])
    assert [len(Path(f"{part}.txt").read_text().splitlines()) for part in ("train", "val")] == [
        8,
        2,
    ]
    answers = Path("runs/detect/test/labels")
    answers.mkdir(parents=True)
    for name, boxes in zip(truth["image_id"], truth["PredictionString"], strict=True):
        rows = [[*map(int, box.split())] for box in boxes.split("; ") if box]
        detected = [_detected(*row) for row in rows]
        if detected:
            (answers / f"{name}.txt").write_text("\n".join(detected))
    subprocess.run([sys.executable, "boxes.py", "answers"], check=True)
    submission = play.read(Path("submission.csv"))
    assert layouts.f1_of_boxes(truth, submission) == 1
    assert checked(Path("submission.csv"), Path("sample_submission.csv"))


def _detected(x, y, width, height):
    """Returns a box as ultralytics writes an answer: class, centre, sides, confidence."""
    places = [x + width / 2, y + height / 2, width, height]
    return " ".join(["0", *(str(place / layouts.SIDE) for place in places), "0.9"])


def test_a_perfect_submission_has_the_best_score(tmp_path):
    truth = layouts.wheat(tmp_path / "wheat", 2, 6)
    guess = truth.assign(PredictionString=[_answer(text) for text in truth["PredictionString"]])
    assert layouts.f1_of_boxes(truth, guess) == 1
    salt = layouts.salt(tmp_path / "salt", 2, 6)
    assert layouts.mean_iou(salt, salt) == 1
    masks = pd.DataFrame({"rle_mask": ["1 4", ""]})
    guess = pd.DataFrame({"rle_mask": ["3 4", "1 1"]})
    assert layouts.mean_iou(masks, guess) == pytest.approx(1 / 6)


def _answer(boxes: str) -> str:
    return " ".join(f"1.0 {box}" for box in boxes.split("; ") if box)
