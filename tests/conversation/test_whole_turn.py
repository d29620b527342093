import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.json_text import LARGE
from callgate.calls.offer import Bridge, Offer, OfferedTool
from callgate.calls.states import Flaw
from callgate.conversation.events import (
    CallDelta,
    CallNotRun,
    CallWritten,
    EndNotSeen,
    Finished,
    ModelEvent,
    PromptedCalling,
    ProviderError,
    ProviderHead,
    StreamEnd,
    TextDelta,
)
from callgate.conversation.finish_words import OPEN
from callgate.conversation.turn import TurnBuilder
from callgate.conversation.usage import Usage
from callgate.conversation.whole_turn import whole_turn_fast
from callgate.tools.schema import compile_schema
from tests.chaos.scale import examples

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
CHECKED: Offer = {"get_weather": OfferedTool("get_weather", SCHEMA, compile_schema(SCHEMA))}
OFFER: Offer = {
    **CHECKED,
    "clients": OfferedTool("clients", SCHEMA),
    "bridge": OfferedTool("bridge", {}, bridge=Bridge(CHECKED, lambda name: ())),
}
LIMIT = 60
USUAL = CallWritten("get_weather", '{"city": "Bern"}', "call_1")

names = st.sampled_from(["get_weather", "clients", "bridge", "functions.get_weather", "other", " ", None])
ids = st.sampled_from(["call_1", "call_2", "call_\xe9", "\ud800", " ", "", 7, None])
arguments = st.sampled_from(
    [
        '{"city": "Bern"}',
        '{"city": "Z\xfcrich", "days": 2}',
        '{"city": "Bern", "days": "2"}',
        '{"city": "Bern", "city": "Rom"}',
        '{"city": "\\ud800"}',
        '{"city": "\ud83d\ude00"}',
        '{"city": "\ud800"}',
        '{"days": 2}',
        '{"city": "Be',
        '"{}"',
        '```json\n{"city": "Bern"}\n```',
        "[1]",
        "null",
        "{}",
        " ",
        "",
        '{"city": "' + "x" * LIMIT + '"}',
        '{"city": "' + "\xfc" * (LIMIT // 2) + '"}',
        '{"name": "get_weather", "arguments": {"city": "Bern"}}',
        {"city": "Bern"},
        None,
    ]
)
flags = st.sampled_from(
    ["repaired", "only_text", "undeclared_json", "from_text", "legacy", "custom", "at_once", "is_alone"]
)
calls = st.builds(CallWritten, names, arguments, ids) | st.builds(
    lambda flag, value, name, text: CallWritten(name, text, "call_3", **{flag: value}),
    flags,
    st.booleans(),
    names,
    arguments,
)
odd_calls: st.SearchStrategy[ModelEvent] = st.sampled_from(
    [
        CallWritten("get_weather", "{}", "call_1", flaw=Flaw.INVALID_JSON),
        CallWritten("get_weather", '{"city": "Bern"}', "call_1", extras={"signature": "x"}),
    ]
)
reasons = st.sampled_from(["tool_calls", "function_call", "stop", "length", "TOOL_CALLS", "content_filter", "odd", " "])
others: st.SearchStrategy[ModelEvent] = st.sampled_from(
    [
        ProviderHead("r1", "m"),
        ProviderHead("r2"),
        Usage({}),
        Usage({"prompt_tokens": 1}),
        TextDelta("Hm."),
        ProviderError("no"),
        EndNotSeen(),
        PromptedCalling("json"),
        CallNotRun("get_weather", "quoted"),
    ]
)
usual: st.SearchStrategy[ModelEvent] = st.sampled_from(
    [USUAL, Finished("tool_calls"), CallWritten("clients", '{"a": 1}', "call_2")]
)
events: st.SearchStrategy[ModelEvent] = (
    usual | calls | odd_calls | others | reasons.map(Finished) | st.builds(Finished, reasons, reasons.map(OPEN.judge))
)


@st.composite
def nearly_usual(draw: st.DrawFn) -> list[ModelEvent]:
    """An answer in the usual form, in which something else may stand anywhere."""
    said: list[ModelEvent] = draw(
        st.permutations([ProviderHead("r1", "m"), ProviderHead("r2"), TextDelta("H\xfcm."), Usage({"a": 1})])
    )
    said = said[: draw(st.integers(0, 4))]
    whole = st.sampled_from([USUAL, CallWritten("clients", '{"a": "\xfc"}', "call_2")])
    said += draw(st.lists(whole, max_size=2) | st.lists(calls, max_size=1))
    said.append(
        draw(st.sampled_from([Finished("tool_calls"), Finished("stop"), Finished("length")]) | reasons.map(Finished))
    )
    if draw(st.booleans()):
        said.insert(draw(st.integers(0, len(said))), draw(events))
    return said


def check_as_built(said: list[ModelEvent], offer: Offer, end: StreamEnd) -> None:
    """The turn that is made at once, if one is, is the one that is built."""
    turn = whole_turn_fast(said, offer, LIMIT)
    if turn is None:
        return
    builder = TurnBuilder(offer=offer, ids=str, argument_bytes=LIMIT)
    builder.feed(said)
    assert not builder.is_large()
    assert turn == builder.finish(end)


@settings(max_examples=examples(4000))
@given(
    said=nearly_usual() | st.lists(events, max_size=5),
    offer=st.sampled_from([OFFER, OFFER, CHECKED, {}]),
    end=st.sampled_from(StreamEnd),
)
def test_a_whole_turn_is_the_one_that_is_built(said: list[ModelEvent], offer: Offer, end: StreamEnd) -> None:
    check_as_built(said, offer, end)


pieces = st.sampled_from(
    [
        "",
        "{",
        "}",
        '{"city": "Bern"}',
        '{"city"',
        ': "Bern"',
        '{"city":',
        '{"city": "',
        "Bern",
        '"}',
        "\ud83d",
        "\ude00",
        None,
    ]
) | st.sampled_from([" ", '{"city": {"city": ', {"city": "Bern"}, ["x"]])
indexes = st.sampled_from([0, 0, 0, 1, 1, 2, None])
openings = st.builds(CallDelta, indexes, ids, names, pieces)
fragments = st.builds(lambda index, text: CallDelta(index, arguments=text), indexes, pieces)
odd_pieces = st.sampled_from(
    [
        CallDelta(0, arguments="}", name="get_weather"),
        CallDelta(0, arguments="}", extras={"signature": "x"}),
        CallDelta(0, arguments="}", legacy=True),
        CallDelta(0, "call_1", "clients", "{}", custom=True),
        CallDelta(0, "call_1", "clients", "{}", at_once=True),
        CallDelta(0, "call_1", "clients", "{}", extras={"signature": "x"}),
    ]
)
whole_in_pieces = st.sampled_from(['{"city": "Bern"}', '{"city": "\ud83d\ude00"}', '{"a": {"a": {"a": 1}}}']).flatmap(
    lambda text: st.lists(st.integers(0, len(text)), max_size=4).map(
        lambda cuts: [text[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(text)])]
    )
)


