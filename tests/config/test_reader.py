"""Reading YAML by types: every mistake with its place, overrides, bases, lengths in two forms."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lib.config import Config, Training, read_config, to_yaml, with_changes
from lib.config.reader import flat, sentences
from lib.errors import BadInput
from tests.config.settings import GOOD, Encoder, Settings, load, reload

# In these files @ stands before the place of the mistake: the line and column that the message must give.
MISTAKES = {
    "unknown key": ("@seeed: 3\n" + GOOD, "no key seeed at the top. Did you mean seed?"),
    "unknown key in a section": (GOOD + "data:\n  @num_worker: 3\n", "in data. Did you mean num_workers?"),
    "unknown key in the workload": (GOOD + "workload:\n  @widht: 3\n", "in workload. Did you mean width?"),
    "unknown key two levels down": (GOOD + "workload:\n  encoder: {@layer: 3}\n", "in workload.encoder. Did you"),
    "key of another section": (GOOD + "data:\n  @lr: 1.0\n", "It belongs elsewhere, as optimizer.lr."),
    "key of two other sections": (GOOD + "data:\n  @name: x\n", "as run.name or optimizer.name or scheduler.name"),
    "dotted key in a file": (GOOD + "@optimizer.lr: 1e-3\n", "It belongs elsewhere, as optimizer.lr."),
    "unlike anything": (GOOD + "session:\n  @xyzzy: 1\n", "Known here: minutes, margin_seconds."),
    "misspelt key of another section": (GOOD + "data:\n  @weight_decai: 1\n", "Did you mean optimizer.weight_decay?"),
    "merge key": (GOOD + "data:\n  @<<: {dir: x}\n", "no key << in data"),
    "text for int": (GOOD + "seed: @abc\n", "seed must be a whole number; found abc."),
    "float for int": (GOOD + "seed: @1.0\n", "seed must be a whole number; found 1.0. Write 1."),
    "exponent for int": (GOOD + "seed: @1e3\n", "found 1e3. Write 1000."),
    "fraction for int": (GOOD + "seed: @1.5\n", "seed must be a whole number; found 1.5."),
    "octal for int": (GOOD + "seed: @010\n", "found 010. Write 10."),
    "hexadecimal for int": (GOOD + "seed: @0x10\n", "must be a whole number; found 0x10."),
    "sexagesimal for int": (GOOD + "seed: @1:30\n", "must be a whole number; found 1:30."),
    "underscore in int": (GOOD + "seed: @1_000\n", "found 1_000. Write 1000."),
    "quoted number for int": (GOOD + 'seed: @"5"\n', "found '5' in quotes. Write it without quotes."),
    "bool for int": (GOOD + "seed: @true\n", "must be a whole number; found true."),
    "list for int": (GOOD + "seed: @[1]\n", "must be a whole number; found a list."),
    "mapping for int": (GOOD + "seed:\n  @a: 1\n", "must be a whole number; found a mapping."),
    "nothing for int": (GOOD + "seed:@\n", "found nothing. Give a value, or delete the line."),
    "null for int": (GOOD + "seed: @null\n", "must be a whole number; found null."),
    "int too large": (GOOD + "seed: @1000000000000000000000\n", "must be a whole number"),
    "nan": (GOOD + "optimizer: {lr: @.nan}\n", "optimizer.lr must be a number; found .nan. Give a finite number."),
    "infinity": (GOOD + "optimizer: {lr: @-.inf}\n", "found -.inf. Give a finite number."),
    "overflow": (GOOD + "optimizer: {lr: @1e400}\n", "found 1e400. Give a finite number."),
    "underscore in float": (GOOD + "optimizer: {lr: @1_0.5}\n", "found 1_0.5. Write 10.5."),
    "comma in float": (GOOD + "optimizer:\n  lr: @0,1\n", "optimizer.lr must be a number; found 0,1."),
    "quoted float": (GOOD + "optimizer:\n  lr: @'1e-3'\n", "in quotes. Write it without quotes."),
    "no for bool": (
        "task: toy\ntraining:\n  max_steps: 1\n  effective_batch: 1\n  deterministic: @no\n",
        "training.deterministic must be true or false; found no. Write true or false.",
    ),
    "on for bool": (
        "task: toy\ntraining: {max_steps: 1, effective_batch: 1, deterministic: @on}\n",
        "found on. Write true or false.",
    ),
    "int for bool": (
        "task: toy\ntraining: {max_steps: 1, effective_batch: 1, deterministic: @1}\n",
        "found 1. Write true or false.",
    ),
    "not a choice": (
        "task: toy\ntraining: {max_steps: 1, effective_batch: 1, precision: @fp8}\n",
        "training.precision must be one of auto, fp32, fp16, bf16; found fp8.",
    ),
    "neither int nor choice": (GOOD + "workload: {choice: @most}\n", "must be a whole number or all; found most."),
    "not the only choice": (GOOD + "workload: {only: @two}\n", "workload.only must be one; found two."),
    "nothing for text": (GOOD + "workload:\n  title:@\n", "workload.title must be a text; found nothing."),
    "list for text": (GOOD + "workload: {title: @[a]}\n", "workload.title must be a text; found a list."),
    "scalar for list": (GOOD + "optimizer: {betas: @0.9}\n", "must be a list of 2 values; found 0.9."),
    "list too short": (GOOD + "optimizer: {betas: @[0.9]}\n", "must be a list of 2 values; found 1 of them."),
    "wrong item": (GOOD + "workload:\n  depths: [1, @x]\n", "workload.depths[1] must be a whole number; found x."),
    "item out of bounds": (GOOD + "optimizer: {betas: [0.9, @1]}\n", "[1] must be at least 0 and below 1; found 1."),
    "wrong value in a dictionary": (GOOD + "workload: {weights: {mlm: @x}}\n", "workload.weights.mlm must be a number"),
    "value in a dictionary out of bounds": (GOOD + "workload: {weights: {a: @-1}}\n", "must be at least 0; found -1."),
    "list for dictionary": (GOOD + "workload: {weights: @[1]}\n", "a section of key: value lines; found a list."),
    "section for null": (GOOD + "workload: {extra: @5}\n", "a section of key: value lines or null; found 5."),
    "too small": (GOOD + "data: {num_workers: @-1}\n", "data.num_workers must be at least 0; found -1."),
    "too large": (GOOD + "workload: {width: @65}\n", "must be at least 1 and at most 64; found 65."),
    "zero where more is needed": (GOOD + "data: {subset_ratio: @0}\n", "must be above 0 and at most 1; found 0."),
    "more than all": (GOOD + "data: {subset_ratio: @1.5}\n", "must be above 0 and at most 1; found 1.5."),
    "scalar for section": (GOOD + "data: @5\n", "data must be a section of key: value lines; found 5."),
    "list for section": (GOOD + "data:\n  @- dir: x\n", "data must be a section of key: value lines; found a list."),
    "missing task": ("@training: {max_steps: 1, effective_batch: 1}\n", "The key task is missing. A name"),
    "missing key": ("task: toy\ntraining:\n  @max_steps: 1\n", "training.effective_batch is missing. Samples in an"),
    "unknown task": ("seed: 1\ntask: @tyo\n" + GOOD[10:], "There is no task 'tyo'. Known tasks: toy."),
    "no length": ("task: toy\ntraining:\n  @effective_batch: 1\n", "Give training.max_steps or training.epochs."),
    "two lengths": (
        "task: toy\ntraining:\n  max_steps: 5\n  @epochs: 2\n  effective_batch: 1\n",
        "training.epochs and training.max_steps are two forms of one length.",
    ),
    "two warm-ups": (GOOD + "scheduler:\n  @warmup_epochs: 1\n  warmup_steps: 5\n", "two forms of one length"),
    "two lengths in the workload": (GOOD + "workload: {ramp_steps: 1, @ramp_epochs: 0.5}\n", "two forms of"),
    "slots": (
        "task: toy\ntraining:\n  max_steps: 5\n  micro_batch_slots: 4\n  @effective_batch: 10\n",
        "10 cannot be dealt into 4 equal parts (training.micro_batch_slots). Write 8",
    ),
    "name with a slash": (GOOD + "run: {@name: ../x}\n", "run.name becomes a folder"),
    "check of the task": (GOOD + "workload:\n  @heads: 3\n", "workload: width 4 is not a multiple of heads 3."),
    "duplicate key": (GOOD + "seed: 1\n@seed: 1\n", "The key seed is given twice, first in line 3. Keep one of them."),
    "duplicate key in a section": (GOOD + "data: {dir: a, @dir: b}\n", "The key dir is given twice"),
    "key that is a list": (GOOD + "data:\n  ? @[a]\n  : 1\n", "A key must be a plain name"),
    "python tag": (GOOD + "output_dir: @!!python/object/apply:os.getcwd []\n", "apply:os.getcwd is not supported"),
    "standard tag": (GOOD + 'seed: @!!int "5"\n', "The tag tag:yaml.org,2002:int is not supported."),
    "local tag": (GOOD + "data: @!mine {dir: x}\n", "The tag !mine is not supported. Write the plain value."),
    "unknown alias": (GOOD + "seed: @*a\n", "This is not YAML: found undefined alias"),
    "bracket not closed": (GOOD + "data: {dir: a\n@", "This is not YAML: expected ',' or '}'"),
    "quote not closed": (GOOD + 'output_dir: "a\n@', "found unexpected end of stream"),
    "colon in a value": (GOOD + "output_dir: a@: b\n", "mapping values are not allowed here"),
    "wrong indentation": (GOOD + "data:\n  dir: a\n @num_workers: 1\n", "This is not YAML: expected <block end>"),
    "tab": (GOOD + "data:\n@\tdir: a\n", "There is a tab here. Indent with spaces."),
    "control character": (GOOD + "output_dir: a@\x07\n", "This character is not allowed in YAML. Delete it."),
    "second document": (GOOD + "@---\nseed: 1\n", "A second document begins here. Keep one"),
    "empty file": ("@", "The file is empty. Give at least task"),
    "comments only": ("@# nothing\n", "The file is empty. Give at least task"),
    "list at the top": ("@- task: toy\n", "The file does not consist of key: value lines."),
    "scalar at the top": ("@toy\n", "The file does not consist of key: value lines."),
    "brackets without end": ("@" + "[" * 5000, "nested too deeply"),
}


@pytest.mark.parametrize(("marked", "sentence"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_reported_with_line_and_column(tmp_path, marked, sentence):
    before, after = marked.split("@")
    with pytest.raises(BadInput) as error:
        load(tmp_path, before + after)
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    lines = str(error.value).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{tmp_path / 'toy_small.yaml'}:{line}:{column}: ")
    assert sentence in lines[0]


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
  title: !!python/name:os.system
  width: "4"
"""
    with pytest.raises(BadInput) as error:
        load(tmp_path, text, session__minutes="soon")
    places = [line.split(": ")[0].removeprefix(f"{tmp_path}/") for line in str(error.value).splitlines()]
    inside = ["2:1", "4:20", "5:3", "7:18", "8:3", "9:17", "9:30", "11:10", "12:10"]
    assert places == [*(f"toy_small.yaml:{place}" for place in inside), "override session.minutes"]


