"""Reads turns of conversations from records in their usual forms. Raises BadInput for others."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lib import untrusted
from lib.errors import BadInput, printable

Turns = tuple[tuple[str, str], ...]  # (role, content)
ROLES = ("system", "user", "assistant", "tool")
TEXT = "text"  # the role of plain text, whose tokens are all trained
TOOLS = "tools"  # the role of the functions that a conversation may call, a list as JSON, before its other turns
# Keys of the reasoning before an answer
REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
_CALLING = ("function_call", "tool_call")  # roles whose content is a call as JSON
_ASSISTANTS = ("gpt", "model", "bot", "ai", "chatgpt", "bing", "bard", *_CALLING)
_RESULTS = ("function", "observation", "ipython", "tool_response")
_SYNONYMS = {
    **dict.fromkeys(_ASSISTANTS, "assistant"),
    **dict.fromkeys(_RESULTS, "tool"),
    **dict.fromkeys(("human", "prompter"), "user"),
    "developer": "system",
}
_LISTS = ("messages", "conversations", "conversation")
_PROMPTS = ("prompt", "question", "instruction", "query")
_ANSWERS = ("answer", "completion", "output", "response")
_INPUTS = ("input", "context")
_ASKED = (*_LISTS, *_PROMPTS, "input")  # keys of a conversation or a question; the first is read
_TOOLS = ("tools", "functions")
_SYSTEMS = ("system", "system_prompt", "system_message", "system_instruction")
_FLAGS = (
    "weight",
    "loss",
    "loss_weight",
    "loss_scale",
    "train",
    "training",
    "trainable",
    "train_on_turn",
)
_TEXTS = {"text", "input_text", "output_text", ""}  # types of the parts of a content that are read
_MEDIA = ("image", "images", "image_url", "video", "videos", "audio", "audios")
_PREFERENCES = ("chosen", "rejected", "preferred", "non_preferred")
_BEGINNINGS = {  # prefixes of refused keys
    **dict.fromkeys(("image", "video", "audio"), "pictures, sounds and films are not read"),
    **dict.fromkeys(_PREFERENCES, "preferences are not trained: give the answer alone"),
}
_REFUSED = {
    "kto_tag": "good and bad answers are not weighed: leave out the bad rows, then the key",
    **dict.fromkeys(
        ("mask", "loss_mask", "train_detail"),
        'write "weight": 0 to an answer that is not to be trained',
    ),
    "refusal": "write it as the content",
    **dict.fromkeys(
        ("prefix", "partial"), "answers that are only begun are not read: leave the turn out"
    ),
    "chat_template_kwargs": "options of a template are not read",
}
# Keys that may be in any case
_COLUMNS = {*_ASKED, *_ANSWERS, *_INPUTS, *_TOOLS, *_SYSTEMS}
_READ = _COLUMNS | {"history", "role", "from", "content", "value"}


class Message(str):
    """A turn with more than text, as JSON: content, tool_calls, name, reasoning_content; weight 0: not trained."""

    @property
    def values(self) -> Mapping[str, Any]:
        return _values(str(self))

    @property
    def calls(self) -> Sequence[Mapping[str, Any]]:
        return [call["function"] for call in self.values.get("tool_calls", ())]


@lru_cache(2**15)
def _values(text: str) -> Mapping[str, Any]:
    return json.loads(text)


def content_of(values: Mapping[str, Any]) -> str:
    """Returns a turn's content: plain text if possible, otherwise a `Message`."""
    if values.keys() == {"content"}:
        return values["content"]
    return Message(as_json(values))


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def values_of(content: str) -> Mapping[str, Any]:
    if isinstance(content, Message):
        return content.values
    return {"content": content}


