"""Predictions beside published readings of a real GPU, and stock models that trace unchanged."""

import statistics

import pytest
import torch
import torch.nn.functional as F

from lib.planner import find_card, predict
from tests.planner.models import ConvNextTiny, MnasNet

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()

MIB = 2**20
RTX_3060 = "11.75 GiB, capability 8.6"
# What the driver gave the process beside the allocator's segments in these readings: context and loaded kernels.
CONTEXT_MIB = 200


def language_model(kind, config, batch):
    def step(net):
        ids = torch.randint(0, config.vocab_size, (batch, 128), device="cuda")
        outputs = net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        return outputs.loss, outputs

    return lambda: kind(config), step


def classifier(kind, batch):
    def step(net):
        logits = net(torch.randn(batch, 3, 86, 86, device="cuda"))
        return F.cross_entropy(logits, torch.randint(0, 10, (batch,), device="cuda")), logits

    return kind, step


def gpt_neo(batch):
    layers = [[["global", "local"], 6]]
    config = transformers.GPTNeoConfig(hidden_size=768, num_layers=12, num_heads=12, attention_types=layers)
    return language_model(transformers.GPTNeoForCausalLM, config, batch)


def distil_gpt2(batch):
    return language_model(transformers.GPT2LMHeadModel, transformers.GPT2Config(n_layer=6), batch)


def t5_small(batch):
    config = transformers.T5Config(
        d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0,
        attn_implementation="eager",  # the only one that T5 had when the readings were taken
    )  # fmt: skip
    return language_model(transformers.T5ForConditionalGeneration, config, batch)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


# NVML's peak minus its start, MiB, RTX 3060 12 GB, fp32, published with xMem (arXiv 2510.21048); its loop keeps
# `outputs` until the next step has computed its own.
READINGS = {
    "GPT-Neo 125M, AdamW, batch 10": (gpt_neo(10), torch.optim.AdamW, 4240),
    "GPT-Neo 125M, AdamW, batch 20": (gpt_neo(20), torch.optim.AdamW, 7198),
    "GPT-Neo 125M, SGD, batch 35": (gpt_neo(35), sgd, 10188),
    "DistilGPT-2, AdamW, batch 30": (distil_gpt2(30), torch.optim.AdamW, 7036),
    "T5-small, AdamW, batch 40": (t5_small(40), torch.optim.AdamW, 7644),
    "ConvNeXt-T, AdamW, batch 200": (classifier(ConvNextTiny, 200), torch.optim.AdamW, 3308),
    "MnasNet, AdamW, batch 400": (classifier(MnasNet, 400), torch.optim.AdamW, 3532),
}


def errors():
    """Relative error of each predicted reading."""
    found = {}
    for name, ((model, step), optimizer, reading) in READINGS.items():
        result = predict(model, step, RTX_3060, optimizer=optimizer, clip_norm=0, keeps_outputs=True)
        found[name] = (result.reserved_bytes / MIB + CONTEXT_MIB) / reading - 1
    return found


def test_published_readings_are_met():
    found = errors()
    print(*(f"{name}: {error:+.1%}" for name, error in found.items()), sep="\n")
    assert statistics.mean(map(abs, found.values())) <= 0.05
    assert max(found.values()) <= 0.12 and min(found.values()) >= -0.03


def ids(vocabulary=1000):
    return torch.randint(0, vocabulary, (2, 64), device="cuda")


def text():
    tokens = ids()
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def sentence():
    return text() | {"labels": torch.zeros(2, dtype=torch.long, device="cuda")}


def image():
    labels = torch.zeros(2, dtype=torch.long, device="cuda")
    return {"pixel_values": torch.randn(2, 3, 224, 224, device="cuda"), "labels": labels}


def mask():
    labels = torch.zeros(2, 128, 128, dtype=torch.long, device="cuda")
    return {"pixel_values": torch.randn(2, 3, 128, 128, device="cuda"), "labels": labels}


def sound():
    return {"input_features": torch.randn(2, 80, 3000, device="cuda"), "labels": ids()}


def caption():
    return {"input_ids": ids(), "pixel_values": torch.randn(2, 3, 224, 224, device="cuda"), "return_loss": True}


STOCK = {
    "AlbertForMaskedLM": text, "BartForConditionalGeneration": text, "BeitForImageClassification": image,
    "BertForMaskedLM": text, "CLIPModel": caption, "ConvNextForImageClassification": image,
    "DistilBertForMaskedLM": text, "ElectraForMaskedLM": text, "GPT2LMHeadModel": text, "LlamaForCausalLM": text,
    "LongformerForMaskedLM": text, "MistralForCausalLM": text, "MobileNetV2ForImageClassification": image,
    "OPTForCausalLM": text, "Qwen2ForCausalLM": text, "ResNetForImageClassification": image,
    "RobertaForSequenceClassification": sentence, "SegformerForSemanticSegmentation": mask,
    "SwinForImageClassification": image, "T5ForConditionalGeneration": text, "ViTForImageClassification": image,
    "WhisperForConditionalGeneration": sound, "XLNetLMHeadModel": text,
}  # fmt: skip

# Two layers of each kind: those that follow them trace in the same way.
_TWO = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers",
)  # fmt: skip


def shallow(kind, **more):
    """The stock configuration at two layers, or at two in each of its stages."""
    full = kind.config_class().to_dict()
    less = {name: 2 for name in _TWO if name in full}
    less |= {"depths": [min(2, depth) for depth in full["depths"]]} if "depths" in full else {}
    less |= {part: {"num_hidden_layers": 2} for part in ("text_config", "vision_config") if part in full}
    return kind.config_class(**less, **more)


@pytest.mark.parametrize("name", STOCK)
def test_a_stock_model_traces_unchanged(name):
    kind = getattr(transformers, name)
    config = shallow(kind, **({"decoder_start_token_id": 0} if name.startswith("T5") else {}))
    batch = STOCK[name]
    result = predict(lambda: kind(config), lambda net: net(**batch()).loss, "t4", precision="fp16")
    # weights; in the end gradients, two moments and cuBLAS's workspaces of forward and backward, too; Longformer and
    # Whisper have weights that this step does not use
    workspaces = 2 * find_card("t4").cublas_workspace
    held = 16 * result.parameters + workspaces
    with torch.device("meta"):  # some versions keep masks of attention as buffers
        buffers = sum(buffer.nbytes for buffer in kind(config).buffers())
    assert result.moments["after load"] == pytest.approx(4 * result.parameters + buffers, rel=0, abs=2 * MIB)
    assert result.moments["after optimizer step"] == pytest.approx(held, rel=0.06, abs=10 * MIB)
    assert result.peak_bytes > result.moments["after optimizer step"] and result.attention is not None
