"""What is kept of a turn is the turn: the same events make the same calls, wherever they are played."""

from typing import Any

import msgspec
import pytest

from callgate.calls.offer import OfferedTool
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ExtraField,
    Finished,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
    Usage,
)
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest
from callgate.conversation.replay import StoredTurn, StoredTurnsModel, joined
from callgate.conversation.turn import TurnBuilder
from tests.fakes import Listener, ScriptedModel, ScriptedToolbox, calls, counter, says
from tests.stores.test_one_owner import Answering

EVENTS: list[ModelEvent] = [
    ReasoningDelta("let "),
    ReasoningDelta("me see"),
    ReasoningDelta("aside", "thinking"),
    TextDelta("one "),
    TextDelta("two \ud83d"),
    ThinkingBlock({"type": "thinking", "signature": "abc"}),
    ExtraField("annotations", [{"a": 1}]),
    TextDelta("three"),
    CallDelta(0, "call_1", "alpha", '{"n":', {"sig": {"x": 1}}),
    CallDelta(0, None, None, "1}"),
    CallWritten("alpha", {"n": 2}, id=7),
    Finished("tool_calls"),
    Usage({"total_tokens": 3}),
]


def test_the_events_of_a_turn_come_back_as_they_were() -> None:
    again = StoredTurn.decode(StoredTurn(EVENTS, "direct", reason_is_raw=False).encode())
    assert (again.lane, again.reason_is_raw) == ("direct", False)
    assert [type(event) for event in again.events] == [type(event) for event in joined(EVENTS)]
    assert [event.text for event in again.events if isinstance(event, TextDelta)] == ["one two \ud83d", "three"]


def test_raw_json_in_an_event_is_kept_as_its_value() -> None:
    event = CallDelta(0, "call_1", "alpha", "{}", {"sig": msgspec.Raw(b'{"x":1}')})
    [again] = StoredTurn.decode(StoredTurn([event], "direct", reason_is_raw=True).encode()).events
    assert again == CallDelta(0, "call_1", "alpha", "{}", {"sig": {"x": 1}})


def test_the_same_turn_is_made_of_them() -> None:
    offer = {"alpha": OfferedTool("alpha", {"type": "object"})}

    def turn(events: Any) -> Any:
        builder = TurnBuilder(offer, counter("made"))
        builder.feed(events)
        made = builder.finish()
        return made.text, made.reasoning, made.calls, made.findings, made.assistant_message()

    assert turn(StoredTurn.decode(StoredTurn(EVENTS, "direct", reason_is_raw=True).encode()).events) == turn(EVENTS)


@pytest.mark.anyio
@pytest.mark.parametrize("kept_turns", [0, 1, 2])
async def test_a_resumed_chat_ends_as_one_that_was_never_cut(kept_turns: int) -> None:
    turns = [calls(("alpha", {"n": 1})), calls(("alpha", {"n": 2}), ("beta", '{"n": ')), says("done")]
    kept: dict[int, bytes] = {}

    async def keep(number: int, turn: StoredTurn) -> None:
        kept[number] = turn.encode()

    async def play(model: Any) -> list[Any]:
        listener = Listener()
        box = ScriptedToolbox(set(), {}, alpha=Answering(), beta=Answering())
        await converse(ModelRequest(({"role": "user", "content": "go"},)), model, box, listener, new_id=counter("made"))
        return [
            listener.text,
            [type(event).__name__ for event in listener.events if type(event).__name__ != "ModelOutput"],
        ]

    whole = await play(StoredTurnsModel(ScriptedModel(*turns), (), keep))
    assert sorted(kept) == [0, 1], "each turn but the last, from which nothing follows"
    before = [StoredTurn.decode(kept[number]) for number in range(kept_turns)]
    model = ScriptedModel(*turns[kept_turns:])
    assert await play(StoredTurnsModel(model, before, keep)) == whole
    assert len(model.asked) == 3 - kept_turns
