"""A small chat model from scratch, which copies, writes JSON and follows forms: the base in configs/chat-base."""

import hashlib
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lib.task import Batch
from trainbook import option
from trainbook.supervised.language import Language
from trainbook.supervised.ngrams import ORDER, Ngrams
from trainbook.supervised.samples import IGNORED
from workloads.chat import write_merged
from workloads.chat.base.chats import STOP, Chats
from workloads.chat.base.rows import (
    LONG,
    PAD,
    TEMPLATE,
    Rows,
    docstrings_by_part,
    lexicon_of,
    tokenizer_of,
)

FOLDER = "base"  # in the export
_TOKENS = 1024  # different ones
_HELD_OUT = 200  # rows that validate at most, and that are tested
_COUNTED = 4000  # rows whose runs are counted


@dataclass(frozen=True)
class Settings:
    """The `workload:` section of a configuration."""

    rows: int = option(
        58_000, "The rows that are drawn: of 192 tokens, and in the end some of 640.", minimum=20
    )
    length: int = option(LONG, "The tokens that a guess sees at most.", minimum=2)
    written: int = option(100, "The tokens that predict writes behind a text.", minimum=1)


class Base(Language):
    """Rows of random tokens, generated chats and docstrings of Python's library; a Llama of 1.2 M weights."""

    Settings = Settings
    unit = "row"

    def model(self) -> nn.Module:
        config = LlamaConfig(
            architectures=["LlamaForCausalLM"],  # which converters read
            vocab_size=_TOKENS,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=5,
            num_attention_heads=4,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
        return LlamaForCausalLM(config)

    def outputs(self, model: Any, batch: Batch) -> Any:
        states = model.model(input_ids=batch["input_ids"], use_cache=False)
        return states.last_hidden_state, model.lm_head

    def read(self, source: Path | None = None) -> Mapping[str, Any]:
        docs = docstrings_by_part()
        chats = Chats(1, lexicon_of(docs["train"]))
        self._trained = (self._learned or {}).get("tokenizer", "")
        if not self._trained:
            drawn = [chats.text() for _ in range(6000)]
            self._trained = tokenizer_of([*docs["train"][::2], *drawn], _TOKENS).to_str()
        tokenizer = Tokenizer.from_str(self._trained)
        rows = self.settings.rows
        held_out = min(_HELD_OUT, rows // 16)
        sizes = {"train": rows, "validation": held_out, "test": held_out}
        return {
            part: Rows(tokenizer, chats, docs[part], number, part) for part, number in sizes.items()
        }

    def example(self) -> Any:
        return "row", np.zeros(LONG, int), np.zeros(LONG, int)

    def batch(self, samples: list[Any], training: bool) -> Batch:
        _, ids, labels = zip(*samples, strict=True)
        rows = [torch.from_numpy(each) for each in ids]
        targets = [torch.from_numpy(each) for each in labels]
        return {
            "input_ids": pad_sequence(rows, batch_first=True),
            "labels": pad_sequence(targets, batch_first=True, padding_value=IGNORED),
        }

    def baselines(self) -> Mapping[str, Any]:
        """Returns the bits of each test row by runs of tokens that came in some training rows."""
        train, test = (self.parts[part].samples for part in ("train", "test"))
        places = np.linspace(0, len(train) - 1, min(_COUNTED, len(train))).astype(int)
        runs = Ngrams(np.concatenate([train[place][1] for place in places]), _TOKENS)
        bits = []
        for _, ids, labels in test:
            known = labels[1:] != IGNORED
            bits.append(-np.log2(runs.probabilities(ids)[known]).sum())
        return {f"runs of {ORDER} tokens": np.array(bits)}

    def export(self, model: nn.Module, folder: Path) -> None:
        """Writes a folder that transformers opens, with a recipe, and docstrings that were held out."""
        folder = folder / FOLDER
        write_merged(model, folder, self.tokenizer.encode(STOP).ids)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer,
            pad_token=PAD,
            eos_token=STOP,
            clean_up_tokenization_spaces=False,
        )
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(folder)
        other = docstrings_by_part()["test"]
        random.Random(0).shuffle(other)
        (folder / "other.txt").write_text("\n\n".join(other) + "\n", "utf-8")
        weights = (folder / "model.safetensors").read_bytes()
        recipe = {
            "config": f"configs/{self.config.run.name}.yaml",
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "weights": sum(weight.numel() for weight in model.parameters()),
            "steps": self.config.training.max_steps,
            "tokens": self.parts["train"].samples.tokens(),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        (folder / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n", "utf-8")
