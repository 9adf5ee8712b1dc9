"""Reading YAML by types: every mistake with its place, overrides, bases, lengths in two forms."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lib.config import Config, Optimizer, Training, read_config, to_yaml
from lib.config.reader import flat, sentences, words
from lib.errors import BadInput
from tests.config.settings import GOOD, Encoder, Settings, load, reload, workload

# @ is before the place of the mistake: the line and column that the message must give. GOOD precedes a text that
# begins with a newline; of a few the words count too.
MISTAKES = {
    "@seeed: 3\n" + GOOD: "no key seeed at the top. Did you mean seed?",
    "\nworkload: {@widht: 3}": "in workload. Did you mean width?", "\ndata:\n  @lr: 1.0": "Did you mean optimizer.lr?",
    "\n@optimizer.lr: 1e-3": "Did you mean optimizer.lr?", "\ndata:\n  @<<: {dir: x}": "",
    "\nseed:@": "", "\nseed:\n  @a: 1": "", "\ndata: @5": "a section of key: value lines; found 5.",
    "\ndata:\n  @- dir: x": "", "\nworkload:\n  title:@": "", "@training: {max_steps: 1, effective_batch: 1}": "",
    "task: toy\ntraining:\n  @max_steps: 1": "training.effective_batch is missing. Samples in an",
    "seed: 1\ntask: @tyo\n" + GOOD[10:]: "There is no task 'tyo'. Known tasks: toy.",
    "task: toy\ntraining:\n  @effective_batch: 1": "Give training.max_steps, training.epochs or training.hours.",
    "task: toy\ntraining:\n  max_steps: 5\n  @epochs: 2\n  effective_batch: 1": "are two forms of one length",
    "\nworkload: {ramp_steps: 1, @ramp_epochs: 0.5}": "", "\nrun: {@name: ../x}": "run.name becomes a folder",
    "task: toy\ntraining:\n  max_steps: 5\n  micro_batch_slots: 4\n  @effective_batch: 10": "into 4 equal parts",
    "\nworkload:\n  @heads: 3": "workload: width 4 is not a multiple of heads 3.",
    "\nseed: 1\n@seed: 1": "The key seed is given twice, first in line 3. Keep one of them.",
    "\ndata:\n  ? @[a]\n  : 1": "A key must be a plain name", '\nseed: @!!int "5"': "a tag (!) is not supported",
    "\ndata: @!mine {dir: x}": "", "\noutput_dir: &x a\ndata: {dir: @*x}": "an alias (*)", "\ndata: {dir: a\n@": "",
    "\noutput_dir: a@\x07": "not allowed in YAML", "\n@---\nseed: 1": "", "@- task: toy": "", "@toy": "",
    "@": "The file is empty. Give at least task", "@# nothing": "", "@" + "[" * 5000: "nested too deeply",
}  # fmt: skip
# key -> values that it does not take
REFUSED = {
    "seed": ["abc", "1.0", "1e3", "010", "0x10", "1_000", '"5"', "true", "[1]", "null", "1" + "0" * 21],
    "optimizer.lr": [".nan", "1e400", "'1e-3'", "no", "0"], "optimizer.betas": ["[0.9]"],
    "optimizer.nesterov": ["no", "1"], "checkpoint.frozen": ["fp8"], "workload.title": ["[a]"],
    "workload.choice": ["most"], "workload.weights": ["[1]"], "workload.extra": ["5"], "workload.width": ["65", "0"],
}  # fmt: skip
INSIDE = {
    "optimizer.betas": "[0.9, @1]",
    "workload.depths": "[1, @x]",
    "workload.weights": "{a: 1, b: @-1}",
}


def marked_mistakes():
    """Returns each marked text with words of its message, those of single values too."""
    values = {key: [value] for key, value in INSIDE.items()}
    values |= {key: [f"@{value}" for value in refused] for key, refused in REFUSED.items()}
    mistakes = dict(MISTAKES)
    for key, texts in values.items():
        section, _, name = key.rpartition(".")
        for text in texts:
            line = f"{section}: {{{name}: {text}}}" if section else f"{name}: {text}"
            mistakes[f"\n{line}"] = key
    return mistakes


def test_a_mistake_is_reported_with_line_and_column(tmp_path):
    for marked, sentence in marked_mistakes().items():
        whole = GOOD[:-1] + marked if marked.startswith("\n") else marked
        before, after = whole.split("@")
        with pytest.raises(BadInput) as error:
            load(tmp_path, f"{before}{after}\n" if after else before)
        line = before.count("\n") + 1
        column = len(before.rpartition("\n")[2]) + 1
        (message,) = str(error.value).splitlines()
        assert message.startswith(f"{tmp_path / 'toy_small.yaml'}:{line}:{column}: "), marked
        assert sentence in message, marked


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("batch_size: 8\n", "training.effective_batch"),
        ("run: {maxEpochs: 5}\n", "training.epochs"),
        ("optimizer: {learning-rate: 5e-5}\n", "optimizer.lr"),
        ("device: {DataParallel: true}\n", "no key"),
    ],
)
def test_a_word_from_elsewhere_is_answered_with_the_key_that_is_meant(tmp_path, text, here):
    sentence = rf"^\S+:\d+:\d+: .* It is (called )?{here}\b[^\n]* here\.[^\n]*$"
    with pytest.raises(BadInput, match=sentence):
        load(tmp_path, GOOD + text)


def test_words_from_elsewhere_name_keys_that_there_are():
    named = {key for row in words() for key in row["here"].split()}
    assert named <= {*sentences(Config), "task", "workload"}


def test_all_mistakes_of_a_file_are_reported_at_once_and_in_order(tmp_path):
    text = """\
