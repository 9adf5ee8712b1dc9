"""Tokens and masks are those of generation, under templates of the forms that published models have."""

import pytest

from tests.workloads.chat.conftest import CHATML, template_of, tokenizer_of
from workloads.chat.rows import Row, row_of
from workloads.chat.template import Template, Unfinished

LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<|head|>' + m['role'] + '<|/head|>\n\n' + m['content'] | trim "
    "+ '<|eot|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{{ '<start>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] "
    "+ '<end>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start>model\n' }}{% endif %}"
)
QWEN3 = (  # an empty thought in the last turn alone
    "{% for m in messages %}{% if m['role'] == 'assistant' and loop.last %}"
    "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' + m['content'] + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
FORMS = {
    "ChatML": (CHATML, ("<|im_start|>",), "<|im_end|>", None),
    "Llama": (LLAMA, ("<|head|>", "<|/head|>"), "<|eot|>", "<|begin|>"),
    "Mistral": (MISTRAL, (), "</s>", "<s>"),
    "Gemma": (GEMMA, ("<start>",), "<end>", "<bos>"),
}
THOUGHT = "<think>\n\n</think>\n\n"
DIALOGUE = row_of((("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "two is 2")))


def spoken(template, row):
    """The stretches that are trained, as text."""
    encoded = template.encode(row)
    stretches = [[]]
    for token, is_trained in zip(encoded.ids, encoded.trained, strict=True):
        if is_trained:
            stretches[-1].append(token)
        elif stretches[-1]:
            stretches.append([])
    return [template.tokenizer.decode(tokens) for tokens in stretches if tokens]


@pytest.mark.parametrize("form", FORMS)
def test_every_answer_is_trained_with_its_end_and_nothing_else(form):
    template = template_of(*FORMS[form])
    assert [text.strip() for text in spoken(template, DIALOGUE)] == [
        f"{a}{template.end}" for a in ("1", "two is 2")
    ]
    assert template.end == FORMS[form][2]
    assert template.tokenizer.eos_token_id in template.stops
    ids = template.encode(DIALOGUE).ids
    begin = template.tokenizer.bos_token_id
    assert ids.count(begin) == (begin is not None), "the begin token comes once"


@pytest.mark.parametrize("form", FORMS)
def test_the_tokens_before_an_answer_are_those_that_generation_is_given(form):
    template = template_of(*FORMS[form])
    encoded = template.encode(DIALOGUE)
    prompt = template.prompt(DIALOGUE.turns)
    assert list(encoded.ids[: len(prompt)]) == prompt
    assert encoded.trained.index(True) == len(template.prompt(DIALOGUE.turns[:1]))


def test_a_template_that_rewrites_earlier_turns_trains_each_answer_after_the_prompt_of_generation():
    template = template_of(QWEN3)
    rows = template.apart(DIALOGUE)
    assert [spoken(template, row) for row in rows] == [
        [f"{THOUGHT}1<|im_end|>"],
        [f"{THOUGHT}two is 2<|im_end|>"],
    ]
    for row in rows:
        prompt = template.prompt(row.turns)
        assert list(template.encode(row).ids[: len(prompt)]) == prompt
    encoded = template.encode(DIALOGUE)
    prompt = template.prompt(DIALOGUE.turns)
    assert list(encoded.ids[: len(prompt)]) == prompt
    assert spoken(template, DIALOGUE) == [f"{THOUGHT}two is 2<|im_end|>"]
    assert template.decode(template.tokens(f"{THOUGHT}two<|im_end|>")) == "two", (
        "what is always written is no answer"
    )
    ((name, _, what),) = encoded.notes
    assert name == "rewritten"
    assert "writes otherwise once others follow: each answer is trained after" in what


def test_a_token_across_the_border_is_cut_there_as_in_generation():
    from tokenizers import AddedToken

    tokenizer = tokenizer_of()
    tokenizer.add_tokens([AddedToken("\n{", normalized=False)])
    template = Template(tokenizer)
    row = Row((("user", "x"),), "{1}")
    encoded = template.encode(row)
    prompt = template.prompt(row.turns)
    assert list(encoded.ids[: len(prompt)]) == prompt
    assert tokenizer.convert_tokens_to_ids("\n{") not in encoded.ids


def test_a_generated_answer_ends_at_its_first_stop():
    template = template_of()
    ids = template.tokens("ab<|im_end|>cd")
    assert template.decode(ids) == template.decode(ids[:2]) == "ab"
    assert [isinstance(template.decode(some), Unfinished) for some in (ids, ids[:2])] == [
        False,
        True,
    ]