def calls_of(content: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(content, Message):
        return content.calls
    return ()


def text_of(content: str) -> str:
    """Returns a turn's text and calls, without ids."""
    if not isinstance(content, Message):
        return content
    return "\n".join(filter(None, [content.values["content"], *map(as_json, content.calls)]))


def is_trained(content: str) -> bool:
    return values_of(content).get("weight") != 0


def untrained(content: str) -> str:
    return content_of({**values_of(content), "weight": 0})


# --- records ----------------------------------------------------------------------------------------------------------


def is_record(record: Any) -> bool:
    """Returns whether a value has a key of a conversation."""
    return isinstance(record, Mapping) and not _known(record).keys().isdisjoint(_ASKED)


def is_of_columns(record: Mapping[str, Any]) -> bool:
    """Returns whether all values are columns, lists or objects with a value a row, and not conversations."""
    kinds = {type(value) for value in record.values()}
    return kinds in ({list}, {dict}) and not any(map(is_talk, record.values()))


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the known keys in small letters: public CSV files have Question and Response."""
    names = {key: str(key).strip().casefold() for key in values}
    counts = Counter(names.values())
    is_unique = {key: name in _READ and counts[name] == 1 for key, name in names.items()}
    return {names[key] if is_unique[key] else key: values[key] for key in values}


def turns_of(record: Mapping[str, Any], unread: Counter[str] | None = None) -> Turns:
    """Returns the turns of messages, of ShareGPT's conversations, or of columns with one exchange.

    `unread` counts unknown keys that have a value. Raises BadInput.
    """
    whole = _known(record)
    record = {key: value for key, value in whole.items() if not _is_nothing(value)}
    _refuse(record)
    key = next((key for key in _ASKED if key in record), "")
    if not key:
        empty = next((key for key in _ASKED if key in whole), "")
        raise BadInput(f"its {empty} is empty" if empty else f"it has the keys {_names(whole)}")
    _check_weight(record)
    counts = Counter[str]()
    if key in _LISTS:
        turns = _listed(record[key], key, counts)
        taken = [key]
    else:
        turns, taken = _exchanged(record, key, counts)
    head = [*_tools(record), *_system(record, turns)]
    read = {*taken, *_TOOLS, *_SYSTEMS, *_FLAGS}
    counts.update(str(name) for name in record.keys() - read)
    if unread is not None:
        unread.update(counts)
    return (*head, *turns)


def _names(values: Mapping[str, Any]) -> str:
    return printable(", ".join(map(str, values)), most=200) or "none"


def begins_with_answer(turns: Turns) -> bool:
    """Returns whether the first turn is a trained answer without a question."""
    talk = [turn for turn in turns if turn[0] != TOOLS]
    return bool(talk) and talk[0][0] == "assistant" and is_trained(talk[0][1])


def without_first(turns: Turns) -> Turns:
    """Marks the first answer as untrained. Raises BadInput if it is the only one."""
    place = [role for role, _ in turns].index("assistant")
    role, content = turns[place]
    later = turns[place + 1 :]
    if all(role != "assistant" for role, _ in later):
        raise BadInput("its one answer is its first turn: nothing is asked before it")
    return (*turns[:place], (role, untrained(content)), *later)


def check_answers(turns: Turns) -> None:
    """Raises BadInput for a conversation that would train nothing, or an empty answer."""
    answers = [content for role, content in turns if role == "assistant"]
    if not answers:
        raise BadInput("it has no answer")
    trained = [content for content in answers if is_trained(content)]
    if not trained:
        raise BadInput("nothing of it would be trained: every answer has the weight 0")
    if not all(values_of(content)["content"].strip() or calls_of(content) for content in trained):
        raise BadInput("it has an empty answer, which would train nothing")


def _is_nothing(value: Any) -> bool:
    """Returns whether a value means a missing key: null and NaN do, 0 and false do not."""
    if value is None or value != value:  # NaN differs from itself
        return True
    return isinstance(value, str | list | tuple | Mapping) and not len(value)


def _refuse(values: Mapping[str, Any]) -> None:
    """Raises BadInput for keys that demand an unsupported way of training."""
    for key, value in values.items():
        beginning = next((text for text in _BEGINNINGS if str(key).startswith(text) and value), "")
        if reason := _REFUSED.get(key) or _BEGINNINGS.get(beginning):
            raise BadInput(f"it has the key {printable(key, most=60)}: {reason}")
    if isinstance(values.get("label"), bool | int):
        raise BadInput(f"it has the key label: {_REFUSED['kto_tag']}")


def _check_weight(record: Mapping[str, Any]) -> None:
    """Raises BadInput for a weight of a whole conversation other than 1."""
    for key in _FLAGS:
        if key in record and _number(record[key]) != 1:
            raise BadInput(
                f"its {key} is {untrusted.shown(record[key])}: rows are not weighed. Leave those of 0 out"
            )


def _number(value: Any) -> Any:
    """Parses 0 and 1, which tables have as texts."""
    if isinstance(value, str):
        return {"0": 0, "1": 1, "0.0": 0, "1.0": 1}.get(value, value)
    return value


def _tools(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the turn that holds a conversation's functions, in OpenAI's form."""
    keys = [key for key in _TOOLS if key in record]
    if len(keys) > 1:
        raise BadInput("it has tools and functions. Give one of them")
    for key in keys:
        tools = _parsed(record[key], key)
        tools = tools if isinstance(tools, list) else [tools]
        if tools:
            yield TOOLS, as_json([_tool(_parsed(tool, key), key) for tool in tools])


def _tool(tool: Any, key: str) -> Mapping[str, Any]:
    is_object = isinstance(tool, Mapping)
    function = tool.get("function", tool) if is_object else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadInput(f"its {key} hold {untrusted.shown(tool)}, which is no function with a name")
    if "function" in tool:
        return tool
    return {
        "type": "function",
        "function": {name: value for name, value in tool.items() if name != "type"},
    }


def _system(record: Mapping[str, Any], turns: Turns) -> Iterator[tuple[str, str]]:
    """Yields the turn of the key `system`, or another of its names, beside the messages."""
    keys = [key for key in _SYSTEMS if key in record]
    texts = {_column(record[key]) for key in keys}
    if len(texts) > 1:
        raise BadInput(f"it has several system texts: {', '.join(keys)}. Give one of them")
    if turns[0][0] != "system":
        yield from (("system", text) for text in texts)
    elif texts - {turns[0][1]}:
        raise BadInput(f"it has a key {keys[0]} beside another system turn. Give one of them")


def _exchanged(
    record: Mapping[str, Any], key: str, unread: Counter[str]
) -> tuple[Turns, list[str]]:
    """Returns the turns of columns with one exchange, and the names of the columns."""
    answers = [name for name in _ANSWERS if name in record]
    if len(answers) > 1:
        raise BadInput(f"it has several answers: {', '.join(answers)}. Give one of them")
    prompts = [name for name in _PROMPTS if name in record]
    if len(prompts) > 1:
        raise BadInput(f"it has several prompts: {', '.join(prompts)}. Give one of them")
    inputs = [name for name in _INPUTS if name in record and name != key]
    turns = [*_history(record.get("history"))]
    if is_talk(record[key]):
        for role, content in _listed(record[key], key, unread):
            turns.append((role, _prompting(role, content)))
    else:
        texts = [_column(record[name]) for name in [key, *inputs]]
        turns.append(("user", "\n".join(texts)))
    for name in answers:
        if is_talk(record[name]):
            turns += _listed(record[name], name, unread)
        else:
            turns.append(("assistant", _column(record[name])))
    return tuple(turns), [key, *inputs, *answers, "history"]


def _prompting(role: str, content: str) -> str:
    """Returns a turn of a prompt: its answers are not trained, as in TRL."""
    if role == "assistant":
        return untrained(content)
    return content


def is_talk(value: Any) -> bool:
    """Returns whether a value is a list of messages."""
    is_list = isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value)
    return is_list and any({"role", "from"} & _known(turn).keys() for turn in value)


