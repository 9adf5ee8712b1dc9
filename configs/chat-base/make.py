"""Makes the small base of the workload: a tokenizer and a Llama, on random tokens said again, docstrings and chats.

PYTHONPATH=. python configs/chat-base/make.py FOLDER

The docstrings are those of Python's standard library. The chats are generated: about copying, JSON, following examples,
and invented functions. None has a function, a wording or a held-out value of the task "call".
"""

import argparse
import ast
import hashlib
import json
import math
import random
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workloads.chat.generated import API, NUMBERS, SYLLABLES, WORDS, split_of

PAD, START, STOP, END = "<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\\n' }}{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ ('\\n' if message['content'] or not loop.first else '') + '<tool_call>\\n' }}"
    "{{ {'name': call['function']['name'], 'arguments': call['function']['arguments']} | tojson }}"
    "{{ '\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# A border of tokens stands around each digit, mark and line's end, so that what is copied has the same tokens anywhere
PIECES = r"\d|\p{L}+|\n| +|[^\p{L}\d\s]|\s"


def docstrings() -> list[str]:
    texts = set()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) > 40 and text.isascii():
                    texts.add(text[:1500])
    return sorted(texts)


class Chats:
    """Generated conversations, as turns of (question, answer)."""

    def __init__(self, seed: int, lexicon: list[str], functions: int = 120):
        self.rng, self.lexicon = random.Random(seed), lexicon
        self.functions = [self._function() for _ in range(functions)]

    def value(self) -> str:
        kind = self.rng.random()
        while True:
            if kind < 0.4:
                text = "".join(
                    self.doubled(self.rng.choices(SYLLABLES, k=self.rng.choice([2, 2, 3])))
                ).capitalize()
            elif kind < 0.55:
                text = str(self.rng.randint(0, self.rng.choice([9, 99, 999, 9999])))
            elif kind < 0.65:
                text = f"{self.rng.randint(0, 23):02d}:{self.rng.choice([0, self.rng.randint(0, 59)]):02d}"
            else:
                words = [WORDS, self.lexicon]
                choices = (
                    self.rng.choice(self.rng.choice(words)) for _ in range(self.rng.randint(1, 5))
                )
                text = " ".join(self.doubled([*choices]))
            if split_of(text) == "train" or text.endswith(":00"):
                return text

    def doubled(self, pieces: list[str]) -> list[str]:
        """Returns pieces, at times with one of them twice in a row, which a copy by what came before loses."""
        if self.rng.random() < 0.2:
            place = self.rng.randrange(len(pieces))
            pieces[place : place + 2] = [pieces[place]] * 2
        return pieces

    def said(self, value: str) -> str:
        """Returns a value as a person may say it: 15:00 as "3 pm", 5 as "five"."""
        if self.rng.random() < 0.5 and value.endswith(":00"):
            hour = int(value[:2])
            return {0: "midnight", 12: "noon"}.get(
                hour, f"{hour % 12} {'pm' if hour > 12 else 'am'}"
            )
        is_small = value.isdigit() and 1 <= int(value) <= len(NUMBERS)
        return NUMBERS[int(value) - 1] if is_small and self.rng.random() < 0.5 else value

    def key(self) -> str:
        words = self.rng.choices(self.lexicon, k=1 if self.rng.random() < 0.8 else 2)
        return "_".join(words)

    def json(self, pairs: Any) -> str:
        return json.dumps({k: int(v) if v.isdigit() and str(int(v)) == v else v for k, v in pairs})

    def _function(self) -> dict[str, Any]:
        """An invented function: its name, its slots, and wordings of random words around them."""
        rng = self.rng
        while (name := f"{rng.choice(self.lexicon)}_{rng.choice(self.lexicon)}") in API:
            pass
        slots = list(dict.fromkeys(self.key() for _ in range(rng.randint(1, 4))))
        wordings = []
        for _ in range(rng.randint(2, 4)):
            places = rng.sample(range(len(slots)), len(slots))
            pieces = [
                " ".join(rng.choices(self.lexicon, k=rng.randint(1, 3)))
                for _ in range(len(slots) + 1)
            ]
            pieces[-1] = pieces[-1] if rng.random() < 0.4 else ""
            text = pieces[0] + "".join(
                f" {{{place}}} {piece}" for place, piece in zip(places, pieces[1:], strict=True)
            )
            wordings.append(text.strip())
        return {
            "head": rng.choice(["use", "do", "run"]),
            "name": name,
            "slots": slots,
            "wordings": wordings,
        }

    def by_function(self) -> tuple[str, str]:
        function = self.rng.choice(self.functions)
        values = [self.value() for _ in function["slots"]]
        question = self.rng.choice(function["wordings"]).format(*map(self.said, values))
        pairs = zip(function["slots"], values, strict=True)
        return question, self.json([(function["head"], function["name"]), *pairs])

    def by_example(self, fewest: int = 2, most: int = 4) -> list[tuple[str, str]]:
        """The same form of question several times, with other values: the answer's form follows from earlier ones."""
        rng, count = self.rng, self.rng.randint(1, 3)
        words = rng.choices(self.lexicon, k=count + 1)
        keys, head, is_json = [self.key() for _ in range(count)], self.key(), rng.random() < 0.7
        order, turns = rng.sample(range(count), count), []
        for _ in range(rng.randint(fewest, most)):
            values = [self.value() for _ in range(count)]
            question = words[0] + "".join(
                f" {v} {w}" for v, w in zip(values, words[1:], strict=True)
            )
            pairs = [(head, words[0]), *((keys[k], values[k]) for k in order)]
            turns.append(
                (question, self.json(pairs) if is_json else " ".join(f"{k} {v}" for k, v in pairs))
            )
        return turns

    def turns(self, hard: float = 1.0, examples: int = 4) -> list[tuple[str, str]]:
        rng, kind = self.rng, self.rng.random()
        if rng.random() > hard or kind < 0.12:
            value = " ".join(self.value() for _ in range(rng.randint(1, 3)))
            return [("repeat: " + value, value)]
        if kind < 0.45:
            return [self.by_function()]
        if kind < 0.65:
            return self.by_example(most=examples)
        if kind < 0.68:
            number = rng.randint(1, 12)
            hour = f"{self.rng.randint(0, 23):02d}:00"
            return [
                self.rng.choice(
                    [(f"{NUMBERS[number - 1]} in digits", str(number)), (self.said(hour), hour)]
                )
            ]
        pairs = [
            (key, self.value())
            for key in dict.fromkeys(self.key() for _ in range(rng.randint(1, 4)))
        ]
        forms = ("{k} is {v}", "{k}: {v}", "{v} as {k}", "{k} {v}", "the {k} {v}")
        phrase = rng.choice(["; ", ", ", " and "]).join(
            rng.choice(forms).format(k=k, v=v) for k, v in pairs
        )
        key, value = rng.choice(pairs)
        if kind < 0.88:
            return [(rng.choice(["json: ", "write json: ", "as json "]) + phrase, self.json(pairs))]
        return [
            (f"{key} in {self.json(pairs)}?", value)
            if kind < 0.94
            else (f"{phrase}. what is the {key}?", value)
        ]

    def text(self, hard: float = 1.0, examples: int = 4) -> str:
        return "".join(
            f"{START}user\n{question}{STOP}\n{START}assistant\n{answer}{STOP}\n"
            for question, answer in self.turns(hard, examples)
        )


