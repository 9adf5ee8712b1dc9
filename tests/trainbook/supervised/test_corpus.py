"""Texts for language models: every token is guessed once, from a file that is written once and verified."""

import itertools
import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from torch import nn

from lib.config import Config, Training
from lib.errors import BadInput
from trainbook.supervised import corpus, kinds
from trainbook.supervised.language import Language
from trainbook.supervised.ngrams import ORDER, Ngrams
from trainbook.supervised.samples import IGNORED


@dataclass(frozen=True)
class Sizes:
    length: int
    vocabulary: int


class Reader(Language):
    Settings = Sizes

    def outputs(self, model, batch):
        return model(batch["input_ids"]), torch.eye(300)


@pytest.fixture
def texts(tmp_path):
    """A folder of text files: a short one, an empty one, one below, and one that is cut into pieces."""
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_bytes("Short, with Übung and 漢字.\r\nTwo lines.".encode())
    (folder / "empty.txt").write_text("")
    (folder / "below" / "b.txt").write_text("x" * 40_000 + "\n")
    lines = (f"line {number} of the long one\n\n" for number in range(3000))
    (folder / "long.txt").write_text("".join(lines))
    return folder


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(
        corpus.platform, "detect", lambda: type("Here", (), {"scratch_dir": tmp_path / "scratch"})
    )
    return tmp_path / "scratch" / "corpora"


def test_pieces_joined_are_the_files(texts):
    joined = defaultdict(str)
    for name, text in corpus.pieces(texts):
        joined[name.rpartition(":")[0]] += text
    for name in ("a.txt", "below/b.txt", "long.txt"):
        assert joined[name] == (texts / name).read_bytes().decode()
    assert max(len(text) for name, text in corpus.pieces(texts) if "long" in name) < 2**15


def test_each_token_but_a_piece_s_first_is_guessed_once(texts):
    parts, kept = corpus.windows(texts, 100, 300, "")
    tokenizer = Tokenizer.from_str(kept)
    written = {}
    for part in parts.values():
        for name, windows in itertools.groupby(part, key=lambda sample: sample[0]):
            rows = [tokens for _, tokens in windows]
            assert all(len(tokens) <= 101 for tokens in rows)
            written[name] = np.concatenate([rows[0][:1], *(tokens[1:] for tokens in rows)])
    whole = dict(corpus.pieces(texts))
    assert written.keys() == whole.keys()
    for name, text in whole.items():
        assert tokenizer.decode(written[name].tolist()) == text
        assert tokenizer.id_to_token(int(written[name][-1])) == corpus.END


def test_the_file_of_tokens_is_written_once_and_again_if_it_is_damaged(texts, scratch):
    parts, kept = corpus.windows(texts, 100, 300, "")
    before = [tokens.tolist() for _, tokens in parts["train"]]
    (file,) = scratch.glob("*.npy")
    stamp = file.stat().st_mtime_ns
    corpus.windows(texts, 100, 300, kept)
    assert file.stat().st_mtime_ns == stamp
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    again, _ = corpus.windows(texts, 100, 300, kept)
    assert [tokens.tolist() for _, tokens in again["train"]] == before
    (texts / "more.txt").write_text("another")
    corpus.windows(texts, 100, 300, kept)
    assert len([*scratch.glob("*.npy")]) == 2


def test_the_tokenizer_learns_from_the_training_texts_alone(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02}.txt").write_text(f"{number} " + f"only{number}word " * 50)
    parts, kept = corpus.windows(folder, 64, 2000, "")
    pieces = json.loads(kept)["model"]["vocab"]
    names = {part: {name.split(".")[0] for name in rows.names} for part, rows in parts.items()}
    assert all(names.values())
    known = {number for number in range(60) if any(f"only{number}" in piece for piece in pieces)}
    assert not known & {int(name) for name in names["test"] - names["train"]}


def test_what_is_no_text_is_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match=r"has no text file \(\*\.txt\)"):
        corpus.files_in(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xfe")
    with pytest.raises(BadInput, match=r"bad\.txt is no UTF-8"):
        list(corpus.pieces(tmp_path))


def by_hand(tokens, vocabulary, asked):
    """Kneser-Ney with dictionaries: the same formulas, a token at a time."""

    def counts_of(length):
        if length == ORDER:
            return Counter(zip(*(tokens[k:] for k in range(length)), strict=False))
        longer = {*zip(*(tokens[k:] for k in range(length + 1)), strict=False)}
        return Counter(run[1:] for run in longer)

    levels = {length: counts_of(length) for length in range(1, ORDER + 1)}
    found = []
    for place in range(1, len(asked)):
        share = 1 / vocabulary
        for length, counts in levels.items():
            if place < length - 1:
                break
            once = sum(count == 1 for count in counts.values())
            twice = sum(count == 2 for count in counts.values())
            discount = once / max(1, once + 2 * twice)
            context = tuple(asked[place - length + 1 : place])
            after = {run: count for run, count in counts.items() if run[:-1] == context}
            if not after:
                continue
            count = counts.get((*context, asked[place]), 0)
            own = count - discount if count else 0
            share = (own + discount * len(after) * share) / sum(after.values())
        found.append(share)
    return found


@given(
    st.lists(st.integers(0, 3), min_size=ORDER + 1, max_size=60),
    st.lists(st.integers(0, 4), min_size=2, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_runs_of_tokens_have_the_probabilities_of_kneser_and_ney(tokens, asked):
    counts = Ngrams(np.array(tokens), 5)
    expected = by_hand(tokens, 5, asked)
    assert counts.probabilities(np.array(asked)) == pytest.approx(expected)
    *context, _ = asked
    shares = [counts.probabilities(np.array([*context, token]))[-1] for token in range(5)]
    assert sum(shares) == pytest.approx(1)


def test_a_model_s_bits_are_those_of_its_probabilities_for_every_token_but_the_first(
    texts, tmp_path
):
    config = Config(
        task="toy", training=Training(effective_batch=2), workload=Sizes(length=50, vocabulary=300)
    )
    task = Reader(config, texts)
    samples = task.parts["test"].samples
    torch.manual_seed(0)
    model = nn.Embedding(300, 300)
    total = 0.0
    letters = 0
    for _, tokens in samples:
        logarithms = model(torch.tensor(tokens[:-1])).log_softmax(-1).detach().double()
        guessed = torch.tensor(tokens[1:])
        total -= logarithms.gather(1, guessed[:, None]).sum().item() / math.log(2)
        letters += len(task.tokenizer.decode(guessed.tolist()).encode())
    batches = [task.collate([*map(task.parts["test"].__getitem__, range(len(samples)))], None)]
    scored = task._kind.evaluate(task, model, batches)
    ends = len(task.parts["test"].samples.names)
    assert task.sizes.max() > 1
    assert scored.scores["bits_a_byte"] == pytest.approx(total / letters, rel=1e-5)
    assert len(scored.rows["network"].true) == len(samples) > ends


def test_the_bytes_of_a_sample_are_those_of_its_known_labels():
    rows = [("piece", np.array([0, 1, IGNORED, 2])), ("piece", np.array([1, 1, 1, IGNORED]))]
    test = SimpleNamespace(samples=rows)
    task = SimpleNamespace(sizes=np.array([7, 2, 3]), parts={"test": test})
    assert kinds.of("bits").tested(task).true.tolist() == [5, 4]
