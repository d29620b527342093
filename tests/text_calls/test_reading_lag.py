"""A large text is read in slices, with others' turns between them: no reader holds the event loop."""

import asyncio
import gc
import time

import msgspec
import pytest

from callgate.conversation.events import Finished, TextDelta
from callgate.conversation.ports import ModelRequest
from callgate.text_calls.prompted import PromptedModel
from callgate.text_calls.prompts import FORMATS
from tests.fakes import ScriptedModel
from tests.text_calls.test_quoted_calls import CALLS

pytestmark = pytest.mark.anyio

MOST_SECONDS = 0.1
"""Of the loop's own processor time between two turns of another task."""
TRIES = 4
"""A processor that is shared takes longer now and then; what the reader itself takes is there each time."""
TOOL = {"type": "function", "function": {"name": "delete_all", "parameters": {"properties": {"path": {}}}}}
ASK = ModelRequest(
    messages=({"role": "user", "content": "hello"},), tools=(msgspec.Raw(msgspec.json.encode(TOOL)),), stream=False
)


async def holds_the_loop(format: str, text: str) -> list[float]:
    """The longest turn of each try, where none of them was short enough."""
    turns: list[float] = []
    while len(turns) < TRIES:
        turns.append(await longest_turn(format, text))
        if turns[-1] < MOST_SECONDS:
            return []
    return turns


async def longest_turn(format: str, text: str) -> float:
    """The longest time for which reading a whole answer holds the loop."""
    longest, is_over = 0.0, False
    gc.freeze()  # a collection in the middle would go through all that other tests left

    async def watch() -> None:
        nonlocal longest
        while not is_over:
            start = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - start)

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    model = PromptedModel(ScriptedModel([[TextDelta(text)], [Finished("stop")]]), format)
    try:
        async with model.ask(ASK) as answer:
            async for _ in answer:
                pass
    finally:
        is_over = True
        await watching
    return longest


def texts(format: str, size: int) -> list[str]:
    call = CALLS[format]
    units = (f"{call}\n", f"```\n{call}\n```\n\n- {call}\n\nThe {call[:14]} mark. ")
    return [(unit * (size // len(unit) + 1))[:size] for unit in units]


@pytest.mark.parametrize("format", sorted(FORMATS & CALLS.keys()))
async def test_a_text_of_many_calls_holds_no_loop(format):
    for text in texts(format, 150_000):
        assert not await holds_the_loop(format, text)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["hermes", "mistral"])
async def test_nor_does_a_megabyte(format):
    for text in texts(format, 1_000_000):
        assert not await holds_the_loop(format, text)