def test_scalars_are_read_by_the_type_of_their_field(tmp_path):
    text = GOOD + (
        "optimizer: {lr: 1e-3, eps: 1E-08, weight_decay: 1, betas: [.5, 0.]}\n"
        'workload: {title: no, note: "null", size: "5", weights: {on: 010e0, 2: 3}}\n'
    )
    with pytest.raises(BadInput, match=r"workload\.weights\.on must be a number; found 010e0"):
        load(tmp_path, text)
    found = load(tmp_path, text.replace("010e0", "1e1"))
    assert dataclasses.astuple(found.optimizer)[:5] == ("adamw", 1e-3, 1.0, (0.5, 0.0), 1e-8)
    settings = found.workload
    assert (settings.title, settings.note, settings.size) == ("no", "null", "5")
    assert settings.weights == {"on": 10.0, "2": 3.0}
    assert isinstance(found.optimizer.weight_decay, float)


@pytest.mark.parametrize(
    ("yaml_text", "name", "expected"),
    [
        ("heads: 2", "heads", 2),
        ("heads: null", "heads", None),
        ("heads:", "heads", None),
        ("note: ~", "note", None),
        ("note: 5", "note", "5"),
        ("title: ''", "title", ""),
        ("title: 1e-3", "title", "1e-3"),
        ("size: 5", "size", 5),
        ("size: five", "size", "five"),
        ("choice: all", "choice", "all"),
        ("choice: 'all'", "choice", "all"),
        ("depths: []", "depths", ()),
        ("pair: [1, 2]", "pair", ("1", 2.0)),
        ("weights: {}", "weights", {}),
        ("extra: null", "extra", None),
        ("extra: {layers: 5}", "extra", Encoder(layers=5)),
        ("encoder: {kind: deep}", "encoder", Encoder(layers=3, kind="deep")),
        ("encoder:", "encoder", Encoder(layers=3)),
    ],
)
def test_every_type_of_field(tmp_path, yaml_text, name, expected):
    found = load(tmp_path, f"{GOOD}workload:\n  {yaml_text}\n")
    value = getattr(found.workload, name)
    assert value == expected
    assert type(value) is type(expected)
    assert reload(tmp_path, found) == found


