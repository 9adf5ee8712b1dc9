"""Records in the forms that people bring are read whole, or refused by the key that is not."""

import json
from collections import Counter

import pytest

from lib.errors import BadInput
from workloads.chat.messages import Message, check_answers, is_trained, text_of, turns_of
from workloads.chat.rows import Row, answered, question, row_of

ASK = "weather in Oslo?"
CALL = {"name": "weather", "arguments": {"city": "Oslo"}}
RESULT = "12"
SAY = "It is 12."
FLAT = {"name": "weather", "parameters": {"type": "object"}}
TOOLS = ("tools", json.dumps([{"type": "function", "function": FLAT}]))
TALK = [("user", ASK), ("assistant", "", CALL), ("tool", RESULT), ("assistant", SAY)]
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "Hello!"}


def openai(call, **more):
    """A talk with one call, whose assistant's message has `call`."""
    made = [{"role": "assistant", "content": None, **call}, {"role": "tool", "content": RESULT}]
    return {
        "messages": [
            {"role": "user", "content": ASK},
            *made,
            {"role": "assistant", "content": SAY},
        ],
        **more,
    }


def sharegpt(call_role, result_role, **more):
    pairs = [("human", ASK), (call_role, json.dumps(CALL)), (result_role, RESULT), ("gpt", SAY)]
    return {"conversations": [{"from": role, "value": value} for role, value in pairs], **more}


def exchange(content):
    return {"messages": [USER, {"role": "assistant", "content": content}]}


ARGUMENTS_AS_TEXT = {"name": "weather", "arguments": '{"city": "Oslo"}'}
CALLS = {
    "OpenAI's tool_calls": openai(
        {"tool_calls": [{"type": "function", "function": ARGUMENTS_AS_TEXT}]}
    ),
    "arguments as an object": openai({"tool_calls": [{"type": "function", "function": CALL}]}),
    "flat calls": openai({"tool_calls": [CALL]}),
    "calls as JSON": openai({"tool_calls": json.dumps([CALL])}),
    "OpenAI's function_call": openai({"function_call": ARGUMENTS_AS_TEXT}),
    "ShareGPT's function_call": sharegpt("function_call", "observation"),
    "ms-swift's tool_call": sharegpt("tool_call", "tool_response"),
    "messages as JSON": {"messages": json.dumps(openai({"tool_calls": [CALL]})["messages"])},
}


@pytest.mark.parametrize("form", CALLS)
def test_a_call_and_its_result_are_the_same_in_every_form(form):
    turns = turns_of(CALLS[form])
    read = [(role, text_of(content)) for role, content in turns]
    assert read == [
        ("user", ASK),
        ("assistant", json.dumps(CALL)),
        ("tool", RESULT),
        ("assistant", SAY),
    ]
    assert turns[1][1].calls == [CALL]


@pytest.mark.parametrize(
    "tools",
    [
        {"tools": [{"type": "function", "function": FLAT}]}, {"tools": [FLAT]}, {"tools": json.dumps([FLAT])},
        {"functions": [FLAT]}, {"tools": [json.dumps(FLAT)]}, {"tools": [{"type": "function", **FLAT}]},
    ],
    ids=["OpenAI", "flat", "JSON", "functions", "list of JSON", "responses"],
)  # fmt: skip
def test_tools_stand_before_the_turns_in_every_form(tools):
    assert turns_of({**openai({"tool_calls": [CALL]}), **tools})[0] == TOOLS
    assert turns_of({**sharegpt("function_call", "observation"), **tools})[0] == TOOLS


