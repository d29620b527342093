"""A large text is read in slices, with others' turns between them: no reader holds the event loop."""

import asyncio
import gc
import time

import msgspec
import pytest

from callgate.conversation.events import Finished, TextDelta
from callgate.conversation.ports import ModelRequest
from callgate.text_calls.prompted import SLICE, PromptedModel
from callgate.text_calls.prompts import FORMATS
from tests.chaos.scale import held_to, scaled
from tests.fakes import ScriptedModel
from tests.text_calls.test_quoted_calls import CALLS

pytestmark = pytest.mark.anyio

MOST_SECONDS = 0.1
"""Of the loop's own processor time between two turns of another task."""
TRIES = scaled(1, 4)
"""A processor that is shared takes longer now and then; what the reader itself takes is there each time."""
TOOL = {"type": "function", "function": {"name": "delete_all", "parameters": {"properties": {"path": {}}}}}
ASK = ModelRequest(
    messages=({"role": "user", "content": "hello"},), tools=(msgspec.Raw(msgspec.json.encode(TOOL)),), stream=False
)


async def gives_the_loop_back(format: str, text: str) -> None:
    """Fails where others have fewer turns than the text has slices."""
    turns = [await turns_of_others(format, text) for _ in range(TRIES)]
    assert min(map(len, turns)) >= len(text) // SLICE
    held_to(
        MOST_SECONDS, f"reading {len(text)} letters keeps the loop, {format}, of the processor", min(map(max, turns))
    )


async def turns_of_others(format: str, text: str) -> list[float]:
    """For how long reading a whole answer held the loop before each turn of another task."""
    turns: list[float] = []
    is_over = False
    gc.freeze()  # a collection in the middle would go through all that other tests left

    async def watch() -> None:
        while not is_over:
            start = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - start)

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    model = PromptedModel(ScriptedModel([[TextDelta(text)], [Finished("stop")]]), format)
    try:
        async with model.send(ASK) as answer:
            async for _ in answer:
                pass
    finally:
        is_over = True
        await watching
    return turns


def texts(format: str, size: int) -> list[str]:
    call = CALLS[format]
    units = (f"{call}\n", f"```\n{call}\n```\n\n- {call}\n\nThe {call[:14]} mark. ")
    return [(unit * (size // len(unit) + 1))[:size] for unit in units]


@pytest.mark.parametrize("format", sorted(FORMATS & CALLS.keys()))
async def test_a_text_of_many_calls_holds_no_loop(format):
    for text in texts(format, scaled(20_000, 60_000)):
        await gives_the_loop_back(format, text)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["hermes", "mistral"])
async def test_nor_does_a_larger_one(format):
    for text in texts(format, scaled(150_000, 1_000_000)):
        await gives_the_loop_back(format, text)
