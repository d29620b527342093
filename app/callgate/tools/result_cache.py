"""Keeps the results of tools that only read for some seconds, so that equal calls are one.

A result is one caller's, unless its operator says that it is the same for all. It is kept under the version of its tool, so that a
changed description or schema begins anew, as does another reading of the config. Equal calls at the same time wait for one of them.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from callgate.callers.caller import Principal
from callgate.calls.outcome import Failed, FailureKind, Outcome, ResultFacts, Returned
from callgate.calls.states import ReadyCall
from callgate.tools.executor import CallContext, Executor

MAX_BYTES: Final = 32 * 1024 * 1024
"""Of all kept results; those that were used the longest ago go first."""
MAX_BYTES_OF_ONE: Final = 256 * 1024
OVERHEAD: Final = 512
"""What one result takes beside its text."""

_encode = msgspec.json.Encoder(order="sorted").encode


class KeptResult(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One result, and the call that it is of."""

    outcome: Returned
    call_id: str
    since: float
    until: float
    size: int


class ResultCache:
    """The results of one reading of the config."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, KeptResult] = OrderedDict()
        self._bytes = 0
        self.flights: dict[bytes, asyncio.Future[tuple[Outcome, str] | None]] = {}
        """The calls under way, by what is equal of them: each is set to its outcome and its id, or to None where it was cancelled,
        or refused for its caller."""

    def find(self, key: bytes) -> KeptResult | None:
        kept_result = self._kept.get(key)
        if kept_result is None:
            return None
        if kept_result.until <= self.now():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept_result

    def keep(self, key: bytes, outcome: Outcome, call_id: str, seconds: float) -> None:
        """Keep a result, unless it is a failure, was cut, or is large."""
        if not isinstance(outcome, Returned) or outcome.cut_bytes:
            return
        size = OVERHEAD + len(outcome.text) * 2 + sum(len(image.data) for image in outcome.images)
        if size - OVERHEAD > MAX_BYTES_OF_ONE:
            return
        self._drop(key)
        now = self.now()
        self._kept[key] = KeptResult(outcome=outcome, call_id=call_id, since=now, until=now + seconds, size=size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def size(self) -> int:
        """Return the bytes of all kept results."""
        return self._bytes

    def _drop(self, key: bytes) -> None:
        kept_result = self._kept.pop(key, None)
        if kept_result is not None:
            self._bytes -= kept_result.size


class CachedTool:
    """Runs calls by another executor, unless the result of an equal call is kept or on its way."""

    def __init__(
        self,
        executor: Executor,
        cache: ResultCache,
        *,
        version: bytes,
        seconds: float,
        shared: bool,
        identify: Callable[[Principal], str] | None = None,
        login: Callable[[], int] | None = None,
    ) -> None:
        """`version`: differs with all that a result depends on beside the arguments and the caller. `shared`: results are the same
        for all callers. `identify`: returns as whom a call is made at its server, where that knows its callers: never shared. `login`: returns another number after each login of the operator."""
        self._executor = executor
        self._cache = cache
        self._version = version
        self._seconds = seconds
        self._shared = shared and identify is None
        self._identify = identify
        self._login = login

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        cache = self._cache
        key = self._key(call, context)
        while True:
            kept_result = cache.find(key)
            if kept_result is not None:
                age = round(cache.now() - kept_result.since, 1)
                return _said_of(kept_result.outcome, cache="hit", cached_seconds=age, cached_of=kept_result.call_id)
            flight = cache.flights.get(key)
            if flight is None:
                return _said_of(await self._run(key, call, context), cache="miss")
            landed = await asyncio.shield(flight)
            if landed is not None:
                outcome, call_id = landed
                return _said_of(outcome, cache="shared", cached_of=call_id)

    async def _run(self, key: bytes, call: ReadyCall, context: CallContext) -> Outcome:
        flight = asyncio.get_running_loop().create_future()
        self._cache.flights[key] = flight
        landed: tuple[Outcome, str] | None = None
        try:
            outcome = await self._executor.execute(call, context)
            self._cache.keep(key, outcome, call.id, self._seconds)
            if not (self._shared and isinstance(outcome, Failed) and outcome.kind is FailureKind.REFUSED):
                landed = (outcome, call.id)  # what one caller may not, another may
        finally:
            del self._cache.flights[key]
            flight.set_result(landed)
        return outcome

    def _key(self, call: ReadyCall, context: CallContext) -> bytes:
        caller = "" if self._shared else f"of {context.caller}"
        if self._identify is not None:
            caller += f" as {self._identify(context.principal)}"
        if self._login is not None:
            caller += f" at login {self._login()}"
        text = _encode([caller, call.arguments])
        return hashlib.sha256(self._version + b"\0" + text).digest()


def _said_of(outcome: Outcome, *, cache: str, cached_seconds: float = 0.0, cached_of: str = "") -> Outcome:
    """Return an outcome that says where it is from. A failure says nothing of it."""
    if not isinstance(outcome, Returned):
        return outcome
    facts = outcome.facts or ResultFacts()
    if cache != "miss":
        facts = replace(facts, nano=0)  # it cost what it is of
    return replace(outcome, facts=replace(facts, cache=cache, cached_seconds=cached_seconds, cached_of=cached_of))
