"""`Idempotency-Key`: a request that comes again with the same key is the same request, and is answered by the one run.

While it runs, whoever comes later gets it from its beginning; when it has ended, its answer is given again from where it is
kept. The run belongs to none of those who follow it, and ends early only when all of them have left.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog
from msgspec.structs import replace
from starlette.types import Message, Receive, Send

from callgate.api.answers import start_message, unless_left
from callgate.api.errors import ErrorBody, as_chat_error, error_headers, in_openais_shape
from callgate.conversation.errors import ChatError
from callgate.stores.claims import Claim, Claims, Held, Interrupted
from callgate.stores.store import StoreError

log = structlog.get_logger("callgate.idempotency")

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

BeforeTools: TypeAlias = Callable[[str], Awaitable[None]]
"""Awaited with the id of the run before it starts a tool. A tool whose start cannot be kept is not started."""
Begin: TypeAlias = Callable[[BeforeTools, Receive, Send], Awaitable[Ended]]
"""Starts the run of a request."""


class Idempotency:
    """The requests with a key that run now in this process, and the claims of all processes."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._runs: dict[str, _Run] = {}

    async def answer(
        self,
        caller: str,
        key: str,
        body: bytes,
        begin: Begin,
        seconds: float,
        receive: Receive,
        send: Send,
        error_body: ErrorBody = in_openais_shape,
    ) -> None:
        """Answer a request that has a key, and keep the answer for so many seconds. The claim of a process that died after a
        tool was begun is kept as long: what it had done by then is not known, and must not be done twice.

        Raises `ClientLeft` when its client did not wait for the answer."""
        if not (0 < len(key) <= KEY_LENGTH and key.isprintable()):
            raise ChatError(
                400,
                f"Invalid 'Idempotency-Key': expected 1 to {KEY_LENGTH} printable characters.",
                code="invalid_value",
            )
        place = "answer:" + hashlib.sha256(f"{caller}\0{key}".encode()).hexdigest()
        digest = hashlib.sha256(body).digest()
        while (run := self._runs.get(place)) is not None and run.is_over:
            assert run.task is not None
            await asyncio.wait({run.task})  # on its way out; whether it may run again is known when it has ended
        if run is None:
            run = self._runs[place] = _Run(digest, error_body)
            run.task = asyncio.create_task(self._answer(place, run, begin, seconds), name="a run with a key")
        elif run.digest != digest:
            raise _other_request()
        await run.follow(receive, send)

    async def _answer(self, place: str, run: "_Run", begin: Begin, seconds: float) -> None:
        try:
            claim = await self._claimed(place, run.digest, seconds)
            if claim.state == "done":
                run.replay(claim)
            else:
                await self._run(place, run, claim, begin, seconds)
        except ChatError as refusal:
            run.fail(refusal)
        finally:
            self._runs.pop(place, None)
            run.end()

    async def _run(self, place: str, run: "_Run", claim: Claim, begin: Begin, seconds: float) -> None:
        begun: asyncio.Task[None] | None = None

        async def before_tools(run_id: str) -> None:
            """Tie the key to the run before its first tool; all tools wait for that."""
            nonlocal begun
            if begun is None:
                begun = asyncio.ensure_future(self._claims.begin(place, claim, run_id, seconds))
            try:
                await asyncio.shield(begun)
            except StoreError as error:
                raise _unreachable(error) from error
            except Interrupted:
                raise _interrupted() from None

        try:
            ended = await begin(before_tools, run.receive, run.record)
        except Exception as failure:  # noqa: BLE001 - sent to all who listen; nobody awaits this task for its result
            error = as_chat_error(failure)
            if begun is None:
                await self._forget(place, run)
                run.fail(error)
                return
            run.fail(error)
            ended = Ended(error, wrote=True)
        if ended.may_run_again:
            await self._forget(place, run)
            return
        if ended.left:
            # Nobody has got it, and half an answer is none: what is kept is why there will be no whole one.
            run.status = 0
            run.fail(_interrupted())
        done = replace(claim, state="done", status=run.status, headers=run.headers, body=b"".join(run.parts))
        try:
            await self._claims.finish(place, done, seconds)
        except StoreError as error:
            log.warning("idempotency_answer_not_kept", error=str(error))

    async def _claimed(self, place: str, digest: bytes, seconds: float) -> Claim:
        """A claim of ours, or one that is done."""
        try:
            claim = await self._claims.claim(place, digest, seconds)
        except StoreError as error:
            raise _unreachable(error) from error
        except Interrupted:
            raise _interrupted() from None
        except Held:
            raise ChatError(
                409,
                "A request with this Idempotency-Key is still being answered elsewhere. Try again in a moment.",
                code="idempotency_key_in_use",
                retry_after=1,
            ) from None
        if claim.digest != digest:
            raise _other_request()
        return claim

    async def _forget(self, place: str, run: "_Run") -> None:
        run.is_over = True
        try:
            await self._claims.forget(place)
        except StoreError as error:
            log.warning("idempotency_key_not_freed", error=str(error))


