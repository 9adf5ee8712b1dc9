"""Calls and tools under templates of the forms that published models have: trained, shown, compared, or refused."""

import json
from collections import Counter

import pytest

from tests.conftest import ROOT
from tests.workloads.chat.conftest import CHATML, template_of
from tests.workloads.chat.test_template import FORMS, spoken
from workloads.chat import called, exact
from workloads.chat.checks import examine
from workloads.chat.messages import turns_of
from workloads.chat.rows import answered, row_of

SMALL = (ROOT / "configs" / "chat-base" / "chat_template.jinja").read_text("utf-8")
ASKS = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
TOOLS = "{% if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
ROLE = "{{ '<|im_start|>' + m.role + '\n' }}"
QWEN = (  # objects, which tojson writes; of a text it would make JSON in JSON
    TOOLS + "{% for m in messages %}" + ROLE + "{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% set c = c.function if c.function is defined else c %}"
    "{{ '\n<tool_call>\n{\"name\": \"' + c.name + '\", \"arguments\": ' + c.arguments | tojson + '}\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}" + ASKS
)
DEEPSEEK = (  # arguments as text, and a call only where there is no content
    TOOLS
    + "{% for m in messages %}"
    + ROLE
    + "{% if m.role == 'assistant' and not m.content is string %}"
    "{% for c in m.tool_calls %}{{ '<|call|>' + c.function.name + '\n' + c.function.arguments + '<|/call|>' }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}" + ASKS
)
LLAMA = (  # another key, one call, another token at its end, and the answer of a tool as JSON
    TOOLS
    + "{% for m in messages %}"
    + ROLE
    + "{% if 'tool_calls' in m %}{% set c = m.tool_calls[0].function %}"
    "{{ '{\"name\": \"' + c.name + '\", \"parameters\": ' + c.arguments | tojson + '}<|eom|>\n' }}"
    "{% else %}{{ (m.content | tojson if m.role == 'tool' else m.content) + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    + ASKS
)
MISTRAL = (  # ids of nine letters, tools before the last question alone, so that earlier turns are rewritten
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and m == (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}"
    "{{ '[TOOLS]' + tools | tojson }}{% endif %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[RESULT]' + m.content + '[/RESULT]' }}"
    "{% elif m.tool_calls is defined %}{{ '[CALLS][' }}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
    "{{ c.function | tojson + ('' if loop.last else ', ') }}{% endfor %}{{ ']<|im_end|>' }}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)
THINKING = (  # a prompt that begins a thought, which a call does not have
    TOOLS
    + "{% for m in messages %}"
    + ROLE
    + "{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
MARKS = ("<|im_start|>", "<|call|>", "<|/call|>", "<|eom|>", "[CALLS]")
KNOWING = {
    "small base": SMALL, "Qwen": QWEN, "DeepSeek": DEEPSEEK, "Llama": LLAMA, "Mistral": MISTRAL, "thinking": THINKING,
}  # fmt: skip
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'},
}
MESSAGES = [
    {"role": "user", "content": "weather in Oslo?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"degrees": 12}'},
    {"role": "assistant", "content": "It is 12."},
]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def row(*messages, tools=(TOOL,)):
    return row_of(turns_of({"messages": list(messages), "tools": list(tools)}))


def trained(template, talk):
    """What is trained of a row, as text, in all of its rows."""
    return [
        text
        for each in template.apart(template.taken(talk, Counter()))
        for text in spoken(template, each)
    ]


@pytest.mark.parametrize("name", KNOWING)
def test_calls_are_trained_as_the_template_writes_them_with_their_end_and_tools_are_shown(name):
    template = template_of(KNOWING[name], MARKS)
    talk = row(*MESSAGES)
    call, answer = trained(template, talk)
    assert "weather" in call
    assert '{"city": "Oslo", "days": 2}' in call
    assert call.endswith("<|eom|>" if name == "Llama" else "<|im_end|>")
    assert answer.strip() == "It is 12.<|im_end|>"
    assert (
        template.tokenizer.convert_tokens_to_ids("<|eom|>" if name == "Llama" else "<|im_end|>")
        in template.stops
    )
    (first, *_) = answered(talk)
    encoded = template.encode(first)
    prompt = template.prompt(first.turns)
    assert list(encoded.ids[: len(prompt)]) == prompt, "as generation is given it"
    assert '"parameters"' in template.tokenizer.decode(prompt)
    findings = examine({"train": [talk]}, template, {"train": 2000}, 10**6)
    assert not [finding for finding in findings if finding.verdict == "bad"]


@pytest.mark.parametrize("name", KNOWING)
def test_every_answer_of_a_longer_talk_is_trained_once_also_where_the_template_moves_the_tools(
    name,
):
    template = template_of(KNOWING[name], MARKS)
    again = [
        {"role": "user", "content": "and in Rome?"},
        {"role": "assistant", "content": "I do not know."},
    ]
    texts = [text.strip() for text in trained(template, row(*MESSAGES, *again))]
    assert len(texts) == 3
    assert "weather" in texts[0]
    assert texts[1:] == ["It is 12.<|im_end|>", "I do not know.<|im_end|>"]


@pytest.mark.parametrize("name", KNOWING)
def test_a_written_call_is_right_by_its_values(name):
    template = template_of(KNOWING[name], MARKS)
    first, second = (template.finished(each) for each in answered(row(*MESSAGES)))
    assert exact(first.answer, str(first.answer))
    assert called(first.answer, str(first.answer))
    other = str(first.answer).replace('{"city": "Oslo", "days": 2}', '{"days":2,  "city":"Oslo"}')
    assert other != first.answer
    assert exact(first.answer, other)
    assert called(first.answer, other)
    for wrong in ("Rome", "Oslo, "):
        assert not called(first.answer, str(first.answer).replace("Oslo", wrong))
    assert not called(first.answer, "")
    assert not exact(first.answer, str(first.answer).replace("weather", "time"))
    assert second.answer == "It is 12."
    assert not called(second.answer, "It is 12.")


def test_words_beside_a_call_count_for_the_whole_answer_and_not_for_the_call():
    template = template_of(QWEN, MARKS)
    talk = answered(row(MESSAGES[0], {**MESSAGES[1], "content": "Let me look."}, *MESSAGES[2:]))[0]
    right = template.finished(talk).answer
    assert right.startswith("Let me look.")
    assert exact(right, f" {right}")
    other = right.replace("Let me look.", "One moment.")
    assert called(right, other)
    assert not exact(right, other)


def test_values_of_json_are_compared_strictly():
    assert exact('{"a": 1}', '{"a": 1.0}')
    assert not exact('{"a": 1}', '{"a": true}')
    assert not exact('{"a": [1, 2]}', '{"a": [2, 1]}')


@pytest.mark.parametrize("form", FORMS)
def test_a_template_without_calls_and_tools_is_refused_by_name_for_rows_with_them_alone(form):
    template = template_of(*FORMS[form])
    plain = row(MESSAGES[0], MESSAGES[3], tools=())
    limits = {"train": 1000}
    assert not examine({"train": [plain]}, template, limits, 10**6)
    called_row = row(MESSAGES[0], MESSAGES[1], tools=())
    for talk, name in ((called_row, "calls"), (row(MESSAGES[0], MESSAGES[3]), "tools")):
        findings = {
            finding.name: finding for finding in examine({"train": [talk]}, template, limits, 10**6)
        }
        assert findings[name].verdict == "bad"
        assert f"does not show {'tool calls' if name == 'calls' else name}" in (
            findings[name].value
        )


def test_a_text_beside_a_call_that_the_template_leaves_out_is_named():
    template = template_of(LLAMA, MARKS)
    talk = row(MESSAGES[0], {**MESSAGES[1], "content": "Let me look."})
    (finding,) = examine({"train": [talk]}, template, {"train": 2000}, 10**6)
    assert finding.name == "beside calls"
    assert finding.verdict == "warning"


THOUGHTS = CHATML.replace("m['content'] +", "(m['reasoning_content'] or '') + m['content'] +")


def test_a_thought_is_trained_where_the_template_has_it_and_else_refused_by_name():
    answer = {"role": "assistant", "content": "4", "thinking": "2 and 2"}
    talk = row({"role": "user", "content": "sum?"}, answer, tools=())
    assert trained(template_of(THOUGHTS), talk) == ["2 and 24<|im_end|>"]
    template = template_of()
    (finding,) = examine(
        {"train": [template.taken(talk, Counter())]}, template, {"train": 2000}, 10**6
    )
    assert finding.name == "reasoning"
    assert finding.verdict == "bad"
    assert "thinking" in finding.value


def test_keys_that_the_template_does_not_read_are_counted_and_leave_a_plain_row():
    messages = [
        {"role": "user", "content": "x", "name": "Ann", "id": 7},
        {"role": "assistant", "content": "y", "id": 8},
    ]
    unread = Counter()
    taken = template_of().taken(row(*messages, tools=()), unread)
    assert tuple(taken) == ((("user", "x"),), "y")
    assert unread == {"name": 1, "id": 2}
    named = template_of(CHATML.replace("m['content'] +", "(m.name or '') + m['content'] +"))
    assert "Annx" in named.render(named.taken(row(*messages, tools=()), unread).whole)


def test_the_small_base_writes_what_it_wrote_before_without_calls_and_tools():
    turns = [
        [("user", "a")],
        [("system", "s"), ("user", "a"), ("assistant", "b"), ("tool", ""), ("user", "c")],
    ]
    before = template_of(CHATML)
    now = template_of(SMALL)
    for each in turns:
        for asks in (False, True):
            assert before.render(each, asks) == now.render(each, asks)


def test_the_form_of_the_small_base_is_the_documented_one():
    text = template_of(SMALL).render(row(*MESSAGES).whole)
    assert text == (
        f"<|im_start|>tools\n{json.dumps(TOOL)}\n<|im_end|>\n<|im_start|>user\nweather in Oslo?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n'
        '</tool_call><|im_end|>\n<|im_start|>tool\n{"degrees": 12}<|im_end|>\n'
        "<|im_start|>assistant\nIt is 12.<|im_end|>\n"
    )
