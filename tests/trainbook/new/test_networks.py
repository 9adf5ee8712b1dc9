"""The examples' own networks: what each sees of a sample, and that the answers begin as a simple method's."""

import ast
import csv
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from lib import planner
from lib.errors import BadInput
from lib.task import load_task
from tests.conftest import ROOT
from trainbook import launch
from trainbook.commands import main
from trainbook.new import made
from trainbook.supervised import encoders

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("name", ["images", "tabular", "text", "tokens"])
def test_answers_begin_as_those_of_a_simple_method_unless_the_key_is_changed(example, name):
    assert example(name).training.start_from_baseline


def test_answers_begin_as_those_of_a_simple_method_in_the_notebook_of_ones_own_model():
    source = (ROOT / "notebooks_src" / "07_your_model.py").read_text("utf-8")
    assigned = {
        node.targets[0].id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert "start_from_baseline: true" in ast.literal_eval(assigned["MY_MODEL"])


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tagger(example):
    """The task of the example of tokens, with more ids than parts of words, so that none meet."""
    return load_task(example("tokens", **{"workload.ids": 2**20, "workload.hidden_share": 0.5}))


def ids_of(task, *words):
    return task.batch([(words, [""] * len(words))], False)["ids"][0].tolist()


def test_words_share_the_ids_of_their_ends_beginnings_and_shapes(tagger):
    one, other, capital, long = ids_of(tagger, "walking", "talking", "Walking", "Ada-1999")
    assert [a == b for a, b in zip(one, other, strict=True)] == [
        *(False, False),  # the word, and in lower case
        *(True, True, True, True),  # the last 4, 3, 2 and 1 letters
        *(False, True),  # the first 3, the shape
    ]
    assert [a == b for a, b in zip(one, capital, strict=True)] == [False, *[True] * 6, False]
    assert long[-1] == ids_of(tagger, "Éva-12")[0][-1], "digits and letters, runs cut to two"
    assert min(map(min, (one, other, capital, long))) > 0


def test_training_hides_words_by_the_generators_of_the_kit_and_leaves_their_parts(tagger):
    samples = [(["walking"] * 60, ["O"] * 60)]
    torch.manual_seed(0)
    first = tagger.batch(samples, True)["ids"]
    torch.manual_seed(0)
    assert torch.equal(tagger.batch(samples, True)["ids"], first)
    whole = tagger.batch(samples, False)["ids"]
    hidden = (first[0] == 0).float()
    assert (hidden[:, 0] == hidden[:, 1]).all()
    assert 0.3 < hidden[:, 0].mean() < 0.7
    assert torch.equal(first[..., 2:], whole[..., 2:])
    assert (whole > 0).all()


def test_the_simple_method_reads_the_words_beside_their_labels_and_the_model_does_not(tagger):
    samples = [(["Ada", "went"], ["person", "O"]), (["Wien"], ["place"])]
    batch = tagger.batch(samples, True)
    assert tagger.features(batch) == [["Ada", "went"], ["Wien"]]
    assert batch["labels"].tolist() == [[1, 0], [2, -100]]
    tagger.take_learned(json.loads(json.dumps(tagger.learned())))  # as a run does
    part = tagger.parts["validation"]
    travels = tagger.collate([part[0], part[1]], torch.Generator())
    assert {"ids", "labels"} <= travels.keys()
    assert all(isinstance(value, torch.Tensor) for value in travels.values())


def test_tags_do_not_depend_on_the_words_that_another_text_is_longer_by(tagger):
    model = tagger.model().eval()
    alone = model(tagger.batch([(["Ada", "went"], ["", ""])], False)["ids"])
    beside = tagger.batch([(["Ada", "went"], ["", ""]), (["x"] * 7, [""] * 7)], False)
    torch.testing.assert_close(model(beside["ids"])[0, :2], alone[0])


# --- tables -----------------------------------------------------------------------------------------------------------

PLACES = "size,place,price\n" + "".join(
    f"{'' if k % 9 == 4 else k % 17},{'Graz' if k % 2 else 'Wien'},{300 * (k % 17) + 900 * (k % 2)}\n"
    for k in range(120)
)


def test_a_table_with_gaps_and_words_trains_on_all_its_columns_and_predicts_what_it_never_saw(
    example, tmp_path, capsys
):
    config = example("tabular", **{"workload.features": [], "workload.words": []})
    (tmp_path / "tabular" / "flats.csv").write_text(PLACES)
    task = load_task(config)
    assert "Columns: numbers in size; words in place (2 words)." in task.describe_data()
    assert launch.train(config).reason == "completed"
    new = tmp_path / "new"
    new.mkdir()
    (new / "new.csv").write_text("size,place\n3,Graz\n,Linz\n")
    arguments = ["predict", "runs/tabular", "new", "out", "--task", "tabular.py:Tabular"]
    assert main(arguments) == 0
    with Path("out/predictions.csv").open() as file:
        assert len([float(row["prediction"]) for row in csv.DictReader(file)]) == 2
    (new / "new.csv").write_text("size,place\nlarge,Graz\n")
    assert main(arguments) == 2
    assert "'large' in the column size is no number" in capsys.readouterr().err


def test_columns_are_decided_by_the_training_rows_alone(example, tmp_path):
    config = example("tabular", **{"workload.features": [], "workload.words": []})
    table = tmp_path / "tabular" / "flats.csv"
    table.write_text(PLACES)
    task = load_task(config)
    before = {name: task.learned()[name] for name in ("numbers", "words", "target")}
    for part in ("validation", "test"):
        for sample, _ in task.parts[part].samples:
            sample["size"] = "1e6"
            sample["place"] = "Linz"
    task._learned = None
    assert before == {name: task.learned()[name] for name in before}


def test_members_learn_alone_and_their_mean_answers(example):
    task = load_task(example("tabular", **{"workload.members": 3}))
    torch.manual_seed(0)
    model = task.model()
    batch = task.labelled(task.parts["train"].samples[:5])
    training = task.outputs(model.train(), batch)
    assert training.shape == (5, 3, 1)
    model.eval()
    answers = task.outputs(model, batch)
    assert answers.shape == (5, 1)
    mean, deviation = task.learned()["target"]
    each = mean + deviation * model(batch["numbers"], batch["gaps"], batch["words"])
    torch.testing.assert_close(answers, each.mean(1))
    assert (each.std(1) > 0).all()


# --- sentences --------------------------------------------------------------------------------------------------------


def published(folder):
    """Writes a BERT of 4 numbers a piece, with a tokenizer of the words in the generated sentences."""
    transformers = pytest.importorskip("transformers")
    words = list(dict.fromkeys(" ".join(made.WORDS.values()).split()))
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    cutting = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    cutting.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    cutting.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=cutting, **special).save_pretrained(
        folder
    )
    sizes = {"hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(vocabulary), num_hidden_layers=1, **sizes)
    torch.manual_seed(1)
    model = transformers.BertModel(config)
    model.save_pretrained(folder)
    return model


def test_sentences_begin_with_a_published_encoder_that_is_planned_resumed_and_predicts(
    example, tmp_path
):
    weights = published(tmp_path / "encoder").state_dict()
    chosen = {
        "workload.encoder": str(tmp_path / "encoder"),
        "training.start_from_baseline": False,
    }
    config = example("text", **chosen)
    task = load_task(config)
    first = task.describe_data().splitlines()[0]
    assert first.startswith(f"Encoder: {tmp_path / 'encoder'} in {tmp_path / 'encoder'} (")
    assert "bytes, sha256" in first
    assert (
        "licence as written there: not stated). Without it: a small network from scratch" in first
    )
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(task.model().state_dict()[f"bert.{name}"], weights[name])
    batch = task.batch([(None, "the court flies", 0), (None, "we " * 20, 1)], False)
    assert batch["input_ids"][0, :6].tolist() == [2, 4, 14, 1, 3, 0]
    assert batch["input_ids"].shape == (2, 8), "cut to workload.length"
    assert batch["attention_mask"].sum(1).tolist() == [5, 8]
    assert planner.make(config, planner.find_card("t4"), 2).chosen.prediction.fits
    launch.train(example("text", **{**chosen, "training.max_steps": 2}))
    shutil.rmtree(tmp_path / "encoder")  # a later session has all of it in its checkpoint
    summary = launch.train(config)
    assert (summary.reason, summary.step, summary.missing) == ("completed", 5, {})
    assert main(["predict", "runs/text", "text", "out", "--task", "text.py:Text"]) == 0


def test_an_encoder_that_is_nowhere_is_refused_and_none_is_compared_in_the_first_line(example):
    with pytest.raises(BadInput, match="nowhere"):
        load_task(example("text", **{"workload.encoder": "folder/nowhere/encoder"})).learned()
    first = load_task(example("text")).describe_data().splitlines()[0]
    assert "starts from scratch" in first
    assert "linear model of words" in first
    assert "workload.encoder" in first


def wheel_of(folder, wheel):
    """Packs a model as packages carry it, below a folder of its own, and deletes the folder."""
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    with zipfile.ZipFile(wheel, "w") as packed:
        for path in folder.iterdir():
            packed.write(path, f"some/model/{path.name}")
        packed.writestr("some/words.bin", os.urandom(2**20))  # larger than what goes with a run
        packed.writestr("some/__init__.py", "raise SystemExit('nothing of a wheel is run')")
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["text", "tokens"])
def test_an_encoder_in_a_wheel_stands_as_published_beside_words_and_trains_further(
    example, tmp_path, monkeypatch, capsys, name
):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    published(tmp_path / "encoder")
    wheel = tmp_path / "some_model-0.1.0-py3-none-any.whl"
    wheel_of(tmp_path / "encoder", wheel)
    config = example(name, **{"workload.encoder": str(wheel)})
    task = load_task(config)
    first = task.describe_data().splitlines()[0]
    assert first.startswith(f"Encoder: {wheel} in {tmp_path / 'cache'}")
    assert "licence as written there: apache-2.0" in first
    summary = launch.train(config)
    assert summary.reason == "completed"
    what = "words" if name == "text" else "neighbours"
    assert f"linear model of {what} and the encoder" in summary.report
    arguments = ["predict", f"runs/{name}", name, "out", "--task", f"{name}.py:{name.title()}"]
    assert main(arguments) == 0
    assert len([*tmp_path.glob("cache/wheels/*")]) == 1
    wheel.unlink()
    monkeypatch.setattr(encoders, "_frozen", None)  # an encoder in memory is gone as well
    capsys.readouterr()
    if f"above 'linear model of {what} and the encoder'" in summary.report:
        assert main(arguments) == 2
        assert f"There is no input {wheel}" in capsys.readouterr().err
    assert main([*arguments, "--answer", "network"]) == 0