def test_a_section_with_every_line_commented_out_is_its_defaults(tmp_path):
    assert load(tmp_path, GOOD + "data:\n  # dir: x\nworkload:\n") == load(tmp_path, GOOD)


def test_an_anchor_stands_for_its_value(tmp_path):
    assert load(tmp_path, GOOD + "output_dir: &x out\ndata: {dir: *x}\n").data.dir == "out"


def test_one_form_of_a_length_clears_the_other(tmp_path):
    assert load(tmp_path, GOOD + "workload: {ramp_epochs: 2}\n").workload.ramp_steps == 0
    assert load(tmp_path, GOOD + "workload: {ramp_epochs: 0}\n").workload.ramp_steps == 0
    assert load(tmp_path, GOOD).workload.ramp_steps == 7


@dataclass(frozen=True)
class Part:
    share: float = 1.0


@dataclass(frozen=True)
class Named:
    parts: dict[str, Part] = dataclasses.field(default_factory=dict)
    numbers: dict[str, int] = dataclasses.field(default_factory=dict)


def test_sections_by_name_are_flat_keys_too_and_other_mappings_are_one_value():
    found = flat(Named({"a": Part(), "b": Part(2.0)}, {"c": 1}))
    assert found == {"parts.a.share": 1.0, "parts.b.share": 2.0, "numbers": {"c": 1}}
    assert flat(Named()) == {"parts": {}, "numbers": {}}


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("training__max_steps", "200", 200),
        ("training__max_steps", 200, 200),
        ("training__deterministic", True, True),
        ("training__deterministic", "true", True),
        ("training__gradient_checkpointing", "all", "all"),
        ("optimizer__lr", "1e-3", 1e-3),
        ("optimizer__lr", 1e-8, 1e-8),
        ("optimizer__betas", "[0.8, 0.9]", (0.8, 0.9)),
        ("optimizer__betas", (0.8, 0.9), (0.8, 0.9)),
        ("optimizer__betas", [0.8, 0.9], (0.8, 0.9)),
        ("run__name", "no", "no"),
        ("run__name", "'x'", "'x'"),
        ("output_dir", "", ""),
        ("output_dir", "a: b # c", "a: b # c"),
        ("output_dir", Path("/tmp/x"), "/tmp/x"),
        ("workload__heads", None, None),
        ("workload__weights", {"a": 1}, {"a": 1.0}),
        ("workload__weights__b", "2", {"b": 2.0}),
        ("workload__encoder__layers", 9, 9),
    ],
)
def test_an_override_is_read_as_a_file_would_be(tmp_path, key, given, expected):
    found = load(tmp_path, GOOD, **{key: given})
    name = key.replace("__", ".").replace("weights.b", "weights")
    value = flat(found)[name]
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("key", "given", "sentence"),
    [
        ("training__max_steps", "1.5", "training.max_steps must be a whole number; found 1.5."),
        ("training__max_steps", 200.0, "found 200.0. Write 200."),
        ("training__max_steps", True, "must be a whole number; found true."),
        ("training__max_steps", "", "must be a whole number; found '' in quotes."),
        ("training__max_steps", -1, "must be at least 0; found -1."),
        ("training__max_step", 5, "There is no key max_step in training. Did you mean max_steps?"),
        ("trainin__max_steps", 5, "There is no key trainin at the top. Did you mean training?"),
        ("max_steps", 5, "It belongs elsewhere, as training.max_steps."),
        ("task__name", "x", "task is a single value, which has no keys below it."),
        ("training__deterministic", "yes", "Write true or false."),
        ("optimizer__betas", "[0.9, 2]", "optimizer.betas[1] must be at least 0 and below 1; found 2."),
        ("optimizer__betas", "[0.9,", "The value '[0.9,' cannot be read."),
        ("optimizer__betas", ["0.9", 0.9], "optimizer.betas[0] must be a number; found '0.9' in quotes."),
        ("optimizer__lr", float("nan"), "found .nan. Give a finite number."),
        ("optimizer__lr", object, "cannot be read. Give a number, a text, a list or a mapping."),
        ("task", "tyo", "There is no task 'tyo'."),
        ("workload__weights", "{a: 1, a: 2}", "The key a is given twice"),
        ("training__micro_batch_slots", 3, None),
    ],
)
def test_a_mistake_in_an_override_names_it(tmp_path, key, given, sentence):
    with pytest.raises(BadInput) as error:
        load(tmp_path, GOOD, **{key: given})
    lines = str(error.value).splitlines()
    assert len(lines) == 1, lines
    if sentence is None:  # two keys disagree; the sentence stands at the one that is to be changed
        assert lines[0].endswith("Write 6, or another number of slots.")
    else:
        assert lines[0].startswith(f"override {key.replace('__', '.')}: ")
        assert sentence in lines[0]


