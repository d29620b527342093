"""A request without tools of the house, passed through: what the model sends is what the client gets, to the byte.

Only what Callgate owes its own operator happens on the way: one line in the log, the metrics, the limits.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import msgspec

from app.api.errors import encode
from app.api.requests import ChatRequest
from app.api.wire import DONE, AnswerHead
from app.chat.errors import BrokenOff, ChatError
from app.chat.events import (
    ChatEnded,
    ChatEvent,
    Ending,
    EndingKind,
    FinishReason,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from app.chat.ports import Passage, PassOn, Relay

FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


class Listener(Protocol):
    def hear(self, event: ChatEvent) -> None: ...


class Passed:
    """One passage, as the chat that an answer runs, and as what its listeners are told."""

    def __init__(self, relay: Relay, request: ChatRequest, listeners: Sequence[Listener]) -> None:
        self._relay, self._request, self._listeners = relay, request, listeners

    async def carry(self, tell: Callable[[bytes], Awaitable[None]]) -> None:
        request = self._request
        asked = PassOn(_fields(request), request.stream, request.include_usage)
        self._hear(TurnStarted(0, tools_offered=request.has_tools))
        began = time.monotonic()
        try:
            async with self._relay.pass_on(asked) as passage:
                await passage.carry(tell)
        except BrokenOff as broke:
            raise ChatError(
                502,
                "The model's answer broke off before it was finished.",
                type="server_error",
                code="upstream_broke_off",
                detail=str(broke),
            ) from broke
        self._tell_the_end(passage, time.monotonic() - began)

    def _tell_the_end(self, passage: Passage, seconds: float) -> None:
        account = TurnAccount(passage.reasons, (), (), (), (), passage.usage, seconds, lane="direct")
        self._hear(TurnEnded(0, account))
        reason = passage.reasons[-1] if passage.reasons else "stop"
        told = cast(FinishReason, reason) if reason in FINISH_REASONS else "stop"
        kind = EndingKind.HANDED_BACK if told in ("tool_calls", "function_call") else EndingKind.ANSWERED
        self._hear(ChatEnded(Ending(kind, told), passage.usage))

    def _hear(self, event: ChatEvent) -> None:
        for listener in self._listeners:
            listener.hear(event)


class PassedStream:
    """The writer of a stream that is passed through. Its own words are a heartbeat and an error."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head

    def write(self, told: bytes, /) -> bytes:
        return told

    def heartbeat(self) -> bytes:
        head = self._head
        chunk = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "choices": [{"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": None}],
        }
        return b"data: " + encode(chunk) + b"\n\n"

    def error(self, error: ChatError) -> bytes:
        return b"data: " + encode(error.envelope()) + b"\n\n" + DONE


class PassedBody:
    """The writer of a body that is passed through."""

    def __init__(self) -> None:
        self._body = b""

    def write(self, told: bytes, /) -> None:
        self._body = told

    def body(self) -> Any:
        return msgspec.Raw(self._body)


def _fields(request: ChatRequest) -> Mapping[str, msgspec.Raw]:
    """The body as it came; of the metadata, what was meant for us stays here."""
    if "metadata" not in request.fields:
        return request.fields
    fields = {name: value for name, value in request.fields.items() if name != "metadata"}
    if request.metadata:
        fields["metadata"] = msgspec.Raw(encode(request.metadata))
    return fields
