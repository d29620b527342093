"""Listeners to a chat. Each names the events it handles, so that an unhandled event costs one table lookup."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

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
    handled = handlers_of(listeners, exceptions).get

    # No coroutine, because every chunk of every answer goes through here; the caller waits for the writer itself.
    def emit_to_all(event: ChatEvent) -> Awaitable[None]:
        if (entry := handled(type(event))) is None:
            return emit(event)  # as with all that a model says
        if keep is not None and type(event) is CallsHandedBack:
            return _keep_and_emit(event, keep, listeners, emit)
        handlers, is_written = entry
        for place, handle in handlers:
            handle(listeners[place], event)
        if is_written:
            return emit(event)
        return NOTHING

    return emit_to_all


async def _keep_and_emit(handed: CallsHandedBack, keep: Keep, listeners: Sequence[Listener], emit: Emit) -> None:
    handed = await keep(handed)
    for listener in listeners:
        listener.handle(handed)
    await emit(handed)


def handlers_of(
    listeners: Sequence[Listener], also: Exceptions = ()
) -> Mapping[type[ChatEvent], tuple[Sequence[tuple[int, Callable[..., None]]], bool]]:
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