def opened(index: int, id_: Any, name: Any, parts: list[str]) -> list[ModelEvent]:
    """A call as most providers send it."""
    return [CallDelta(index, id_, name, ""), *(CallDelta(index, arguments=part) for part in parts)]


@settings(max_examples=examples(2000))
@given(
    said=st.lists(
        st.builds(opened, st.integers(0, 2), ids, names, whole_in_pieces)
        | st.lists(openings | fragments | odd_pieces | usual | others | reasons.map(Finished), max_size=3),
        max_size=3,
    ).map(lambda parts: [event for part in parts for event in part]),
    has_end=st.booleans(),
    offer=st.sampled_from([OFFER, CHECKED, {}]),
)
def test_a_whole_turn_of_calls_in_pieces_is_the_one_that_is_built(
    said: list[ModelEvent], has_end: bool, offer: Offer
) -> None:
    if has_end:
        said = [*said, Finished("tool_calls")]
    check_as_built(said, offer, StreamEnd.DONE)


@settings(max_examples=examples(200))
@given(first=whole_in_pieces, second=whole_in_pieces)
def test_usual_calls_in_pieces_are_a_turn(first: list[str], second: list[str]) -> None:
    offer: Offer = {"clients": OFFER["clients"]}
    said: list[ModelEvent] = [
        *opened(0, "call_1", "clients", first),
        *opened(1, "call_2", "clients", second),
        TextDelta("a"),
        TextDelta("b"),
        Finished("tool_calls"),
    ]
    turn = whole_turn_fast(said, offer, LARGE)
    builder = TurnBuilder(offer=offer, ids=str)
    builder.feed(said)
    expected = builder.finish()
    assert expected.text == "ab"
    assert turn == expected or (
        turn is None and expected.calls and any(may_be_snapshots(parts) for parts in (first, second))
    )


