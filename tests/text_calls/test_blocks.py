import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.offer import Check
from callgate.calls.states import BrokenCall, Finding, Flaw, FlawDetail, ReadyCall
from callgate.text_calls.blocks import ToolUseBuffer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
                "required": ["command"],
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]

XML = (
    '<function_calls>\n<invoke name="bash">\n<parameter name="command">ls -la</parameter>\n</invoke>\n</function_calls>'
)
BARE_XML = '<invoke name="bash"><parameter name="command">ls -la</parameter></invoke>'
AS_JSON = '{"name": "bash", "arguments": {"command": "ls -la"}}'


def stopped(*pieces: str, tool_id: str | None = None, buffer: ToolUseBuffer | None = None):
    buffer = buffer or ToolUseBuffer(TOOLS)
    for piece in pieces:
        buffer.handle_content_block_delta(0, piece, tool_id)
    return buffer.handle_content_block_stop(0)


@pytest.mark.parametrize(
    "text",
    [
        XML,
        BARE_XML,
        AS_JSON,
        '{"input": {"command": "ls -la"}, "name": "bash"}',
        '{"name": "bash", "parameters": {"command": "ls -la"}}',
        '{"name": "bash", "arguments": "{\\"command\\": \\"ls -la\\"}"}',
        f"```json\n{AS_JSON}\n```",
    ],
)
def test_a_whole_block_of_any_form_is_a_ready_call(text):
    call = stopped(text, tool_id="toolu_1")
    assert isinstance(call, ReadyCall)
    assert (call.id, call.name, call.arguments) == ("toolu_1", "bash", {"command": "ls -la"})


@pytest.mark.parametrize("text", [XML, BARE_XML, AS_JSON])
def test_every_way_of_cutting_a_block_in_two_gives_the_same_call(text):
    whole = stopped(text, tool_id="t")
    for cut in range(len(text)):
        assert stopped(text[:cut], text[cut:], tool_id="t") == whole


@pytest.mark.parametrize("text", [AS_JSON, BARE_XML])
def test_no_beginning_of_a_block_is_ever_ready(text):
    for size in range(1, len(text)):
        call = stopped(text[:size])
        assert isinstance(call, BrokenCall), text[:size]


def test_the_command_that_was_cut_to_its_first_word_does_not_run():
    call = stopped('{"name": "bash", "arguments": {"command": "in')
    assert isinstance(call, BrokenCall)
    assert (call.name, call.flaw) == ("bash", Flaw.TRUNCATED)


def test_a_name_that_was_closed_is_known_of_a_truncated_block_wherever_it_stands():
    call = stopped('{"id": "x", "arguments": {"command": "ls"}, "name": "bash", "more": ')
    assert isinstance(call, BrokenCall)
    assert (call.name, call.flaw) == ("bash", Flaw.TRUNCATED)
    call = stopped('{"name": "ba')
    assert isinstance(call, BrokenCall)
    assert (call.name, call.flaw) == (None, Flaw.TRUNCATED)


@given(st.data())
def test_blocks_of_several_indexes_may_interleave(data):
    texts = {3: XML, 7: '{"name": "get_time"}'}
    pieces = {i: list(text) for i, text in texts.items()}
    buffer = ToolUseBuffer(TOOLS)
    while any(pieces.values()):
        index = data.draw(st.sampled_from([i for i, left in pieces.items() if left]))
        buffer.handle_content_block_delta(index, pieces[index].pop(0), f"id_{index}")
    second, first = buffer.handle_content_block_stop(7), buffer.handle_content_block_stop(3)
    assert isinstance(first, ReadyCall)
    assert isinstance(second, ReadyCall)
    assert (first.id, first.arguments) == ("id_3", {"command": "ls -la"})
    assert (second.id, second.name, second.arguments) == ("id_7", "get_time", {})


def test_an_index_that_held_nothing_gives_nothing():
    buffer = ToolUseBuffer(TOOLS)
    assert buffer.handle_content_block_stop(0) is None
    assert stopped("", " \n", buffer=buffer) is None
    assert buffer.attempt_count == 0


def test_a_stopped_index_is_free_for_the_next_block():
    buffer = ToolUseBuffer(TOOLS)
    stopped(AS_JSON, tool_id="a", buffer=buffer)
    call = stopped('{"name": "get_time"}', buffer=buffer)
    assert isinstance(call, ReadyCall)
    assert call.name == "get_time"
    assert call.id not in ("", "a")


