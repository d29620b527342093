"""`Idempotency-Key`: a request that comes again with the same key is the same request, and is answered by the one run.

While it runs, whoever comes later hears it from its beginning; when it has ended, its answer is given again from where
it is kept. The run belongs to none of those who listen, and ends early only when all of them have left.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import structlog
from starlette.types import Message, Receive, Send

from callgate.api.answers import start_message, unless_left
from callgate.api.errors import as_chat_error, encode, error_headers
from callgate.conversation.errors import ChatError
from callgate.stores.store import Store, StoreError

log = structlog.get_logger("callgate.once")

KEY_LENGTH = 255
INTERRUPTED = "idempotency_key_interrupted"
PASSING = frozenset({408, 409, 429})
"""Refusals that another try may not meet. Together with errors of the server they are not kept: the client tries again
with the same key, and that is what the key is for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: with an error if any, and whether a tool that may change the world had been started."""

    error: ChatError | None = None
    wrote: bool = False
    left: bool = False
    """Nobody waited for its end."""

    @property
    def may_run_again(self) -> bool:
        failed = self.error is not None and (self.error.status >= 500 or self.error.status in PASSING)
        return not self.wrote and (self.left or failed)


WELL = Ended()

Begin: TypeAlias = Callable[[Receive, Send], Awaitable[Ended]]
"""Starts the run of a request."""


class _Kept(msgspec.Struct, array_like=True):
    """What the store has under a key: a claim while a process is at work, then the answer."""

    digest: bytes
    state: Literal["running", "done"]
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""


_read_kept = msgspec.msgpack.Decoder(_Kept).decode
_write_kept = msgspec.msgpack.Encoder().encode


class Idempotency:
    """The requests with a key that run now in this process, and the store with those that ran before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[str, _Run] = {}

    async def answer(
        self, caller: str, key: str, body: bytes, begin: Begin, seconds: float, receive: Receive, send: Send
    ) -> None:
        """Answer a request that has a key, and keep the answer for so many seconds. The claim of a process that died in
        the middle is kept as long: what it had done by then is not known, and must not be done twice.

        Raises `ClientLeft` when its client did not wait for the answer."""
        if not (0 < len(key) <= KEY_LENGTH and key.isprintable()):
            raise ChatError(
                400,
                f"Invalid 'Idempotency-Key': expected 1 to {KEY_LENGTH} printable characters.",
                code="invalid_value",
            )
        place = "answer:" + hashlib.sha256(f"{caller}\0{key}".encode()).hexdigest()
        digest = hashlib.sha256(body).digest()
        while (run := self._runs.get(place)) is not None and run.is_left:
            assert run.task is not None
            await asyncio.wait({run.task})  # on its way out; whether it may run again is known when it has ended
        if run is None:
            run = self._runs[place] = _Run(digest)
            run.task = asyncio.create_task(self._carry(place, run, begin, seconds), name="a run with a key")
        elif run.digest != digest:
            raise _other_request()
        await run.follow(receive, send)

    async def _carry(self, place: str, run: "_Run", begin: Begin, seconds: float) -> None:
        try:
            kept = await self._claimed(place, run.digest, seconds)
            if kept is None:
                await self._run(place, run, begin, seconds)
            else:
                run.replay(kept)
        except ChatError as refusal:
            run.fail(refusal)
        finally:
            self._runs.pop(place, None)
            run.end()

    async def _run(self, place: str, run: "_Run", begin: Begin, seconds: float) -> None:
        try:
            ended = await begin(run.receive, run.record)
        except Exception as failure:  # noqa: BLE001 - told to all who listen; nobody awaits this task for its result
            run.fail(as_chat_error(failure))
            await self._forget(place)
            return
        await self._finish(place, run, ended, seconds)

    async def _claimed(self, place: str, digest: bytes, seconds: float) -> _Kept | None:
        """What an earlier request with this key came to; None if there was none and the claim is ours."""
        try:
            while not await self._store.add(place, _write_kept(_Kept(digest, "running")), seconds):
                found = await self._store.get(place)
                if found is not None:
                    return _settled(_read_kept(found), digest)
        except StoreError as error:
            # This process still runs it once; only another one would not know.
            log.warning("idempotency_not_shared", error=str(error))
        return None

    async def _finish(self, place: str, run: "_Run", ended: Ended, seconds: float) -> None:
        if ended.may_run_again:
            await self._forget(place)
            return
        if ended.left:
            # Nobody has heard it, and half an answer is none: what is kept is why there will be no whole one.
            run.status = 0
            run.fail(_was_left())
        kept = _Kept(run.digest, "done", run.status, run.headers, b"".join(run.parts))
        try:
            await self._store.put(place, _write_kept(kept), seconds)
        except StoreError as error:
            log.warning("answer_not_kept", error=str(error))

    async def _forget(self, place: str) -> None:
        try:
            await self._store.delete(place)
        except StoreError as error:
            log.warning("answer_not_forgotten", error=str(error))


