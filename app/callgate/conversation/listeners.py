"""Who listens to a chat, and to what. A listener has one method for each kind of event it wants, so that an event that
nobody wants costs one look into a table."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from callgate.conversation.events import ChatEvent

Hears: TypeAlias = Mapping[type[ChatEvent], Callable[[Any, Any], None]]
"""What is done with an event, by its kind."""


class Listener:
    """Someone who cares what happens in a chat, but not for every word of it."""

    __slots__ = ()

    hears: ClassVar[Hears] = {}

    def hear(self, event: ChatEvent) -> None:
        """For whoever has but one event to tell, or one listener to tell it to."""
        if (told := self.hears.get(type(event))) is not None:
            told(self, event)


def who_hears(listeners: Sequence[Listener]) -> Mapping[type[ChatEvent], Sequence[tuple[int, Callable[..., None]]]]:
    """Which of these listeners is told of what, by their places. Tables of classes and not of methods that are bound:
    those would hold their listeners in rings."""
    return _told(tuple(map(type, listeners)))


@lru_cache(maxsize=64)
def _told(kinds: tuple[type[Listener], ...]) -> dict[type[ChatEvent], list[tuple[int, Callable[..., None]]]]:
    told: dict[type[ChatEvent], list[tuple[int, Callable[..., None]]]] = {}
    for place, kind in enumerate(kinds):
        for event, hear in kind.hears.items():
            told.setdefault(event, []).append((place, hear))
    return told
