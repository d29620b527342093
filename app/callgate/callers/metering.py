"""The meter that holds a request to the limits of its caller, as a port; and what stands in for it where there are no limits."""

from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, Protocol, Self

from callgate.conversation.listeners import Handlers, Listener


class RequestMeter(Protocol):
    """Charges a request, with one or several chats, to its caller."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The rate-limit headers of the response, or of the refusal."""
        ...

    def tally(self, answers: int = 1) -> Listener:
        """Return a listener for one more chat of this request, with a number of answers."""
        ...

    def begin_again(self) -> None:
        """Drop the chats so far, which were not answered and are replaced by others."""
        ...

    async def charge(self, key: str, nano: int, /) -> str | None:
        """Charge a call of a tool in billionths of a dollar, once for each `key`. Return why it may not run, None where it may."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class UnheardTally(Listener):
    """Counts nothing."""

    handlers: ClassVar[Handlers] = {}


class NoMeter:
    """Charges nobody, because nobody has limits."""

    headers: ClassVar[Mapping[str, str]] = {}

    def tally(self, answers: int = 1) -> Listener:
        return UnheardTally()

    def begin_again(self) -> None:
        """Drop nothing."""

    async def charge(self, key: str, nano: int, /) -> str | None:
        """Let every call run."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle nothing."""
