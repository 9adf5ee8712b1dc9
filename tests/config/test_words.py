"""Other programs' words for keys and values are answered with the words that are used here."""

from typing import get_args, get_type_hints

import pytest

from lib.config import Config, words
from lib.config.reader import sentences
from lib.errors import BadInput
from tests.config.settings import GOOD, load

ELSEWHERE = {
    "batch_size: 8\n" + GOOD: "training.effective_batch",
    GOOD + "data: {accumulate_grad_batches: 4}\n": "training.effective_batch",
    GOOD + "fp16: true\n": "training.precision",
    GOOD + "run: {maxEpochs: 5}\n": "training.epochs",
    GOOD + "optimizer: {learning-rate: 5e-5}\n": "optimizer.lr",
    GOOD + "training.learning_rate: 1e-3\n": "optimizer.lr",
    GOOD + "device: {DataParallel: true}\n": "no key",
    "task: toy\ntraining: {max_steps: 5, effective_batch: 8, precision: 16-mixed}": "fp16",
    "task: toy\ntraining: {max_steps: 5, effective_batch: 8, gradient_checkpointing: true}": "all",
    GOOD + "optimizer: {name: AdamW}": "adamw",
}


@pytest.mark.parametrize(("text", "here"), ELSEWHERE.items())
def test_a_word_from_elsewhere_is_answered_wherever_it_stands(tmp_path, text, here):
    with pytest.raises(BadInput, match=rf"^\S+:\d+:\d+: .* It is (called )?{here}\b[^\n]* here\.[^\n]*$"):
        load(tmp_path, text)


def test_every_word_stands_for_keys_and_values_that_exist_and_for_one_thing():
    known, rows, values = set(sentences(Config)), words.table()["keys"], words.table()["values"]
    assert {key for row in rows for key in row["here"].split()} <= known | {"task", "workload"}
    names = [words._plain(name) for row in rows for name in {*map(words._plain, row["elsewhere"].split())}]
    assert len(set(names)) == len(names) and not {*names} & {words._plain(key) for key in known}
    for key, pairs in values.items():
        section, name = key.split(".")
        kind = get_type_hints(get_type_hints(Config)[section])[name]
        choices = {str(choice) for member in (kind, *get_args(kind)) for choice in get_args(member)} | {"0"}
        assert pairs.keys() <= choices and not {w for text in pairs.values() for w in text.split()} & choices, key
