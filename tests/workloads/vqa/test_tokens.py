"""Tokenizers, of the run's own and PhoBERT's; targets in parts, and the loss of each."""

import pytest
import torch
from transformers import PhobertTokenizer

from lib.errors import BadInput
from tests.workloads.vqa.files import record
from workloads.vqa import objectives, tokens
from workloads.vqa.objectives import ANSWER, FORMAT, REASONING
from workloads.vqa.tokens import Tokens

TEXTS = ["màu của hình tròn là gì", "hình vuông nằm ở bên trái", "Đếm được hai hình (tròn)."] * 3


def test_texts_come_back_questions_are_cut_and_the_same_texts_give_the_same_pieces():
    values = tokens.trained(TEXTS, 200)
    own = Tokens({**values, "before": [0], "after": [1]})
    assert tokens.trained(TEXTS, 200) == values
    assert [own.text(one) for one in own.numbers(TEXTS)] == TEXTS
    assert len(own.numbers(["hình tròn"])[0]) == 2  # what is frequent is a piece each
    assert own.text(own.numbers(["trái tròn"])[0]) == "trái tròn"  # what was never seen together is spelled
    found = own.questions(["MÀU của hình tròn là gì", "là gì"], 4)
    assert [len(one) for one in found] == [4, 4] and all((one[0], one[-1]) == (0, 1) for one in found)
    assert found[0][1:3] == own.numbers(["màu của"])[0]


def test_letters_that_were_never_seen_are_unknown_and_special_tokens_are_text():
    own = Tokens(tokens.trained(TEXTS, 200))
    assert own.numbers(["字"])[0][-1] == 2
    assert 1 not in own.numbers(["</s>"])[0] and own.end == 1
    assert own.numbers(["mau\u0300"]) != own.numbers(["mau"]) and own.numbers(["ma\u0300u"]) == own.numbers(["màu"])
    many = "".join(chr(0x4E00 + n) for n in range(300))  # of an alphabet of thousands the rarest have no piece
    assert tokens.trained([many, "abc abc"], 64)["first"] <= 64


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


def test_a_target_has_its_tags_around_answer_type_and_reasoning_which_alone_is_cut():
    texts = ["màu đỏ", "màu đỏ tươi", "màu đen", "vì nó tròn"] * 3
    words = Tokens(tokens.trained(texts, 100), ["DESCRIPTIVE", "OBJECT"])

    def target(length=40, **more):
        return objectives.targets([record(1, **more)], words, length)[0]

    made = target(answer="màu đỏ", kind="OBJECT", reasoning="vì nó tròn")
    answer, reasoning = words.numbers(["màu đỏ", "vì nó tròn"])
    wanted = [words.answer, *answer, words.answer_end, words.reasoning, words.kinds["OBJECT"], *reasoning]
    assert made.tokens == [*wanted, words.reasoning_end, words.end]
    parts = [FORMAT, *[ANSWER] * (len(answer) + 1), FORMAT, *[REASONING] * (len(reasoning) + 1), FORMAT, FORMAT]
    assert made.parts == parts
    tagged = target(answer="<answer> đỏ </s>").tokens
    assert tagged.count(words.answer) == tagged.count(words.end) == 1, "a tag in a text is text"
    long = target(length=12, answer="màu đỏ", reasoning="vì nó tròn " * 9)
    assert len(long.tokens) == 12 and long.tokens[-2:] == [words.reasoning_end, words.end]
    with pytest.raises(BadInput, match=r"record 1: the answer takes \d+ tokens, and workload.decoder.length 8 has"):
        target(length=8, answer="màu đỏ " * 9)


def test_each_term_is_the_sum_over_its_own_tokens_and_pads_count_nowhere():
    part = torch.tensor([[FORMAT, ANSWER, REASONING, 0], [FORMAT, ANSWER, ANSWER, FORMAT]])
    losses = torch.tensor([[1.0, 2.0, 4.0, 1000.0], [8.0, 16.0, 32.0, 64.0]])
    sums = objectives.summed(losses, part)
    assert {name: float(value) for name, value in sums.items()} == {"format": 73.0, "answer": 50.0, "reasoning": 4.0}
    assert objectives.counted({"part": part}) == {"format": 3, "answer": 3, "reasoning": 1}
