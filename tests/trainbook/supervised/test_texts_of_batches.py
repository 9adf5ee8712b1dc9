"""Texts in a batch: `features` reads them, and no model gets them."""

import pytest
import torch

from lib.errors import BadInput
from lib.training.data import check_samples
from tests.trainbook.supervised.tasks import Tags, Words
from trainbook import launch
from trainbook.supervised.batches import without_texts


class Named(Words):
    """The simple method reads the words themselves."""

    def batch(self, samples, training):
        return {"word": [word for word, _ in samples], **super().batch(samples, training)}

    def features(self, batch):
        return batch["word"]


class Spelled(Tags):
    """Tags whose numbers are words for the simple method."""

    def batch(self, samples, training):
        batch = super().batch(samples, training)
        words = [[f"w{number}" for number in row] for row in batch["labels"].tolist()]
        return {**batch, "words": words}

    def features(self, batch):
        return batch["words"]


@pytest.mark.parametrize("name", ["Named", "Spelled"])
def test_a_run_trains_and_tests_with_texts_that_features_alone_reads(configured, words, name):
    more = {"training.start_from_baseline": True}
    if name == "Named":
        more["data.dir"] = str(words)
    config = configured(name, {"task": f"{__file__}:{name}", **more})
    summary = launch.train(config)
    assert summary.reason == "completed"
    assert not summary.missing


def test_texts_and_lists_of_words_stay_behind_and_anything_else_travels_to_be_checked():
    x = torch.zeros(2)
    batch = {"x": x, "text": ("a", "b"), "words": [["a", "b"], []], "numbers": [[1], [2]]}
    assert without_texts(batch) == {"x": x, "numbers": [[1], [2]]}
    with pytest.raises(BadInput, match="must return tensors"):
        check_samples(without_texts(batch))
