"""Passing an answer through: with no tool of the house on offer a request and its answer go on in their own bytes.

Of a stream as much is read as decides something: what comes before its first words, its end mark, its finish reason, its
usage, an error in the middle. Whatever else a provider sends is neither known here nor changed.
"""

import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any

import msgspec

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ProviderError
from callgate.conversation.ports import CannotPassOn, EmitBytes, PassOn
from callgate.http.event_stream import BOM, EVENT_BYTES, EventStreamReader, EventTooLarge, looks_like_keep_alive
from callgate.http.interface import Response, TransportError
from callgate.upstream import errors
from callgate.upstream.chunks import ChunkReader, read_completion
from callgate.upstream.direct_model import DONE, DirectModel, read_json, refusal, without_developers
from callgate.upstream.first_content import is_said
from callgate.upstream.params import ALWAYS_PASSED, is_denied
from callgate.upstream.words import Words

LOOKED_AT = (b"[DONE]", b'"usage":{', b'"usage": {', b'"finish_reason":"', b'"finish_reason": "', b'"error"')
"""An event with none of these says nothing but words. Looking for them costs less than one look at the JSON."""
END = b"data: [DONE]\n\n"
READ_SECONDS = 300.0
"""How long the answers of a model are read after one in another shape; each such answer has to be asked for twice."""

_encode = msgspec.json.Encoder().encode


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Outline(msgspec.Struct):
    """What is read of a whole answer and of the events that are looked at."""

    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_outline = msgspec.json.Decoder(_Outline)


class RelayModel(DirectModel):
    """A model of the direct lane that can also be passed a request through."""

    _read_until = -inf

    def can_pass_on(self, *, with_tools: bool) -> bool:
        return time.monotonic() >= self._read_until

    def answered_otherwise(self) -> None:
        """It answered in another shape than was asked for. It may always do so, or it was in trouble for a moment."""
        self._read_until = time.monotonic() + READ_SECONDS

    async def pass_on(self, asked: PassOn) -> "WholePassage | StreamPassage":
        endpoint, most = self._endpoint, self._answer_bytes
        exchange = self._client.post(endpoint.url, self._headers, self._passed(asked), self._deadlines)
        try:
            if asked.stream:
                return await StreamPassage.begun(exchange, endpoint.secrets, most, hide_usage=not asked.include_usage)
            # One that comes whole needs its connection no longer than until then.
            async with exchange as response:
                if response.status != 200:
                    raise await refusal(response, endpoint.secrets)
                return WholePassage.of(await response.read(most), response, endpoint.secrets)
        except TransportError as error:
            raise errors.from_transport(error) from error
        except CannotPassOn:
            self.answered_otherwise()
            raise

    def _passed(self, asked: PassOn) -> bytes:
        """The request as it came, with the provider's name for the model and without what could choose more than words."""
        endpoint = self._endpoint
        body: dict[str, Any] = {
            name: value for name, value in asked.fields.items() if name in ALWAYS_PASSED or not is_denied(name)
        }
        body["model"] = endpoint.model
        if not endpoint.knows_developers:
            body["messages"] = without_developers(msgspec.json.decode(asked.fields["messages"], type=list[msgspec.Raw]))
        for name, value in endpoint.defaults.items():
            body.setdefault(name, value)
        if asked.stream and endpoint.include_usage and not asked.include_usage:
            given = asked.fields.get("stream_options")
            options = msgspec.json.decode(given) if given is not None else None
            body["stream_options"] = {**(options or {}), "include_usage": True}
        try:
            return _encode(body)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None


class WholePassage:
    """One body, read to its end before a byte of it is passed on: one that is cut off must not look whole."""

    def __init__(self, body: bytes, outline: _Outline) -> None:
        self._body = body
        self.usage: Mapping[str, Any] | None = outline.usage
        self.reasons = tuple(choice.finish_reason for choice in outline.choices or () if choice.finish_reason)

    @classmethod
    def of(cls, body: bytes, response: Response, secrets: Sequence[str]) -> "WholePassage":
        response.settle()
        body = body.removeprefix(BOM)
        start = body.lstrip()[:1]
        if start != b"{":
            _refuse_what_is_no_answer(start, response)
            raise CannotPassOn("a stream came where one body was asked for")
        try:
            outline = _outline.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            outline = _tolerantly(body)
        if outline.error:
            said = errors.read_error(outline.error)
            raise errors.reported(said.message, {"error": outline.error}, response.headers, secrets=secrets)
        if not outline.choices:
            raise errors.bad_answer("The model's provider sent an empty answer.")
        return cls(body, outline)

    def carry(self, emit: EmitBytes) -> Awaitable[None]:
        return emit(self._body)


