"""What is read twice, in a fast way and in the plain one: the fast one equals the plain one, or returns None."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from callgate.api import strict_json
from callgate.api.chat_outline import ChatOutline
from callgate.api.strict_json import check_text, split, split_before_fast, split_fast
from callgate.chat.request_schema import outline_fast, outline_of_any
from callgate.chat.requests import read_chat_request
from callgate.conversation.errors import ChatError
from callgate.policy.operator_ids import place_of_id
from callgate.untrusted.doors import written_here

DEPTH = 12
LARGE = "x" * 5000
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

texts = st.sampled_from(
    ["", "hi", '"messages":[', "}],", "]}", "é\n", "\\", "\ud83d", "[[[[[[[[[[[[[[", "file-1"]
) | st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def mostly(usual: Any, others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 3).flatmap(lambda number: others if number == 0 else st.just(usual))


calls = st.just({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}})
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "robot"])},
    optional={
        "content": values | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2),
        "tool_calls": st.lists(calls, max_size=2),
        "tool_call_id": texts,
        "name": texts,
        "cache_control": values,
    },
)
tools = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "mcp"])},
    optional={
        "function": st.fixed_dictionaries({"name": texts}, optional={"parameters": values}),
        "custom": st.fixed_dictionaries({"name": texts}),
    },
)
fields = st.fixed_dictionaries(
    {
        "model": mostly("m", values),
        "messages": mostly([{"role": "user", "content": "hi"}], st.lists(messages, max_size=3) | values),
    },
    optional={
        "tools": mostly([TOOL], st.lists(tools, max_size=2) | values),
        "tool_choice": st.sampled_from(["auto", "none", "any", {"type": "function", "function": {"name": "f"}}]),
        "stream": mostly(True, values),
        "n": st.integers(0, 3),
        "temperature": mostly(0.5, values),
        "response_format": mostly({"type": "json_object"}, values),
        "metadata": mostly({"a": "b"}, values),
        "other": values,
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request in any order of its fields, large or small, perhaps with a field twice or a byte too few."""
    chosen: dict[str, Any] = draw(fields)
    members = [*draw(st.permutations(list(chosen.items())))]
    if draw(st.integers(0, 4)) == 0:
        members = [*members, draw(st.sampled_from(members))]
    space = draw(st.sampled_from(["", " ", "\n"]))
    written = [f"{json.dumps(name)}{space}:{space}{json.dumps(value)}" for name, value in members]
    if draw(st.integers(0, 2)) == 0:
        written = [member for member in written if not member.startswith('"messages"')]
        written.insert(
            draw(st.sampled_from([0, len(written)])), '"messages":' + json.dumps([{"role": "user", "content": LARGE}])
        )
    body = ("{" + f",{space}".join(written) + "}").encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(body) - 1))
        body = body[:place] + body[place + 1 :]
    return body


def is_list(text: msgspec.Raw) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), list)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


@given(bodies())
@example(b'{"model":"m","messages":[' + b" " * 5000 + b"]}")
def test_a_body_that_is_split_fast_is_split_as_any_other(body: bytes) -> None:
    quick = split_fast(written_here(body))
    if quick is None or not is_list(quick["messages"]):
        return
    assert {name: bytes(value) for name, value in quick.items()} == {
        name: bytes(value) for name, value in split(written_here(body), DEPTH).items()
    }


@given(bodies(), st.lists(tools, max_size=2) | values, st.sampled_from(["tools", "other", "tools "]), texts)
@example(b'{"messages":[' + b" " * 5000 + b'],"model":"m"}', [TOOL], "tools", "")
@example(b'{"model":"m","messages":[{"content":"' + b" " * 5000 + b'"}]}', [TOOL], "tools", "")
@example(b'{"messages":[{"content":"' + b" " * 5000 + b'"}],"a":[{}],"b":1}', [TOOL], "tools", "")
@example(b'{"messages":[{"content":"' + b" " * 5000 + b'"}],"tools":1}', [TOOL], "tools", "")
def test_a_body_of_many_messages_that_ends_with_known_tools_is_split_as_any_other(
    before: bytes, last: Any, name: str, text: str
) -> None:
    known = msgspec.Raw(json.dumps(last).encode())
    assume(split_plainly(b'{"a":%b}' % known) is not None)  # they were read before
    for value in (last, [last], text):
        for end in ("}", "]}", " }"):
            body = before[:-1] + f",{json.dumps(name)}:{json.dumps(value)}{end}".encode("utf-8", "surrogatepass")
            quick = split_fast(written_here(body), known)
            if quick is not None and is_list(quick["messages"]):
                assert {name: bytes(field) for name, field in quick.items()} == split_plainly(body)


