"""Trains the small base: first on copies of random tokens, then on chats and docstrings.

python -m workloads.chat.base.make FOLDER
"""

import argparse
import hashlib
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from workloads.chat.base.chats import STOP, Chats, question_of, written
from workloads.chat.base.rows import Rows, docstrings, tokenizer_of
from workloads.chat.generated import split_of

_SCRIPT = "workloads/chat/base/make.py"
_TOKENS = 3840  # in a batch of chats and docstrings
_HELD_OUT = (40, 192)  # rows and tokens whose perplexity is measured


def optimizers(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices of the layers and AdamW for embeddings and norms."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_hidden = parameter.dim() == 2 and "layers" in name
        (matrices if is_hidden else others).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=lr, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)]


class Training:
    """Counts and makes the steps of a model within `minutes` of one core, and prints the loss."""

    def __init__(self, model: Any, rows: Rows, lr: float, minutes: float):
        self.model = model
        self.rows = rows
        self.lr = lr
        self.seconds = 60 * minutes
        self.steps = 0
        self.tokens = 0
        self.optimizers = optimizers(model, lr)
        self.start = time.process_time()

    def spent(self) -> float:
        """Returns the seconds of this process since the start."""
        return time.process_time() - self.start

    def step(self, ids: Tensor, labels: Tensor, rate: float) -> float:
        """Trains on (rows, length) ids and labels at a share of the learning rate; returns the loss."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * rate
        # 1.6 times as fast on a processor with instructions for it
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        self.tokens += ids.numel()
        return loss.item()

    def copy(self, enough: float) -> None:
        """Trains on copies only, down to a smoothed loss, for at most a third of the time."""
        smoothed = 9.0
        while smoothed > enough and self.spent() < self.seconds / 3:
            ids, labels = self.rows.copies(32, 64)
            loss = self.step(ids, labels, min(1, (self.steps + 1) / 50))
            smoothed = 0.95 * smoothed + 0.05 * loss
            if self.steps % 50 == 0:
                print(f"copying {self.steps}: {loss:.3f}, {self.spent():.0f} s", flush=True)

    def chat(self, share: float) -> None:
        """Trains on chats and docstrings in the time left: rows become longer, the rate falls at the end."""
        first = self.steps
        begin = self.spent()
        progress = 0.0
        while progress < 1:
            # The longest rows hold several examples before a question
            length = 96 if progress < 0.2 else 192
            length = 640 if progress >= 0.85 else length
            hard = min(1, 0.2 + progress * 4)
            examples = 7 if length == 640 else 4
            ids, labels, chats = self.rows.batch(_TOKENS, length, share, hard, examples)
            progress = (self.spent() - begin) / max(self.seconds - begin, 1e-9)
            warm_up = min(1, (self.steps - first + 1) / 30)
            decay = max(0.02, min(1, (1 - progress) / 0.6))
            self.step(ids, labels, warm_up * decay)
            if self.steps % 50 == 0:
                losses = f"chats {self.loss(ids[:chats], labels[:chats]):.3f}"
                losses += f", docs {self.loss(ids[chats:], labels[chats:]):.3f}"
                print(f"{self.steps}: {losses}, {progress:.2f}", flush=True)

    @torch.no_grad()
    def loss(self, ids: Tensor, labels: Tensor) -> float:
        return self.model(input_ids=ids, labels=labels).loss.item()


def model_of(words: int, stop: int) -> Any:
    """Returns a Llama of 1.2 M weights for a vocabulary of 1,024."""
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 5}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}
    tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_id": stop, "pad_token_id": 0}
    config = LlamaConfig(
        vocab_size=words,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        **sizes,
        **heads,
        **tokens,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = stop
    model.generation_config.pad_token_id = 0
    return model


def save(model: Any, tokenizer: Any, folder: Path, recipe: dict[str, Any]) -> None:
    """Writes weights in fp16 with their hash, the tokenizer and the recipe."""
    state = {name: weight.half() for name, weight in model.state_dict().items()}
    del state["lm_head.weight"]  # tied
    model.save_pretrained(folder, state_dict=state)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    _write_json(folder / "config.json", {**config, "dtype": "float16"})
    tokenizer.save_pretrained(folder)
    weights = (folder / "model.safetensors").read_bytes()
    recipe["sha256"] = hashlib.sha256(weights).hexdigest()
    _write_json(folder / "recipe.json", recipe)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def exact(model: Any, tokenizer: Any, chats: Chats, count: int) -> float:
    """Returns the share of fresh chats whose last answer is generated exactly."""
    right = 0
    model.eval()
    for number in range(count):
        *turns, (question, answer) = chats.turns()
        prompt = tokenizer(written(turns) + question_of(question), return_tensors="pt")["input_ids"]
        output = model.generate(input_ids=prompt, max_new_tokens=120, do_sample=False)
        generated = tokenizer.decode(output[0, prompt.shape[1] :]).split(STOP)[0]
        right += generated == answer
        if number < 8:
            print(repr(question), "->", repr(generated), "|", repr(answer))
    model.train()
    return right / count


def perplexity(model: Any, tokenizer: Any, text: str) -> float:
    rows, length = _HELD_OUT
    ids = torch.tensor(tokenizer(text)["input_ids"][: rows * length]).view(rows, length)
    with torch.no_grad():
        return math.exp(model(input_ids=ids, labels=ids).loss)


def lexicon_of(texts: Sequence[str]) -> list[str]:
    """Returns words of three to nine letters that occur in texts at least twenty times."""
    words = [word for text in texts for word in text.lower().split()]
    counts = Counter(word for word in words if word.isalpha() and 3 <= len(word) <= 9)
    return sorted(word for word, count in counts.items() if count >= 20)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the folder and the dials of a base, by default of the command line."""
    parser = argparse.ArgumentParser(description="Makes the small base of the workload.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=28, help="of one core, both phases")
    parser.add_argument(
        "--copying", type=float, default=0.25, help="the loss of copied tokens at which chats begin"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="size of the vocabulary")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument(
        "--chats", type=float, default=0.8, help="share of the chats; docstrings have the rest"
    )
    return parser.parse_args(arguments)


def make(options: argparse.Namespace, tried: int = 60) -> None:
    """Trains the base of these options into their folder, and answers as many fresh chats with it as are `tried`."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = docstrings()
    held_out = [text for text in texts if split_of(text) == "test"]
    docs = [text for text in texts if split_of(text) != "test"]
    lexicon = lexicon_of(docs)
    chats = Chats(1, lexicon)
    drawn = [chats.text() for _ in range(6000)]
    tokenizer = tokenizer_of([*docs[::2], *drawn], options.tokens)
    model = model_of(len(tokenizer), tokenizer.convert_tokens_to_ids(STOP))
    rows = Rows(tokenizer, chats, docs)
    size = sum(weight.numel() for weight in model.parameters())
    print(
        f"{len(docs):,} docstrings, {len(rows.stream):,} tokens, {len(lexicon)} words, "
        f"{size:,} weights",
        flush=True,
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    other = "\n\n".join(random.Random(0).sample(held_out, len(held_out)))
    (options.folder / "other.txt").write_text(other + "\n", "utf-8")
    training = Training(model, rows, options.lr, options.minutes)
    training.copy(options.copying)
    copying = training.steps
    training.chat(options.chats)
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    steps = {"steps": training.steps, "of copying": copying, "tokens": training.tokens}
    dials = {"minutes of one core": options.minutes, "chats": options.chats, "lr": options.lr}
    recipe = {"script": _SCRIPT, **versions, "weights": size, **steps, **dials}
    save(model, tokenizer, options.folder, recipe)
    if not tried:
        return
    recipe["fresh chats answered exactly"] = exact(model, tokenizer, Chats(99, lexicon), tried)
    recipe["perplexity of docstrings held out"] = perplexity(model, tokenizer, other)
    save(model, tokenizer, options.folder, recipe)
    print(recipe)


if __name__ == "__main__":
    make(options_of())