def tokenizer_of(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, START, STOP, END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=STOP, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class Rows:
    """Draws rows of tokens with the labels that are trained: copies, chats (their answers) and docstrings (all)."""

    def __init__(self, tokenizer: Any, chats: Chats, docs: list[str]):
        self.tokenizer, self.chats, self.rng, self.pool = tokenizer, chats, random.Random(2), []
        self.stop, end = tokenizer.convert_tokens_to_ids([STOP, END])
        self.stream = [token for ids in tokenizer(docs)["input_ids"] for token in [*ids, end]]
        self.speaks = tokenizer(f"{START}assistant\n")["input_ids"]
        texts = (f"{START}user\nrepeat: ", f"{STOP}\n{START}assistant\n", f"{STOP}\n")
        self.head, self.middle, self.tail = (tokenizer(text)["input_ids"] for text in texts)

    def copy(self, length: int) -> tuple[list[int], list[int]]:
        """Tokens at random said again, of all or of a few: what copying is learned from fastest."""
        rng, room = self.rng, (length - len(self.head) - len(self.middle) - len(self.tail)) // 2
        words = rng.sample(
            range(4, len(self.tokenizer)), rng.choice([12, 40, 200, len(self.tokenizer) - 4])
        )
        said = rng.choices(words, k=rng.randint(room // 2, room))
        ids = [*self.head, *said, *self.middle, *said, *self.tail]
        labels = [
            *[-100] * (len(ids) - len(said) - len(self.tail)),
            *said,
            self.stop,
            *[-100] * (len(self.tail) - 1),
        ]
        return ids + [0] * (length - len(ids)), labels + [-100] * (length - len(ids))

    def chat(self, length: int, hard: float, examples: int) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        while len(ids) < length:
            if not self.pool:
                self.pool = self.tokenizer([self.chats.text(hard, examples) for _ in range(100)])[
                    "input_ids"
                ]
            ids += self.pool.pop()
        labels, speaks, width = [], False, len(self.speaks)
        for place, token in enumerate(ids[:length]):
            speaks = speaks or ids[max(0, place - width) : place] == self.speaks
            labels.append(token if speaks else -100)
            speaks = speaks and token != self.stop
        return ids[:length], labels

    def doc(self, length: int) -> tuple[list[int], list[int]]:
        first = self.rng.randrange(len(self.stream) - length)
        ids = self.stream[first : first + length]
        return ids, ids

    def batch(
        self, tokens: int, length: int, share: float, hard: float, examples: int
    ) -> tuple[Any, Any, int]:
        """Returns (rows, length) ids and labels, and the number of rows that are chats or copies."""
        count, chats = tokens // length, round(share * tokens / length)
        rows = [self.copy(length), *(self.chat(length, hard, examples) for _ in range(chats - 1))]
        rows += [self.doc(length) for _ in range(count - chats)]
        ids, labels = zip(*rows, strict=True)
        return torch.tensor(ids), torch.tensor(labels), chats


def optimizers(model: torch.nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, Adam for words and norms."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if not (p.dim() == 2 and "layers" in name)]
    muon = torch.optim.Muon(
        matrices, lr=lr, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)]


class Training:
    def __init__(self, model: torch.nn.Module, lr: float):
        self.model, self.lr, self.steps, self.tokens = model, lr, 0, 0
        self.optimizers = optimizers(model, lr)

    def step(self, ids: Any, labels: Any, rate: float) -> float:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * rate
        with torch.autocast(
            "cpu", torch.bfloat16
        ):  # 1.6 times as fast where the processor has instructions for it
            loss = self.model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.steps, self.tokens = self.steps + 1, self.tokens + ids.numel()
        return loss.item()


def save(model: Any, tokenizer: Any, folder: Path, recipe: dict[str, Any]) -> None:
    """Writes weights in fp16 with their hash, the tokenizer and the recipe."""
    state = {
        name: tensor.half()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }  # tied
    model.save_pretrained(folder, state_dict=state)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(
        json.dumps({**config, "dtype": "float16"}, indent=1) + "\n", "utf-8"
    )
    tokenizer.save_pretrained(folder)
    recipe["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n", "utf-8")


def exact(model: Any, tokenizer: Any, chats: Chats, count: int) -> float:
    """Returns the share of fresh chats whose last answer is generated exactly."""
    right = 0
    model.eval()
    for number in range(count):
        *turns, (question, answer) = chats.turns()
        text = "".join(f"{START}user\n{q}{STOP}\n{START}assistant\n{a}{STOP}\n" for q, a in turns)
        prompt = tokenizer(
            f"{text}{START}user\n{question}{STOP}\n{START}assistant\n", return_tensors="pt"
        )["input_ids"]
        output = model.generate(input_ids=prompt, max_new_tokens=120, do_sample=False)[
            0, prompt.shape[1] :
        ]
        told = tokenizer.decode(output).split(STOP)[0]
        right += told == answer
        if number < 8:
            print(repr(question), "->", repr(told), "|", repr(answer))
    model.train()
    return right / count


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the small base of the workload.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=28, help="of one core, both phases")
    parser.add_argument(
        "--copying", type=float, default=0.25, help="the loss of copied tokens at which chats begin"
    )
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument(
        "--chats", type=float, default=0.8, help="their share; docstrings have the rest"
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = docstrings()
    held_out, docs = (
        [text for text in texts if (split_of(text) == "test") == test] for test in (True, False)
    )
    counts = Counter(
        word
        for doc in docs
        for word in doc.lower().split()
        if word.isalpha() and 3 <= len(word) <= 9
    )
    lexicon = sorted(word for word, count in counts.items() if count >= 20)
    chats = Chats(1, lexicon)
    tokenizer = tokenizer_of([*docs[::2], *(chats.text() for _ in range(6000))], options.tokens)
    stop = tokenizer.convert_tokens_to_ids(STOP)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=5,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=stop, pad_token_id=0, rms_norm_eps=1e-6,
        )
    )  # fmt: skip
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = stop, 0
    rows, training = Rows(tokenizer, chats, docs), Training(model, options.lr)
    size = sum(p.numel() for p in model.parameters())
    print(
        f"{len(docs):,} docstrings, {len(rows.stream):,} tokens, {len(lexicon)} words, {size:,} weights",
        flush=True,
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    other = "\n\n".join(random.Random(0).sample(held_out, len(held_out)))
    (options.folder / "other.txt").write_text(other + "\n", "utf-8")
    begin, copied = time.process_time(), 9.0
    while (
        copied > options.copying and time.process_time() - begin < 20 * options.minutes
    ):  # at most a third
        ids, labels = map(torch.tensor, zip(*(rows.copy(64) for _ in range(32)), strict=True))
        loss = training.step(ids, labels, min(1, (training.steps + 1) / 50))
        copied = 0.95 * copied + 0.05 * loss
        if training.steps % 50 == 0:
            print(
                f"copying {training.steps}: {loss:.3f}, {time.process_time() - begin:.0f} s",
                flush=True,
            )
    copying, spent, start = training.steps, 0.0, time.process_time()
    left = options.minutes * 60 - (start - begin)
    while spent < 1:
        length = (
            96 if spent < 0.2 else 192 if spent < 0.85 else 640
        )  # long ones last: for examples before a question
        batch = rows.batch(
            3840, length, options.chats, min(1, 0.2 + spent * 4), 4 if length < 640 else 7
        )
        spent = (time.process_time() - start) / left
        rate = min(1, (training.steps - copying + 1) / 30) * max(0.02, min(1, (1 - spent) / 0.6))
        loss = training.step(*batch[:2], rate)
        if training.steps % 50 == 0:
            with torch.no_grad():
                ids, labels, count = batch
                parts = [
                    model(input_ids=ids[k], labels=labels[k]).loss
                    for k in (slice(count), slice(count, None))
                ]
            print(
                f"{training.steps}: chats {parts[0]:.3f}, docs {parts[1]:.3f}, {spent:.2f}",
                flush=True,
            )
        if training.steps % 200 == 0:
            save(model, tokenizer, options.folder, {})
    recipe: dict[str, Any] = {
        "script": "configs/chat-base/make.py", "python": sys.version.split()[0], "torch": torch.__version__,
        "weights": size, "steps": training.steps, "of copying": copying, "tokens": training.tokens,
        "minutes of one core": options.minutes, "chats": options.chats, "lr": options.lr,
    }  # fmt: skip
    save(model, tokenizer, options.folder, recipe)
    recipe["fresh chats answered exactly"] = exact(model, tokenizer, Chats(99, lexicon), 60)
    with torch.no_grad():
        ids = torch.tensor(tokenizer(other)["input_ids"][: 40 * 192]).view(40, 192)
        recipe["perplexity of docstrings held out"] = math.exp(
            model(input_ids=ids, labels=ids).loss
        )
    save(model, tokenizer, options.folder, recipe)
    print(recipe)


if __name__ == "__main__":
    main()
