"""Calls with an idempotency key: the same key runs a tool once, and has one result."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from callgate.conversation.errors import ChatError
from callgate.mcp_server.parked_calls import StateRefused
from callgate.mcp_server.protocol import INVALID_PARAMS, RpcFailure
from callgate.runtime.manager import RuntimeManager
from callgate.state.store import Share, StoreError
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import READ_ERRORS, msgpack_reader

LONGEST_KEY: Final = 255
SHARE_BYTES: Final = 16 * 1024 * 1024
"""What is kept of one caller's results."""
LOOK_SECONDS: Final = 0.1
LONGEST_LOOK: Final = 1.0
KEPT: Final = PackDoor(name="a result of an earlier call", bytes=64 * 1024 * 1024, values=100, depth=2)


class CallAnswer(msgspec.Struct, frozen=True):
    """What a request is answered with."""

    result: bytes
    """Encoded."""
    is_final: bool = True
    """False where the client has to send it again, with input."""


class _Kept(msgspec.Struct, frozen=True):
    digest: str
    """Of the tool and its arguments."""
    state: Literal["under_way", "ended", "interrupted"]
    began: float = 0.0
    result: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_reader(_Kept)


class RepeatedCalls:
    """Keeps the results of calls with a key, in the store that all processes share."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager

    async def once(
        self,
        call: Callable[[], Awaitable[CallAnswer]],
        *,
        owner: str,
        key: str,
        digest: str,
        goes_on: bool,
        has_written: Callable[[], bool],
    ) -> CallAnswer:
        """Call, or return what came of the call with the same key. `goes_on`: this request carries on the one that has the key, unless
        that has ended meanwhile. `has_written`: whether a tool that may change something was started. Raises `RpcFailure` and
        `ChatError`."""
        if not (0 < len(key) <= LONGEST_KEY and key.isprintable()):
            raise RpcFailure(
                INVALID_PARAMS, f"An idempotency key has 1 to {LONGEST_KEY} characters that can be printed."
            )
        place = "mcp:" + hashlib.sha256(f"{owner}\0{key}".encode()).hexdigest()
        share = Share(f"mcp of {owner}", SHARE_BYTES)
        try:
            is_first = await self._claim(place, digest, share)
            if not is_first and not (goes_on and await self._is_under_way(place, digest)):
                return CallAnswer(await self._earlier(place, digest))
            try:
                return await self._carried_out(call, place, digest, share, has_written)
            except StateRefused:
                if is_first:
                    await self._manager.store.delete(place, share)
                raise  # the key stays with the call that this request did not reach
        except StoreError as away:
            message = "Calls with an idempotency key cannot be told apart at the moment. Try again in a moment."
            raise ChatError(503, message, type="server_error", code="store_unavailable", retry_after=1) from away

    async def _claim(self, place: str, digest: str, share: Share) -> bool:
        claim = _encode(_Kept(digest, "under_way", time.time()))
        return await self._manager.store.add(place, claim, self._seconds(), share)

    async def _carried_out(
        self,
        call: Callable[[], Awaitable[CallAnswer]],
        place: str,
        digest: str,
        share: Share,
        has_written: Callable[[], bool],
    ) -> CallAnswer:
        try:
            answer = await call()
        except StateRefused:
            raise
        except BaseException:
            if has_written():
                await self._manager.store.put(place, _encode(_Kept(digest, "interrupted")), self._seconds(), share)
            else:
                await self._manager.store.delete(place, share)
            raise
        if answer.is_final:
            encoded = _encode(_Kept(digest, "ended", result=answer.result))
            await self._manager.store.put(place, encoded, self._seconds(), share)
        return answer

    async def _is_under_way(self, place: str, digest: str) -> bool:
        """Return whether the call that has the key is this one, and has not ended."""
        earlier = await self._kept(place)
        return earlier is not None and earlier.digest == digest and earlier.state == "under_way"

    async def _kept(self, place: str) -> _Kept | None:
        stored = await self._manager.store.get(place)
        if stored is None:
            return None
        try:
            return _decode(open_pack(stored, KEPT))
        except READ_ERRORS:
            raise _interrupted() from None

    async def _earlier(self, place: str, digest: str) -> bytes:
        """Return the result of the call that has the key, once it has ended."""
        pause = LOOK_SECONDS
        while True:
            earlier = await self._kept(place)
            if earlier is None:
                raise _interrupted()  # it failed before its tool was reached, or is too old
            if earlier.digest != digest:
                message = "This idempotency key is of a call with another tool or other arguments."
                raise RpcFailure(INVALID_PARAMS, message)
            if earlier.state == "ended":
                return earlier.result
            is_over = time.time() - earlier.began > self._manager.current.limits.request_seconds
            if earlier.state == "interrupted" or is_over:
                raise _interrupted()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK)

    def _seconds(self) -> float:
        return self._manager.config.store.answer_seconds


def _interrupted() -> ChatError:
    message = (
        "The call with this idempotency key was interrupted, and its tool may have done something. Look into the ledger"
        " (`callgate calls`) before you send it with another key."
    )
    return ChatError(409, message, code="idempotency_key_interrupted")