def _tolerantly(body: bytes) -> _Outline:
    """Of a body in an odd shape, whatever of it makes sense; nothing makes sense of one that is cut off."""
    try:
        found = read_json(body)
    except ValueError:
        raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.") from None
    events = read_completion(found)
    failed = next((event for event in events if isinstance(event, ProviderError)), None)
    choices = [_Choice()] if any(is_said(event) for event in events) else None
    usage = found.get("usage") if isinstance(found, dict) else None
    return _Outline(choices, usage if isinstance(usage, dict) else None, failed.body if failed else None)


class StreamPassage:
    """The events of a stream, whole ones only, so that nothing half is left in front of an error of ours."""

    def __init__(
        self, exchange: AbstractAsyncContextManager[Response], response: Response, most: int, *, hide_usage: bool
    ) -> None:
        self._exchange = exchange
        self._response = response
        self._most = most
        self._hide_usage = hide_usage
        self._ready = b""
        self._rest: list[bytes] = []
        self._size = 0
        self._done = False
        self._words = Words()
        self._emit: EmitBytes
        self._rebuilt: EventStreamReader | None = None
        self.usage: Mapping[str, Any] | None = None
        self.reasons: tuple[str, ...] = ()

    @classmethod
    async def begun(
        cls, exchange: AbstractAsyncContextManager[Response], secrets: Sequence[str], most: int, *, hide_usage: bool
    ) -> "StreamPassage":
        """The stream once its first words are there. What is wrong with it before that is an error like any other."""
        response = await exchange.__aenter__()
        passage = cls(exchange, response, most, hide_usage=hide_usage)
        try:
            if response.status != 200:
                raise await refusal(response, secrets)
            passage._begin_with(await _start_of(response, secrets))
        except BaseException as error:
            await exchange.__aexit__(type(error), error, error.__traceback__)
            raise
        return passage

    async def carry(self, emit: EmitBytes) -> None:
        try:
            await self._carry(emit)
        except BaseException as error:
            await self._exchange.__aexit__(type(error), error, error.__traceback__)
            raise
        await self._exchange.__aexit__(None, None, None)

    async def _carry(self, emit: EmitBytes) -> None:
        self._emit = emit
        if not await self._carry_on(self._ready):
            try:
                async for data in self._response.chunks():
                    if await self._carry_on(data):
                        break
            except TransportError as error:
                if not self.reasons:
                    raise BrokenOff(str(error), transport_error=True) from error
        if not self._done:
            await self._carry_on(self._at_end())
        self._response.settle()

    async def _carry_on(self, data: bytes) -> bool:
        """Tell what of a read goes on now; whether that was the end."""
        out = self._passed(data)
        if out:
            await self._emit(out)
        return self._done

    def _begin_with(self, start: bytes) -> None:
        if b"\r" in start or start.startswith(BOM):
            self._rebuilt = EventStreamReader()
        self._ready = start

    def _passed(self, data: bytes) -> bytes:
        """What of this read goes on now."""
        self._size += len(data)
        if self._size > self._most:
            raise BrokenOff(f"the answer is longer than {self._most} bytes", transport_error=True)
        if self._rebuilt is not None:
            data = _as_events(self._rebuilt.feed(data))
        elif self._rest or not data.endswith(b"\n\n"):
            data = self._whole_events(data)
        if self._words.are_all_of(data):
            return data
        for mark in LOOKED_AT:
            if mark in data:
                return self._looked_at(data)
        self._words.learn(data)
        return data

    def _whole_events(self, data: bytes) -> bytes:
        """Up to the end of the last whole event; the rest waits."""
        self._rest.append(data)
        if b"\n" not in data:
            if sum(map(len, self._rest)) > EVENT_BYTES:
                raise BrokenOff(f"an event is longer than {EVENT_BYTES} bytes", transport_error=True)
            return b""
        data = b"".join(self._rest)
        end = data.rfind(b"\n\n")
        whole, rest = (b"", data) if end < 0 else (data[: end + 2], data[end + 2 :])
        self._rest = [rest] if rest else []
        return whole

    def _looked_at(self, data: bytes) -> bytes:
        """Events that may say more than words, one by one."""
        out: list[bytes] = []
        for event in _EVENT_END.split(data):
            if not event or self._done:
                continue
            payload = _payload_of(event)
            if payload is not None and payload.strip() == DONE:
                self._done = True
                out.append(END)
            elif payload is None or self._is_for_client(payload):
                out.append(event + b"\n\n")
        return b"".join(out)

    def _is_for_client(self, payload: bytes) -> bool:
        """Note what an event says of the answer as a whole; one that holds nothing but usage is for those who asked."""
        try:
            outline = _outline.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        if outline.error:
            raise errors.bad_answer("The model's provider reported an error in the middle of its answer.", again=False)
        if outline.usage:
            self.usage = outline.usage
        for choice in outline.choices or ():
            if choice.finish_reason and choice.finish_reason not in self.reasons:
                self.reasons += (choice.finish_reason,)
        return bool(outline.choices) or not outline.usage or not self._hide_usage

    def _at_end(self) -> bytes:
        """The body is over without its mark. It was finished if its model said so."""
        rest = b"".join(self._rest).rstrip(b"\n")
        if self._rebuilt is not None:
            rest = _as_events(self._rebuilt.finish()).rstrip(b"\n")
            self._rebuilt = None
        self._rest = []
        # A last event without its blank line counts if it is whole; one that was cut off says no more than the end does.
        rest = rest + b"\n\n" if _is_whole(rest) else b""
        if rest:
            self._looked_at(rest)
        if not self.reasons and not self._done:
            raise BrokenOff("the body ended before its end mark", transport_error=False)
        self._done = False
        return rest if rest.endswith(END) else rest + END


