"""Tokenizers: of the run's own, and PhoBERT's as transformers reads it."""

import pytest
from transformers import PhobertTokenizer

from lib.errors import BadInput
from workloads.vqa import tokens
from workloads.vqa.tokens import Tokens

TEXTS = ["màu của hình tròn là gì", "hình vuông nằm ở bên trái", "Đếm được hai hình (tròn)."] * 3


def test_texts_come_back_and_the_same_texts_give_the_same_pieces():
    values = tokens.trained(TEXTS, 200)
    own = Tokens(values)
    assert tokens.trained(TEXTS, 200) == values
    assert [own.text(one) for one in own.numbers(TEXTS)] == TEXTS
    assert len(own.numbers(["hình tròn"])[0]) == 2  # what is frequent is a piece each
    assert own.text(own.numbers(["trái tròn"])[0]) == "trái tròn"  # what was never seen together is spelled


def test_letters_that_were_never_seen_are_unknown_and_special_tokens_are_text():
    own = Tokens(tokens.trained(TEXTS, 200))
    assert own.numbers(["字"])[0][-1] == 2
    assert 1 not in own.numbers(["</s>"])[0] and own.end == 1
    assert own.numbers(["mau\u0300"]) != own.numbers(["mau"]) and own.numbers(["ma\u0300u"]) == own.numbers(["màu"])
    many = "".join(chr(0x4E00 + n) for n in range(300))  # of an alphabet of thousands the rarest have no piece
    assert tokens.trained([many, "abc abc"], 64)["first"] <= 64


def test_a_question_is_cut_and_keeps_its_special_tokens():
    own = Tokens({**tokens.trained(TEXTS, 200), "before": [0], "after": [1]})
    found = own.questions(["MÀU của hình tròn là gì", "là gì"], 4)
    assert [len(one) for one in found] == [4, 4] and all((one[0], one[-1]) == (0, 1) for one in found)
    assert found[0][1:3] == own.numbers(["màu của"])[0]


def test_phoberts_pieces_are_those_of_transformers(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("xe 9\nx@@ 9\ne 9\nmàu 9\ntr@@ 3\nòn 4\nđ@@ 4\nxe_đạp 2\n", "utf-8")
    merges = "x e</w> 9\nm à 9\nmà u</w> 9\nò n</w> 5\nt r 4\nx e 3\nxe _ 3\nđ ạ 3\nđạ p</w> 3\nxe_ đạp</w> 3\n"
    (tmp_path / "bpe.codes").write_text(merges, "utf-8")
    theirs = PhobertTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "bpe.codes"))
    ours = Tokens(tokens.published(tmp_path, 0, False))
    for text in ("xe màu tròn", "xe_đạp đ x e", "xex màux 字 trò", ""):
        assert ours.questions([text], 40)[0] == theirs(text)["input_ids"], text
    assert "segmented" in capsys.readouterr().out and ours.pad == theirs.pad_token_id
    assert ours.first == len(theirs)


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        Tokens({"text": "{}"})
    with pytest.raises(BadInput, match="needs tokenizer.json, or"):
        tokens.published(tmp_path, 5, True)
    (tmp_path / "bpe.codes").write_text("one\n")
    with pytest.raises(BadInput, match="cannot be read"):
        tokens.published(tmp_path, 5, False)