def _history(pairs: Any) -> Iterator[tuple[str, str]]:
    """Yields the earlier exchanges of Alpaca's `history`, pairs of question and answer."""
    for pair in _parsed(pairs, "history") or ():
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadInput(
                f"its history holds {untrusted.shown(pair)} instead of [question, answer]"
            )
        yield "user", _column(pair[0])
        yield "assistant", _column(pair[1])


def _column(value: Any) -> str:
    """Returns the text of a column; an object or a list becomes JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return as_json(value)


def _parsed(value: Any, key: str) -> Any:
    """Parses a value that may be JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise BadInput(f"its {key} are no JSON: {untrusted.shown(value)}") from None


# --- messages ---------------------------------------------------------------------------------------------------------


def _listed(messages: Any, key: str, unread: Counter[str]) -> Turns:
    """Returns the turns of a list of messages, which may be JSON text."""
    messages = _parsed(messages, key)
    if not isinstance(messages, list) or not messages:
        raise BadInput(f"its {key} are {untrusted.shown(messages)} instead of a list of messages")
    return tuple(_turn(message, key, unread) for message in messages)


def _turn(message: Any, key: str, unread: Counter[str]) -> tuple[str, str]:
    """Returns role and content of a message in OpenAI's form or ShareGPT's."""
    if not isinstance(message, Mapping):
        raise BadInput(f"its {key} hold {untrusted.shown(message)} instead of a message")
    message = _known(message)
    label = str(message.get("role") or message.get("from") or "").strip().casefold()
    role = _SYNONYMS.get(label, label)
    if not label:
        raise BadInput(f"a message has no role: its keys are {_names(message)}")
    if role not in ROLES:
        raise BadInput(
            f"it has the role {printable(label, most=40)}, which is none of {', '.join(ROLES)}"
        )
    source = next((name for name in ("content", "value") if name in message), "")
    filled = {name: value for name, value in message.items() if not _is_nothing(value)}
    _refuse(filled)
    calls = _calls(filled, label, source)
    if not source and not calls:
        raise BadInput(f"a turn of the role {role} has no content: its keys are {_names(message)}")
    values: dict[str, Any] = {
        "content": "" if label in _CALLING else _content(message.get(source), role)
    }
    if calls:
        values["tool_calls"] = calls
    if calls and role != "assistant":
        raise BadInput(f"a turn of the role {role} has calls, which are an assistant's")
    if not _trains(filled, role, unread):
        values["weight"] = 0
    read = {"role", "from", "content", "value", "tool_calls", "function_call", *_FLAGS}
    rest = {name: value for name, value in filled.items() if name not in read}
    return role, content_of({**rest, **values})


