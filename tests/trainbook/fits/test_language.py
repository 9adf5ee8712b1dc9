"""Questions about language models: a tiny one by hand, and the sizes of known ones."""

import json
import re
from dataclasses import replace

import pytest
import torch

from tests.conftest import ROOT
from trainbook import commands

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from trainbook.fits import folded, language  # noqa: E402  behind the check above
from trainbook.fits.answers import longest  # noqa: E402
from trainbook.fits.language import KNOWN, Question, fits, settings_of  # noqa: E402

D = 64
WORDS = 1000
LAYERS = 1
TINY = {
    "model_type": "llama", "hidden_size": D, "intermediate_size": 128, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 65536,
    "tie_word_embeddings": False,
}  # fmt: skip
# bytes of a token: keys and values of two groups of 16 in fp16
CACHE = 2 * LAYERS * 2 * (D // 4) * 2


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return lambda **more: Question(str(tmp_path), **more)


def test_the_cache_of_an_answer_grows_by_the_bytes_of_a_token(tiny):
    short = fits(tiny(method="inference", length=257)).moments["after forward"]
    long = fits(tiny(method="inference", length=2305)).moments["after forward"]
    assert long - short == pytest.approx(2048 * CACHE, rel=0.05)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_only_adapters_have_moments(tiny, method):
    q_and_o = 2 * (D + D)
    k_and_v = 2 * (D + D // 2)
    gate_up_and_down = 3 * (D + 128)
    adapters = LAYERS * 16 * (q_and_o + k_and_v + gate_up_and_down)
    moments = fits(tiny(method=method, length=64)).by_category["optimizer"]
    assert moments == pytest.approx(8 * adapters, rel=0.05, abs=64 * 512)


def test_all_parameters_have_moments_in_full_training(tiny):
    answer = fits(tiny(method="full", length=64))
    moments = answer.by_category["optimizer"]
    assert moments == pytest.approx(8 * answer.parameters, rel=0.05, abs=64 * 512)


def test_a_loss_in_chunks_of_positions_needs_no_whole_logits(tiny):
    chunked = fits(tiny(length=4096))
    whole = fits(tiny(length=4096, trainer=True))
    logits = 4096 * WORDS
    assert whole.peak_bytes - chunked.peak_bytes > 4 * logits > 8 * 256 * WORDS


def test_qwen_7b_takes_the_memory_that_the_document_says(tmp_path):
    """All layers take the same: two and four of the 28 are traced."""

    def gib(layers):
        settings = settings_of("Qwen2.5-7B") | {"num_hidden_layers": layers}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return fits(Question(str(tmp_path), batch=2, length=2048)).peak_bytes / 2**30

    two = gib(2)
    four = gib(4)
    assert two + (four - two) * (28 - 2) / 2 == pytest.approx(8.3, abs=0.1)
    document = (ROOT / "docs" / "ideas" / "memory.md").read_text()
    assert re.search(r"Qwen2.5-7B, 2 x 2,048 tokens .* 8.3 GiB", document)


def test_the_largest_length_fits_and_one_that_is_an_eighth_longer_does_not(tiny):
    question = tiny(card="0.23 GiB, capability 7.5", method="inference")
    length = longest(question)
    assert length
    assert length % 256 == 0
    longer = length + max(256, length // 8)
    assert fits(replace(question, length=length)).fits
    assert not fits(replace(question, length=longer)).fits


@pytest.fixture
def deep(tmp_path, monkeypatch):
    """A model of five layers, whose kinds may alternate: too many to be traced whole."""
    monkeypatch.setattr(folded, "_FEW", 4)
    alternating = ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    of_gemma = {
        "model_type": "gemma2",
        "layer_types": alternating,
        "sliding_window": 64,
        "head_dim": 16,
    }

    def question(alternates=False, **more):
        settings = TINY | {"num_hidden_layers": 5} | (of_gemma if alternates else {})
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return Question(str(tmp_path), **more)

    return question


@pytest.mark.parametrize(
    "method, alternates",
    [("inference", False), ("qlora", False), ("full", False), ("inference", True), ("lora", True)],
)
def test_a_few_layers_tell_what_the_whole_model_takes(deep, method, alternates):
    question = deep(alternates, method=method, length=128)
    few = folded.fits(question)
    whole = fits(question)
    assert few.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.01)
    assert few.reserved_bytes == pytest.approx(whole.reserved_bytes, rel=0.15)
    assert few.parameters == whole.parameters
    assert few.trained == whole.trained
    assert few.pass_seconds == pytest.approx(whole.pass_seconds, rel=1e-6)
    assert few.rest_seconds == pytest.approx(whole.rest_seconds, rel=0.02)
    assert sum(few.by_category.values()) == few.peak_bytes


def test_few_layers_are_traced_and_a_length_beyond_two_takes_one_trace(deep, monkeypatch):
    traces = []
    traced = language.traced

    def counted(question, settings, has_state=False):
        traces.append((question.length, settings["num_hidden_layers"]))
        return traced(question, settings, has_state)

    monkeypatch.setattr(language, "traced", counted)
    model = folded.Folded(deep(length=256))
    exact = [model.at(length).peak_bytes for length in (256, 1024, 2048)]
    of_two_lengths = [(256, 2), (256, 3), (1024, 2), (1024, 3)]
    assert traces == [*of_two_lengths, (2048, 2), (2048, 3)]
    traces.clear()
    model = folded.Folded(deep(length=256))
    peaks = [model.peak_at(length) for length in (256, 1024, 2048)]
    assert peaks == pytest.approx(exact, rel=0.002)
    assert traces == [*of_two_lengths, (2048, 2)]


def test_a_model_whose_layers_differ_beyond_its_settings_is_traced_whole(deep):
    model = folded.Folded(deep(length=64))
    model.parameters += model.parameters // 10  # as if one of the layers were another
    assert model.at(64).peak_bytes == fits(model.question).peak_bytes
    assert model.is_whole


# billions of parameters, from the models' pages
BILLIONS = {
    "Llama-2-7B": 6.738, "Llama-2-13B": 13.016, "Llama-3-8B": 8.030, "Llama-3.1-8B": 8.030, "Llama-3.2-1B": 1.236,
    "Llama-3.2-3B": 3.213, "Mistral-7B": 7.242, "Mistral-Nemo-12B": 12.248, "Qwen2.5-0.5B": 0.494,
    "Qwen2.5-1.5B": 1.544, "Qwen2.5-3B": 3.086, "Qwen2.5-7B": 7.616, "Qwen2.5-14B": 14.770, "Qwen3-0.6B": 0.596,
    "Qwen3-1.7B": 1.721, "Qwen3-4B": 4.022, "Qwen3-8B": 8.191, "Gemma-2-2B": 2.614, "Gemma-2-9B": 9.242,
    "Gemma-3-270M": 0.268, "Gemma-3-1B": 1.000, "Gemma-3-4B": 3.880, "Gemma-3-12B": 11.766, "Phi-3-mini": 3.821,
    "Phi-4-mini": 3.836, "Phi-4": 14.660, "SmolLM2-135M": 0.1345, "SmolLM2-360M": 0.3618, "SmolLM2-1.7B": 1.711,
    "SmolLM3-3B": 3.075, "TinyLlama-1.1B": 1.100, "DeepSeek-R1-Distill-Qwen-1.5B": 1.777,
    "DeepSeek-R1-Distill-Qwen-7B": 7.616, "DeepSeek-R1-Distill-Llama-8B": 8.030,
}  # fmt: skip


def test_a_known_model_has_the_parameters_of_its_page():
    counts = {}
    for name in KNOWN:
        with torch.device("meta"):
            config = transformers.AutoConfig.for_model(**settings_of(name))
            model = transformers.AutoModelForCausalLM.from_config(config)
        model.tie_weights()
        counts[name] = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    assert counts == pytest.approx(BILLIONS, rel=2e-3)


@pytest.mark.parametrize("kind", ["gemma3_text", "smollm3"])
def test_each_kind_of_model_is_followed_with_few_layers(kind, tmp_path):
    name = next(name for name, settings in KNOWN.items() if settings["model_type"] == kind)
    settings = settings_of(name) | {"num_hidden_layers": 2, "pad_token_id": 0}
    config = json.dumps({"model_type": "seen", "text_config": settings})
    (tmp_path / "config.json").write_text(config)
    assert fits(Question(str(tmp_path), length=512)).fits


def test_the_command_prints_assumptions_time_lengths_and_remedies(tiny, capsys):
    card = "0.23 GiB, capability 7.5"
    assert commands.main(["fits", tiny().model, "--gpu", card, "--length", "8192"]) == 2
    out = capsys.readouterr().out
    assert out.startswith("Tracing ")
    assert "qlora, 1 x 8,192 tokens" in out
    assert "a frozen base in nf4, adapters of rank 16 in fp32 on all linear" in out
    assert "1,000,000 tokens, padding among them, take" in out
    length = re.search(r"The largest length that fits: ([\d,]+)", out)[1]
    assert f"To make it fit: --length {length.replace(',', '')}; --gpu " in out


def test_the_command_refuses_an_unknown_model(capsys):
    assert commands.main(["fits", "Llama-9"]) == 2
    assert "There is no model" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B", "unsloth/qwen2.5-7b-Instruct"])
def test_a_model_is_known_by_its_name_on_hugging_face(name):
    assert settings_of(name) == settings_of("Qwen2.5-7B")


def test_a_wrong_card_is_refused_before_anything_is_traced(capsys):
    assert commands.main(["fits", "Qwen2.5-7B", "--gpu", "t5"]) == 2
    printed = capsys.readouterr()
    assert "There is no card 't5'" in printed.err
    assert "Tracing" not in printed.out
