"""Judgments, generated or made up, few and short, and the task on them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from lib.task import load_config, load_task
from tests.conftest import ROOT
from workloads.legal import model
from workloads.legal.documents import Document

CONFIG = """
task: legal
data: {dir: embedded, num_workers: 0, buckets: 3}
training: {max_steps: 2, effective_batch: 8}
workload:
  context: {length: 48}
  encoder: {layers: 2, hidden: 4, heads: 2, feed_forward: 8, vocabulary: 120, dropout: 0.0}
  split: {folds: 3, validation: 0.3}
  generator: {documents: 12, sentences: 20}
"""


def load(home, overrides=None):
    (home / "legal.yaml").write_text(CONFIG)
    return load_task(load_config(home / "legal.yaml", overrides or {}))


@pytest.fixture(scope="session")
def learned(tmp_path_factory):
    """What is learned of the generated judgments, whose counts take a second to fit."""
    return load(tmp_path_factory.mktemp("counted")).learned()


@pytest.fixture
def legal(tmp_path, learned):
    """legal(overrides) -> the task, which has learned before."""

    def make(overrides=None):
        task = load(tmp_path, overrides)
        task.take_learned(learned)
        return task

    return make


def write_encoder(folder):
    """A published encoder of next to no size: weights, configuration and tokenizer."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    BertModel(BertConfig(vocab_size=60, max_position_embeddings=64, **sizes)).save_pretrained(
        folder
    )
    words = model.trained(
        ["The appeal is allowed with costs .", "The trial court convicted the accused ."], 60
    )
    (folder / "tokenizer.json").write_text(words["text"])
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", '
        '"unk_token": "[UNK]", "mask_token": "[MASK]"}'
    )
    return folder


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """A tiny encoder as a mounted Kaggle model, ada/tinybert; returns its folder."""
    folder = (
        tmp_path
        / "kaggle"
        / "input"
        / "models"
        / "ada"
        / "tinybert"
        / "transformers"
        / "default"
        / "1"
    )
    folder.mkdir(parents=True)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return write_encoder(folder)


# The real ones, where they are there
CORPUS = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data")) / "legal_rr_lawai"
ROLES = ("Facts", "Argument", "Ruling")
_WORDS = {
    "Facts": "accident police night house witness",
    "Argument": "counsel submits contends urged learned",
    "Ruling": "appeal dismissed allowed accordingly costs",
}
_COMMON = "the of court and in that case was it by"


def judgment(number: int, category: str = "", length: int = 12, noise: float = 0.5) -> Document:
    """Returns a judgment whose sentences are told by their words only in part; the rest their neighbours tell."""
    draw = np.random.default_rng(number)
    bounds = sorted(draw.integers(2, length - 1, 2).tolist())
    roles = [ROLES[(place >= bounds[0]) + (place >= bounds[1])] for place in range(length)]
    sentences = []
    for role in roles:
        own = _WORDS[ROLES[draw.integers(3)] if draw.random() < noise else role].split()
        words = [*draw.choice(_COMMON.split(), 4), *draw.choice(own, 2), f"n{draw.integers(50)}"]
        sentences.append(" ".join(draw.permutation(words).tolist()))
    return Document(f"j{number:02}", category, tuple(sentences), tuple(roles), f"j{number:02}.txt")


def judgments(count: int, categories: tuple[str, ...] = ("",), **kind) -> list[Document]:
    return [
        judgment(number, categories[number % len(categories)], **kind) for number in range(count)
    ]
