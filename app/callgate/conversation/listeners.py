"""Listeners to a chat. Each names the events it handles, so that an unhandled event costs one table lookup."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias, TypeVar

from callgate.conversation.events import ChatEvent

Handlers: TypeAlias = dict[type[ChatEvent], Callable[[Any, Any], None]]
"""The method that handles an event, by the event's type."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def handles(table: dict[Any, Callable[..., Any]], *kinds: type) -> Callable[[_Method], _Method]:
    """Decorate a method that handles events of these types: it is entered into the table."""

    def enter(method: _Method) -> _Method:
        table.update(dict.fromkeys(kinds, method))
        return method

    return enter


class Listener:
    """Handles some of the events of a chat."""

    __slots__ = ()

    handlers: ClassVar[Handlers] = {}

    def handle(self, event: ChatEvent) -> None:
        """Handle one event. `handlers_of` is cheaper where several listeners get many."""
        if (handler := self.handlers.get(type(event))) is not None:
            handler(self, event)


def handlers_of(
    listeners: Sequence[Listener], also: tuple[tuple[type[ChatEvent], bool], ...] = ()
) -> Mapping[type[ChatEvent], tuple[Sequence[tuple[int, Callable[..., None]]], bool]]:
    """Return, for each handled event type, the unbound handlers with the positions of their listeners, and whether the writer
    of the answer gets it too. `also`: events that always have an entry, and whether the writer gets them. Bound methods
    would keep the listeners in reference cycles."""
    return _table(tuple(map(type, listeners)), also)


@lru_cache(maxsize=64)
def _table(
    kinds: tuple[type[Listener], ...], also: tuple[tuple[type[ChatEvent], bool], ...]
) -> dict[type[ChatEvent], tuple[list[tuple[int, Callable[..., None]]], bool]]:
    table: dict[type[ChatEvent], tuple[list[tuple[int, Callable[..., None]]], bool]]
    table = {event: ([], is_written) for event, is_written in also}
    for place, kind in enumerate(kinds):
        for event, handler in kind.handlers.items():
            table.setdefault(event, ([], True))[0].append((place, handler))
    return table
