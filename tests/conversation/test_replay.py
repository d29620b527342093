"""What is kept of a turn is the turn: the same events make the same calls, wherever they are played."""

import asyncio
import json
import zlib
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from callgate.calls.offer import OfferedTool
from callgate.conversation import replay
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ExtraField,
    Finished,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest
from callgate.conversation.replay import StoredTurn, StoredTurnsModel, joined
from callgate.conversation.turn import TurnBuilder
from callgate.conversation.usage import Usage
from callgate.untrusted.doors import TooMuch
from callgate.untrusted.readers import READ_ERRORS
from callgate.untrusted.work import TURN_TEXTS, WORK
from tests.fakes import Listener, ScriptedModel, ScriptedToolbox, calls, counter, says
from tests.state.test_one_owner import Answering

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


@pytest.mark.anyio
async def test_the_events_of_a_turn_come_back_as_they_were() -> None:
    again = await StoredTurn.decode(StoredTurn(EVENTS, "direct", reason_is_raw=False).encode())
    assert (again.lane, again.reason_is_raw) == ("direct", False)
    assert [type(event) for event in again.events] == [type(event) for event in joined(EVENTS)]
    assert [event.text for event in again.events if isinstance(event, TextDelta)] == ["one two \ud83d", "three"]


@pytest.mark.anyio
async def test_raw_json_in_an_event_is_kept_as_its_value() -> None:
    event = CallDelta(0, "call_1", "alpha", "{}", {"sig": msgspec.Raw(b'{"x":1}')})
    [again] = (await StoredTurn.decode(StoredTurn([event], "direct", reason_is_raw=True).encode())).events
    assert again == CallDelta(0, "call_1", "alpha", "{}", {"sig": {"x": 1}})


@pytest.mark.anyio
async def test_the_same_turn_is_made_of_them() -> None:
    offer = {"alpha": OfferedTool("alpha", {"type": "object"})}

    def turn(events: Any) -> Any:
        builder = TurnBuilder(offer=offer, ids=counter("made"))
        builder.feed(events)
        made = builder.finish()
        return made.text, made.reasoning, made.calls, made.findings, made.assistant_message()

    again = await StoredTurn.decode(StoredTurn(EVENTS, "direct", reason_is_raw=True).encode())
    assert turn(again.events) == turn(EVENTS)


@pytest.mark.anyio
async def test_a_turn_of_an_earlier_version_is_read_and_an_earlier_version_reads_ours() -> None:
    turn = StoredTurn(EVENTS, "direct", reason_is_raw=True)
    fields = json.loads(zlib.decompress(turn.encode()))
    assert (fields["lane"], fields["raw"], len(fields["events"])) == ("direct", True, len(joined(EVENTS)))
    again = await StoredTurn.decode(zlib.compress(json.dumps(fields).encode()))
    assert again == await StoredTurn.decode(turn.encode())
    empty = StoredTurn([], "direct", reason_is_raw=True)
    assert await StoredTurn.decode(empty.encode()) == empty


ROGUE = {
    "not compressed": b"{}",
    "cut": StoredTurn(EVENTS, "direct", reason_is_raw=True).encode()[:40],
    "no JSON": zlib.compress(b"nothing"),
    "another type": zlib.compress(b"[]"),
    "an unknown event": zlib.compress(b'{"lane":"x","raw":true,"events":[\n["System",{}]\n]}'),
    "deep in one line": zlib.compress(b"[" * 100_000),
    "deep within": zlib.compress(b'{"lane":"x","raw":true,"events":[\n["TextDelta",' + b"[" * 100_000 + b"\n]}"),
    "many values": zlib.compress(b'{"lane":"x","raw":true,"events":[\n["TextDelta",' + b"[{}," * 200_000 + b"\n]}"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("rogue", ROGUE.values(), ids=ROGUE)
async def test_a_turn_that_somebody_else_stored_cannot_be_read(rogue: bytes) -> None:
    with pytest.raises(READ_ERRORS):
        await StoredTurn.decode(rogue)


@pytest.mark.anyio
async def test_a_stored_turn_is_unpacked_so_far_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "STORED_TURN_BYTES", 1 << 20)
    with pytest.raises(TooMuch) as refused:
        await StoredTurn.decode(zlib.compress(bytes((1 << 20) + 1)))
    assert (refused.value.what, refused.value.limit) == ("bytes", 1 << 20)


@pytest.mark.anyio
async def test_the_event_loop_goes_on_while_a_turn_of_many_events_is_read() -> None:
    body = StoredTurn([CallWritten("alpha", {"n": n}) for n in range(4_000)], "direct", reason_is_raw=True).encode()
    texts = [WORK.texts]

    async def turning() -> None:
        while True:
            await asyncio.sleep(0)
            texts.append(WORK.texts)

    task = asyncio.create_task(turning())
    await StoredTurn.decode(body)
    task.cancel()
    texts.append(WORK.texts)
    assert texts[-1] - texts[0] > 4_000
    assert max(after - before for before, after in pairwise(texts)) <= TURN_TEXTS + 1


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
    before = [await StoredTurn.decode(kept[number]) for number in range(kept_turns)]
    model = ScriptedModel(*turns[kept_turns:])
    assert await play(StoredTurnsModel(model, before, keep)) == whole
    assert len(model.asked) == 3 - kept_turns
