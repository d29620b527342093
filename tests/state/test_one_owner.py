"""Whoever owns which tools, the model reads the same history: chats made up of any turns, played with all tools in one
hand and divided between server and client, over as many requests as that takes."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.outcome import Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallsHandedBack, ChatEvent, ReasoningDelta
from callgate.conversation.loop import Rules, converse
from callgate.conversation.ports import Message, ModelRequest
from callgate.conversation.turn_recovery import Recovery
from callgate.state.conversations import Conversations
from callgate.state.local.memory import MemoryStore
from callgate.tools.executor import CallContext
from tests.fakes import Listener, ScriptedModel, ScriptedToolbox, calls, counter, says

TOOLS = ("alpha", "beta", "gamma", "delta")
RULES = Rules(max_iterations=100, max_failed_turns=100, max_repeats=100)
QUESTION = {"role": "user", "content": "go"}


def result_of(name: str, arguments: Any) -> str:
    """What a tool answers, whoever runs it."""
    return f"{name}: {json.dumps(arguments, sort_keys=True)}"


class Answering:
    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        return Returned(result_of(call.name, call.arguments))


@dataclass(frozen=True)
class Made:
    """A chat: its turns, and the tools that are the client's."""

    turns: Sequence[Any]
    clients: frozenset[str]


@st.composite
def chats(draw: st.DrawFn) -> Made:
    clients = draw(st.frozensets(st.sampled_from(TOOLS)))
    counted = draw(st.booleans())
    turns: list[Any] = []
    for number in range(draw(st.integers(1, 6))):
        wanted = draw(st.lists(st.tuples(st.sampled_from(TOOLS), st.integers(0, 3)), min_size=1, max_size=4))
        broken = draw(st.booleans())
        written: list[tuple[str, Any]] = [
            (name, '{"n": ' if broken and name not in clients and place == 0 else {"n": n})
            for place, (name, n) in enumerate(wanted)
        ]
        # Some providers count the ids of every turn from nought.
        ids = [f"call_{place}" if counted else f"call_{number}_{place}" for place in range(len(wanted))]
        turn = calls(*written, text=draw(st.sampled_from(["", "So. "])), ids=ids)
        turns.append([[ReasoningDelta("hm")], *turn] if draw(st.booleans()) else turn)
    return Made([*turns, says("done")], clients)


async def owned(chat: Made) -> list[bytes]:
    """The histories of one owner."""
    model = ScriptedModel(*chat.turns)
    box = ScriptedToolbox(set(), {}, **dict.fromkeys(TOOLS, Answering()))
    await converse(ModelRequest((raw(QUESTION),)), model, box, Listener(), new_id=counter("made"), rules=RULES)
    return [encoded(asking.ask.messages) for asking in model.asked]


async def divided(chat: Made) -> list[bytes]:
    """The histories of two owners, the client coming back with its results until it gets an answer."""
    model = ScriptedModel(*chat.turns)
    kept = Conversations(MemoryStore(1000, 10_000_000), 60.0, counter("fresh"))
    history: list[Any] = [QUESTION]
    while True:
        box = ScriptedToolbox(
            set(chat.clients), {}, **{name: Answering() for name in TOOLS if name not in chat.clients}
        )
        listener = Listener()
        sent = [raw(message) for message in history]

        async def on_event(event: ChatEvent, listener: Listener = listener, sent: list[Any] = sent) -> None:
            if isinstance(event, CallsHandedBack):
                event = await kept.keep("caller", event, sent)
            await listener(event)

        messages = await kept.with_hidden_turns("caller", sent, {}, Recovery(box, listener, 64), 10_000_000)
        await converse(ModelRequest(messages), model, box, on_event, new_id=counter("made"), rules=RULES)
        handed = listener.of(CallsHandedBack)
        if not handed:
            return [encoded(asking.ask.messages) for asking in model.asked]
        history += as_a_client(handed[0], listener.text)


def as_a_client(handed: CallsHandedBack, text: str) -> list[dict[str, Any]]:
    function = [{"name": call.name, "arguments": call.text} for call in handed.calls]
    tool_calls = [
        {"id": call.id, "type": "function", "function": what} for call, what in zip(handed.calls, function, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": result_of(call.name or "", json.loads(call.text))}
        for call in handed.calls
    ]
    return [{"role": "assistant", "content": text or None, "tool_calls": tool_calls}, *results]


def raw(message: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(message))


def encoded(messages: Sequence[Message]) -> bytes:
    return msgspec.json.encode(list(messages))


@settings(max_examples=80, deadline=None)
@given(chats())
def test_the_model_reads_what_it_would_read_if_all_tools_had_one_owner(chat: Made) -> None:
    assert asyncio.run(divided(chat)) == asyncio.run(owned(chat))