def test_an_override_of_a_length_replaces_its_other_form(tmp_path):
    by_epochs = "task: toy\ntraining: {epochs: 3, effective_batch: 8}\n"
    found = load(tmp_path, by_epochs, training__max_steps=5)
    assert (found.training.max_steps, found.training.epochs) == (5, 0)
    assert load(tmp_path, GOOD, training__epochs="2").training.max_steps == 0
    assert load(tmp_path, GOOD, training__epochs=0).training.max_steps == 10
    assert load(tmp_path, by_epochs, training__max_steps=5, training__epochs=0).training.max_steps == 5
    with pytest.raises(BadInput, match=r"^override training\.epochs: .*two forms of one length"):
        load(tmp_path, GOOD, training__max_steps=5, training__epochs=2)


def test_flat_shows_what_differs(tmp_path):
    one = load(tmp_path, GOOD)
    other = with_changes(one, {"optimizer.lr": 0.5, "workload.encoder.kind": "deep"})
    differing = {k: v for k, v in flat(other).items() if flat(one)[k] != v}
    assert differing == {"optimizer.lr": 0.5, "workload.encoder.kind": "deep"}


def test_every_field_has_a_sentence():
    found = sentences(Config)
    assert set(flat(Config(task="x", training=Training(effective_batch=1)))) <= set(found)
    for key, sentence in found.items():
        assert re.fullmatch(r"[A-Z].*\.", sentence), key
    assert sentences(Settings)["encoder.layers"] == "Layers of the encoder."


