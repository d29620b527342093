"""Answers of models, read for tests: until they break off, and their text."""

import asyncio

import pytest

from callgate.conversation.errors import BrokenOff
from callgate.conversation.events import TextDelta


async def events_until_broken_off(model, request):
    got = []
    async with asyncio.timeout(60), model.send(request) as answer:
        try:
            async for batch in answer:
                got += batch
        except BrokenOff as error:
            return got, error
    pytest.fail("it was not broken off")


def text_of(found):
    return "".join(event.text for event in found if isinstance(event, TextDelta))