def test_each_sentence_of_a_single_file_is_dealt_by_itself(example, tmp_path):
    config = example("text")
    folder = tmp_path / "text"
    lines = "".join(path.read_text() for path in sorted(folder.glob("*.tsv")))
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "all.tsv").write_text(lines)
    task = load_task(config)
    sizes = [len(part) for part in task.datasets().values()]
    assert min(sizes) > 0
    assert sum(sizes) == 60
    assert task.features(task.batch([("the car", "the car", 0)], False)) == ("the car",)


# --- sequences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "31 May 1999", "Übung, 漢字 and 🙂", "two  spaces\tand a tab"]
)
def test_letters_are_read_back_as_they_were_whatever_the_language(text):
    kept = json.loads(json.dumps(encoders.letters()))
    numbers = encoders.pieces(kept, [text, "longer than the other text"], 64)["input_ids"]
    assert numbers.max() < encoders.LETTERS
    assert encoders.texts(kept, numbers)[0] == text
    assert len(encoders.pieces(kept, [text], 64)["input_ids"][0]) == len(text.encode()) + 1


def test_texts_that_are_cut_are_counted_in_the_first_lines(example):
    assert "cut" not in load_task(example("sequence")).describe_data()
    task = load_task(example("sequence", **{"workload.length": 11}))
    number = sum(len(source) > 10 for source, _ in task.parts["train"].samples)
    total = 2 * len(task.parts["train"].samples)
    assert f"Of {total} training texts {number} have more than 11 pieces" in task.describe_data()


