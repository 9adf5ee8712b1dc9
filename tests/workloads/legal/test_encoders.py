"""The encoder of a run, published or from scratch, its tokens, what is trained, and what the network reads."""

import pytest
import torch
from transformers import BertConfig, BertModel

from lib.errors import BadInput
from tests.workloads.legal.conftest import load, write_encoder
from workloads.legal import model
from workloads.legal.model import Network, Tokens
from workloads.legal.samples import input_of
from workloads.legal.settings import POSITIONS, Encoder, Head

TINY = {"workload.encoder.weights": "ada/tinybert"}


def test_a_mounted_model_is_found_under_both_its_names_or_none_which_is_said(mounted, monkeypatch, capsys):
    for name in ("ada/tinybert", "law-ai/TinyBERT", str(mounted)):
        chosen = model.choose(Encoder(weights=name))
        assert chosen["weights"] in (name, "tinybert") and chosen["options"] == {"attention_probs_dropout_prob": 0.0}
    monkeypatch.setattr(model.memory, "device", lambda: torch.device("cuda"))  # where it costs no time
    for given, wanted in (("auto", 0.1), (0.3, 0.3)):
        chosen = model.choose(Encoder(weights=str(mounted), attention_dropout=given))
        assert chosen["options"] == {"attention_probs_dropout_prob": wanted}
    chosen = model.choose(Encoder(weights="law-ai/InLegalBERT"))
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


def test_layers_have_lower_rates_the_further_they_are_from_the_head_and_what_it_lacks_is_refused(tmp_path, mounted):
    task = load(tmp_path, {**TINY, "workload.rates.layer_decay": 0.5, "workload.rates.head": 9.0})
    rates = {name: group["lr"] for group in task.parameter_groups(task.model()) for name in group["names"]}
    layers = [f"encoder.encoder.layer.{n}.output.dense.weight" for n in (1, 0)]
    names = ["output.*", *layers, "encoder.embeddings.word_embeddings.weight"]
    assert [rates[name] for name in names] == [9.0, 1.0, 0.5, 0.25]
    for key, value in (("encoder.freeze_layers", 3), ("context.length", 65)):
        with pytest.raises(BadInput, match="the encoder has (2 layers|64 positions)"):
            load(tmp_path, {**TINY, f"workload.{key}": value}).model()


SIZES = {"vocab_size": 20, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def test_padding_changes_nothing_and_place_and_category_count(tmp_path):
    def network(attention="sdpa"):
        torch.manual_seed(0)
        bert = BertModel(BertConfig(**SIZES, attn_implementation=attention))
        return Network(bert, POSITIONS, 3, Head(width=4)).eval()

    short, long = (
        load(tmp_path, {"workload.context.length": length}).example_batch(2, torch.device("cpu")) for length in (8, 9)
    )
    long["mask"][:, 8:], long["positions"] = 0, short["positions"]
    for attention in ("sdpa", "eager"):  # which take different masks
        assert torch.allclose(network()(short), network(attention)(long), atol=1e-6)
    for name in ("positions", "category"):
        assert not torch.equal(network()(short), network()({**short, name: short[name] + 1}))


CLS, SEP = 1, 2


def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end():
    assert input_of([10, 11], 8, CLS, SEP) == [CLS, 10, 11, SEP] and input_of([], 8, CLS, SEP) == [CLS, SEP]
    long = input_of(list(range(100, 20_100)), 12, CLS, SEP)
    assert long == [CLS, 100, 101, 102, 103, 104, 105, 106, 20_097, 20_098, 20_099, SEP]


def test_an_alphabet_of_thousands_leaves_room_for_words_and_a_text_that_names_a_special_token_is_a_text():
    texts = ["The appeal is allowed with costs .", "The High Court dismissed the appeal , with costs ."] * 5
    many = [" ".join(chr(0x4E00 + 40 * row + column) for column in range(40)) for row in range(60)]
    assert len(Tokens(**model.trained([*many, *texts], 200)).numbers(["appeal"])[0]) < 6
    values = model.trained(texts, 120)
    assert [len(own) for own in Tokens(**values).numbers(["The appeal", "dismissed"])] == [2, 1]
    assert not {values["cls"], values["sep"], values["pad"]} & {*Tokens(**values).numbers(["[SEP] [CLS] [PAD]"])[0]}


def test_the_tokenizer_beside_published_weights_is_taken_without_its_limits_and_none_is_refused(tmp_path):
    folder = str(write_encoder(tmp_path))
    values = model.tokenizer(Encoder(weights=folder), {"weights": folder}, [])
    long = Tokens(**values).numbers(["the appeal " * 1000])[0]
    assert len(long) >= 2000 and (values["cls"], values["sep"], values["pad"]) == (2, 3, 0)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match="needs tokenizer.json, or"):
        model.tokenizer(Encoder(weights=folder), {"weights": folder}, [])