@pytest.mark.parametrize(
    "names",
    [
        ("messages", "model", "tools"),
        ("model", "messages", "stream", "tools"),
        ("stream", "model", "messages", "tools"),
    ],
)
def test_known_tools_are_not_parsed_behind_messages(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parts: dict[str, Any] = {
        "messages": [{"role": "user", "content": LARGE}],
        "model": "m",
        "stream": True,
        "tools": [TOOL | {"function": {"name": f"{'_'.join(names)}_{number}"}} for number in range(200)],
    }
    body = written_here(msgspec.json.encode({name: parts[name] for name in names}))
    usual = read_chat_request(body, {}, 100)
    plain_fields = strict_json._fields

    def counted(text: Any) -> Any:
        parsed.append(len(text))
        return plain_fields(text)

    monkeypatch.setattr(strict_json, "_fields", counted)
    again = read_chat_request(body, {}, 100)
    assert again.fields == usual.fields
    assert sum(parsed) < 200


@given(fields, st.lists(tools, max_size=2) | values, st.sampled_from(["tools", "other", "messages", "s"]), texts)
@example({"model": "m"}, [TOOL], "tools", '"tools":[]')
@example({"model": "m", "tools": []}, [TOOL], 's"tools', "")
def test_a_body_that_ends_with_a_known_value_is_split_as_any_other(
    before: dict[str, Any], last: Any, name: str, text: str
) -> None:
    known = msgspec.Raw(json.dumps(last).encode())
    assume(split_plainly(b'{"a":%b}' % known) is not None)  # it was read before
    for value in (last, [last], {"tools": last}, text, [text]):
        for space in ("", " "):
            member = f"{json.dumps(name)}{space}:{space}{json.dumps(value)}"
            body = (json.dumps(before)[:-1] + f",{space}{member}{space}}}").encode()
            usual = split_plainly(body)
            for name_of_known in ("tools", name):
                quick = split_before_fast(written_here(body), name_of_known, known)
                if quick is not None:
                    assert next(reversed(quick)) == name_of_known
                    assert {name: bytes(value) for name, value in quick.items()} == usual
                elif value is last and name_of_known == name and not space:
                    assert usual is None


def split_plainly(body: bytes) -> dict[str, bytes] | None:
    try:
        return {name: bytes(value) for name, value in split(written_here(body), DEPTH).items()}
    except ChatError:
        return None


@pytest.mark.parametrize(
    "body",
    [
        b'{"tools":1,"tools":[2]}',
        b'{"other":1,"other":2,"tools":[2]}',
        b'{"tools":[],"s\\"tools":[2]}',
        b'{"tools":[],"other":{"tools":[2]}',
        b'{"tools":[[2]}',
        b'{"other":[2]}',
        b'{"tools":"[2]}',
        b'{"tools" [2]}',
        b'{"tools":[2]} ',
        b"[2]}",
        b"}",
        b"",
    ],
)
def test_a_body_that_does_not_end_with_a_field_of_a_known_value_is_split_plainly(body: bytes) -> None:
    assert split_before_fast(written_here(body), "tools", msgspec.Raw(b"[2]")) is None


def facts(outline: ChatOutline) -> dict[str, Any]:
    """All of an outline but what only one of the readers takes down: texts of messages, and what a format says."""
    read = {name: getattr(outline, name) for name in ChatOutline.__struct_fields__}
    del read["response_format"]
    read["messages"] = [(message.role, bool(message.content), message.tool_call_id) for message in outline.messages]
    return read


@given(bodies())
@example(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"other":"\\ud83d"}')
def test_an_outline_that_is_read_fast_is_read_as_any_other(body: bytes) -> None:
    try:
        parts = split(written_here(body), DEPTH)
        quick = outline_fast(parts, DEPTH)
    except ChatError:
        return  # as it is with the plain reader: see below
    if quick is None:
        return
    check_text(written_here(body), DEPTH)
    assert place_of_id({name: value for name, value in parts.items() if name == "tools"}) is None
    assert facts(quick) == facts(outline_of_any(written_here(body)))


@given(bodies())
def test_what_is_refused_fast_is_refused_by_the_plain_reader_too(body: bytes) -> None:
    try:
        parts = split(written_here(body), DEPTH)
    except ChatError:
        return
    try:
        outline_fast(parts, DEPTH)
    except ChatError:
        with pytest.raises(ChatError):
            read_plainly(body)


def read_plainly(body: bytes) -> None:
    check_text(written_here(body), DEPTH)
    outline_of_any(written_here(body))
