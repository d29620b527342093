"""What the API needs of runs that outlive a connection or a process, and what it does without them.

`callgate.runs` has the runs; nothing here imports it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace
from starlette.types import Receive, Send

from callgate.api.errors import TAKEN_OVER, ErrorBody, in_openais_shape, openai_stream_end
from callgate.api.mcp_entries import without_stored_credentials
from callgate.callers.caller import Caller
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import Toolbox, TurnModel
from callgate.state.entry import Ledger
from callgate.state.runs import StoredRun

UNKEPT_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"})
"""Credentials are not stored: the process that resumes a run knows its caller by name."""
PASSING = frozenset({408, 409, 429})
"""Errors that a retry may not meet. Like errors of the server they are not stored, because clients retry with the same
key."""
LOST_KEY = (
    "this Idempotency-Key is kept in memory alone: after a restart, or at another process, the request is run again"
    " (`data_dir` or `ledger.url` keep it)"
)
_encode = msgspec.msgpack.Encoder().encode

StreamEnd: TypeAlias = Callable[[ChatError, bytes], bytes]
"""Makes the end of a stream that is not carried on here, given what was sent of it."""


class TakenOver(ChatError):
    """Raised where this process was taken for dead and another has resumed the run: nothing is answered here."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "Another process carries this run on. Ask again with the same Idempotency-Key.",
            type="server_error",
            code=TAKEN_OVER,
            retry_after=1,
        )


class Ended(msgspec.Struct, frozen=True):
    """How a run ended: with an error if any, and whether a tool with side effects was started."""

    error: ChatError | None = None
    wrote: bool = False
    abandoned: bool = False
    """All clients disconnected before its end."""

    @property
    def may_run_again(self) -> bool:
        failed = self.error is not None and (self.error.status >= 500 or self.error.status in PASSING)
        return not self.wrote and (self.abandoned or failed)


WELL = Ended()


class RunRequest(msgspec.Struct, frozen=True):
    """A stored request, which the process that resumes its run reads again."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, path: str, headers: Mapping[str, str], body: bytes) -> "RunRequest":
        return cls(path, {name: value for name, value in headers.items() if name not in UNKEPT_HEADERS}, body)

    def stored(self) -> bytes:
        return _encode(replace(self, body=without_stored_credentials(self.body)))


class KeptChoice(Protocol):
    """One chat of a run."""

    @property
    def calls(self) -> Ledger:
        """Stores its calls."""
        ...

    def chat(self, model: TurnModel, toolbox: Toolbox) -> tuple[TurnModel, Toolbox]:
        """Wrap the model and the toolbox to replay what is stored."""
        ...


class KeptRun(Protocol):
    """A run that is stored while it is answered, and what is stored of it."""

    is_cancelled: asyncio.Event
    """A client has cancelled it."""
    outlives_process: bool
    whole_body: bytes | None
    """The whole answer, where it is streamed."""
    stores_parts: bool
    """The stream of its answer is stored as it is made, for a process that takes it over to continue it."""
    before_work: Callable[[], Awaitable[None]] | None
    """Stores what has to be stored before it begins."""
    before_end: Callable[[ChatError | None], Awaitable[None]] | None
    """Stores what has to be stored before its end, given the error that it ended with."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> float: ...

    async def choice(self, number: int) -> KeptChoice:
        """Return the chat of one choice. Raises `ChatError` where what is stored of it cannot be read."""
        ...

    def earlier_answer(self) -> bytes:
        """Return the answer in the background before this process took the run over."""
        ...

    def count_turns(self) -> int:
        """Return the number of stored turns of its chat."""
        ...

    async def begin_work(self) -> None:
        """Store what has to be stored before it begins."""
        ...

    async def store_turns(self, choice: int = 0) -> None:
        """Store all turns of a chat. Raises `TakenOver`."""
        ...


class LiveAnswer(Protocol):
    """The answer of one run so far, for its clients."""

    status: int
    parts: list[bytes]
    has_ended: bool

    async def wait_for_row(self) -> StoredRun | None:
        """Wait for its row in the ledger; None where it was refused, or runs are not kept."""
        ...

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until there is more of its answer, or for some seconds."""
        ...

    async def follow(self, receive: Receive, send: Send) -> None:
        """Send all of it to a client."""
        ...


async def follow(run: LiveAnswer, receive: Receive, send: Send) -> None:
    """Send the answer of a run to a client."""
    await run.follow(receive, send)


class RunResumer(Protocol):
    """Answers the requests of one face."""

    async def resume(self, request: RunRequest, caller: Caller, run: KeptRun, receive: Receive, send: Send) -> Ended:
        """Answer a request whose run began in another process."""
        ...


Work: TypeAlias = Callable[[KeptRun | None, Receive, Send], Awaitable[Ended]]
"""Answers the request of a run; None where runs are not kept."""


class RunStart(msgspec.Struct, frozen=True):
    """A request that is answered by a run."""

    owner: str
    face: str
    request: RunRequest
    work: Work
    key: str | None = None
    """Its `Idempotency-Key`."""
    key_scope: str = ""
    """What the key belongs to, where the face answers for several things."""
    in_background: bool = False
    """The run continues without clients."""
    hold_place: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """Called when a run begins in the background; holds the request's place among the running ones until its end."""
    error_body: ErrorBody = in_openais_shape
    stream_end: StreamEnd = openai_stream_end


class Runs(Protocol):
    """The runs of this process, and those of others that clients follow here."""

    @property
    def are_kept(self) -> bool:
        """True if runs outlive this process."""
        ...

    def add(self, face: str, resumer: RunResumer) -> None:
        """Have the runs of a face resumed."""
        ...

    async def start(self, start: RunStart) -> LiveAnswer:
        """Return the run that answers a request, which begins unless an earlier request has its key."""
        ...


class NoRuns:
    """Keeps no run: a request with an `Idempotency-Key` is answered as one without, with the warning or the refusal of a key
    that is lost."""

    are_kept = False

    def add(self, face: str, resumer: RunResumer) -> None:
        """Do nothing: there is no run to resume."""

    async def start(self, start: RunStart) -> LiveAnswer:
        if start.in_background:
            raise no_background()
        return _UnkeptAnswer(start.work)


class _UnkeptAnswer:
    """The answer to the one client that asked for it."""

    status = 0
    has_ended = False

    def __init__(self, work: Work) -> None:
        self.parts: list[bytes] = []
        self._work = work

    async def wait_for_row(self) -> StoredRun | None:
        return None

    async def wait_for_change(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def follow(self, receive: Receive, send: Send) -> None:
        await self._work(None, receive, send)


def not_durable() -> ChatError:
    """Return the error for a key that would be lost with this process, where a retry could repeat side effects."""
    return ChatError(
        400,
        "This server keeps an Idempotency-Key in memory alone, and a tool on offer may change something: after a restart it "
        "could be run again. Ask without the key or with read-only tools (X-Callgate-Tools), or have `data_dir` or "
        "`ledger.url` set.",
        code="idempotency_not_durable",
    )


def no_background() -> ChatError:
    """Return the error for a request in the background that would end with its process."""
    return ChatError(
        400,
        "Nothing can go on in the background here: it needs a `data_dir` or a `ledger.url`.",
        code="background_not_available",
    )
