"""Other programs' words for keys and values are answered with the words that are used here."""

import collections
from typing import get_args, get_type_hints

import pytest

from lib.config import Config, words
from lib.config.reader import sentences
from lib.errors import BadInput
from tests.config.settings import GOOD, load

# Where a key stands in the file -> the key that the message must name.
ASKED = {
    "batch_size: 8\n" + GOOD: "training.effective_batch",
    GOOD + "optimizer:\n  per_device_train_batch_size: 8\n": "training.effective_batch",
    GOOD + "gradient_accumulation_steps: 4\n": "training.effective_batch",
    GOOD + "data: {accumulate_grad_batches: 4}\n": "training.effective_batch",
    GOOD + "fp16: true\n": "training.precision",
    GOOD + "bf16: true\n": "training.precision",
    GOOD + "workload: {save_steps: 500}\n": "checkpoint.every_steps",
    GOOD + "eval_steps: 500\n": "training.evaluate_every_steps",
    GOOD + "logging_steps: 5\n": "training.log_every_steps",
    GOOD + "num_train_epochs: 5\n": "training.epochs",
    GOOD + "run: {maxEpochs: 5}\n": "training.epochs",
    GOOD + "learning_rate: 5e-5\n": "optimizer.lr",
    GOOD + "optimizer: {learning-rate: 5e-5}\n": "optimizer.lr",
    GOOD + "warmup_ratio: 0.1\n": "scheduler.warmup_steps",
    GOOD + "max_grad_norm: 1.0\n": "training.clip_norm",
    GOOD + "report_to: wandb\n": "tracking.tensorboard",
    GOOD + "devices: 2\n": "device.gpu_ids",
    GOOD + "warmup_steps: 5\n": "It belongs elsewhere, as scheduler.warmup_steps.",
}


def said_of(tmp_path, text, **overrides):
    with pytest.raises(BadInput) as error:
        load(tmp_path, text, **overrides)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize(("text", "key"), ASKED.items(), ids=[key.strip() for key in ASKED])
def test_a_key_from_elsewhere_is_answered_wherever_it_stands(tmp_path, text, key):
    said = said_of(tmp_path, text)
    assert "There is no key" in said and (key if " " in key else f"is called {key}") in said
    assert "Did you mean" not in said and "Known here" not in said


def test_what_needs_no_key_is_said_too(tmp_path):
    for name in ("DataParallel", "data_parallel", "ddp"):
        assert "It is no key here. There is nothing to set: each GPU gets a process" in said_of(
            tmp_path, f"{GOOD}device: {{{name}: true}}\n"
        )


def test_an_override_and_a_dotted_key_are_answered_too(tmp_path):
    assert "is called training.effective_batch here" in said_of(tmp_path, GOOD, **{"training.batch_size": "8"})
    assert "is called optimizer.lr here" in said_of(tmp_path, GOOD + "training.learning_rate: 1e-3\n")


VALUES = {
    "training: {max_steps: 5, effective_batch: 8, precision: 16-mixed}": "training.precision.*It is called fp16 here",
    "training: {max_steps: 5, effective_batch: 8, precision: 32}": "It is called fp32 here",
    "training: {max_steps: 5, effective_batch: 8, gradient_checkpointing: true}": "It is called all here",
    "optimizer: {name: AdamW}": "optimizer.name must be .*It is called adamw here",
    "optimizer: adamw": r"optimizer must be a section .*Write it as {name: adamw}\.",
    "scheduler: {name: ReduceLROnPlateau}": "It is called plateau here",
}


@pytest.mark.parametrize(("line", "sentence"), VALUES.items(), ids=VALUES)
def test_a_value_from_elsewhere_is_answered(tmp_path, line, sentence):
    text = GOOD if "effective_batch" not in line else "task: toy\n"
    with pytest.raises(BadInput, match=sentence):
        load(tmp_path, f"{text}{line}\n")


def test_a_value_that_this_version_does_not_take_is_not_advised(tmp_path, monkeypatch):
    monkeypatch.setitem(words.VALUES, "scheduler.name", {"Wave": "wavelet"})
    assert "wavelet" not in said_of(tmp_path, GOOD + "scheduler: {name: Wave}\n")


def test_every_word_stands_for_keys_that_exist_and_for_one_thing():
    known = set(sentences(Config))
    assert {key for word in words.WORDS for key in word.keys} <= known | {"task", "workload"}
    spelled = [words._plain(name) for word in words.WORDS for name in word.elsewhere]
    twice = [name for name, count in collections.Counter(spelled).items() if count > 1]
    assert set(twice) <= {"dataparallel"}  # a class, and a key
    assert not {name for word in words.WORDS for name in word.elsewhere} & {key.rpartition(".")[2] for key in known}
    assert words.VALUES.keys() <= known


def test_every_value_that_is_advised_where_a_key_has_choices_is_one_of_other_name():
    hints = {key: get_type_hints(get_type_hints(Config)[key.split(".")[0]])[key.split(".")[1]] for key in words.VALUES}
    for key, values in words.VALUES.items():
        choices = [str(choice) for kind in (hints[key], *get_args(hints[key])) for choice in get_args(kind)]
        assert not set(values) & set(choices), key