task: toy
seeed: 1
training:
  effective_batch: 010
  epochs: 3
  max_steps: 4
  deterministic: yes
  epochs: 5
optimizer: {lr: .nan, betas: [0.9]}
workload:
  width: "4"
"""
    with pytest.raises(BadInput) as error:
        load(tmp_path, text, session__minutes="soon")
    lines = str(error.value).splitlines()
    places = [line.split(": ")[0].removeprefix(f"{tmp_path}/") for line in lines]
    inside = ["2:1", "4:20", "5:3", "7:18", "8:3", "9:17", "9:30", "11:10"]
    assert places == [*(f"toy_small.yaml:{place}" for place in inside), "override session.minutes"]


TEXTS = st.text(max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SIZES = TEXTS.filter(lambda text: not re.fullmatch(r"[-+]?\d+", text))
ENCODERS = st.builds(Encoder, layers=st.integers(1, 9), kind=st.sampled_from(["plain", "deep"]))
FIELDS = {
    "width": st.integers(1, 64),
    "title": TEXTS,
    "note": st.none() | TEXTS,
    "choice": st.integers(0, 99) | st.just("all"),
    "size": st.integers(-(10**17), 10**17) | SIZES,
    "depths": st.lists(st.integers(-9, 9)).map(tuple),
    "pair": st.tuples(TEXTS, NUMBERS),
    "weights": st.dictionaries(TEXTS, st.floats(0, 1e300)),
    "extra": st.none() | st.builds(Encoder, layers=st.integers(1, 9)),
    "encoder": ENCODERS,
    "ramp_steps": st.just(0),
    "ramp_epochs": st.floats(0, 9),
}
ANY_SETTINGS = st.builds(Settings, **FIELDS)
POSITIVE = NUMBERS.filter(lambda number: number > 0)


@settings(derandomize=True, max_examples=20, deadline=None, phases=[Phase.generate])
@given(ANY_SETTINGS, POSITIVE, st.integers(0, 10**17), TEXTS)
def test_a_configuration_round_trips_through_yaml(
    tmp_path_factory, workload_settings, lr, seed, folder
):
    folder_of_file = tmp_path_factory.mktemp("round")
    changes = {"workload": workload_settings, "optimizer": Optimizer(lr=lr)}
    config = dataclasses.replace(
        load(folder_of_file, GOOD), **changes, seed=seed, output_dir=folder
    )
    assert reload(folder_of_file, config) == config


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        ("heads: 2", "heads", 2),
        ("heads: null", "heads", None),
        ("note: ~", "note", None),
        ("note: 5", "note", "5"),
        ('note: "null"', "note", "null"),
        ("title: 1e-3", "title", "1e-3"),
        ("title: no", "title", "no"),
        ("size: 5", "size", 5),
        ("size: '5'", "size", "5"),
        ("choice: 'all'", "choice", "all"),
        ("pair: [1, 2]", "pair", ("1", 2.0)),
        ("weights: {on: 1e1, 2: .5}", "weights", {"on": 10.0, "2": 0.5}),
        ("extra: null", "extra", None),
        ("encoder: {kind: deep}", "encoder", Encoder(layers=3, kind="deep")),
        ("encoder:", "encoder", Encoder(layers=3)),
        ("ramp_epochs: 2", "ramp_steps", 0),
    ],
)
def test_a_scalar_is_read_by_the_type_of_its_field(tmp_path, line, name, expected):
    config = load(tmp_path, f"{GOOD}data:\n  # dir: x\nworkload:\n  {line}\n")
    value = getattr(config.workload, name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("training.max_steps", "200", 200),
        ("training.max_steps", 200, 200),
        ("training.deterministic", True, True),
        ("optimizer.lr", "1e-3", 1e-3),
        ("optimizer.betas", "[0.8, 0.9]", (0.8, 0.9)),
        ("run.name", "no", "no"),
        ("optimizer.betas", (0.8, 0.9), (0.8, 0.9)),
        ("output_dir", "", ""),
        ("output_dir", "a: b # c", "a: b # c"),
        ("output_dir", Path("/tmp/x"), "/tmp/x"),
        ("workload.heads", None, None),
        ("workload.weights", {"a": 1}, {"a": 1.0}),
        ("workload.weights.b", "2", {"b": 2.0}),
    ],
)
def test_an_override_is_read_as_a_file_would_be(tmp_path, key, given, expected):
    value = flat(load(tmp_path, GOOD, **{key: given}))[key.removesuffix(".b")]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("training.max_steps", "1.5"),
        ("training.max_steps", 200.0),
        ("training.max_step", 5),
        ("task.name", "x"),
        ("optimizer.betas", "[0.9, 2]"),
        ("optimizer.betas", "[0.9,"),
        ("optimizer.lr", float("nan")),
        ("optimizer.lr", object),
        ("workload.weights", "{a: 1, a: 2}"),
    ],
)
def test_a_mistake_in_an_override_names_it(tmp_path, key, given):
    with pytest.raises(BadInput) as error:
        load(tmp_path, GOOD, **{key: given})
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"override {key}: ")


def test_an_override_of_a_length_replaces_its_other_form(tmp_path):
    config = load(tmp_path, GOOD.replace("max_steps: 10", "epochs: 3"), training__max_steps=5)
    assert config.training.max_steps == 5
    assert config.training.epochs == 0
    assert load(tmp_path, GOOD, training__epochs="2").training.max_steps == 0
    assert load(tmp_path, GOOD, training__epochs=0).training.max_steps == 10
    with pytest.raises(BadInput, match=r"^override training\.epochs: .*two forms of one length"):
        load(tmp_path, GOOD, training__max_steps=5, training__epochs=2)


def test_every_field_has_a_sentence():
    texts = sentences(Config)
    assert set(flat(Config(task="x", training=Training(effective_batch=1)))) <= set(texts)
    assert not [key for key, sentence in texts.items() if not re.fullmatch(r"[A-Z].*\.", sentence)]
    assert sentences(Settings)["encoder.layers"] == "Layers of the encoder."


BASE = GOOD + (
    "seed: 3\noptimizer: {lr: 0.5, eps: 0.1}\nscheduler: {warmup_epochs: 2}\ndata:\n  dir: x\n"
    "workload: {depths: [3, 4], weights: {a: 1}, encoder: {kind: deep, layers: 9}}\n"
)


def based(folder, text, base=BASE, **overrides):
    (folder / "base.yaml").write_text(base, "utf-8")
    return load(folder, "base: base.yaml\n" + text, **overrides)


def test_a_base_gives_what_the_file_does_not(tmp_path):
    text = "seed: 4\noptimizer: {lr: 0.25}\nscheduler: {warmup_steps: 7}\ndata:\n"
    config = based(tmp_path, text + "workload: {depths: [1], encoder: {layers: 1}}\n")
    assert config.run.name == "toy_small"
    assert config.task == "toy"
    assert config.seed == 4
    assert config.training.effective_batch == 8
    assert config.optimizer.lr == 0.25
    assert config.optimizer.eps == 0.1
    assert config.data.dir == "x"
    assert config.scheduler.warmup_steps == 7
    assert config.scheduler.warmup_epochs == 0
    assert config.workload.depths == (1,)
    assert config.workload.encoder == Encoder(layers=1, kind="deep")
    assert based(tmp_path, "", optimizer__lr=1, training__epochs=2).training.max_steps == 0
    assert "base:" not in to_yaml(config)
    assert reload(tmp_path, config) == config


NO_MAPPING = "base.yaml:1:1: The file does not consist of key: value lines. It is the base of toy_"
ODD_SLOTS = "training: {effective_batch: 3, micro_batch_slots: 2}\n"


@pytest.mark.parametrize(
    ("text", "base", "places"),
    [
        ("seed: x\n", BASE + "output_dir: [1]\n", ["base.yaml:9:13: ", "toy_small.yaml:2:7: "]),
        ("", "- a list\n", [NO_MAPPING]),
        (ODD_SLOTS, BASE, ["toy_small.yaml:2:12: training.effective_"]),
    ],
)
def test_a_mistake_in_a_base_names_its_file(tmp_path, text, base, places):
    with pytest.raises(BadInput) as error:
        based(tmp_path, text, base)
    lines = [line.removeprefix(f"{tmp_path}/") for line in str(error.value).splitlines()]
    assert len(lines) == len(places)
    assert all(map(str.startswith, lines, places)), lines


def test_a_file_that_cannot_be_used_is_refused_by_name_or_at_its_place(tmp_path):
    for base in ("missing.yaml", "[a.yaml]", "toy_small.yaml"):
        with pytest.raises(BadInput, match=r"toy_small\.yaml:1:\d"):
            load(tmp_path, f"base: {base}\n" + GOOD)
    (tmp_path / "latin.yaml").write_bytes(b"task: toy\noutput_dir: caf\xe9\n")
    places = {
        "latin.yaml": "latin.yaml:2:16: The file is not UTF-8 here",
        "no.yaml": "no.yaml: ",
        ".": ": ",
    }
    for name, sentence in places.items():
        with pytest.raises(BadInput, match=re.escape(sentence)):
            read_config(tmp_path / name, workload=workload)
    (tmp_path / "toy_small.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_config(tmp_path / "toy_small.yaml", workload=workload) == load(tmp_path, GOOD)
