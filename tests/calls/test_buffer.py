import pytest

from callgate.calls.buffer import ToolCallBuffer


def buffer_with(arguments: object) -> ToolCallBuffer:
    buffer = ToolCallBuffer()
    buffer.add_tool_call("call_1", "search", arguments)
    return buffer


def test_a_new_buffer_is_empty():
    buffer = ToolCallBuffer()
    assert len(buffer) == 0
    assert buffer.get_all_complete_tool_calls() == {}
    assert buffer.get_incomplete_tool_calls() == {}


def test_a_call_is_recorded_as_it_was_given():
    text = '{"query": "python", "limit": 10}'
    assert buffer_with(text).get_all_complete_tool_calls() == {
        "call_1": {"id": "call_1", "name": "search", "arguments": text, "type": "function", "complete": True}
    }


@pytest.mark.parametrize("nothing", [None, "", "   \n\t  "])
def test_no_arguments_are_an_empty_object(nothing):
    assert buffer_with(nothing).is_complete("call_1")
    assert buffer_with(nothing).parse_arguments("call_1") == {}


def test_the_arguments_may_be_left_out():
    buffer = ToolCallBuffer()
    buffer.add_tool_call("call_1", "ping")
    assert buffer.parse_arguments("call_1") == {}


def test_an_object_is_returned_as_it_is():
    arguments = {"x": 5, "text": '{"not": "parsed"}'}
    assert buffer_with(arguments).parse_arguments("call_1") is arguments


def test_types_survive():
    text = '{"s": "a", "i": 1, "f": 1.5, "b": true, "n": null, "a": [1, "2"], "o": {"p": {}}}'
    assert buffer_with(text).parse_arguments("call_1") == {
        "s": "a",
        "i": 1,
        "f": 1.5,
        "b": True,
        "n": None,
        "a": [1, "2"],
        "o": {"p": {}},
    }


@pytest.mark.parametrize("broken", ['{"query": "python", "limit": 10', '{"query": pyth}', "[1, 2]", "42", [1], 7])
def test_what_is_no_whole_object_is_incomplete(broken):
    buffer = buffer_with(broken)
    assert not buffer.is_complete("call_1")
    assert buffer.get_all_complete_tool_calls() == {}
    assert buffer.get_incomplete_tool_calls()["call_1"]["arguments"] == broken
    assert buffer.get_incomplete_tool_calls()["call_1"]["complete"] is False


def test_parsing_what_is_broken_names_the_tool_the_call_and_the_text():
    with pytest.raises(ValueError, match="search") as caught:
        buffer_with('{"query": "python').parse_arguments("call_1")
    assert "call_1" in str(caught.value)
    assert '{"query": "python' in str(caught.value)
    assert "truncated" in str(caught.value)


def test_only_a_preview_of_a_long_text_is_shown():
    with pytest.raises(ValueError, match="call_1") as caught:
        buffer_with('{"a": "' + "x" * 100_000).parse_arguments("call_1")
    assert len(str(caught.value)) < 500


def test_an_id_never_seen_is_a_key_error():
    with pytest.raises(KeyError):
        ToolCallBuffer().parse_arguments("call_9")
    assert not ToolCallBuffer().is_complete("call_9")


def test_slips_are_repaired_as_they_are_in_a_turn():
    assert buffer_with('{}{"a": 1}').parse_arguments("call_1") == {"a": 1}
    assert not buffer_with('{"a": 1}{"a": 2}').is_complete("call_1")


def test_adding_an_id_again_updates_it():
    buffer = buffer_with('{"query": "pyt')
    buffer.add_tool_call("call_2", "other")
    buffer.add_tool_call("call_1", "search", '{"query": "python"}')
    assert len(buffer) == 2
    assert list(buffer.get_all_complete_tool_calls()) == ["call_1", "call_2"]
    assert buffer.parse_arguments("call_1") == {"query": "python"}


def test_a_call_without_a_name_is_never_complete():
    buffer = ToolCallBuffer()
    buffer.add_tool_call("call_1", None, "{}")
    assert not buffer.is_complete("call_1")


def test_whole_and_broken_calls_are_distinguished():
    buffer = buffer_with('{"a": 1}')
    buffer.add_tool_call("call_2", "write", '{"path": "x')
    assert list(buffer.get_all_complete_tool_calls()) == ["call_1"]
    assert list(buffer.get_incomplete_tool_calls()) == ["call_2"]


def test_clearing_forgets_everything():
    buffer = buffer_with("{}")
    buffer.clear()
    assert len(buffer) == 0
    with pytest.raises(KeyError):
        buffer.parse_arguments("call_1")


@pytest.mark.parametrize(
    ("finish_reason", "arguments", "fits"),
    [
        ("length", '{"a": 1', False),
        ("length", '{"a": 1}', True),
        ("tool_calls", '{"a": 1', True),
        ("tool_calls", '{"a": 1}', True),
        ("stop", '{"a": 1}', True),
        (None, '{"a": 1', True),
    ],
)
def test_the_finish_reason_is_held_against_the_calls(finish_reason, arguments, fits):
    buffer = ToolCallBuffer(finish_reason=finish_reason)
    buffer.add_tool_call("call_1", "search", arguments)
    assert buffer.validate_completion_state() is fits


@pytest.mark.parametrize(
    ("finish_reason", "fits"), [("tool_calls", False), ("length", True), ("stop", True), (None, True)]
)
def test_an_empty_buffer_fits_every_reason_but_tool_calls(finish_reason, fits):
    assert ToolCallBuffer(finish_reason).validate_completion_state() is fits
