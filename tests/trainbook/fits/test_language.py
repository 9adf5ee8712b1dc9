"""Questions about language models: a tiny one by hand, the sizes of known ones, and published readings."""

import json
import re

import pytest

from lib.errors import BadInput
from trainbook import commands

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from trainbook.fits.language import KNOWN, Question, fits, most, settings_of  # noqa: E402  behind the check above

D, WORDS, LAYERS = 64, 1000, 2
TINY = {
    "model_type": "llama", "hidden_size": D, "intermediate_size": 128, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 65536,
    "tie_word_embeddings": False,
}  # fmt: skip
CACHE = 2 * LAYERS * 2 * (D // 4) * 2  # bytes of a token: keys and values of two groups of 16 in fp16


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return lambda **more: Question(str(tmp_path), **more)


def test_the_cache_of_an_answer_grows_by_the_bytes_of_a_token(tiny):
    short, long = (fits(tiny(method="inference", length=n)).moments["after forward"] for n in (257, 2305))
    assert long - short == pytest.approx(2048 * CACHE, rel=0.05)


def test_only_adapters_have_moments_and_the_base_is_packed(tiny):
    lora, qlora, full = (fits(tiny(method=method, length=64)) for method in ("lora", "qlora", "full"))
    adapters = LAYERS * 16 * (4 * D + 2 * D + 2 * D // 2)  # on q, k, v and o
    for answer in (lora, qlora):
        assert answer.by_category["optimizer"] == pytest.approx(8 * adapters, rel=0.05, abs=64 * 512)
    assert full.by_category["optimizer"] == pytest.approx(8 * full.parameters, rel=0.05, abs=64 * 512)
    paged = fits(tiny(length=64, optimizer="paged_adamw_8bit"))
    assert not paged.by_category.get("optimizer")


def test_the_largest_length_fits_and_the_next_does_not(tiny):
    asked = {"card": "0.23 GiB, capability 7.5", "method": "inference"}
    length, prediction = most(tiny(**asked), "length")
    assert length and length % 64 == 0 and prediction.fits
    assert not fits(tiny(**asked, length=length + 64)).fits
    with pytest.raises(BadInput, match="The largest 'rank' cannot be asked for. Write batch or length."):
        most(tiny(**asked), "rank")


SENTENCES = [
    ({"method": "dpo"}, "no method 'dpo'. Write inference, lora, qlora, full"),
    ({"quantised": "gptq"}, "no quantised 'gptq'. Write nf4, nf4-dq, int8"),
    ({"optimizer": "lion"}, "no optimizer 'lion'"), ({"precision": "fp8"}, "no precision 'fp8'"),
    ({"length": 0}, "length is 0"), ({"batch": -1}, "batch is -1"), ({"rank": 0}, "rank is 0"),
    ({"method": "full", "quantised": "nf4"}, "Quantised weights cannot be trained"),
    ({"targets": ("nothing",)}, "The linear layers are down_proj, gate_proj, k_proj, lm_head"),
]  # fmt: skip


def test_a_question_that_makes_no_sense_is_a_sentence(tiny, tmp_path):
    for more, sentence in SENTENCES:
        with pytest.raises(BadInput, match=re.escape(sentence)):
            fits(tiny(**more))
    with pytest.raises(BadInput, match="no model 'Llama-9'.*Known are Llama-2-7B, .*folder with its config.json"):
        settings_of("Llama-9")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="has no model_type"):
        settings_of(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "resnet9"}')
    with pytest.raises(BadInput, match="cannot make a language model of the kind 'resnet9'"):
        fits(Question(str(tmp_path)))


def test_a_known_model_has_as_many_parameters_as_its_name_says():
    for name in KNOWN:
        s = settings_of(name)
        width = s["hidden_size"] // s["num_attention_heads"] * s["num_key_value_heads"]
        layer = 2 * s["hidden_size"] * (s["hidden_size"] + width) + 3 * s["hidden_size"] * s["intermediate_size"]
        head = s["vocab_size"] * s["hidden_size"] * (1 if s["tie_word_embeddings"] else 2)
        billions = float(name.rsplit("-", 1)[1].removesuffix("B"))
        assert s["num_hidden_layers"] * layer + head == pytest.approx(1e9 * billions, rel=0.1), name


def test_the_command_answers_and_its_code_says_whether_it_fits(tiny, capsys):
    folder = tiny().model
    assert commands.main(["fits", folder, "--length", "64"]) == 0
    assert "qlora, 1 x 64 tokens" in capsys.readouterr().out
    assert commands.main(["fits", folder, "--gpu", "0.3 GiB", "--length", "65536"]) == 2
    assert "does not fit" in capsys.readouterr().out
    assert commands.main(["fits", folder, "--gpu", "0.23 GiB", "--method", "inference", "--largest", "batch"]) == 0
    assert "is the largest size that fits" in capsys.readouterr().out
    assert commands.main(["fits", "Llama-9"]) == 2 and "There is no model" in capsys.readouterr().err
