"""Tokenizer and rows of the small base: copies of random tokens, chats, and docstrings of the standard library."""

import ast
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainbook import IGNORED
from workloads.chat.base.chats import START, STOP, Chats

PAD = "<|pad|>"
END = "<|endoftext|>"
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
# Each digit, mark and line end is one token, so that a copied text has the same tokens anywhere
PIECES = r"\d|\p{L}+|\n| +|[^\p{L}\d\s]|\s"
_SKIPPED = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

Pair = tuple[list[int], list[int]]  # ids and labels of a row


def docstrings() -> list[str]:
    """Returns the docstrings of the standard library that are ASCII, cut at 1,500 characters, sorted."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(folder.rglob("*.py")) if not _SKIPPED & set(path.parts)]
    texts = {text[:1500] for path in paths for text in _docstrings_of(path)}
    return sorted(texts)


def _docstrings_of(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        text = (ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None) or ""
        if len(text) > 40 and text.isascii():
            yield text


def tokenizer_of(texts: list[str], size: int) -> Any:
    """Trains a byte-level BPE tokenizer of `size` tokens with the base's template."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, START, STOP, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=STOP, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class Rows:
    """Draws rows of tokens with their labels: copies, chats (answers are trained) and docstrings (everything is)."""

    def __init__(self, tokenizer: Any, chats: Chats, docs: list[str]):
        self.tokenizer = tokenizer
        self.chats = chats
        self.rng = random.Random(2)
        self.pool: list[list[int]] = []
        self.stop, end = tokenizer.convert_tokens_to_ids([STOP, END])
        self.stream: list[int] = []
        for ids in self._tokens(docs):
            self.stream += [*ids, end]
        texts = [
            f"{START}assistant\n",
            f"{START}user\nrepeat: ",
            f"{STOP}\n{START}assistant\n",
            f"{STOP}\n",
        ]
        self.opening, self.head, self.middle, self.tail = self._tokens(texts)

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts)["input_ids"]

    def copy(self, length: int) -> Pair:
        """Repeats random tokens of the whole vocabulary or of a few: the fastest way to learn copying."""
        rng = self.rng
        form = len(self.head) + len(self.middle) + len(self.tail)
        room = (length - form) // 2
        tokens = range(4, len(self.tokenizer))
        choice = rng.sample(tokens, rng.choice([12, 40, 200, len(tokens)]))
        copied = rng.choices(choice, k=rng.randint(room // 2, room))
        ids = [*self.head, *copied, *self.middle, *copied, *self.tail]
        labels = [IGNORED] * length
        first = len(ids) - len(copied) - len(self.tail)
        labels[first : first + len(copied) + 1] = [*copied, self.stop]
        return ids + [0] * (length - len(ids)), labels

    def chat(self, length: int, hard: float, examples: int) -> Pair:
        """Joins chats to a row; tokens after an answer's opening are trained up to its end."""
        ids: list[int] = []
        while len(ids) < length:
            if not self.pool:
                texts = [self.chats.text(hard, examples) for _ in range(100)]
                self.pool = self._tokens(texts)
            ids += self.pool.pop()
        labels = []
        is_answer = False
        for place, token in enumerate(ids[:length]):
            before = ids[max(0, place - len(self.opening)) : place]
            is_answer = is_answer or before == self.opening
            labels.append(token if is_answer else IGNORED)
            is_answer = is_answer and token != self.stop
        return ids[:length], labels

    def doc(self, length: int) -> Pair:
        first = self.rng.randrange(len(self.stream) - length)
        ids = self.stream[first : first + length]
        return ids, ids

    def copies(self, count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _stacked([self.copy(length) for _ in range(count)])

    def batch(
        self, tokens: int, length: int, share: float, hard: float, examples: int
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Returns (rows, length) ids and labels, and the number of rows that are chats or copies."""
        count = tokens // length
        chats = round(share * tokens / length)
        rows = [self.copy(length)]
        rows += [self.chat(length, hard, examples) for _ in range(chats - 1)]
        rows += [self.doc(length) for _ in range(count - chats)]
        return *_stacked(rows), chats


def _stacked(rows: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    ids, labels = zip(*rows, strict=True)
    return torch.tensor(ids), torch.tensor(labels)