class _Run:
    """One run: what it has sent so far, and those who follow it."""

    def __init__(self, digest: bytes, error_body: ErrorBody) -> None:
        self.digest, self._error_body = digest, error_body
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self.is_over = False
        """Its answer is nobody's who comes from now on: all have left it, or its key may be used again."""
        self._ended = False
        self._followers = 0
        self._all_left = asyncio.Event()
        self._news = asyncio.Event()

    # -- from the side of the run

    async def receive(self) -> Message:
        await self._all_left.wait()
        return {"type": "http.disconnect"}

    async def record(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message.get("body"):
            self.parts.append(message["body"])
        self._notify()

    def replay(self, kept: Claim) -> None:
        self.status, self.parts = kept.status, [kept.body]
        self.headers = [*((name, value) for name, value in kept.headers), (b"idempotent-replayed", b"true")]

    def fail(self, error: ChatError) -> None:
        """An answer for those who have got nothing yet; a stream that has begun just ends."""
        if not self.status:
            fields = {"content-type": "application/json", **error_headers(error)}
            if error.code == INTERRUPTED:
                fields["x-should-retry"] = "false"  # clients repeat a 409 by themselves, and this one stays
            start: dict[str, Any] = start_message(error.status, fields)
            self.status, self.headers = error.status, start["headers"]
            self.parts = [self._error_body(error)]

    def end(self) -> None:
        self._ended = True
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- from the side of a client

    async def follow(self, receive: Receive, send: Send) -> None:
        self._followers += 1
        try:
            await unless_left(self._send_all(send), receive)
        finally:
            self._followers -= 1
            if not self._followers and not self._ended:
                self.is_over = True
                self._all_left.set()
                assert self.task is not None
                # What it had begun is stopped before this request is over, as without a key.
                await asyncio.wait({self.task})

    async def _send_all(self, send: Send) -> None:
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
        assert started, "a run ends with an answer while anybody follows it"
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def not_durable() -> ChatError:
    """The refusal of a key that would be forgotten with this process, where forgetting it could do something twice."""
    return ChatError(
        400,
        "This server keeps an Idempotency-Key in memory alone, and a tool on offer may change something: after a restart it "
        "could be run again. Ask without the key or with read-only tools (X-Callgate-Tools), or have `data_dir` or "
        "`store.redis_url` set.",
        code="idempotency_not_durable",
    )


def _other_request() -> ChatError:
    return ChatError(
        400,
        "Keys for idempotent requests can only be used with the same parameters they were first used with. "
        "Try using a key other than the one you sent if you meant to make a different request.",
        type="idempotency_error",
        code="idempotency_key_reused",
    )


def _interrupted() -> ChatError:
    return ChatError(
        409,
        "The first request with this Idempotency-Key was cut off after a tool had been started. It is not run again.",
        code=INTERRUPTED,
    )


def _unreachable(error: StoreError) -> ChatError:
    """What cannot be kept could be run twice."""
    log.error("idempotency_key_refused", error=str(error))
    return ChatError(
        503,
        "This Idempotency-Key cannot be kept at the moment, so that nothing is run. Try again in a moment.",
        type="server_error",
        code="idempotency_unavailable",
        retry_after=1,
    )