class _Run:
    """One run: what it has sent so far, and those who listen."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self._ended = False
        self._listeners = 0
        self._all_left = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def is_left(self) -> bool:
        """Nobody listens any more, and it is being ended."""
        return self._all_left.is_set()

    # -- from the side of the run

    async def receive(self) -> Message:
        await self._all_left.wait()
        return {"type": "http.disconnect"}

    async def record(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message.get("body"):
            self.parts.append(message["body"])
        self._tell()

    def replay(self, kept: _Kept) -> None:
        self.status, self.parts = kept.status, [kept.body]
        self.headers = [*((name, value) for name, value in kept.headers), (b"idempotent-replayed", b"true")]

    def fail(self, error: ChatError) -> None:
        """An answer for those who have heard nothing yet; a stream that has begun just ends."""
        if not self.status:
            fields = {"content-type": "application/json", **error_headers(error)}
            if error.code == INTERRUPTED:
                fields["x-should-retry"] = "false"  # clients repeat a 409 by themselves, and this one stays
            start: dict[str, Any] = start_message(error.status, fields)
            self.status, self.headers = error.status, start["headers"]
            self.parts = [encode(error.envelope())]

    def end(self) -> None:
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- from the side of a client

    async def follow(self, receive: Receive, send: Send) -> None:
        self._listeners += 1
        try:
            await unless_left(self._pass_on(send), receive)
        finally:
            self._listeners -= 1
            if not self._listeners and not self._ended:
                self._all_left.set()
                assert self.task is not None
                # What it had begun is stopped before this request is over, as without a key.
                await asyncio.wait({self.task})

    async def _pass_on(self, send: Send) -> None:
        started, sent = False, 0
        while True:
            news = self._news
            if self.status and not started:
                started = True
                await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
            while sent < len(self.parts):
                sent += 1
                await send({"type": "http.response.body", "body": self.parts[sent - 1], "more_body": True})
            if self._ended and sent == len(self.parts):
                break
            await news.wait()
        assert started, "a run ends with an answer while anybody listens"
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _settled(kept: _Kept, digest: bytes) -> _Kept:
    if kept.digest != digest:
        raise _other_request()
    if kept.state == "running":
        raise ChatError(
            409,
            "A request with this Idempotency-Key is still being answered elsewhere, or was cut off there. "
            "Try again in a moment.",
            code="idempotency_key_in_use",
            retry_after=1,
        )
    return kept


def _other_request() -> ChatError:
    return ChatError(
        400,
        "Keys for idempotent requests can only be used with the same parameters they were first used with. "
        "Try using a key other than the one you sent if you meant to make a different request.",
        type="idempotency_error",
        code="idempotency_key_reused",
    )


def _was_left() -> ChatError:
    return ChatError(
        409,
        "The first request with this Idempotency-Key was left before it was answered, after a tool that may change "
        "something had been started. It is not run again.",
        code=INTERRUPTED,
    )
