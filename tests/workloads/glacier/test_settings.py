"""Settings that contradict each other are refused with a sentence, and say what follows from them."""

import dataclasses

import pytest

from lib.errors import BadInput
from lib.task import load_config
from tests.conftest import ROOT
from workloads.glacier.settings import Loss


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"workload.tiles.size": 40}, "40 is no multiple of 32. Write 32"),
        ({"workload.source.codes": "[0, 85, 170]"}, "4 classes have 3 different codes"),
        ({"workload.source.channels": "[1, 2, 3]"}, "2 bands, but channels names 3"),
        ({"workload.source.name_pattern": "img"}, "with one group in parentheses"),
        ({"workload.sampling.target_shares": "[0.5, 0.4, 0.0, 0.0]"}, "add up to 0.9"),
        ({"workload.sampling.target_shares": "[0.5, 0.5]"}, "2 shares for 4 classes"),
        ({"workload.split.folds": 5, "workload.split.fold": 5}, "fold 5 of 5 folds does not exist"),
        ({"workload.sampling.crop": 40}, "crop 40 is no multiple of 32"),
        ({"workload.sampling.centred": "{lake: 0.2}"}, "centred is given without crop"),
        ({"workload.sampling.crop": 96}, "crop 96 is larger than tiles.size 32"),
        ({"workload.sampling.crop": 32, "workload.sampling.centred": "{pond: 0.2}"}, "centred names pond, and the"),
        ({"workload.sampling.crop": 32, "workload.sampling.centred": "{lake: 1.0}"}, "add up to less than 1"),
        ({"workload.indices": "[[red, uv]]"}, "indices names the band uv, and the bands are red, nir"),
        ({"workload.loss.class_weights": "[1, 2]"}, "class_weights has 2 weights for 4 classes"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tiny, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        tiny(change)


def test_a_loss_has_the_terms_with_a_weight_and_at_least_one():
    assert Loss(focal=0, dice=0.5, mcc=0, boundary=0.1).terms == ("dice", "boundary")
    with pytest.raises(ValueError, match="Every term of the loss has the weight 0"):
        Loss(focal=0, dice=0)


@pytest.mark.parametrize("size", ["", "_small"])
def test_the_preset_for_a_competition_is_that_for_rare_classes_without_a_test_of_its_own(size):
    compete, rare = (load_config(ROOT / "configs" / f"glacier_{name}{size}.yaml") for name in ("compete", "rare"))
    assert compete.workload.split.test == 0 < rare.workload.split.test and compete.queue == rare.queue
    split = dataclasses.replace(rare.workload.split, test=0.0)
    assert dataclasses.replace(rare.workload, split=split) == compete.workload
