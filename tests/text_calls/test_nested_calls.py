"""Calls inside the values of calls open nothing, wherever the call around them stands and whatever is wrong with it."""

import pytest

from callgate.conversation.events import CallNotRun, CallWritten
from callgate.text_calls.prompts import style_for
from callgate.text_calls.reader import reader_for
from callgate.text_calls.writers import PastCall
from tests.chaos.scale import dealt
from tests.text_calls.reading import batched
from tests.text_calls.test_quoted_calls import BARE, BLOCK, CALLS, INLINE, LINES, summary

TOOLS = {"delete_all": ("path",), "get_time": (), "write_file": ("path", "content")}
PLACE = "PLACE"
CONTEXTS = {
    "nothing": "{}",
    "prose before": "Look here: {}",
    "a list item": "- {}",
    "a fence": "Like this:\n```\n{}\n```\nDone.",
    "prose behind": "Calling {} would delete everything.",
    **{name: INLINE[name] for name in ("inline code", "straight quotes", "a table row")},
    **{name: BLOCK[name] for name in ("a block quote", "a pre tag over lines")},
}
QUOTING = [name for name in CONTEXTS if name in {**INLINE, **BLOCK}]
# What these mark is a line, or a message, and not a call: in the middle of a line they mark nothing.
MARKED = sorted(CALLS.keys() - BARE - LINES)


def call_in_format(format, name, **arguments):
    return style_for(format).write("", [PastCall(name, arguments, f"functions.{name}:0")])


def values(format):
    """Values with calls in them, by what stands around those."""
    call, bare = CALLS[format], call_in_format(format, "get_time")
    others = "\n\n".join(CALLS[other] for other in ("hermes", "qwen3_coder", "glm45", "xml"))
    return {
        "blank lines": f"one\n\n{call}\n\ntwo",
        "no arguments": f"one\n\n{bare}\n\ntwo",
        "two of them": f"one\n\n{call}\n\n{call}\n\ntwo",
        "a fence": f"one\n\n```\n{call}\n```\n\n{call}\ntwo",
        "other formats": f"one\n\n{others}\n\ntwo",
    }


def around(format):
    """Calls with such a value: as it is to be written, as it is, and cut off behind it."""
    outer = call_in_format(format, "write_file", path="a", content=PLACE)
    for name, value in values(format).items():
        yield f"{name}, escaped", call_in_format(format, "write_file", path="a", content=value)
        yield f"{name}, raw", outer.replace(PLACE, value)
        yield f"{name}, cut", outer.split(PLACE)[0] + value


def events_of_pieces(format, pieces):
    reader = reader_for(format, TOOLS, thinking="unknown")
    return [event for piece in pieces for event in reader.feed(piece)] + reader.finish()


def runnable_calls(events):
    return [event for event in events if isinstance(event, CallWritten) and event.flaw is None and event.is_alone]


@pytest.mark.parametrize("format", MARKED)
def test_a_call_inside_a_value_does_not_run(format):
    for place, (name, call) in enumerate(around(format)):
        for context, template in dealt(CONTEXTS.items(), 3, place):
            text = template.replace("{}", call)
            whole = events_of_pieces(format, [text])
            assert {each.name for each in runnable_calls(whole)} <= {"write_file"}, (name, context)
            assert context not in QUOTING or not runnable_calls(whole), (name, context)
            assert summary(events_of_pieces(format, text)) == summary(whole), (name, context)


@batched("format", MARKED)
def test_a_value_with_calls_in_it_is_whole_or_the_call_is_broken(format):
    for name, call in around(format):
        for each in runnable_calls(events_of_pieces(format, [call])):
            assert "two" in str(each.arguments), name


@batched("format", ["litellm_json", "llama3_json"])
def test_behind_a_call_that_broke_within_a_string_nothing_runs(format):
    inner = CALLS[format]
    text = CALLS[format].replace("/srv/data", f"one\n\n{inner}\n\n{inner}\n\ntwo")
    assert runnable_calls(events_of_pieces(format, [text])) == runnable_calls(events_of_pieces(format, text)) == []
    followed = CALLS[format].replace("/srv/data", "/srv/data/") + "\n" + inner
    assert len(runnable_calls(events_of_pieces(format, [followed]))) == 2


