"""Finds the first content of a model's answer. Until then the turn may be asked again."""

from collections.abc import Sequence

from callgate.conversation.events import (
    CharactersLost,
    ChoiceIgnored,
    EndNotSeen,
    ModelEvent,
    PromptedCalling,
    ProviderHead,
    Usage,
)

_NO_PART = frozenset({ProviderHead, PromptedCalling, Usage, ChoiceIgnored, CharactersLost, EndNotSeen})
"""Events that are no content: an id, a role or a token count may come before a failure."""


def is_content(event: ModelEvent) -> bool:
    """True if an event is content of an answer."""
    return type(event) not in _NO_PART


def first_content_event(batch: Sequence[ModelEvent]) -> ModelEvent | None:
    """Return the first of these that is content."""
    for event in batch:
        if type(event) not in _NO_PART:
            return event
    return None


def has_begun(batch: Sequence[ModelEvent]) -> bool:
    return first_content_event(batch) is not None
