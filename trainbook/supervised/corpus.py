"""Reads texts for a language model: their pieces, a tokenizer trained on them, and tokens in a file that is mapped.

A corpus may be larger than memory: texts are read a piece at a time, and tokens are written once.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.report.progress import working
from lib.text import amount
from trainbook.supervised.notes import note
from trainbook.supervised.samples import split

END = "<end>"  # the token behind a piece
_PIECE = 2**14  # letters: long files are cut at a blank line, or a line's end, behind as many
_LEARNED = 2**26  # letters that a tokenizer is trained on
_AT_ONCE = 256  # pieces
_VERSION = 1  # of the files with tokens


def files_in(source: Path) -> list[Path]:
    """Lists the text files of a folder, by name, or the one file. Raises BadInput if there is none."""
    files = [source] if source.is_file() else sorted(source.rglob("*.txt"))
    if not files:
        raise BadInput(f"{printable(source)} has no text file (*.txt). Give a folder of them.")
    return files


def pieces(source: Path) -> Iterator[tuple[str, str]]:
    """Yields the texts of a folder or a file, each with a name: a file, or a part of a long one. Raises BadInput."""
    for file in files_in(source):
        name = file.name if file == source else file.relative_to(source).as_posix()
        for number, text in enumerate(_cut(file), 1):
            yield (f"{name}:{number}", text)


def _cut(file: Path) -> Iterator[str]:
    """Yields the text of a file in pieces, each with its line ends. Raises BadInput if it is no UTF-8."""
    lines: list[str] = []
    length = 0
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            for line in opened:
                lines.append(line)
                length += len(line)
                is_end = length >= _PIECE and not line.strip()
                if is_end or length >= 2 * _PIECE:
                    yield "".join(lines)
                    lines = []
                    length = 0
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{printable(file)} is no UTF-8: byte {error.start:,} of what was read at once. Convert it, or take it out."
        ) from None
    if length:
        yield "".join(lines)


def tokenizer_of(texts: Iterable[str], vocabulary: int) -> str:
    """Trains pieces of words on texts (byte pairs: Sennrich et al., 2016); returns them as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(texts), trainer)
    return tokenizer.to_str()


def _first(texts: Iterable[str]) -> Iterator[str]:
    """Yields texts until as many letters were read as a tokenizer learns from."""
    left = _LEARNED
    for text in texts:
        if left <= 0:
            note(f"The tokenizer learned from the first {amount(_LEARNED)} of the training texts.")
            return
        left -= len(text)
        yield text


class Windows:
    """Samples of tokens in a mapped file: (piece, tokens), each token but a piece's first guessed in one of them."""

    def __init__(self, file: Path, names: Sequence[str], spans: np.ndarray, length: int):
        self.file = file
        self.names = names
        self.spans = spans  # (pieces, 2) first and last token in the file
        self.length = length
        sizes = spans[:, 1] - spans[:, 0] - 1  # tokens to guess
        self.ends = np.cumsum(-(-sizes // length))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index: int) -> tuple[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        piece = int(np.searchsorted(self.ends, index, side="right"))
        before = int(self.ends[piece - 1]) if piece else 0
        begin, end = self.spans[piece]
        first = begin + (index - before) * self.length
        return self.names[piece], self.tokens[first : min(first + self.length + 1, end)].astype(int)

    @cached_property
    def tokens(self) -> np.ndarray:
        return np.load(self.file, mmap_mode="r")

    @property
    def groups(self) -> list[str]:
        """The piece of each window."""
        counts = np.diff(self.ends, prepend=0)
        return [*np.repeat(np.array(self.names, object), counts)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "tokens"}


def windows(
    source: Path, length: int, vocabulary: int, kept: str
) -> tuple[dict[str, Windows], str]:
    """Deals the pieces of a folder to parts by their text; returns windows of their tokens, and the tokenizer as JSON.

    `kept` is the tokenizer of an earlier session; empty: it is trained on the training pieces. Raises BadInput.
    """
    dealt = split(_digests(source))
    part_of = {name: part for part, items in dealt.items() for _, name in items}
    if not kept:
        train = (text for name, text in pieces(source) if part_of[name] == "train")
        with working("Training the tokenizer"):
            kept = tokenizer_of(train, vocabulary)
    file, names, ends = _written(source, kept)
    spans = np.stack([np.r_[0, ends[:-1]], ends], 1)
    parts = {}
    for part in dealt:
        places = [place for place, name in enumerate(names) if part_of[name] == part]
        parts[part] = Windows(file, [names[place] for place in places], spans[places], length)
    note(
        f"{len(files_in(source)):,} text files in {len(names):,} pieces: {int(ends[-1]):,} tokens of "
        f"{Tokenizer.from_str(kept).get_vocab_size():,} different ones."
    )
    return parts, kept


def _digests(source: Path) -> list[tuple[str, str]]:
    """Lists a hash of the text of each piece, by which it is dealt, with its name: copies stay together."""
    found = []
    for name, text in pieces(source):
        found.append((hashlib.sha256(text.encode()).hexdigest(), name))
    return found


def _written(source: Path, kept: str) -> tuple[Path, list[str], np.ndarray]:
    """Returns the file with the tokens of all pieces, their names, and the end of each. Writes it if need be."""
    stamps = [
        [path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files_in(source)
    ]
    facts = json.dumps([_VERSION, str(source.resolve()), stamps, kept])
    key = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    folder = platform.detect().scratch_dir / "corpora"
    file = folder / f"{key}.npy"
    index = folder / f"{key}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
        about = json.loads(index.read_text("utf-8"))
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest == about["sha256"]:
            return file, about["names"], np.array(about["ends"])
    disk.make_folders(folder)
    with working("Writing the corpus as tokens"):
        names, ends = _write(source, Tokenizer.from_str(kept), file)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    with disk.whole(index) as aside:
        aside.write_text(json.dumps({"sha256": digest, "names": names, "ends": ends}), "utf-8")
    return file, names, np.array(ends)


def _write(source: Path, tokenizer: Tokenizer, file: Path) -> tuple[list[str], list[int]]:
    """Writes the tokens of all pieces, a few at a time; returns their names and the end of each."""
    names: list[str] = []
    ends: list[int] = []
    end = tokenizer.token_to_id(END)
    form = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32)
    waiting = pieces(source)
    with disk.whole(file) as aside, aside.open("wb") as out:
        out.write(_head(0, form))
        while some := list(islice(waiting, _AT_ONCE)):
            encodings = tokenizer.encode_batch([text for _, text in some], add_special_tokens=False)
            for (name, _), encoding in zip(some, encodings, strict=True):
                out.write(np.array([*encoding.ids, end], form).tobytes())
                names.append(name)
                ends.append((ends[-1] if ends else 0) + len(encoding.ids) + 1)
        out.seek(0)
        out.write(_head(ends[-1] if ends else 0, form))
    return names, ends


def _head(number: int, form: np.dtype) -> bytes:
    """Returns the first 128 bytes of a file of NumPy with a vector, whose length is known at the end."""
    text = f"{{'descr': '{form.str}', 'fortran_order': False, 'shape': ({number},), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"
