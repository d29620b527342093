"""Calls that wait for their own client: for its approval, or its answer to what the tool asks.

Since 2026-07-28 a server asks nothing while a request goes on: it answers that input is required, and the client sends the request
again with the input. Meanwhile the call waits here, and in `/v1/approvals` for whoever else may decide. It runs only while its client
is there: a call that was approved elsewhere begins when its client is back, and one whose client stays away never does.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import msgspec

from callgate.api.errors import Aftermath
from callgate.conversation.events import CallProgress, ChatEvent
from callgate.conversation.ids import new_item_id
from callgate.mcp_server.protocol import INVALID_PARAMS, RpcFailure, encode
from callgate.mcp_server.reply import Reply
from callgate.state.sealing import NotSealedHere, Sealer
from callgate.tools.approvals.queue import PendingApproval
from callgate.untrusted.doors import text_written_here, written_here
from callgate.untrusted.readers import READ_ERRORS, json_reader, read_value

SEALED_FOR: Final = "state of a request of MCP"
MOST: Final = 200
"""Calls that wait here."""
MOST_OF_ONE: Final = 50
GRACE: Final = 5.0
"""Seconds beyond the deadline of what a call waits for, until it is given up."""
REPEATED_IDS: Final = "Send the request again without `requestState`."


class StateRefused(RpcFailure):
    """Raised where the state of a request leads to no call that waits. Nothing has become of the call by this request."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_PARAMS, message)


class RequestState(msgspec.Struct, frozen=True):
    """What a client carries, sealed, from an answer that needs input to the request that has it."""

    call: str
    """The call that waits."""
    digest: str
    """Of the tool's name and the arguments as they were written."""
    waits: dict[str, str]
    """The approvals and questions of the call, by the keys that the client knows them by."""


class ParkedCall:
    """One call in a task of its own, which outlives the request that began it."""

    def __init__(
        self, owner: str, digest: str, waiting: Callable[[], Sequence[PendingApproval]], aftermath: Aftermath
    ) -> None:
        """`waiting` returns what the call waits for. `aftermath`: what is noted of it, by whichever request it is followed."""
        self.id = new_item_id("mcp")
        self.owner = owner
        self.digest = digest
        self.waiting = waiting
        self.aftermath = aftermath
        self.task: asyncio.Task[bytes] | None = None
        self._client = asyncio.Event()
        self._changed = asyncio.Event()
        self._reply: Reply | None = None
        self.expiry: asyncio.TimerHandle | None = None

    def begin(self, work: "asyncio.Task[bytes]") -> None:
        self.task = work
        work.add_done_callback(lambda _: self._changed.set())

    def has_ended(self) -> bool:
        return self.task is not None and self.task.done()

    def result(self) -> bytes:
        """Return its encoded result, once it has ended. Raises what it raised."""
        assert self.task is not None, "it has begun"
        return self.task.result()

    @property
    def has_client(self) -> bool:
        return self._client.is_set()

    @contextmanager
    def _followed(self, reply: Reply) -> Any:
        self._reply = reply
        self._client.set()
        try:
            yield
        finally:
            self._client.clear()
            self._reply = None

    def followed_by(self, reply: Reply) -> AbstractContextManager[None]:
        """A context in which its client is there, and hears of its progress."""
        return self._followed(reply)

    async def client(self) -> None:
        """Wait until its client is there."""
        await self._client.wait()

    async def emit(self, event: ChatEvent) -> None:
        if not isinstance(event, CallProgress):
            return
        if event.waits_for or event.asks:
            self._changed.set()
        if self._reply is not None:
            await self._reply.progress(event)

    async def next_wait(self, can_ask: Callable[[PendingApproval], bool]) -> None:
        """Wait until it has ended, or waits for nothing but what its client can be asked."""
        while not self.has_ended():
            self._changed.clear()
            waiting = self.waiting()
            if waiting and all(map(can_ask, waiting)):
                return
            await self._changed.wait()

    async def stop(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})
            _retrieve(self.task)


class ParkedCalls:
    """Those of this process."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._calls: dict[str, ParkedCall] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def has_room(self, owner: str) -> bool:
        of_owner = sum(call.owner == owner for call in self._calls.values())
        return len(self._calls) < MOST and of_owner < MOST_OF_ONE

    def count(self) -> int:
        return len(self._calls)

    def park(self, call: ParkedCall, seconds: float) -> None:
        """Keep a call for its client, which has so long to come back."""
        self._calls[call.id] = call
        if call.expiry is not None:
            call.expiry.cancel()
        call.expiry = asyncio.get_running_loop().call_later(seconds + GRACE, self._give_up, call)

    def take(self, state: RequestState) -> ParkedCall:
        """Take the call of a state out, for its client is back. Raises `StateRefused`."""
        call = self._calls.get(state.call)
        if call is None or call.has_client:
            message = f"No call waits for this any more: it has ended, or its time is over. {REPEATED_IDS}"
            raise StateRefused(message)
        return call

    def release(self, call: ParkedCall) -> None:
        """Forget a call that nobody comes back to."""
        self._calls.pop(call.id, None)
        if call.expiry is not None:
            call.expiry.cancel()

    def seal(self, call: ParkedCall, waits: Mapping[str, str]) -> str:
        content = encode(RequestState(call.id, call.digest, dict(waits)))
        return self._sealer.seal(SEALED_FOR, call.owner, content)

    def opened(self, owner: str, sealed: str, digest: str) -> RequestState:
        """Return the state of a request. Raises `StateRefused`."""
        try:
            state = _read_state(written_here(self._sealer.open(SEALED_FOR, owner, sealed)))
        except (NotSealedHere, *READ_ERRORS):
            message = f"This `requestState` is none that this server gave to this key. {REPEATED_IDS}"
            raise StateRefused(message) from None
        if state.digest != digest:
            message = "The tool or its arguments are not those that this `requestState` was given for."
            raise StateRefused(message)
        return state

    async def close(self) -> None:
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            await call.stop()
        if self._ending:
            await asyncio.wait(self._ending)

    def _give_up(self, call: ParkedCall) -> None:
        if call.has_client:
            return
        self.release(call)
        task = asyncio.create_task(call.stop(), name="giving up a call")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def digest_of(name: str, arguments: str) -> str:
    """Hash a call, whatever the order of its arguments."""
    try:
        text = msgspec.json.encode(read_value(text_written_here(arguments)), order="sorted")
    except READ_ERRORS:
        text = arguments.encode(errors="surrogatepass")  # the gate says what is wrong with it
    return hashlib.sha256(name.encode(errors="surrogatepass") + b"\0" + text).hexdigest()


_read_state: Final = json_reader(RequestState)


def _retrieve(task: "asyncio.Task[bytes]") -> None:
    """Mark the exception of a task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
