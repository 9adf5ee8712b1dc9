"""A task on published weights of transformers: taken once, resumed without them, exported, and trained by adapters."""

import json
import os
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lib.errors import BadInput, NotTraceable
from lib.machine import published
from lib.planner import make
from lib.planner.card import find_card
from lib.task import find_task
from tests.conftest import ROOT
from tests.training.test_frozen import newest, same
from trainbook import launch
from trainbook.launch import ensemble

transformers = pytest.importorskip("transformers")
SHORT = {"training.max_steps": 4, "checkpoint.every_steps": 2, "training.evaluate_every_steps": 2}


@pytest.fixture(autouse=True)
def no_plots_and_no_hub(monkeypatch, quick):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def bert(toy, tmp_path):
    """bert(**overrides) -> the configuration of a tiny BERT from the folder tmp_path/model."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=4, max_position_embeddings=8)
    transformers.BertModel(config).save_pretrained(tmp_path / "model")

    def make(overrides=None, task="bert.py:Bert"):
        given = {"task": f"{ROOT / 'tests'}/{task}", "workload.published": str(tmp_path / "model")}
        return toy({**given, **SHORT, **(overrides or {})})

    return make


def test_a_run_goes_on_without_the_weights_that_it_began_with(bert, tmp_path, cut, capsys):
    cut(None)
    launch.train(bert({"run.name": "whole"}))
    cut(3)
    launch.train(bert())
    taken = newest(tmp_path).state["published"][str(tmp_path / "model")]
    assert taken["config"]["hidden_size"] == 4
    assert len(taken["sha256"]) == 64
    shutil.rmtree(tmp_path / "model")
    cut(None)
    assert launch.train(bert()).step == 4
    assert same(newest(tmp_path), newest(tmp_path, "whole"))
    assert make(bert(), find_card("t4")).chosen.prediction.fits, "a plan needs no weights either"
    with pytest.raises(BadInput, match="There is no input"):
        launch.train(bert({"run.name": "new"}))


def shorten(path):
    path.write_bytes(path.read_bytes()[:-1])


def one_file(folder):
    return folder / "model.safetensors"


def shards(folder):
    model = transformers.BertModel.from_pretrained(folder)
    one_file(folder).unlink()
    model.save_pretrained(folder, max_shard_size="1KB")
    return sorted(folder.glob("model-*.safetensors"))[1]


def pickled(folder, **options):
    weights = transformers.BertModel.from_pretrained(folder).state_dict()
    one_file(folder).unlink()
    torch.save(weights, folder / "pytorch_model.bin", **options)
    return folder / "pytorch_model.bin"


def old_pickle(folder):
    return pickled(folder, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize(
    "damage", [shorten, lambda path: path.write_bytes(b"")], ids=["cut", "empty"]
)
@pytest.mark.parametrize("form", [one_file, shards, pickled, old_pickle])
def test_published_weights_that_are_cut_or_empty_are_named_and_to_be_copied_again(
    bert, tmp_path, form, damage
):
    config = bert()
    file = form(tmp_path / "model")
    damage(file)
    with pytest.raises(
        BadInput, match=rf"The weights .*/{file.name} cannot be read \(.*\)\. Copy them again"
    ):
        launch.train(config)


def test_published_weights_that_do_not_fit_their_configuration_are_named(bert, tmp_path):
    config = bert()
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 5}))
    with pytest.raises(BadInput, match="The weights .*/model cannot be loaded .*config.json"):
        launch.train(config)


def test_a_fresh_start_takes_the_weights(bert, tmp_path, cut):
    cut(1)
    launch.train(bert({"optimizer.lr": 1e-30}))
    loaded = transformers.BertModel.from_pretrained(tmp_path / "model").state_dict()
    began = newest(tmp_path).tensors["model"]
    assert torch.equal(
        began["bert.encoder.layer.1.output.dense.weight"],
        loaded["encoder.layer.1.output.dense.weight"],
    )


def test_a_frozen_base_that_is_not_mounted_is_named(bert, tmp_path, cut):
    cut(3)
    launch.train(bert({"workload.frozen": True}))
    assert newest(tmp_path).tensors["model"].keys() == {"classifier.weight", "classifier.bias"}
    (tmp_path / "model").rename(tmp_path / "away")
    cut(None)
    with pytest.raises(
        BadInput,
        match="The weights .*/model are not there, of which the checkpoints omit .* tensors",
    ):
        launch.train(bert({"workload.frozen": True}))
    (tmp_path / "away").rename(tmp_path / "model")
    assert launch.train(bert({"workload.frozen": True})).reason == "completed"


@pytest.mark.parametrize("frozen", [False, True])
def test_the_archive_predicts_and_its_export_gives_the_same_logits(bert, tmp_path, frozen):
    config = bert({"workload.frozen": frozen})
    launch.train(config)
    archive = shutil.move(tmp_path / "runs" / "outputs.tar.gz", tmp_path / "there.tar.gz")
    shutil.rmtree(tmp_path / "runs")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "there", filter="data")
    exported = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "there" / "toy" / "export"
    )
    if not frozen:
        shutil.rmtree(tmp_path / "model")
    _, (model,) = ensemble.load(Path(archive), config.task)
    ids = torch.arange(8).view(2, 4)
    assert torch.equal(exported.eval()(ids).logits, model(ids).logits)


def test_a_model_that_loads_its_own_weights_is_told_what_a_plan_can_follow(bert, tmp_path):
    config = bert(task="bert.py:Loaded")
    sentence = r"Loaded.model\(\) calls from_pretrained \(.*bert.py:\d+: .*self.pretrained\("
    with pytest.raises(NotTraceable, match=sentence):
        make(config, find_card("t4"))
    assert launch.train(config).reason == "completed"
    with pytest.raises(BadInput, match="self.pretrained"):
        ensemble.load(tmp_path / "runs" / "toy", config.task)


def test_a_plan_needs_a_configuration_alone_and_the_model_knows_that_it_is_planned(
    bert, tmp_path, monkeypatch
):
    config = bert()
    planned = []
    whole = make(config, find_card("t4")).chosen.prediction
    (tmp_path / "model" / "model.safetensors").unlink()
    kind = find_task(config.task)
    model = kind.model
    monkeypatch.setattr(kind, "model", lambda self: planned.append(self.is_planned) or model(self))
    assert make(config, find_card("t4")).chosen.prediction.peak_bytes == whole.peak_bytes
    assert {*planned} == {True}
    with pytest.raises(BadInput, match="no model.safetensors and no .*"):
        launch.train(config)
    assert planned[-1] is False


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_pickled_weights_run_no_code_and_an_index_stays_inside_its_folder(
    tmp_path,
):
    sizes = {"vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=4))
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    task = SimpleNamespace(
        published={str(tmp_path): {"config": model.config.to_dict()}}, config=None, is_planned=False
    )
    read = published.pretrained(task, str(tmp_path), transformers.BertModel, {})
    assert torch.equal(
        read.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight
    )
    torch.save({"embeddings.word_embeddings.weight": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Exception, match="[Ww]eights"):
        published.pretrained(task, str(tmp_path), transformers.BertModel, {})
    assert not Path("ran").exists()
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "secret.bin")
    index = {"weight_map": {"embeddings.word_embeddings.weight": "../secret.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match="may name files beside it alone"):
        published.pretrained(task, str(tmp_path), transformers.BertModel, {})


def test_options_of_an_earlier_transformers_are_renamed_or_refused(toy, tmp_path, capsys):
    sizes = {"vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=4)).save_pretrained(
        tmp_path / "model"
    )
    task = SimpleNamespace(published={}, is_planned=False, config=toy())
    folder = str(tmp_path / "model")
    model = published.pretrained(
        task, folder, transformers.BertModel, {"torch_dtype": torch.float16}
    )
    assert model.dtype is torch.float16
    assert "torch_dtype=torch.float16 is taken as dtype=torch.float16" in capsys.readouterr().out
    with pytest.raises(
        BadInput, match=r"takes no use_flash_attention_2 .* Write attn_implementation="
    ):
        published.pretrained(task, folder, transformers.BertModel, {"use_flash_attention_2": True})


def test_inside_a_block_the_same_weights_are_read_once_and_copies_are_as_if_read(bert, monkeypatch):
    reads = []
    load = published._loaded
    monkeypatch.setattr(
        published, "_loaded", lambda *args, **keys: reads.append(1) or load(*args, **keys)
    )
    config = bert()
    cls = find_task(config.task)

    def made(seed=3, **options):
        task = cls(config)
        torch.manual_seed(seed)  # the head is in no file
        name = config.workload.published
        model = task.pretrained(name, transformers.AutoModelForSequenceClassification, **options)
        return model, torch.rand(1)

    alone, draw = made(num_labels=1)
    with published.reading_once():
        first, second = made(num_labels=1), made(num_labels=1)
        assert len(reads) == 2
        other, _ = made(num_labels=3)
        assert len(reads) == 3
        assert other.classifier.weight.shape == (3, 4)
        made_anew, _ = made(seed=4, num_labels=1)
        assert len(reads) == 4, "another seed draws another head"
        assert not torch.equal(made_anew.classifier.weight, alone.classifier.weight)
    for model, after in (first, second):
        assert torch.equal(after, draw)
        assert all(
            torch.equal(value, alone.state_dict()[name])
            for name, value in model.state_dict().items()
        )
    with torch.no_grad():
        first[0].classifier.weight.zero_()
    assert second[0].classifier.weight.any()


def test_a_run_keeps_how_a_published_model_writes(tmp_path, monkeypatch):
    """The tokens that it must begin with, say, which lie beside the weights and not in their configuration."""
    sizes = {"vocab_size": 11, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    shipped = transformers.T5ForConditionalGeneration(config)
    shipped.generation_config.forced_bos_token_id = 7
    shipped.save_pretrained(tmp_path / "model")
    name = str(tmp_path / "model")
    task = SimpleNamespace(published={}, is_planned=False, config=None)
    monkeypatch.setattr(published, "_saved_facts", lambda *_: {})
    monkeypatch.setattr(published, "_check_not_needed", lambda *_: None)
    texts = torch.tensor([[1, 2, 3]])

    def begins():
        model = published.pretrained(task, name, transformers.AutoModelForSeq2SeqLM, {})
        return model.generate(input_ids=texts, max_new_tokens=3)[0, 1].item()

    assert begins() == 7
    task.published = json.loads(json.dumps(task.published))
    shutil.rmtree(tmp_path / "model")
    assert begins() == 7
    task.published[name]["generation"] = {"watermarking_config": {"none": 1}}
    with pytest.raises(BadInput, match="options of generation that this run keeps"):
        begins()
