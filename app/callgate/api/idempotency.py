"""`Idempotency-Key`: requests with the same key are run once, and all get the answer of that run.

While it runs, later requests get its answer from the beginning; when it has ended, they get the stored answer. It is cancelled
only when all clients have disconnected.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog
from msgspec.structs import replace
from starlette.types import Receive, Send

from callgate.api.conversation import BeforeTools
from callgate.api.errors import ErrorBody, as_chat_error, in_openais_shape
from callgate.api.followed_run import Ended, FollowedRun, check_key, interrupted, other_request
from callgate.conversation.errors import ChatError
from callgate.stores.claims import Claim, ClaimHeld, Claims, Interrupted
from callgate.stores.store import StoreError

log = structlog.get_logger("callgate.idempotency")

Begin: TypeAlias = Callable[[BeforeTools, Receive, Send], Awaitable[Ended]]
"""Starts the run of a request."""


class Idempotency:
    """The running requests with a key in this process, and the claims of all processes."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._runs: dict[str, FollowedRun] = {}

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
        """Answer a request with a key, and store the answer for `seconds`. The claim of a process that died after a tool had
        begun is kept as long, because its side effects are unknown and must not be repeated.

        Raises `ClientDisconnected` when its client disconnected."""
        check_key(key)
        place = "answer:" + hashlib.sha256(f"{caller}\0{key}".encode()).hexdigest()
        digest = hashlib.sha256(body).digest()
        while (run := self._runs.get(place)) is not None and run.is_over:
            assert run.task is not None
            await asyncio.wait({run.task})  # it is ending; then it is known whether it may run again
        if run is None:
            run = self._runs[place] = FollowedRun(digest, error_body)
            run.task = asyncio.create_task(self._answer(place, run, begin, seconds), name="a run with a key")
        elif run.digest != digest:
            raise other_request()
        await run.follow(receive, send)

    async def _answer(self, place: str, run: FollowedRun, begin: Begin, seconds: float) -> None:
        try:
            claim = await self._claimed(place, run.digest, seconds)
            if claim.state == "done":
                run.replay(claim.status, claim.headers, claim.body)
            else:
                await self._run(place, run, claim, begin, seconds)
        except ChatError as refusal:
            run.fail(refusal)
        finally:
            self._runs.pop(place, None)
            run.end()

    async def _run(self, place: str, run: FollowedRun, claim: Claim, begin: Begin, seconds: float) -> None:
        begun: asyncio.Task[None] | None = None

        async def before_tools(run_id: str) -> None:
            """Store the run's id with the key before its first tool starts."""
            nonlocal begun
            if begun is None:
                begun = asyncio.ensure_future(self._claims.begin(place, claim, run_id, seconds))
            try:
                await asyncio.shield(begun)
            except StoreError as error:
                raise _unreachable(error) from error
            except Interrupted:
                raise interrupted() from None

        try:
            ended = await begin(before_tools, run.receive, run.record)
        except Exception as failure:  # noqa: BLE001 - sent to all followers, because the task's result is not awaited
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
            # No client is waiting, and half an answer is useless: the reason is stored instead.
            run.status = 0
            run.fail(interrupted())
        done = replace(claim, state="done", status=run.status, headers=run.headers, body=b"".join(run.parts))
        try:
            await self._claims.finish(place, done, seconds)
        except StoreError as error:
            log.warning("idempotency_answer_not_kept", error=str(error))

    async def _claimed(self, place: str, digest: bytes, seconds: float) -> Claim:
        """Claim a key; return our claim, or one that is done."""
        try:
            claim = await self._claims.claim(place, digest, seconds)
        except StoreError as error:
            raise _unreachable(error) from error
        except Interrupted:
            raise interrupted() from None
        except ClaimHeld:
            raise ChatError(
                409,
                "A request with this Idempotency-Key is still being answered elsewhere. Try again in a moment.",
                code="idempotency_key_in_use",
                retry_after=1,
            ) from None
        if claim.digest != digest:
            raise other_request()
        return claim

    async def _forget(self, place: str, run: FollowedRun) -> None:
        run.is_over = True
        try:
            await self._claims.forget(place)
        except StoreError as error:
            log.warning("idempotency_key_not_freed", error=str(error))


def not_durable() -> ChatError:
    """Return the error for a key that would be lost with this process, where a retry could repeat side effects."""
    return ChatError(
        400,
        "This server keeps an Idempotency-Key in memory alone, and a tool on offer may change something: after a restart it "
        "could be run again. Ask without the key or with read-only tools (X-Callgate-Tools), or have `data_dir` or "
        "`store.redis_url` set.",
        code="idempotency_not_durable",
    )


def _unreachable(error: StoreError) -> ChatError:
    """Return the error for a key that cannot be claimed, whose request could be run twice."""
    log.error("idempotency_key_refused", error=str(error))
    return ChatError(
        503,
        "This Idempotency-Key cannot be kept at the moment, so that nothing is run. Try again in a moment.",
        type="server_error",
        code="idempotency_unavailable",
        retry_after=1,
    )
