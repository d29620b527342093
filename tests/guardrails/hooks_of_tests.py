"""Hooks that tests name by their import paths."""

import asyncio
from typing import Any

from callgate.guardrails.verdicts import Block, GuardEvent, Mask, Pass

events: list[GuardEvent] = []
"""What `notes` was shown. Tests that look clear it first."""


async def notes(event: GuardEvent) -> Pass:
    events.append(event)
    return Pass()


async def masks(event: GuardEvent) -> Mask:
    return Mask([text.replace("secret", "******") for text in event.texts], kinds=["word"])


def masks_in_a_thread(event: GuardEvent) -> Mask:
    return Mask([text.replace("secret", "******") for text in event.texts])


async def blocks(event: GuardEvent) -> Pass | Block:
    if any("secret" in text for text in event.texts):
        return Block("it speaks of what it should not")
    return Pass()


async def raises(event: GuardEvent) -> Pass:
    message = f"planted {event.texts}"
    raise ValueError(message)


async def exits(event: GuardEvent) -> Pass:
    raise SystemExit(1)


async def hangs(event: GuardEvent) -> Pass:
    await asyncio.Event().wait()
    return Pass()


async def returns_nothing(event: GuardEvent) -> Any:
    return None


async def returns_a_text(event: GuardEvent) -> Any:
    return "pass"


async def masks_too_few(event: GuardEvent) -> Mask:
    return Mask([])


async def masks_with_numbers(event: GuardEvent) -> Any:
    return Mask([1 for _ in event.texts])  # type: ignore[misc]


class Filter:
    """An object with a `check`."""

    async def check(self, event: GuardEvent) -> Mask:
        return await masks(event)


def a_filter(event: GuardEvent) -> Mask:
    """Stands for an object at import."""
    return masks_in_a_thread(event)
