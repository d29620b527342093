"""A response in the background is cut at every event and gone on with: its stream is one, and its answer is whole."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    CallStarted,
    ChatEvent,
    ModelOutput,
    ReasoningDelta,
    TurnStarted,
)
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest
from callgate.conversation.replay import joined
from callgate.responses.output import ResponseHead, ResponseWriter
from callgate.responses.resumed import ResumedWriter, events_in, fields_of, number_of
from tests.fakes import EchoTool, ScriptedModel, ScriptedToolbox, ScriptedTurn, calls, counter, says
from tests.harness.responses import check_events

pytestmark = pytest.mark.anyio


def thinks(text: str, turn: ScriptedTurn) -> ScriptedTurn:
    return [*([ReasoningDelta(piece, "reasoning_content")] for piece in text.split(" ")), *turn]


def turns(words: str) -> list[ScriptedTurn]:
    """Three answers of a model that never says anything twice in the same way."""
    first = calls(("echo", {"text": "a"}), ("echo", {"text": "b"}), text=f"Let me look, {words}.")
    second = calls(("echo", {"text": "c"}), text=f"And once more, {words}.")
    return [
        thinks(f"what was asked, {words}?", first),
        thinks(f"so far so good, {words}", second),
        thinks("well", says(f"It is done, {words}.")),
    ]


HEAD = ResponseHead(
    "run_" + "0" * 24,
    1,
    {"model": "m", "tools": [], "metadata": {}, "previous_response_id": None},
    {},
    str,
    lambda: False,
)


async def chat(words: str) -> list[ChatEvent]:
    """All that a chat emits."""
    heard: list[ChatEvent] = []

    async def emit(event: ChatEvent) -> None:
        heard.append(event)

    asked = ModelRequest(({"role": "user", "content": "go"},))
    await converse(asked, ScriptedModel(*turns(words)), ScriptedToolbox(echo=EchoTool()), emit, new_id=counter("made"))
    return heard


def played_again(kept: Sequence[ChatEvent], asked_again: Sequence[ChatEvent], turns: int) -> list[ChatEvent]:
    """A chat whose first turns are given from what was kept of them, all at once, and whose others are asked again."""
    events: list[ChatEvent] = []
    for event in kept[: _beginning(kept, turns)]:
        if type(event) is ModelOutput and events and type(before := events[-1]) is ModelOutput:
            events[-1] = ModelOutput(event.turn, joined([*before.events, *event.events]))
        else:
            events.append(event)
    return [*events, *asked_again[_beginning(asked_again, turns) :]]


def _beginning(events: Sequence[ChatEvent], turn: int) -> int:
    starts = [at for at, event in enumerate(events) if type(event) is TurnStarted]
    return starts[turn] if turn < len(starts) else len(events) - 1  # but for the end


def events_written(writer: ResponseWriter, events: Sequence[ChatEvent]) -> list[bytes]:
    writer.begins_at_once = True
    return events_in(b"".join(map(writer.write, events)))


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or ())


@pytest.mark.parametrize("shows_thinking", [True, False])
async def test_cut_at_any_event_its_stream_goes_on_with_the_next_number(shows_thinking: bool) -> None:
    head = msgspec.structs.replace(HEAD, shows_thinking=shows_thinking)
    first, again = await chat("one"), await chat("two")
    whole = events_written(ResponseWriter(head, None), first)
    writer, least = ResponseWriter(head, None), 0
    writer.begins_at_once = True
    kept_before: list[int] = []
    """How many turns are kept for certain when an event is sent: those whose calls have begun."""
    for event in first:
        least = event.turn + 1 if type(event) is CallStarted else least
        count = len(events_in(writer.write(event)))
        kept_before += [least] * count
    tried = 0
    for cut in range(2, len(whole)):  # the first two are sent at once
        begun = whole[:cut]
        for kept in range(kept_before[cut - 1], 3):  # what was sent may be behind what is kept
            resumed = ResumedWriter(head, None, begun, kept)
            rest = events_written(resumed, played_again(first, again, kept))
            events = [*map(fields_of, begun), *map(fields_of, rest)]
            check_events(events, cut_off=True)
            assert number_of(rest[0]) == cut
            last = events[-1]["response"]
            words = ["one"] * kept + ["two"] * (3 - kept)
            assert text_of(last) == f"Let me look, {words[0]}.And once more, {words[1]}.It is done, {words[2]}."
            assert [item["type"] for item in last["output"] if item["type"] != "reasoning"] == [
                *("message", "mcp_call", "mcp_call"),
                *("message", "mcp_call", "message"),
            ]
            tried += 1
    assert tried > 60


async def test_what_fails_afterwards_fails_behind_what_was_sent() -> None:
    whole = events_written(ResponseWriter(HEAD, None), await chat("one"))
    for cut in range(1, len(whole)):
        resumed = ResumedWriter(HEAD, None, whole[:cut], 0)
        rest = events_in(resumed.error(ChatError(500, "no")))
        assert [number_of(event) for event in rest] == [cut, cut + 1]
        assert fields_of(rest[-1])["response"]["status"] == "failed"


def test_nothing_of_a_stream_that_is_no_event_of_a_response_is_taken_for_one() -> None:
    assert events_in(b'event: a\ndata: {"sequence_number":3}\n\ndata: [DONE]\n\n') == [
        b'event: a\ndata: {"sequence_number":3}\n\n'
    ]
    assert number_of(b"event: a\ndata: {}\n\n") == -1
