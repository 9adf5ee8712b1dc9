"""A tiny base with a tokenizer of bytes, conversations, and the task on them."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lib.task import load_config, load_task
from workloads.chat import generated
from workloads.chat.rows import Row
from workloads.chat.template import Template

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONFIG = """
task: chat
data: {num_workers: 0, buckets: 4, evaluation_batch: 4}
training: {max_steps: 6, effective_batch: 4, micro_batch: 4, evaluate_every_steps: 3, log_every_steps: 1}
optimizer: {lr: 1.0e-2}
checkpoint: {every_steps: 2, every_minutes: 0}
workload:
  lora: {rank: 2, alpha: 4}
  length: 200
  answer: 8
  validation_rows: 5
  test_rows: 6
  shots: 2
  generated: 40
"""


def tokenizer_of(
    template=CHATML, specials=("<|im_start|>", "<|im_end|>"), stop="<|im_end|>", begin=None
):
    """Every byte a token, so that nothing depends on merges; special tokens as a published tokenizer has them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<pad>", *letters])}
    bytes_ = Tokenizer(models.BPE(words, []))
    bytes_.pre_tokenizer, bytes_.decoder = (
        pre_tokenizers.ByteLevel(False, use_regex=False),
        decoders.ByteLevel(),
    )
    more = {"bos_token": begin} if begin else {}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_, pad_token="<pad>", eos_token=stop, **more
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [t for t in specials if t != stop]})
    tokenizer.chat_template = template
    return tokenizer


def template_of(*arguments, **options):
    return Template(tokenizer_of(*arguments, **options))


def write_base(folder, words=264):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(
        vocab_size=words, max_position_embeddings=1024, tie_word_embeddings=True, **sizes
    )
    tokenizer = tokenizer_of()
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def chat(tmp_path, base, monkeypatch):
    """chat(overrides) -> the task on the tiny base."""
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))

    def make(overrides=None):
        (tmp_path / "chat.yaml").write_text(CONFIG)
        return load_task(
            load_config(tmp_path / "chat.yaml", {"workload.base": str(base), **(overrides or {})})
        )

    return make


def calls(count, split="train"):
    return [Row((("user", prompt),), answer) for prompt, answer in generated.pairs(0, split, count)]


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