def test_the_answers_without_a_network_are_the_source_and_the_target_of_the_nearest_one(example):
    task = load_task(example("sequence"))
    task.parts["train"].samples[0] = ("the 3 of June 1999", "nearest")
    task.parts["test"].samples[:] = [("the 4 of June 1999", "1999-06-04")]
    assert task.baselines() == {
        "the source": ["the 4 of June 1999"],
        "nearest source's target": ["nearest"],
    }


def test_a_published_translator_is_trained_on_with_its_own_pieces_and_writes_from_the_archive(
    example, tmp_path
):
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 8, "d_kv": 2, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(0)
    published = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=encoders.LETTERS, decoder_start_token_id=0, **sizes)
    )
    folder = tmp_path / "published"
    published.save_pretrained(folder)
    pieces = Tokenizer.from_str(encoders.letters()["text"])
    special = {"pad_token": "<pad>", "eos_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, **special).save_pretrained(folder)
    config = example("sequence", **{"workload.weights": str(folder)})
    model = load_task(config).model()
    assert torch.equal(model.shared.weight, published.shared.weight)
    summary = launch.train(config)
    assert summary.reason == "completed"
    assert not summary.missing
    shutil.rmtree(folder)  # the run has its weights and its pieces
    assert (
        main(["predict", "runs/sequence", "sequence", "out", "--task", "sequence.py:Sequence"]) == 0
    )
    with Path("out/predictions.csv").open() as file:
        assert len([*csv.DictReader(file)]) == 40