async def _start_of(response: Response, secrets: Sequence[str]) -> bytes:
    """What has come once the first words are there."""
    sse, chunks = EventStreamReader(), ChunkReader()
    start, reads = b"", aiter(response.chunks())
    while True:
        try:
            data = await reads.__anext__()
        except StopAsyncIteration:
            raise errors.bad_answer("The model's provider sent an answer that is empty or cut off.") from None
        if not start:
            _check_start(data, response)
        start += data
        try:
            said = _first_words(sse.feed(data), chunks, response, secrets)
        except EventTooLarge as error:
            raise errors.bad_answer("The model's provider sent something that is not an answer.", str(error)) from None
        if said:
            return start


def _check_start(data: bytes, response: Response) -> None:
    start = data.removeprefix(BOM).lstrip()[:1]
    if start and start in b"{[":
        raise CannotPassOn("one body came where a stream was asked for")
    _refuse_what_is_no_answer(start, response)


def _refuse_what_is_no_answer(start: bytes, response: Response) -> None:
    kind = response.headers.get("content-type", "")
    if start == b"<" or "html" in kind.lower():
        raise errors.bad_answer("The model's provider sent something that is not an answer.", f"content-type {kind!r}")
    if not start:
        raise errors.bad_answer("The model's provider sent an empty answer.")


def _first_words(payloads: Sequence[bytes], chunks: ChunkReader, response: Response, secrets: Sequence[str]) -> bool:
    for payload in payloads:
        if payload.strip() == DONE:
            raise errors.bad_answer("The model's provider sent an empty answer.")
        try:
            chunk = read_json(payload)
        except ValueError:
            if looks_like_keep_alive(payload):
                continue
            raise errors.bad_answer("The model's provider sent something that is not an answer.") from None
        for event in chunks.read(chunk):
            if isinstance(event, ProviderError):
                raise errors.reported(event.message, event.body, response.headers, secrets=secrets)
            if is_said(event):
                return True
    return False


def _is_whole(event: bytes) -> bool:
    payload = _payload_of(event)
    if payload is None:
        return False
    try:
        read_json(payload)
    except ValueError:
        return payload.strip() == DONE
    return True


_EVENT_END = re.compile(rb"\n\n+")


def _payload_of(event: bytes) -> bytes | None:
    """The data of one event; None where it has none, as a comment has none."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _as_events(payloads: Sequence[bytes]) -> bytes:
    return b"".join(b"data: " + payload.replace(b"\n", b"\ndata: ") + b"\n\n" for payload in payloads)
