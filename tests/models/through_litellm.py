"""For tests of the lanes: what litellm leaves behind and warns of, and an answer read to its end as the loop reads it."""

import asyncio
import itertools

import msgspec
import pytest

from callgate.calls.offer import OfferedTool
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import StreamEnd
from callgate.conversation.turn import TurnBuilder

MARKS = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("litellm_is_closed"),
    pytest.mark.leaves("litellm", why="litellm keeps its thread for logging"),
    # litellm and what it loads; none of it is ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]
both_ways = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


async def turn_of(model, request):
    """The turn that an answer comes to, what broke it off, if anything did, and whether its reason was the provider's own."""
    offer = {name: OfferedTool(name, parameters) for name, parameters in map(_offered, request.tools)}
    building = TurnBuilder(offer=offer, ids=map("made_{}".format, itertools.count()).__next__)
    end, broke = StreamEnd.DONE, None
    async with asyncio.timeout(60), model.send(request) as answer:
        try:
            async for batch in answer:
                building.feed(batch)
        except BrokenOff as error:
            end, broke = StreamEnd.ERROR if error.transport_error else StreamEnd.EOF, error
        raw = answer.reason_is_raw
    return building.finish(end), broke, raw


async def refused(model, request):
    with pytest.raises(ChatError) as caught:
        await turn_of(model, request)
    return caught.value


def _offered(raw):
    function = msgspec.json.decode(raw)["function"]
    return function["name"], function["parameters"]
