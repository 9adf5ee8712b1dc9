from dataclasses import replace

import pandas as pd
import pytest

from tests.competitions import layouts, play


@pytest.mark.parametrize(
    ("name", "rows", "sample"),
    [("leaves", (60, 12), "probabilities.csv")],
)
def test_a_submission_has_the_score_of_the_answers_joined_by_hand(name, rows, sample, tmp_path):
    layout = layouts.LAYOUTS[name]
    layout = replace(layout, rows=rows, samples={sample: layout.samples[sample]})
    assert [*play.pairs(layout, tmp_path, steps=4)] == [*layout.samples]


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
