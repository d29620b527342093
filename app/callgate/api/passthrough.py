"""A request without tools of the house, passed through: what the model sends is what the client gets, to the byte.

Only what Callgate owes its own operator happens on the way: one line in the log, the metrics, the limits.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from callgate.api.errors import encode
from callgate.api.openai_writers import DONE, AnswerHead
from callgate.api.requests import ChatRequest
from callgate.auth.meter import Tally
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ChatEnded, Ending, EndingKind, ModelRetried, TurnStarted
from callgate.conversation.ports import CannotPassOn, Passage, PassOn, Relay

ANSWERED: Final = Ending(EndingKind.ANSWERED, "stop")
ENDINGS: Final[Mapping[str, Ending]] = {
    "stop": ANSWERED,
    "length": Ending(EndingKind.ANSWERED, "length"),
    "content_filter": Ending(EndingKind.ANSWERED, "content_filter"),
    "tool_calls": Ending(EndingKind.HANDED_BACK, "tool_calls"),
    "function_call": Ending(EndingKind.HANDED_BACK, "function_call"),
}
"""What a passage came to, by its finish reason; a reason of a provider's own is a stop."""


Account = Callable[[Ending, Mapping[str, Any] | None, float], None]
"""Told of a passage that has ended: how, what it used, and how long it took."""


async def pass_on(
    relay: Relay,
    request: ChatRequest,
    emit: Callable[[bytes], Awaitable[None]],
    account: Account,
    tally: Tally | None = None,
) -> None:
    """The request to the model and its answer to the client, and then the account of it. Raises `CannotPassOn` before
    anything was told. Where the key is metered, `tally` hears what it came to; one that breaks off counts as estimated."""
    began = time.monotonic()
    if tally is not None:
        tally.handle(TurnStarted(0))
    try:
        passage = await relay.pass_on(PassOn(_fields(request), request.stream, request.include_usage))
        await passage.carry(emit)
    except BrokenOff as broke:
        raise ChatError(
            502,
            "The model's answer broke off before it was finished.",
            type="server_error",
            code="upstream_broke_off",
            detail=str(broke),
        ) from broke
    except CannotPassOn:
        if tally is not None:
            tally.handle(ModelRetried(0, 1, "the answer has to be read"))
        raise
    ending = _ending(passage)
    account(ending, passage.usage, time.monotonic() - began)
    if tally is not None:
        tally.handle(ChatEnded(ending, passage.usage))


def _ending(passage: Passage) -> Ending:
    return ENDINGS.get(passage.reasons[-1], ANSWERED) if passage.reasons else ANSWERED


class PassedStream:
    """The writer of a stream that is passed through. Its own words are a heartbeat and an error."""

    def __init__(self, head: Callable[[], AnswerHead]) -> None:
        self._head = head

    def write(self, told: bytes, /) -> bytes:
        return told

    def heartbeat(self) -> bytes:
        head = self._head()
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