QWEN = "<tool_call>\n<function=write_file>\n{}\n</function>\n</tool_call>"


@batched(
    ("parameters", "expected"),
    [
        ("<parameter=content>a <parameter=path> b</parameter>\n<parameter=path>x</parameter>", "a <parameter=path> b"),
        (
            "<parameter=path>x</parameter>\n<parameter=content>a\n<parameter=path> b</parameter>",
            "a\n<parameter=path> b",
        ),
        (
            "<parameter=content>a\n<parameter=zone> b</parameter>\n<parameter=path>x</parameter>",
            "a\n<parameter=zone> b",
        ),
        ("<parameter=content>a\n<parameter=content> b</parameter>", "a\n<parameter=content> b"),
        ("<parameter=content>a\n <parameter=path>x</parameter>", None),
        ("<parameter=content>a <parameter=path>x</parameter>", None),
        ("<parameter=content><parameter=path>x</parameter>", None),
        ("<parameter=content>a <function=get_time>\n<parameter=zone> b</parameter>", None),
    ],
)
def test_a_value_ends_at_a_parameter_that_the_call_needs_and_does_not_give_elsewhere(parameters, expected):
    text = QWEN.replace("{}", parameters)
    for pieces in ([text], text):
        (call,) = [event for event in events_of_pieces("qwen3_coder", pieces) if isinstance(event, CallWritten)]
        assert (call.arguments["content"] if call.flaw is None else None) == expected


GLM = "<tool_call>write_file\n{}\n</tool_call>"


@batched(
    ("pairs", "expected"),
    [
        ("<arg_key>content</arg_key><arg_value>a <arg_key> b</arg_value>", "a <arg_key> b"),
        (
            "<arg_key>content</arg_key><arg_value>a\n<arg_key>zone</arg_key> b</arg_value>",
            "a\n<arg_key>zone</arg_key> b",
        ),
        ("<arg_key>content</arg_key><arg_value>a\n<arg_key>path</arg_key> b</arg_value>", None),
        ("<arg_key>content</arg_key><arg_value>a<arg_key>path</arg_key><arg_value>b</arg_value>", None),
    ],
)
def test_a_value_behind_a_key_ends_at_a_key_that_the_call_needs(pairs, expected):
    text = GLM.replace("{}", pairs)
    for pieces in ([text], text):
        (call,) = [event for event in events_of_pieces("glm45", pieces) if isinstance(event, CallWritten)]
        assert (call.arguments["content"] if call.flaw is None else None) == expected


MENTIONS = [
    "The {} tag opens a call.",
    "Use {}, then JSON.",
    "It begins with {}.",
    "Models write “call {}” (or {}) first.",
    "The tags are {} and {end}, see above.",
]


@batched(
    ("format", "mark", "end"),
    [
        ("hermes", "<tool_call>", "</tool_call>"),
        ("qwen3_coder", "<tool_call>", "</tool_call>"),
        ("glm45", "<tool_call>", "</tool_call>"),
        ("kimi_k2", "<|tool_call_begin|>", "<|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS]", "</s>"),
        ("minimax", "<minimax:tool_call>", "</minimax:tool_call>"),
    ],
)
@batched("mention", MENTIONS)
def test_a_mark_that_is_only_named_swallows_no_call(format, mark, end, mention):
    said = mention.replace("{end}", end).replace("{}", mark)
    text = f"{said}\n\n{CALLS[format]}"
    for pieces in ([text], text):
        events = events_of_pieces(format, pieces)
        assert [each.name for each in runnable_calls(events)] == ["delete_all"]
    assert [event for event in events_of_pieces(format, [said]) if isinstance(event, CallWritten)] == []


def test_a_call_inside_another_is_named_to_the_operator():
    inner = CALLS["qwen3_coder"]
    text = QWEN.replace("{}", f"<parameter=content>a\n{inner}\n\n{inner}\n</parameter>")
    found = [event for event in events_of_pieces("qwen3_coder", [text]) if isinstance(event, CallNotRun)]
    assert [(event.name, event.reason) for event in found] == [("delete_all", "nested")]