@pytest.mark.parametrize(
    ("text", "name", "flaw"),
    [
        ('{"name": "bash", "arguments": {}}', "bash", Flaw.SCHEMA_MISMATCH),
        ('<invoke name="bash"></invoke>', "bash", Flaw.SCHEMA_MISMATCH),
        ('{"name": "rm", "arguments": {}}', "rm", Flaw.UNKNOWN_TOOL),
        ('{"command": "ls"}', None, Flaw.MISSING_NAME),
        ('{"name": "bash", "arguments": ["ls"]}', "bash", Flaw.NOT_AN_OBJECT),
        ("{'name': 'bash'}", None, Flaw.INVALID_JSON),
        ('{"name": "bash", "arguments": {"command": "a", "command": "b"}}', "bash", Flaw.INVALID_JSON),
        ('{"name": "bash", "arguments": {"command": "a"}, "input": {"command": "b"}}', "bash", Flaw.INVALID_JSON),
        ('<invoke name="bash">ls</invoke>', "bash", Flaw.INVALID_MARKUP),
        ("just talk", None, Flaw.INVALID_MARKUP),
        (BARE_XML + BARE_XML, "bash", Flaw.INVALID_MARKUP),
    ],
)
def test_a_block_that_is_no_whole_call_is_broken_for_a_reason(text, name, flaw):
    call = stopped(text, tool_id="t")
    assert isinstance(call, BrokenCall)
    assert (call.id, call.name, call.flaw) == ("t", name, flaw)


def test_a_missing_parameter_is_named():
    call = stopped('{"name": "bash", "arguments": {"timeout": 3}}')
    assert isinstance(call, BrokenCall)
    assert call.problem is not None
    assert "command" in call.problem.got


def test_an_engine_that_compiles_schemas_has_them_enforced():
    def never(parameters) -> Check:
        return lambda _: FlawDetail(pointer="/command", expected="nothing at all")

    call = stopped(AS_JSON, buffer=ToolUseBuffer(TOOLS, compile=never))
    assert isinstance(call, BrokenCall)
    assert call.problem == FlawDetail(pointer="/command", expected="nothing at all")


def test_text_in_xml_is_converted_to_the_declared_type_without_a_note():
    call = stopped(BARE_XML.replace("</invoke>", '<parameter name="timeout">5</parameter></invoke>'))
    assert isinstance(call, ReadyCall)
    assert call.arguments == {"command": "ls -la", "timeout": 5}
    assert Finding.ARGUMENTS_COERCED not in call.findings


def test_three_broken_calls_running_exhaust_the_buffer():
    buffer = ToolUseBuffer(TOOLS)
    for attempt in (1, 2, 3):
        assert not buffer.exhausted
        stopped('{"name": "bash", "arg', buffer=buffer)
        assert buffer.attempt_count == attempt
    assert buffer.exhausted


def test_a_whole_call_or_a_reset_resets_the_count():
    buffer = ToolUseBuffer(TOOLS, max_attempts=2)
    stopped("{", buffer=buffer)
    stopped(AS_JSON, buffer=buffer)
    assert buffer.attempt_count == 0
    stopped("{", buffer=buffer)
    stopped("{", buffer=buffer)
    assert buffer.exhausted
    buffer.reset()
    assert not buffer.exhausted


def test_a_reset_leaves_open_blocks_alone():
    buffer = ToolUseBuffer(TOOLS)
    buffer.handle_content_block_delta(1, AS_JSON[:20], "t")
    buffer.reset()
    buffer.handle_content_block_delta(1, AS_JSON[20:])
    call = buffer.handle_content_block_stop(1)
    assert isinstance(call, ReadyCall)
    assert call.arguments == json.loads(AS_JSON)["arguments"]


def test_a_value_that_runs_into_the_next_parameter_breaks_the_block():
    call = stopped('<invoke name="bash"><parameter name="command">ls<parameter name="timeout">5</parameter></invoke>')
    assert isinstance(call, BrokenCall)
    assert call.flaw is Flaw.INVALID_MARKUP


def test_a_tag_that_is_no_parameter_of_the_tool_is_part_of_the_value():
    call = stopped('<invoke name="bash"><parameter name="command">echo <parameter name="x"></parameter></invoke>')
    assert isinstance(call, ReadyCall)
    assert call.arguments == {"command": 'echo <parameter name="x">'}