def test_a_type_that_is_not_supported_is_an_error_of_the_task(tmp_path):
    @dataclass(frozen=True)
    class Strange:
        when: complex = 1j

    path = tmp_path / "x.yaml"
    path.write_text(GOOD + "workload: {when: 5}\n")
    with pytest.raises(TypeError, match="complex"):
        read_config(path, workload=lambda task: Strange)


BASE = GOOD + (
    "seed: 3\noptimizer: {lr: 0.5, eps: 0.1}\nscheduler: {warmup_epochs: 2}\ndata:\n  dir: x\n"
    "workload: {depths: [3, 4], weights: {a: 1}, encoder: {kind: deep, layers: 9}}\n"
)


def based(tmp_path, text, base=BASE, **overrides):
    (tmp_path / "base.yaml").write_text(base, "utf-8")
    return load(tmp_path, "base: base.yaml\n" + text, **overrides)


def test_a_base_gives_what_the_file_does_not(tmp_path):
    own = "seed: 4\noptimizer: {lr: 0.25}\nscheduler: {warmup_steps: 7}\ndata:\n"
    config = based(tmp_path, own + "workload: {depths: [1], encoder: {layers: 1}}\n")
    assert (config.run.name, config.task, config.seed, config.training.effective_batch) == ("toy_small", "toy", 4, 8)
    assert (config.optimizer.lr, config.optimizer.eps, config.data.dir) == (0.25, 0.1, "x")
    assert (config.scheduler.warmup_steps, config.scheduler.warmup_epochs) == (7, 0)
    assert (config.workload.depths, config.workload.encoder) == ((1,), Encoder(layers=1, kind="deep"))
    assert based(tmp_path, "", optimizer__lr=1, training__epochs=2).training.max_steps == 0
    assert "base" not in to_yaml(config) and reload(tmp_path, config) == config


