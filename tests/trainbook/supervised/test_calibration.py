"""Probabilities: a power fitted on validation, and a line on how they held on the test."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lib.checkpoint import weights
from lib.errors import BadInput
from tests.bench import bench_verdicts
from tests.trainbook.supervised.tasks import DrawnPixels, DrawnTags, Marks, Pixels, Words
from tests.trainbook.supervised.test_supervised import Loader
from trainbook import launch
from trainbook.launch import ensemble
from trainbook.supervised import calibration, kinds, prediction
from trainbook.supervised.scoring import Judged

CLASSES = kinds.of("classes")


def drawn(number, power, seed=0):
    """Scores whose probabilities are true under `power`, and true classes."""
    draw = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(number, 3, generator=draw)
    true = torch.multinomial((power * scores).softmax(-1), 1, generator=draw)[:, 0].numpy()
    return scores, true


@pytest.mark.parametrize("power", [0.25, 1.0, 3.0])
def test_a_power_is_found_that_makes_probabilities_true(power):
    scores, true = drawn(20_000, power)
    assert calibration.fitted(CLASSES, scores, true) == pytest.approx(power, rel=0.05)


def test_a_network_that_is_too_sure_promises_what_holds_once_it_is_calibrated():
    scores, true = drawn(4000, 0.25)
    power = calibration.fitted(CLASSES, scores, true)
    fresh, right = drawn(4000, 0.25, seed=1)
    errors = []
    for each in (1.0, power):
        shares = (each * fresh).softmax(-1).numpy()
        promised = shares.max(1).mean()
        errors.append(abs(promised - (shares.argmax(1) == right).mean()))
    assert errors[0] > 0.2
    assert errors[1] < 0.02


def test_few_answers_that_are_all_right_make_none_certain():
    true = np.arange(20) % 3
    scores = 9 * nn.functional.one_hot(torch.from_numpy(true), 3).float()
    power = calibration.fitted(CLASSES, scores, true)
    shares = (power * scores).softmax(-1).max(1).values
    assert 0.9 < float(shares.mean()) < 0.99


def test_the_lines_interval_holds_the_true_share_of_right_answers():
    lines = [each for each in map(bench_verdicts.line, range(400)) if each]
    assert len(lines) > 200
    held = [low <= share <= high for low, high, share in lines]
    assert np.mean(held) > 0.92


def test_answers_that_are_right_together_tell_less_than_their_number():
    right = np.repeat([True] * 18 + [False] * 2, 50)
    low, high = calibration.covered(right, np.arange(1000))
    less, more = calibration.covered(right, np.repeat(np.arange(20), 50))
    assert less < low < 0.9 < high < more
    assert more - less == pytest.approx(
        np.diff(calibration.covered(right[::50], np.arange(20)))[0], abs=0.02
    )


def test_the_line_names_what_was_promised_and_is_left_out_for_few():
    draw = np.random.default_rng(0)
    true = (draw.random(400) < 0.1).astype(int)
    shares = np.tile([0.9, 0.1], (400, 1))
    judged = Judged(true, np.zeros(400, int), None, shares, np.arange(400))
    text = calibration.line(judged, range(400))
    found = re.match(
        r"Of 100 answers at 0.9 .*, (\d+) to (\d+) were right on the test, by 400", text
    )
    low, high = map(int, found.groups())
    assert 85 < low < 90 < high < 95
    assert "90 were promised" in text
    assert not calibration.line(judged.at(np.arange(20)), range(400))


def probabilities(row):
    return [float(share) for share in re.findall(r"[\d.]+", str(row["probability"]))]


def right_marks(row, target):
    names = [name for name in row["prediction"].split("; ") if name]
    return [bool(target[int(name)]) for name in names]


def right_positions(row, target):
    guess = row["prediction"]
    numbers = np.array(guess.split(), int) if isinstance(guess, str) else guess.astype(int)
    return (numbers.ravel() == np.ravel(target)).tolist()


@pytest.mark.parametrize(
    ("cls", "right_ones"),
    [(Marks, right_marks), (DrawnTags, right_positions), (DrawnPixels, right_positions)],
)
def test_of_a_hundred_marks_words_or_pixels_as_many_are_right_as_predictions_promise(
    configured, cls, right_ones
):
    task = cls(configured(cls.__name__))
    model = task.model().eval()
    task.evaluate(model, Loader(task, "validation", 40))
    assert calibration.power_of(model, "network") == pytest.approx(1 / 3, rel=0.15)
    task.evaluate(model, Loader(task, "test", 40))
    line = re.search(
        r"Of 100 answers at [\d.]+ .* (\d+) to (\d+) were right .*; (\d+)", task._calibrated()
    )
    low, high, said = map(int, line.groups())
    assert low <= said <= high
    promised, right = [], []
    samples = task.parts["test"].samples
    for row, (_, target) in zip(task.answers([model], samples), samples, strict=True):
        promised += probabilities(row)
        right += right_ones(row, target)
    assert np.mean(promised) == pytest.approx(np.mean(right), abs=0.04)
    model.probability_powers.fill_(1)
    unsure = [share for row in task.answers([model], samples) for share in probabilities(row)]
    assert np.mean(unsure) > np.mean(promised) + 0.1


class Doubled(Words):
    """A network that is too sure: it says one of two classes by the first letter and errs in a third of the rows."""

    def model(self):
        class Sure(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(20.0))

            def forward(self, x):
                return self.scale * nn.functional.one_hot(x[:, 1].long() % 2, 4).float()

        return Sure()


def test_validation_sets_the_power_of_a_class_and_predictions_have_it_with_the_weights(
    configured, words
):
    task = Doubled(configured("Words"), words)
    model = task.model().eval()
    assert calibration.power_of(model, "network") == 1
    task.evaluate(model, Loader(task, "validation"))
    power = calibration.power_of(model, "network")
    assert power < 0.5
    assert calibration.POWERS in weights.of(model)
    samples = [("apple", 0)]
    (row,) = task.answers([model], samples)
    batch = task.labelled(samples)
    assert row["probability"] == pytest.approx(
        float((power * model(batch["x"])).softmax(-1).max().detach()), abs=1e-5
    )


def test_a_model_that_was_saved_without_powers_answers_as_it_did(configured, words):
    task = Words(configured("Words"), words)
    model = task.model().eval()
    saved = {name: value.clone() for name, value in weights.of(model).items()}
    del saved[calibration.POWERS]
    again = task.model().eval()
    weights.put_back(again, saved)
    batch = task.labelled([("apple", 0)])
    assert torch.equal(model(batch["x"]), again(batch["x"]))
    assert calibration.power_of(again, "network") == 1


def predicted(folder):
    with (folder / "predictions.csv").open() as file:
        return [*csv.DictReader(file)]


@pytest.mark.usefixtures("quick", "few")
def test_predict_answers_by_the_gate_or_by_whom_it_is_asked_for_and_says_which_is_the_default(
    configured, words, tmp_path, capsys
):
    options = {
        "data.dir": str(words),
        "training.max_steps": 4,
        "training.start_from_baseline": True,
    }
    summary = launch.train(configured("Words", options))
    capsys.readouterr()
    found = {}
    for answer in ("", "network", "simple"):
        out = tmp_path / f"answers of {answer}"
        ensemble.run(Path("runs/small"), words, out, answer=answer, trusted=True)
        found[answer] = predicted(out)
        said = capsys.readouterr().out
        assert "The default is " in said if answer else "The answers are the default" in said
    assert found["network"] != found["simple"]
    default = "simple" if "The gate is shut" in summary.report else "network"
    assert found[""] == found[default]


def test_pixels_of_a_model_with_the_classes_second_are_predicted_as_they_are_tested(configured):
    task = Pixels(configured("Pixels", {"training.start_from_baseline": True}))
    task.take_learned(json.loads(json.dumps(task.learned())))
    model = task.model().eval()
    samples = task.parts["test"].samples
    batch = task.labelled(samples)
    for gate, scores in ((0.0, task._simple.scores(task, batch)), (1.0, None)):
        model.simple_gate.fill_(gate)
        right = model(batch["x"]).argmax(1) if scores is None else scores.argmax(-1)
        found = [row["prediction"].tolist() for row in task.answers([model], samples)]
        assert found == right.tolist()


@pytest.mark.parametrize(
    ("answer", "why"), [("best", "It is one of: network"), ("simple", "leave --answer out")]
)
def test_an_answer_that_a_run_does_not_have_is_refused(configured, words, answer, why):
    task = Words(configured("Words"), words)
    with pytest.raises(BadInput, match=why):
        prediction.choose(task, answer)
    prediction.choose(task, "")
    assert not task._answer