READ = {
    "parts by text": exchange([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo!"}]),
    "parts by value": exchange([{"type": "text", "value": "Hello!"}]),
    "parts as strings": exchange(["Hel", "lo!"]),
    "one part": exchange({"type": "text", "text": "Hello!"}),
    "output_text": exchange([{"type": "output_text", "text": "Hello!"}]),
    "capital roles": {
        "messages": [{"role": "User", "content": "hi"}, {"role": "Assistant", "content": "Hello!"}]
    },
    "conversation": {"conversation": [USER, ANSWER]},
    "TRL's prompt and completion": {"prompt": [USER], "completion": [ANSWER]},
    "a list and a text": {"prompt": [USER], "completion": "Hello!"},
    "keys in capitals": {
        "Messages": [{"Role": "User", "Content": "hi"}, {"From": "gpt", "Value": "Hello!"}]
    },
    "columns in capitals": {"Question": "hi", " Response": "Hello!"},
    "input and output": {"input": "hi", "output": "Hello!"},
    "a text in a text": exchange(
        [{"type": "text", "text": {"value": "Hello!", "annotations": []}}]
    ),
    "a weight as a text": {"prompt": "hi", "completion": "Hello!", "weight": "1.0"},
    "response": {"instruction": "hi", "response": "Hello!"},
    "weights of 1 and null": {"messages": [{**USER, "weight": None}, {**ANSWER, "weight": 1.0}]},
    "no tools, as JSON": {"messages": [USER, ANSWER], "tools": "[]"},
    "empty images": {"messages": [USER, ANSWER], "images": [], "rejected": None},
}


@pytest.mark.parametrize("form", READ)
def test_other_forms_are_read_as_the_plain_one(form):
    assert turns_of(READ[form]) == (("user", "hi"), ("assistant", "Hello!"))


def with_key(**more):
    return {"messages": [USER, ANSWER], **more}


def in_answer(**more):
    return {"messages": [USER, {**ANSWER, **more}]}


PART = {"type": "image_url", "image_url": {"url": "data:,"}}
REFUSED = {
    "pictures": (with_key(images=["a.png"]), "key images: pictures"),
    "a film in a message": (in_answer(video="a.mp4"), "key video: pictures"),
    "a picture among parts": (exchange([{"type": "text", "text": "look"}, PART]), "part of the type image_url"),
    "a thought among parts": (exchange([{"type": "reasoning", "text": "so"}]), "part of the type reasoning"),
    "a picture of a tool": ({"messages": [USER, {"role": "tool", "content": [PART]}, ANSWER]}, "type image_url"),
    "preferences": (with_key(chosen="a", rejected="b"), "key chosen: preferences"),
    "preferences as messages": (with_key(chosen_messages=[ANSWER]), "key chosen_messages: preferences"),
    "the path of a picture": (with_key(image_path="a.png"), "key image_path: pictures"),
    "KTO": (with_key(label=False), "key label: good and bad"),
    "LlamaFactory's KTO": (with_key(kto_tag=True), "key kto_tag"),
    "half a weight": (in_answer(weight=0.5), "the weight of a turn is 0.5"),
    "a weight of a row": (with_key(weight=0.5), "its weight is 0.5: rows are not weighed"),
    "a mask": (in_answer(mask=[0, 1]), 'key mask: write "weight": 0'),
    "a refusal": ({"messages": [USER, {"role": "assistant", "content": None, "refusal": "no"}]}, "key refusal"),
    "another role": (exchange("x") | {"messages": [{"role": "narrator", "content": "x"}]}, "the role narrator"),
    "no role": ({"messages": [{"content": "x"}]}, "a message has no role: its keys are content"),
    "null as a role": ({"messages": [{"role": None, "content": "x"}]}, "a message has no role"),
    "two prompts, one perhaps rendered with the answer": (
        {"instruction": "x", "prompt": "x y", "output": "y"}, "several prompts: prompt, instruction"),
    "OpenAI's preferences": ({"input": {"messages": [USER]}, "preferred_output": [ANSWER]}, "key preferred_output"),
    "an answer that is only begun": (in_answer(prefix=True), "key prefix: answers that are only begun"),
    "an empty prompt": ({"prompt": "", "completion": "y"}, "its prompt is empty"),
    "NaN as an answer": ({"prompt": "x", "completion": float("nan")}, "it has no answer"),
    "two system texts": (with_key(system="a", system_prompt="b"), "several system texts: system, system_prompt"),
    "a part without a text": (exchange([{"type": "text", "text": 5}]), "which has no text"),
    "a turn in other keys": ({"messages": [{"role": "user", "text": "x"}, ANSWER]}, "its keys are role, text"),
    "two answers": ({"prompt": "x", "answer": "y", "output": "z"}, "several answers: answer, output"),
    "two system turns": (
        {"system": "a", "messages": [{"role": "system", "content": "b"}, ANSWER]}, "beside another system turn"),
    "no messages": ({"messages": "hi"}, "its messages are no JSON"),
    "a call without a name": (openai({"tool_calls": [{"arguments": {}}]}), "names no function"),
    "a call of another kind": (openai({"tool_calls": [{"type": "custom", "custom": {}}]}), "names no function"),
    "arguments that are a list": (openai({"tool_calls": [{"name": "f", "arguments": "[1]"}]}), "of f are .1., no"),
    "broken arguments": (openai({"tool_calls": [{"name": "f", "arguments": "{"}]}), "arguments of f are no JSON"),
    "a call that is text": (sharegpt("function_call", "observation") | {"conversations": [
        {"from": "function_call", "value": "weather()"}]}, "are no JSON"),
    "calls of a user": ({"messages": [{**USER, "tool_calls": [CALL]}, ANSWER]}, "which are an assistant's"),
    "a tool without a name": (with_key(tools=[{"type": "web"}]), "no function with a name"),
    "options of the template": (with_key(chat_template_kwargs={"x": 1}), "key chat_template_kwargs"),
    "an empty answer": (exchange(""), "an empty answer"),
    "an empty answer among others": ({"messages": [USER, exchange(" ")["messages"][1], USER, ANSWER]}, "an empty"),
    "no answer": ({"messages": [USER]}, "it has no answer"),
    "a prompt alone": ({"prompt": "x"}, "it has no answer"),
    "nothing that is trained": (in_answer(weight=0), "every answer has the weight 0"),
    "nothing that is trained, by a flag": (in_answer(train=False), "every answer has the weight 0"),
    "other keys": ({"text": "x"}, "it has the keys text"),
}  # fmt: skip


@pytest.mark.parametrize("form", REFUSED)
def test_what_cannot_be_obeyed_is_refused_by_name(form):
    record, reason = REFUSED[form]
    with pytest.raises(BadInput, match=reason):
        check_answers(turns_of(record))


def test_a_weight_of_0_takes_an_answer_out_of_what_is_trained():
    turns = turns_of({"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]})
    assert [is_trained(content) for role, content in turns if role == "assistant"] == [False, True]
    assert text_of(turns[1][1]) == "Hello!"
    assert [row.answer for row in answered(row_of(turns))] == ["Hello!"]


def test_answers_in_a_prompt_are_not_trained():
    turns = turns_of({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]})
    assert [is_trained(content) for role, content in turns if role == "assistant"] == [False, True]


def test_each_trained_answer_is_a_row_after_what_stands_before_it():
    row = row_of(turns_of(openai({"tool_calls": [CALL]})))
    first, second = answered(row)
    assert isinstance(first.answer, Message)
    assert first.turns == (("user", ASK),)
    assert second.answer == SAY
    assert [role for role, _ in second.turns] == [
        "user",
        "assistant",
        "tool",
    ]
    assert not is_trained(second.turns[1][1]), "it is scored in its own row"
    assert first.conversation == second.conversation == question(row)
    assert first.number == 0
    assert second.number == 1
    plain = Row((("user", "x"),), "y")
    assert answered(plain) == [plain]


def test_ids_of_calls_and_tools_are_no_part_of_what_is_asked():
    rows = [
        row_of(turns_of(openai({"tool_calls": [{"id": name, "function": CALL}]}, tools=tools)))
        for name, tools in (("a", [FLAT]), ("b", []))
    ]
    assert question(rows[0]) == question(rows[1])


def test_keys_that_are_not_read_are_counted_and_those_of_alpaca_and_system_are_read():
    unread = Counter()
    record = {
        "instruction": "a",
        "input": "b",
        "output": "c",
        "history": [["x", "y"]],
        "system": "s",
        "id": 3,
    }
    turns = turns_of(record, unread)
    assert turns == (
        ("system", "s"),
        ("user", "x"),
        ("assistant", "y"),
        ("user", "a\nb"),
        ("assistant", "c"),
    )
    assert unread == {"id": 1}
    turns_of({"messages": [{**USER, "weight": 1}, ANSWER], "source": "web"}, unread)
    assert unread == {"id": 1, "source": 1, "weight of a turn that is no answer": 1}


@pytest.mark.parametrize("key", ["system", "system_prompt", "System_Message", "system_instruction"])
def test_a_system_text_beside_a_row_is_read_by_any_of_its_names(key):
    assert turns_of({key: "Be kind.", "question": "hi", "response": "Hello!"})[0] == (
        "system",
        "Be kind.",
    )
