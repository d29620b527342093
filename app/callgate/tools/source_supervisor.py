"""Keeps a source open: one task per source opens it, closes it, and opens it again when it is lost.

One task, because MCP sessions and task groups have to be left in the task that entered them. An event ends it; it is cancelled
only while opening, or when it does not end in time.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec.structs import replace

from callgate.http.backoff import full_jitter
from callgate.tools.concurrency import times_cancelled
from callgate.tools.executor import Source

OPEN_SECONDS = 30.0
"""The timeout of one attempt to open; a server in a container or by npx may have to be downloaded first."""
CLOSE_SECONDS = 5.0
CANCEL_SECONDS = 1.0
STEADY_SECONDS = 60.0
"""After so long a source counts as stable, so that losing it is a first failure again."""
FIRST_DELAY = 0.5
LONGEST_DELAY = 60.0


class SourceState(StrEnum):
    OPENING = "opening"
    READY = "ready"
    DOWN = "down"
    CLOSED = "closed"


class SourceStatus(msgspec.Struct, frozen=True):
    """The state of a source."""

    name: str
    kind: str
    state: SourceState = SourceState.OPENING
    error: str = ""
    failures: int = 0
    """Failed attempts since it was last open."""
    seconds: float | None = None
    """How long it took to open it the last time."""
    since: float = 0.0
    """When it became ready or unready, in seconds since 1970."""

    @property
    def has_tools(self) -> bool:
        """True from the first time on that it was open. While it is away its tools stay on offer, and say so when they are called: to
        a model that has used one it would be a lie that there is none of that name."""
        if self.state is SourceState.READY:
            return True
        return self.seconds is not None and self.state is not SourceState.CLOSED


@runtime_checkable
class CanBeLost(Protocol):
    """A source that may be lost by itself."""

    async def lost(self) -> str:
        """Wait until the open source is lost; return the reason. It is then closed and opened again.

        Raises `MustRenew` where the source only has to be opened again; its tools stay offered meanwhile.
        """
        ...


@runtime_checkable
class CanListAgain(Protocol):
    """A source that is open, and may have more tools now that somebody has logged in."""

    def list_again(self) -> None: ...


@runtime_checkable
class BeginsAnew(Protocol):
    """A source that somebody is logged in to, who may be somebody else the next time."""

    def begin_anew(self, identity: Hashable) -> None:
        """Forget what is of an identity: its session, and its kept results."""
        ...


class MustRenew(Exception):
    """Raised where an open source has to be closed and opened again without a failure."""


Delay: TypeAlias = Callable[[int], float]
"""Returns the seconds to wait after a number of failures."""


reopening_delay: Delay = partial(full_jitter, first=FIRST_DELAY, longest=LONGEST_DELAY, least=0.1)


class SourceSupervisor:
    """Keeps one source open until it is stopped."""

    def __init__(
        self,
        source: Source,
        on_status: Callable[[SourceStatus], None],
        *,
        delay: Delay = reopening_delay,
        open_seconds: float = OPEN_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self.source = source
        self.status = SourceStatus(source.name, source.kind)
        self._on_status = on_status
        self._delay = delay
        self._open_seconds = open_seconds
        self._close_seconds = close_seconds
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._tried = asyncio.Event()
        self._renewing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=f"source {self.source.name}")

    async def tried(self) -> None:
        """Wait for the end of the first attempt to open."""
        await self._tried.wait()

    def hurry(self) -> None:
        """Open a source that is down now, and not after a pause: what kept it closed is over. One that is open is told."""
        self._hurry.set()
        if self.status.state is SourceState.READY and isinstance(self.source, CanListAgain):
            self.source.list_again()

    async def stop(self) -> bool:
        """Close the source. False if it did not end although it was cancelled; then it is abandoned."""
        self._stopping.set()
        if self._task is None:
            return True
        if self.status.state is not SourceState.OPENING:
            await asyncio.wait([self._task], timeout=self._close_seconds)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_SECONDS)
        return self._task.done()

    async def _keep(self) -> None:
        try:
            while not self._stopping.is_set():
                await self._once()
        finally:
            self._tried.set()
            self._say(SourceState.CLOSED, self.status.error)

    async def _once(self) -> None:
        """Open it, wait until it is lost, close it; after a failure wait before the next attempt."""
        if not self._renewing:
            self._say(SourceState.OPENING, self.status.error)
        self._renewing = False
        clock = asyncio.get_running_loop().time
        began = clock()
        failure = await self._open_source()
        if failure is None:
            self.status = replace(self.status, seconds=clock() - began)
            failure = await self._stay()
        if failure is None:
            return
        self.status = replace(self.status, failures=self.status.failures + 1)
        self._say(SourceState.DOWN, failure)
        self._tried.set()
        await self._paused(self._delay(self.status.failures))

    async def _paused(self, seconds: float) -> None:
        """Wait for some time, less if there is a reason to hurry or to stop."""
        waits = [asyncio.create_task(event.wait()) for event in (self._stopping, self._hurry)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hurry.clear()
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)

    async def _open_source(self) -> str | None:
        cancelled_before = times_cancelled()
        try:
            async with asyncio.timeout(self._open_seconds):
                await self.source.open()
        except TimeoutError:
            return f"it did not open within {self._open_seconds:g} s"
        except asyncio.CancelledError:
            if times_cancelled() > cancelled_before:
                raise
            return "opening it was cancelled from within"
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a server of any kind may fail in any way, and must not stop the others
            return reason(error)
        return None

    async def _stay(self) -> str | None:
        """Wait for the end of the source; return None when it was stopped, else why it was lost."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if self.status.state is not SourceState.READY:
            self._say(SourceState.READY)
        self._tried.set()
        try:
            lost = await self._until_lost()
        except MustRenew:
            self._renewing = not self._stopping.is_set()
            await self._closed()
            return None
        if clock() - began >= STEADY_SECONDS:
            self.status = replace(self.status, failures=0)
        self.status = replace(
            self.status, state=SourceState.DOWN, since=time.time()
        )  # its tools are not offered while it closes
        trouble = await self._closed()
        if lost is None:
            self.status = replace(self.status, error=trouble or "")
            return None
        if trouble:
            return f"{lost}; {trouble}"
        return lost

    async def _until_lost(self) -> str | None:
        if not isinstance(self.source, CanBeLost):
            await self._stopping.wait()
            return None
        stopping = asyncio.create_task(self._stopping.wait())
        lost = asyncio.create_task(self.source.lost())
        try:
            await asyncio.wait([stopping, lost], return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                return None
            if isinstance(error := lost.exception(), MustRenew):
                raise error
            if error is None:
                return lost.result()
            return reason(error)
        finally:
            for task in (stopping, lost):
                task.cancel()
            await asyncio.wait([stopping, lost])

    async def _closed(self) -> str | None:
        cancelled_before = times_cancelled()
        try:
            await self.source.close()
        except asyncio.CancelledError:
            if times_cancelled() > cancelled_before:
                raise
            return "closing it was cancelled from within"
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - as above; what it leaves behind is its own
            return f"closing it failed: {reason(error)}"
        return None

    def _say(self, state: SourceState, error: str = "") -> None:
        if (state is SourceState.READY) is not (self.status.state is SourceState.READY) or not self.status.since:
            self.status = replace(self.status, since=time.time())
        self.status = replace(self.status, state=state, error=error)
        self._on_status(self.status)


class CannotOpen(Exception):
    """Raised by a source with a reason for people."""


def reason(error: BaseException | None) -> str:
    """Return the first error in nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = str(error)
    if isinstance(error, CannotOpen):
        return message
    if message:
        return f"{type(error).__name__}: {message}"
    return type(error).__name__
