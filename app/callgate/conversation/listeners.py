"""Listeners to a chat. Each names the events it handles, so that an unhandled event costs one table lookup."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec

from callgate.conversation.events import CallsHandedBack, ChatEvent, TurnEnded, TurnStarted
from callgate.conversation.ports import Emit

Keep: TypeAlias = Callable[[CallsHandedBack], Awaitable[CallsHandedBack]]
"""Stores what belongs to calls that go back to the client, and returns the event that is emitted."""
Exceptions: TypeAlias = tuple[tuple[type[ChatEvent], bool], ...]
"""Events that do not go straight to the writer of the answer even where no listener handles them, and whether the writer gets them
at all."""
WITHOUT_TURNS: Final[Exceptions] = ((TurnStarted, False), (TurnEnded, False), (CallsHandedBack, True))
"""For most writers, which ignore turns."""
WITH_TURNS: Final[Exceptions] = ((CallsHandedBack, True),)

Handlers: TypeAlias = dict[type[ChatEvent], Callable[[Any, Any], None]]
"""The method that handles an event, by the event's type."""
HandlersByEvent: TypeAlias = Mapping[type[ChatEvent], tuple[Sequence[tuple[int, Callable[..., None]]], bool]]
"""The unbound handlers of an event with the positions of their listeners, and whether the writer of the answer gets it too."""

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


class _Nothing:
    """An awaitable that is done at once. Cheaper than a coroutine, for thousands of them."""

    __await__: Callable[[], Generator[None, None, None]] = staticmethod(partial(iter, ()))


NOTHING: Final[Awaitable[None]] = _Nothing()


def emit_to_listeners(
    listeners: Sequence[Listener], emit: Emit, exceptions: Exceptions = WITHOUT_TURNS, keep: Keep | None = None
) -> Emit:
    """Emit to the listeners, then to the writer. The model's words go to the writer alone: there are thousands of them.

    `keep` gets calls that go back to the client before any listener does.
    """
    return _Emitter(_listeners=listeners, _emit=emit, _table=handlers_of(listeners, exceptions), _keep=keep).emit


class _Emitter(msgspec.Struct, eq=False, kw_only=True):
    """Emits to listeners and to a writer."""

    _listeners: Sequence[Listener]
    _emit: Emit
    _table: HandlersByEvent
    _keep: Keep | None

    # No coroutine, because every event of every answer goes through here; the caller waits for the writer itself.
    def emit(self, event: ChatEvent) -> Awaitable[None]:
        entry = self._table.get(type(event))
        if entry is None:
            return self._emit(event)  # as with all that a model says
        if self._keep is not None and type(event) is CallsHandedBack:
            return _keep_and_emit(event, self._keep, self._listeners, self._emit)
        listeners = self._listeners
        handlers, is_written = entry
        for place, handle in handlers:
            handle(listeners[place], event)
        if is_written:
            return self._emit(event)
        return NOTHING


async def _keep_and_emit(handed: CallsHandedBack, keep: Keep, listeners: Sequence[Listener], emit: Emit) -> None:
    handed = await keep(handed)
    for listener in listeners:
        listener.handle(handed)
    await emit(handed)


def handlers_of(listeners: Sequence[Listener], also: Exceptions = ()) -> HandlersByEvent:
    """Return, for each handled event type, the unbound handlers with the positions of their listeners, and whether the writer
    of the answer gets it too. `also`: events that always have an entry, and whether the writer gets them. Bound methods
    would keep the listeners in reference cycles."""
    return _table(tuple(map(type, listeners)), also)


@lru_cache(maxsize=64)
def _table(
    kinds: tuple[type[Listener], ...], also: Exceptions
) -> dict[type[ChatEvent], tuple[list[tuple[int, Callable[..., None]]], bool]]:
    table: dict[type[ChatEvent], tuple[list[tuple[int, Callable[..., None]]], bool]]
    table = {event: ([], is_written) for event, is_written in also}
    for place, kind in enumerate(kinds):
        for event, handler in kind.handlers.items():
            table.setdefault(event, ([], True))[0].append((place, handler))
    return table