def may_be_snapshots(parts: list[str]) -> bool:
    nonempty = [part for part in parts if part]
    return any(later.startswith(before) for before, later in itertools.pairwise(nonempty))


@pytest.mark.parametrize(
    "said",
    [
        [CallDelta(0, arguments='{"city": "Bern"}')],
        [CallDelta(0, "call_1", None, '{"city": "Bern"}')],
        [CallDelta(None, "call_1", "get_weather", '{"city": "Bern"}')],
        [CallDelta(0, "call_1", "get_weather", '{"city": '), CallDelta(1, arguments='"Bern"}')],
        [CallDelta(0, "call_1", "get_weather", '{"city": '), CallDelta(0, "call_1", arguments='"Bern"}')],
        [CallDelta(0, "call_1", "get_weather", '{"city": "Be')],
        [CallDelta(0, "call_1", "clients", '{"a": '), CallDelta(0, arguments='{"a": 1}}')],
        [CallDelta(0, "call_1", "get_weather", '{"city": "Bern"}'), CallDelta(0, "call_2", "clients", "{}")],
        [Finished("tool_calls"), Usage({}), CallDelta(0, "call_1", "get_weather", '{"city": "Bern"}')],
        [CallDelta(0, "call_1", "get_weather", {"city": "Bern"})],
    ],
    ids=["no id", "no name", "no index", "other index", "id again", "cut", "snapshot", "index again", "end", "object"],
)
def test_calls_in_odd_pieces_are_not_read_at_once(said: list[ModelEvent]) -> None:
    end = [] if Finished("tool_calls") in said else [Finished("tool_calls")]
    assert whole_turn_fast([*said, *end], OFFER, LARGE) is None


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
def test_the_usual_events_are_a_turn_of_calls(reason: str) -> None:
    said: list[ModelEvent] = [TextDelta("Hm."), ProviderHead("c", "m"), USUAL, CallWritten("clients", "{}", "call_2")]
    said += [Finished(reason), Usage({})]
    turn = whole_turn_fast(said, OFFER, LARGE)
    assert turn is not None
    assert [call.name for call in turn.calls] == ["get_weather", "clients"]
    assert (turn.text, turn.head, turn.usage) == ("Hm.", ProviderHead("c", "m"), Usage({}))


def test_arguments_that_may_be_parsed_beside_other_requests_are_not_read_at_once() -> None:
    large = CallWritten("clients", '{"a": "' + "x" * (LARGE // 4) + '"}', "call_1")
    halves = [CallWritten("clients", '{"a": "' + "x" * (LARGE // 8) + '"}', id_) for id_ in ("call_1", "call_2")]
    assert whole_turn_fast([large, Finished("tool_calls")], OFFER, LARGE) is None
    assert whole_turn_fast([*halves, Finished("tool_calls")], OFFER, LARGE) is None


@pytest.mark.parametrize(
    "call",
    [
        CallWritten("get_weather", '{"days": 2}', "call_1"),
        CallWritten("get_weather", '{"city": "Bern", "days": "2"}', "call_1"),
        CallWritten("get_weather", '{"city": "Bern", "city": "Rom"}', "call_1"),
        CallWritten("get_weather", '{"city": "Be', "call_1"),
        CallWritten("bridge", '{"name": "get_weather", "arguments": {"city": "Bern"}}', "call_1"),
        CallWritten("other", "{}", "call_1"),
        CallWritten("clients", "{}", "call_2"),
        CallWritten("clients", "{}"),
        CallWritten("clients", "free text", "call_1", custom=True),
    ],
    ids=["schema", "coerced", "key twice", "cut", "bridge", "unknown", "id twice", "no id", "custom"],
)
def test_a_call_to_which_anything_is_to_be_done_is_not_read_at_once(call: CallWritten) -> None:
    said: list[ModelEvent] = [call, CallWritten("clients", "{}", "call_2"), Finished("tool_calls")]
    assert whole_turn_fast(said, OFFER, LARGE) is None


def test_several_texts_are_one() -> None:
    turn = whole_turn_fast([TextDelta("Hm."), TextDelta("Well."), Finished("stop")], OFFER, LARGE)
    assert turn is not None
    assert turn.text == "Hm.Well."


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "odd"])
def test_calls_before_another_end_are_not_read_at_once(reason: str) -> None:
    assert whole_turn_fast([USUAL, Finished(reason)], OFFER, LARGE) is None
