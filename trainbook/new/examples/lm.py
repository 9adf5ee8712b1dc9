"""Answers to prompts by a language model tuned with LoRA: JSON Lines with a prompt and an answer in each."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from lib.config import option
from lib.supervised import IGNORED, Supervised, padded, records, split

END, SEPARATOR, FIRST = 1, 2, 3  # a token for each byte begins at FIRST; 0 fills


@dataclass(frozen=True)
class Settings:
    base: str = option("", "A folder with pretrained weights of 259 tokens; empty: a tiny random Llama.", path=True)
    length: int = option(48, "The tokens of a prompt with its answer.", minimum=8)
    answer: int = option(12, "The tokens of an answer that are generated at most.", minimum=1)
    rank: int = option(4, "The rank of the adapters.", minimum=1)


class LoRA(nn.Module):
    """A frozen linear layer with a low-rank addition, which alone is trained and starts at zero."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer, self.down = layer, nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + 2 * self.up(self.down(x))


class Answers(Supervised):
    Settings, sentinels, kind = Settings, ("*.jsonl",), "next_tokens"

    def model(self):
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        tiny = LlamaConfig(vocab_size=FIRST + 256, eos_token_id=END, pad_token_id=0, bos_token_id=None, **sizes)
        base = self.settings.base
        model = self.pretrained(base, AutoModelForCausalLM) if base else LlamaForCausalLM(tiny)
        for path, layer in list(model.requires_grad_(False).named_modules()):
            if isinstance(layer, nn.Linear) and layer is not model.get_output_embeddings():
                model.set_submodule(path, LoRA(layer, self.settings.rank))
        return model

    def read(self, source):
        return split((row["prompt"], row.get("answer")) for row in records(source, "*.jsonl"))

    def example(self):
        return "x" * self.settings.length, "y"

    def batch(self, samples, training):
        asked = [[*(FIRST + byte for byte in prompt.encode()), SEPARATOR] for prompt, _ in samples]
        told = [[*(FIRST + byte for byte in answer.encode()), END] for _, answer in samples]
        pairs, length = list(zip(asked, told, strict=True)), self.settings.length
        ids = padded([a + t for a, t in pairs], 0, length)
        labels = padded([[IGNORED] * len(a) + t for a, t in pairs], IGNORED, length)
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}

    def answers(self, models, samples):
        device, found = next(models[0].parameters()).device, []
        for prompt, _ in samples:
            ids = torch.tensor([[*(FIRST + byte for byte in prompt.encode()), SEPARATOR]], device=device)
            more = models[0].generate(input_ids=ids, max_new_tokens=self.settings.answer, do_sample=False)
            told = more[0, ids.shape[1] :].tolist()
            found.append(bytes(token - FIRST for token in told if token >= FIRST).decode(errors="replace"))
        return found

    def evaluate(self, model, loader):
        samples = [item.sample for item in (loader.dataset[i] for i in range(min(64, len(loader.dataset))))]
        right = [told == answer for told, (_, answer) in zip(self.answers([model], samples), samples, strict=True)]
        return {**super().evaluate(model, loader), "exact_match": sum(right) / len(right)}
