"""Mistakes in conversations are named before anything is trained, and good rows are not."""

import pytest

from lib.errors import BadInput
from tests.workloads.chat.conftest import calls, template_of
from tests.workloads.chat.test_template import FORMS, GEMMA, MISTRAL, NO_END, QWEN3
from workloads.chat.checks import examine, refuse
from workloads.chat.rows import Row, row_of

GOOD = calls(60)
TEST = calls(20, "test")
QUESTION = GOOD[0].turns[0]
ANSWER = ("assistant", GOOD[0].answer)
PLANTED = {  # rows among 60 good ones -> the finding and its verdict
    "longer before its answer than the length": ([row_of((("user", "word " * 300), ANSWER))], "too long", "warning"),
    "rendered before": ([row_of((("user", "<|im_start|>user\nhi<|im_end|>"), ANSWER))], "marks in text", "warning"),
    "twice the same": ([GOOD[5]], "duplicate", "warning"),
    "with another answer": ([GOOD[6]._replace(answer="no")], "contradiction", "warning"),
    "a question of the test": ([Row((("user", TEST[1].question.upper()),), "yes")], "in two splits", "bad"),
}  # fmt: skip
TEMPLATES = {
    "no end": ((NO_END, (), "</s>"), [], "no end", "bad"),
    "a system turn is refused": (
        (GEMMA, ("<start>",), "<end>", "<bos>"), [row_of((("system", "be brief"), QUESTION, ANSWER))],
        "template", "bad",
    ),
    "a tool turn is dropped": (
        (MISTRAL, (), "</s>", "<s>"), [row_of((QUESTION, ("tool", "found it"), ANSWER))], "role", "bad",
    ),
    "the begin token twice": (
        (FORMS["Mistral"][0].replace("{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"), (), "</s>", "<s>"),
        [], "doubled begin", "bad",
    ),
    "earlier turns are rewritten": (
        (QWEN3, ("<|im_start|>",)), [row_of((QUESTION, ANSWER, ("user", "and?"), ("assistant", "so")))],
        "rewritten", "warning",
    ),
}  # fmt: skip


def found(rows, template, words=300):
    findings = examine(
        {"train": [*GOOD, *rows], "test": TEST}, template, {"train": 200, "test": 200}, words
    )
    return {finding.name: finding for finding in findings}


def test_nothing_is_said_of_good_rows():
    assert not found([], template_of())


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_in_rows_is_named_with_its_place(mistake):
    rows, name, verdict = PLANTED[mistake]
    finding = found(rows, template_of())[name]
    assert finding.verdict == verdict
    assert finding.value.startswith("1 rows ")
    assert "train 61" in finding.value or "test" in finding.value


@pytest.mark.parametrize("mistake", TEMPLATES)
def test_a_template_that_does_not_fit_the_rows_is_named(mistake):
    form, rows, name, verdict = TEMPLATES[mistake]
    assert found(rows, template_of(*form))[name].verdict == verdict


def test_a_tokenizer_with_more_words_than_the_model_is_named():
    assert found([], template_of(), words=100)["tokens without rows"].verdict == "bad"


def test_bad_findings_refuse_a_run_and_others_do_not():
    template = template_of()
    refuse([*found(PLANTED["twice the same"][0], template).values()])
    with pytest.raises(
        BadInput,
        match=r"in two splits: 1 rows ask what is asked in train too.*\(1 in test: test 2\)",
    ):
        refuse([*found(PLANTED["a question of the test"][0], template).values()])
