"""Tokenizer and rows of the small base: copies of random tokens, chats, and docstrings of the standard library."""

import ast
import random
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trainbook import IGNORED
from trainbook.supervised.corpus import END
from trainbook.supervised.samples import PARTS
from workloads.chat.base.chats import START, STOP, Chats
from workloads.chat.generated import split_of

PAD = "<|pad|>"
LENGTH = 192  # tokens of a row
LONG = 640  # of some rows, and of all that are not trained: several examples before a question
COPYING = 0.1  # of the rows, before chats begin
LONG_FROM = 0.6  # of the rows: of those behind it a fifth is long, while the rate is high enough to learn from them
BLOCK = 20  # rows of one length, as a step of configs/chat_base.yaml takes them
EXAMPLES = 4  # in a chat at most
MANY = 7  # of a long row
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


def docstrings_by_part() -> dict[str, list[str]]:
    """Returns the docstrings of each part, by their hash."""
    by_part: dict[str, list[str]] = {part: [] for part in PARTS}
    for text in docstrings():
        by_part[split_of(text)].append(text)
    return by_part


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


def lexicon_of(texts: Iterable[str]) -> list[str]:
    """Returns words of three to nine letters that occur in texts at least twenty times."""
    words = [word for text in texts for word in text.lower().split()]
    counts = Counter(word for word in words if word.isalpha() and 3 <= len(word) <= 9)
    return sorted(word for word, count in counts.items() if count >= 20)


def tokenizer_of(texts: list[str], size: int) -> Tokenizer:
    """Trains a byte-level BPE tokenizer of `size` tokens."""
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
    return bpe


class Rows:
    """Rows of tokens, each drawn by its number: copies of random tokens first, then chats and docstrings.

    In the end some are long. A sample is its name with (length) tokens and their labels. Of a copy the second half is
    trained, of chats the answers, of docstrings everything.
    """

    def __init__(self, tokenizer: Tokenizer, chats: Chats, docs: list[str], number: int, part: str):
        self.tokenizer = tokenizer
        self.chats = chats
        self.number = number
        self.part = part
        (self.stop,) = self._ids(STOP)
        (end,) = self._ids(END)
        self.stream: list[int] = []
        for encoding in tokenizer.encode_batch(docs):
            self.stream += [*encoding.ids, end]
        texts = [
            f"{START}assistant\n",
            f"{START}user\nrepeat: ",
            f"{STOP}\n{START}assistant\n",
            f"{STOP}\n",
        ]
        self.opening, self.head, self.middle, self.tail = map(self._ids, texts)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[str, np.ndarray, np.ndarray]:
        if not 0 <= index < self.number:
            raise IndexError(index)
        name = f"{self.part} {index}"
        rng = random.Random(name)
        self.chats.rng = rng
        progress = index / self.number if self.part == "train" else 1.0
        kind = self.kind(progress, index)
        length = self.length(progress, index)
        if kind == "copy":
            ids, labels = self.copy(rng, length)
        elif kind == "docs":
            ids, labels = self.doc(rng, length)
        else:
            ids, labels = self.chat(min(1, 0.2 + 4 * progress), length)
        return name, np.array(ids), np.array(labels)

    def order(self, seed: int, epoch: int) -> range:
        """Returns rows as they come: they become harder."""
        return range(self.number)

    @staticmethod
    def kind(progress: float, index: int) -> str:
        """Returns what a row is: of twenty one copies and four are docstrings, and at first all copy."""
        place = index % 20
        if progress < COPYING or not place:
            return "copy"
        return "chat" if place < 16 else "docs"

    def length(self, progress: float, index: int) -> int:
        is_long = progress >= LONG_FROM and index // BLOCK % 5 == 4
        return LONG if is_long or self.part != "train" else LENGTH

    def tokens(self) -> int:
        return sum(self.length(index / self.number, index) for index in range(self.number))

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def copy(self, rng: random.Random, length: int) -> Pair:
        """Repeats random tokens of the whole vocabulary or of a few: the fastest way to learn copying."""
        form = len(self.head) + len(self.middle) + len(self.tail)
        room = (length - form) // 2
        tokens = range(4, self.tokenizer.get_vocab_size())
        choice = rng.sample(tokens, rng.choice([12, 40, 200, len(tokens)]))
        copied = rng.choices(choice, k=rng.randint(room // 2, room))
        ids = [*self.head, *copied, *self.middle, *copied, *self.tail]
        labels = [IGNORED] * length
        first = len(ids) - len(copied) - len(self.tail)
        labels[first : first + len(copied) + 1] = [*copied, self.stop]
        return ids + [0] * (length - len(ids)), labels

    def chat(self, hard: float, length: int) -> Pair:
        """Joins chats to a row; tokens after an answer's opening are trained up to its end."""
        ids: list[int] = []
        examples = MANY if length == LONG else EXAMPLES
        while len(ids) < length:
            ids += self._ids(self.chats.text(hard, examples))
        labels = []
        is_answer = False
        for place, token in enumerate(ids[:length]):
            before = ids[max(0, place - len(self.opening)) : place]
            is_answer = is_answer or before == self.opening
            labels.append(token if is_answer else IGNORED)
            is_answer = is_answer and token != self.stop
        return ids[:length], labels

    def doc(self, rng: random.Random, length: int) -> Pair:
        first = rng.randrange(len(self.stream) - length)
        ids = self.stream[first : first + length]
        return ids, ids
