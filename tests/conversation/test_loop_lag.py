"""However large or broken what a model writes is, within the limits, others are served meanwhile."""

import json
import time
from collections.abc import Callable

import pytest

from callgate.chat.writers import AnswerHead, CompletionWriter
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ChatEnded,
    ChatFailed,
    Ending,
    EndingKind,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ModelOutput,
)
from callgate.conversation.loop import Rules, converse
from tests.chaos.scale import dealt, held_to, scaled
from tests.fakes import EchoTool, Listener, ScriptedModel, ScriptedToolbox, Step, ask_for, counter, says
from tests.harness.loop_probe import LoopProbe

pytestmark = pytest.mark.anyio
SIZE = Rules().argument_bytes - 1000
MOST = 0.1
"""Seconds of the processor."""
TRIES = scaled(1, 4)
"""A neighbour on the machine may hold the loop up once; what the reader itself takes is there each time."""
ROW = '{"i":1,"s":"ab"},'
SHAPES: dict[str, Callable[[], str]] = {
    "one string": lambda: '{"a":"' + "x" * (SIZE - 8) + '"}',
    "one string that is cut": lambda: '{"a":"' + "x" * (SIZE - 6),
    "rows": lambda: '{"r":[' + ROW * (SIZE // len(ROW) - 1) + "1]}",
    "rows that are cut": lambda: '{"r":[' + ROW * (SIZE // len(ROW) - 1),
    "keys": lambda: "{" + ",".join(f'"k{number:07}":1' for number in range(SIZE // 13)) + "}",
    "one key again and again": lambda: "{" + '"k":1,' * (SIZE // 6 - 1) + '"k":1}',
    "numbers that are cut": lambda: '{"r":[' + "1," * (SIZE // 2 - 10),
    "objects inside one another": lambda: '{"a":' * (SIZE // 5),
    "lists inside one another": lambda: "[" * SIZE,
    "lists beside one another": lambda: '{"a":[' + "[1]," * (SIZE // 4 - 10),
    "control characters": lambda: '{"a":"' + "x\n" * (SIZE // 2 - 10) + '"}',
    "control characters and escapes": lambda: '{"a":"' + "\\t\n" * 100_000 + '"}',
    "a bad escape at the end": lambda: '{"a":"' + "\\n" * (SIZE // 2 - 10) + '\\x"}',
    "a fence and blanks": lambda: "```a" + " " * (SIZE - 4),
    "empty objects": lambda: "{}" * (SIZE // 2),
    "a string in a string": lambda: json.dumps('{"a":"' + "x" * (SIZE // 2)),
    "halves of pairs as escapes": lambda: '{"a":"' + "\\ud83d" * (SIZE // 6 - 10) + '"}',
    "halves of pairs": lambda: '{"a":"' + "\ud83d" * (SIZE // 3 - 10) + '"}',
}
"""Made when they are needed: together they are hundreds of megabytes, and every process of a run reads this module."""


async def lag_of(text: str, *, named: bool) -> float:
    """The longest that the loop stands still while a chat gets these arguments and settles its turn."""
    pieces = [text[at : at + 65536] for at in range(0, len(text), 65536)]
    turn: list[Step] = [[CallDelta(0, None, "echo" if named else None, piece)] for piece in pieces]
    model = ScriptedModel([[CallDelta(0, "call_1", "echo")], *turn, [Finished("tool_calls")]], says("ok"))
    async with LoopProbe() as probe:
        await converse(ask_for(), model, ScriptedToolbox(echo=EchoTool()), Listener(), new_id=counter("made"))
    return probe.longest


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        pytest.param(shape, named, id=f"{shape}-{'named each time' if named else 'plain'}")
        for place, shape in enumerate(SHAPES)
        for named in dealt([False, True], 2, place)
    ],
)
async def test_arguments_at_their_limit_do_not_hold_the_loop(shape: str, named: bool) -> None:
    text = SHAPES[shape]()
    lags = [await lag_of(text, named=named) for _ in range(TRIES)]
    held_to(MOST, f"arguments keep the loop: {shape}, of the processor", min(lags))


async def test_a_whole_call_at_the_limit_does_not_hold_the_loop() -> None:
    text, lags = SHAPES["objects inside one another"](), list[float]()
    for _ in range(TRIES):
        model = ScriptedModel([[CallWritten("echo", text, "c")]], says("ok"))
        async with LoopProbe() as probe:
            await converse(ask_for(), model, ScriptedToolbox(echo=EchoTool()), Listener(), new_id=counter("made"))
        lags.append(probe.longest)
    held_to(MOST, "a whole call keeps the loop, of the processor", min(lags))


def test_a_field_and_logprobs_in_many_pieces_are_joined_in_linear_time() -> None:
    pieces: list[ModelEvent] = [ExtraField("annotations", [number]) for number in range(40_000)]
    pieces += [Logprobs({"content": [{"token": str(number)}], "refusal": None}) for number in range(40_000)]
    writer = CompletionWriter(_head=AnswerHead("run_1", 0, "m"), _diagnosis=None)
    writer.write(ModelOutput(0, pieces))
    writer.write(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None))
    began = time.process_time()
    [choice] = writer.body()["choices"]
    # copying all of it for each piece takes ten times as long
    held_to(1.0, "a field in many pieces is joined, of the processor", time.process_time() - began)
    assert choice["message"]["annotations"] == list(range(40_000))
    assert len(choice["logprobs"]["content"]) == 40_000
    assert choice["logprobs"]["refusal"] is None


async def test_calls_whose_indexes_are_far_apart_cost_no_more_than_others() -> None:
    calls: list[Step] = [[CallDelta(number * 10**15, f"c{number}", "echo", "{}")] for number in range(1000)]
    model = ScriptedModel([*calls, [Finished("tool_calls")]], says("ok"))
    listener = Listener()
    async with LoopProbe() as probe:
        await converse(
            ask_for(),
            model,
            ScriptedToolbox(echo=EchoTool()),
            listener,
            new_id=counter("made"),
            rules=Rules(max_calls_per_turn=1),
        )
    held_to(10 * MOST, "calls far apart keep the loop, of the processor", probe.longest)
    assert not isinstance(listener.events[-1], ChatFailed)