@pytest.mark.parametrize(
    ("text", "base", "places"),
    [
        ("seed: x\n", BASE, ["toy_small.yaml:2:7: seed must be"]),
        ("", BASE + "output_dir: [1]\n", ["base.yaml:9:13: output_dir must be"]),
        ("seed: x\n", BASE + "output_dir: [1]\n", ["base.yaml:9:13: ", "toy_small.yaml:2:7: "]),
        ("", "- a list\n", ["base.yaml:1:1: The file does not consist of key: value lines. It is the base of toy_"]),
        ("", "base: toy_small.yaml\n" + BASE, ["base.yaml:1:7: base.yaml is the base of toy_small.yaml, so it cannot"]),
        ("training: {effective_batch: 3, micro_batch_slots: 2}\n", BASE, ["toy_small.yaml:2:12: training.effective_"]),
    ],
)
def test_a_mistake_in_a_base_names_its_file(tmp_path, text, base, places):
    with pytest.raises(BadInput) as error:
        based(tmp_path, text, base)
    lines = [line.removeprefix(f"{tmp_path}/") for line in str(error.value).splitlines()]
    assert len(lines) == len(places) and all(map(str.startswith, lines, places)), lines


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        ("missing.yaml", "missing.yaml: The file cannot be read (No such file or directory)."),
        ("[a.yaml]", "base must be the name of a file; found a list."),
        ("", "base must be the name of a file; found nothing."),
        ("toy_small.yaml", "toy_small.yaml is the base of toy_small.yaml, so it cannot have a base itself."),
    ],
)
def test_a_base_that_cannot_be_used_is_a_sentence(tmp_path, base, sentence):
    with pytest.raises(BadInput) as error:
        load(tmp_path, f"base: {base}\n" + GOOD)
    lines = str(error.value).splitlines()
    assert len(lines) == 1 and sentence in lines[0] and "toy_small.yaml:1:" in lines[0], lines