def _trains(message: Mapping[str, Any], role: str, unread: Counter[str]) -> bool:
    """Returns whether an answer is trained. Raises BadInput for a weight other than 0 and 1."""
    for name in (name for name in _FLAGS if name in message):
        value = _number(message[name])
        if value not in (0, 1):
            raise BadInput(
                f"the {name} of a turn is {untrusted.shown(value)}: 0 and 1 alone are obeyed"
            )
        if role == "assistant" and not value:
            return False
        if role != "assistant" and value:
            unread[f"{name} of a turn that is no answer"] += 1
    return True


def _content(content: Any, role: str) -> str:
    """Returns a content's text; reads parts by their type. Raises BadInput for unknown types."""
    parts = [content] if isinstance(content, Mapping) and "type" in content else content
    if isinstance(parts, list) and _has_parts(parts, role):
        return "".join(map(_part, parts))
    return _column(content)


def _has_parts(content: Sequence[Any], role: str) -> bool:
    """Returns whether a list holds parts of a content; other lists are JSON, such as a tool's answer."""
    if all(isinstance(part, str) for part in content):
        return True
    objects = [part for part in content if isinstance(part, Mapping)]
    if role == "tool":
        return any(part.get("type") in (*_TEXTS, *_MEDIA) for part in objects)
    return bool(objects)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise BadInput(f"a content has the part {untrusted.shown(part)}, which is no text")
    kind = part.get("type") or ""
    text = part.get("text", part.get("value"))
    if kind not in _TEXTS:
        raise BadInput(
            f"a content has a part of the type {printable(kind, most=40)}, and text alone is read"
        )
    if isinstance(text, Mapping):  # as threads of OpenAI's assistants have it
        text = text.get("value")
    if not isinstance(text, str):
        raise BadInput(f"a content has the part {untrusted.shown(part)}, which has no text")
    return text


# --- calls ------------------------------------------------------------------------------------------------------------


def _calls(message: Mapping[str, Any], label: str, source: str) -> list[Mapping[str, Any]]:
    """Returns a message's calls in OpenAI's form, from `tool_calls`, `function_call`, or JSON content."""
    if label in _CALLING:
        calls = _parsed(message.get(source), f"calls ({label})")
    else:
        calls = _parsed(message.get("tool_calls", []), "tool_calls")
    calls = calls if isinstance(calls, list) else [calls]
    if "function_call" in message:
        calls = [*calls, _parsed(message["function_call"], "function_call")]
    return [*map(_call, calls)]


def _call(call: Any) -> Mapping[str, Any]:
    is_object = isinstance(call, Mapping)
    function = call.get("function", call) if is_object else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadInput(f"it has the call {untrusted.shown(call)}, which names no function")
    source = next((key for key in ("arguments", "parameters", "input") if key in function), "")
    arguments = function.get(source)
    arguments = {} if _is_nothing(arguments) else _arguments(arguments, function["name"])
    whole = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    if call.get("id"):
        return {"id": str(call["id"]), **whole}
    return whole


def _arguments(arguments: Any, name: str) -> Mapping[str, Any]:
    """Returns a call's arguments as an object; they may be JSON text."""
    arguments = _parsed(arguments, f"arguments of {printable(name, most=60)}")
    if not isinstance(arguments, Mapping):
        raise BadInput(
            f"the arguments of {printable(name, most=60)} are {untrusted.shown(arguments)}, no object"
        )
    return arguments
