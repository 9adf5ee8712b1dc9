"""Texts that are written: how near they are, in which batches, by several models, and what they are judged beside."""

import unicodedata

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.task import load_config
from lib.training.evaluation import baseline_of
from tests.trainbook.supervised.test_supervised import Loader
from trainbook import IGNORED, Supervised, padded
from trainbook.launch import checks
from trainbook.supervised import text


class Speller(nn.Module):
    """Scores the letters of a word."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(128, 128)

    def forward(self, ids):
        return self.letters(ids)


class Capitals(Supervised):
    """Words, and the same words in capitals, which a model spells letter by letter."""

    kind = "text"
    metrics = ("exact", "token_f1")
    tried: tuple[int, ...] = ()
    most = 100

    def model(self):
        return Speller()

    def read(self, source=None):
        rows = [(f"word {k}", f"WORD {k}") for k in range(40)]
        return {"train": rows[:28], "validation": rows[28:34], "test": rows[34:]}

    def example(self):
        return "word 00", "WORD 00"

    def batch(self, samples, training):
        ids, labels = (
            [[*map(ord, word)] for word in words] for words in zip(*samples, strict=True)
        )
        return {"ids": padded(ids, 0, 8), "labels": padded(labels, IGNORED, 8)}

    def beams(self, part):
        return 2

    def write(self, model, batch, beams):
        self.tried += (len(batch["ids"]),)
        if len(batch["ids"]) > self.most:
            raise torch.OutOfMemoryError
        return ["".join(chr(n) for n in ids if n) + "." for ids in batch["ids"].tolist()]


@pytest.fixture
def capitals(tmp_path):
    config = "task: x\ntraining: {max_steps: 4, effective_batch: 8}\noutput_dir: " + str(
        tmp_path / "runs"
    )
    (tmp_path / "text.yaml").write_text(config.replace("task: x", f"task: {__file__}:Capitals"))
    return Capitals(load_config(tmp_path / "text.yaml"))


JUDGES = (text.exact, text.token_f1, text.rouge_l)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (unicodedata.normalize("NFD", "màu đỏ"), "màu đỏ"),
        ("Màu đỏ", "màu đỏ"),
        ("“màu đỏ”.", "màu đỏ"),
        (" màu \t đỏ\n", "màu đỏ"),
        ("-5", "-5."),
    ],
)
def test_what_differs_in_writing_alone_is_equal(one, other):
    assert text.normal(one) == text.normal(other)
    assert {judge(one, other) for judge in JUDGES} == {1}


@pytest.mark.parametrize(
    ("one", "other"),
    [("má", "mà"), ("đỏ", "do"), ("-5", "5"), ("+", "-"), ("", "a"), ("màu đỏ", "đỏ")],
)
def test_an_accent_a_sign_and_a_word_make_a_difference(one, other):
    assert text.exact(one, other) == 0


def test_words_have_their_accents_and_no_signs():
    assert text.words("Màu đỏ, (hay) xanh-lá?") == ["màu", "đỏ", "hay", "xanh", "lá"]


@pytest.mark.parametrize(
    ("right", "written", "token_f1", "rouge_l"),
    [
        ("màu đen", "màu đỏ", 0.5, 0.5),
        ("a b b", "a a b", 2 / 3, 2 / 3),
        ("a b", "b a", 1, 0.5),
        ("a b c", "a x b y c", 6 / 8, 6 / 8),
        ("a", "", 0, 0),
        ("b", "a", 0, 0),
        ("+", "+", 1, 1),
    ],
)
def test_token_f1_counts_words_and_rouge_l_their_order(right, written, token_f1, rouge_l):
    assert text.token_f1(right, written) == pytest.approx(token_f1)
    assert text.rouge_l(right, written) == pytest.approx(rouge_l)


@pytest.mark.parametrize(
    ("right", "written", "score"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", 1.0),
        ("the cat sat on the mat", "a cat sat on a mat", 0.456545),
        ("Übung macht den Meister", "Übung macht die Meisterin", 0.730828),
        ("1999-12-31", "1999-12-13", 0.751455),
        ("abc", "xyz", 0.0),
        ("ab", "ab", 1.0),
        ("a b c d e f g", "g f e d c b a", 0.166667),
        ("short", "a much longer text than that, with short in it", 0.314980),
    ],
)
def test_chrf_is_that_of_sacrebleu_2_6(right, written, score):
    assert text.chrf(right, written) == pytest.approx(score, abs=1e-6)


def test_texts_are_judged_as_they_are_written_beside_the_commonest_one(capitals, tmp_path):
    assert checks.examine(capitals, capitals.config) == []
    model = capitals.model().eval()
    scores = capitals.evaluate(model, Loader(capitals, "test"))
    assert scores.keys() == {"loss", "exact", "token_f1"}
    assert scores["exact"] == 1.0
    batch = capitals.labelled([capitals.parts["test"][n].sample for n in range(6)])
    loss = F.cross_entropy(
        model(batch["ids"]).transpose(1, 2), batch["labels"], ignore_index=IGNORED
    )
    assert scores["loss"] == pytest.approx(loss.item(), rel=1e-5)
    capitals.outputs = lambda model, batch: (
        F.one_hot(batch["ids"], 128).float(),
        model.letters.weight.T,
    )
    assert capitals.evaluate(model, Loader(capitals, "test")) == pytest.approx(scores, rel=1e-5)
    assert capitals.baseline() == {"exact": 0, "token_f1": 0.5}
    text = capitals.report(scores, tmp_path)
    assert "'network' is surely above the strongest baseline, 'always the same', by exact" in text
    assert "WORD 34,WORD 0,word 34." in (tmp_path / "answers.csv").read_text()


def test_another_model_writes_beside_the_tested_one(capitals, tmp_path, monkeypatch):
    base = Speller().eval()
    model = capitals.model().eval()
    write = lambda self, net, batch, beams: ["no" if net is base else "WORD 34"] * len(batch["ids"])  # noqa: E731
    monkeypatch.setattr(Capitals, "write", write)
    monkeypatch.setattr(
        Capitals, "beside", lambda self, model, loader: {"base": self.judge(base, loader)}
    )
    capitals.evaluate(model, Loader(capitals, "test"))
    capitals.report({}, tmp_path)
    rows = [
        row.split(",")[:2] for row in (tmp_path / "evaluation.csv").read_text().splitlines()[1:]
    ]
    assert [name for name, _ in rows] == ["always the same", "base", "network"]
    assert [float(score) for _, score in rows] == pytest.approx([0, 0, 1 / 6], abs=1e-6)
    assert baseline_of(capitals)["exact"] == 0
    write = lambda self, net, batch, beams: ["WORD 34" if net is base else "no"] * len(batch["ids"])  # noqa: E731
    monkeypatch.setattr(Capitals, "write", write)
    capitals.evaluate(model, Loader(capitals, "test"))
    assert baseline_of(capitals)["exact"] == pytest.approx(1 / 6), "the reference of the verdict"
    assert "the strongest baseline, 'base'" in capitals.report({}, tmp_path)


def test_where_memory_runs_out_it_goes_on_from_there(capitals):
    model = capitals.model()
    batch = {"ids": torch.ones(7, 3, dtype=torch.long)}
    capitals._beams_at_once = 8
    capitals.most = 2
    assert len(text.in_parts(capitals, model, batch, 2, capitals.write)) == 7
    assert capitals.tried == (4, 2, 2, 2, 1)
    text.in_parts(capitals, model, batch, 2, capitals.write)
    assert capitals.tried[5:] == (2, 2, 2, 1)


def test_several_models_write_by_the_mean_of_their_probabilities(capitals, monkeypatch):
    texts = iter([{"Red": 0.5, "black": 0.4}, {"black": 0.5, "red.": 0.2}])
    monkeypatch.setattr(Capitals, "candidates", lambda self, model, batch, beams: [next(texts)])
    models = [capitals.model(), capitals.model()]
    assert capitals.answers(models, [("a", "")]) == [{"prediction": "black", "probability": 0.45}]


def test_a_text_that_was_only_written_has_no_probability(capitals, monkeypatch):
    texts = iter(["red", "blue", "red", "red"])
    monkeypatch.setattr(Capitals, "write", lambda self, model, batch, beams: [next(texts)])
    models = [capitals.model() for _ in range(3)]
    assert capitals.answers(models, [("a", "")]) == [
        {"prediction": "red", "share of models": 0.666667}
    ]
    assert capitals.answers(models[:1], [("a", "")]) == [{"prediction": "red"}]
