"""The encoder of a run: published weights that are found, what of them is trained, and an encoder from scratch."""

import shutil

import pytest
import torch

from lib import checkpoint
from lib.errors import BadInput
from tests.workloads.legal.conftest import load
from tests.workloads.legal.test_legal import train
from workloads.legal import encoders
from workloads.legal.settings import Encoder

TINY = {"workload.encoder.weights": "ada/tinybert"}


def test_a_mounted_model_is_found_under_its_name_and_under_that_of_the_hub_or_none_which_is_said(
    mounted, monkeypatch, capsys
):
    for name in ("ada/tinybert", "law-ai/TinyBERT", str(mounted)):
        chosen = encoders.choose(Encoder(weights=name))
        assert chosen["weights"] in (name, "tinybert") and chosen["options"] == {"attention_probs_dropout_prob": 0.0}
    monkeypatch.setattr(encoders.memory, "device", lambda: torch.device("cuda"))  # where it costs no time
    for given, wanted in (("auto", 0.1), (0.3, 0.3)):
        chosen = encoders.choose(Encoder(weights=str(mounted), attention_dropout=given))
        assert chosen["options"] == {"attention_probs_dropout_prob": wanted}
    chosen = encoders.choose(Encoder(weights="law-ai/InLegalBERT"))
    assert chosen["weights"] == "" and "begins with an encoder from scratch" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "layers"), [(True, 0), (False, 1), (True, 2)])
def test_what_is_frozen_is_not_trained_and_the_rest_is(tmp_path, mounted, words, layers):
    frozen = {"workload.encoder.freeze_words": words, "workload.encoder.freeze_layers": layers}
    task = load(tmp_path, {**TINY, **frozen})
    named = dict(task.model().encoder.named_parameters())
    still = {name for name, p in named.items() if not p.requires_grad}
    below = {f"encoder.layer.{n}." for n in range(layers)}
    wanted = {n for n in named if any(map(n.startswith, below)) or (layers and n.startswith("embeddings."))}
    assert still == wanted | ({"embeddings.word_embeddings.weight"} if words else set())


def test_layers_have_lower_rates_the_further_they_are_from_the_head_and_there_are_no_more_than_there_are(
    tmp_path, mounted
):
    task = load(tmp_path, {**TINY, "workload.rates.layer_decay": 0.5, "workload.rates.head": 9.0})
    groups = task.parameter_groups(task.model())
    rates = {name: group["lr"] for group in groups for name in group["names"]}
    assert rates["output.*"] == 9.0 and rates["encoder.encoder.layer.1.output.dense.weight"] == 1.0
    assert rates["encoder.encoder.layer.0.output.dense.weight"] == 0.5
    assert rates["encoder.embeddings.word_embeddings.weight"] == 0.25
    for key, value, message in (
        ("encoder.freeze_layers", 3, "the encoder has 2 layers"),
        ("context.length", 65, "the encoder has 64 positions"),
    ):
        with pytest.raises(BadInput, match=message):
            load(tmp_path, {**TINY, f"workload.{key}": value}).model()


def test_a_plan_without_the_weights_is_one_for_the_size_that_is_named(tmp_path):
    named = {"workload.encoder.weights": "law-ai/InLegalBERT"}
    for more, million in (({}, 110), ({"workload.encoder.planned_as": "large"}, 335)):
        with torch.device("meta"):
            model = load(tmp_path, {**named, **more}).model()
        assert round(sum(p.numel() for p in model.parameters()) / 1e6) == pytest.approx(million, abs=2)


def test_a_run_goes_on_with_its_published_weights_where_they_are_no_longer_mounted(tmp_path, mounted, learned):
    frozen = {**TINY, "checkpoint.frozen": "save", "workload.encoder.freeze_layers": 1}
    task = load(tmp_path, frozen)
    assert task.learned()["encoder"]["weights"] == "ada/tinybert"
    train(task, tmp_path / "run")
    shutil.rmtree(mounted.parents[3])
    later = load(tmp_path, {**frozen, "training.max_steps": 3})
    later.take_learned(task.learned())
    found, _ = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    train(later, tmp_path / "run", found)
    ended, _ = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    name = "encoder.embeddings.word_embeddings.weight"
    assert ended.step == 3 and torch.equal(ended.tensors["model"][name], found.tensors["model"][name])
