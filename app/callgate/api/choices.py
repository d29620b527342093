"""The chats of a request with several choices, side by side."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from callgate.conversation.events import ChatEvent, ModelEvent
from callgate.conversation.ports import Emit, TurnModel
from callgate.conversation.preloaded_model import PreloadedModel
from callgate.conversation.side_by_side import side_by_side

CHOICES_AT_ONCE = 8
"""Concurrent chats of one request: each has a copy of the request, and a connection to the model."""


class ForChoice(msgspec.Struct, frozen=True):
    """An event of one of several chats of a request."""

    choice: int
    event: ChatEvent


async def chat_side_by_side(models: Sequence[TurnModel], chat: Callable[[int, TurnModel], Awaitable[None]]) -> None:
    """Run a chat with each model. `chat` is given the number of its choice."""
    places = asyncio.Semaphore(CHOICES_AT_ONCE)

    async def in_place(choice: int, model: TurnModel) -> None:
        for _ in range(choice):
            await asyncio.sleep(0)  # starting a chat takes a while, during which other requests wait
        async with places:
            await chat(choice, model)

    try:
        await side_by_side(in_place(choice, model) for choice, model in enumerate(models))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the client gets one error; it cannot be answered in parts


def preloaded(name: str, answers: Sequence[Sequence[ModelEvent]]) -> Sequence[TurnModel]:
    """Return models that give the answers of one that gave them all at once."""
    return [PreloadedModel(name, answer) for answer in answers]


def for_choice(choice: int, emit: Callable[[Any], Awaitable[None]]) -> Emit:
    def emit_for_choice(event: ChatEvent) -> Awaitable[None]:
        return emit(ForChoice(choice, event))

    return emit_for_choice
