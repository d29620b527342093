"""Playing one reply over one connection, up to and into its fault."""

from collections.abc import Sequence

from tests.scripted_upstream.faces import Asked, Face, encode
from tests.scripted_upstream.http import Connection
from tests.scripted_upstream.records import RequestRecord
from tests.scripted_upstream.script import (
    Cut,
    Empty,
    ErrorEvent,
    Fault,
    Hang,
    Hold,
    Html,
    Malformed,
    Misframed,
    Reply,
    Reset,
    Shape,
)

SPLIT_PAUSE = 0.002
"""Seconds between the two halves of a split event, so that the client really reads them apart."""
BROKEN_EVENT = b'data: {"id":"chatcmpl-broken","choices":[{"index":0,"del'
PAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
JSON = {"content-type": "application/json"}


class WrongForm(Exception):
    """The reply has no form for the mode it was asked in: a recorded stream asked whole, or the reverse."""


class Player:
    """Plays a reply. `play` says whether the connection can carry another request."""

    def __init__(self, reply: Reply, asked: Asked, face: Face, connection: Connection, record: RequestRecord) -> None:
        self._reply = reply
        self._asked = asked
        self._face = face
        self._connection = connection
        self._record = record

    async def play(self) -> bool:
        reply = self._reply
        if reply.pace.before:
            await self._connection.wait(seconds=reply.pace.before)
        await self._hold_at(None)
        if _before_the_head(reply.fault):
            return await self._fail()
        self._record.status = reply.status
        match reply.fault:
            case Html():
                return await self._instead(PAGE, "text/html")
            case Empty():
                return await self._instead(b"", EVENT_STREAM["content-type"] if self._record.stream else "")
        if reply.status != 200:
            self._record.outcome = f"fault:{reply.status}"
            await self._connection.answer(reply.status, self._body(), {**JSON, **self._headers()})
            return True
        return await (self._streamed() if self._record.stream else self._whole())

    def _headers(self) -> dict[str, str]:
        return {"x-request-id": f"req_{self._record.number}", **self._reply.headers}

    async def _hold_at(self, at: int | None) -> None:
        match self._reply.pace.hold:
            case Hold(gate=gate, after=after) if after == at:
                self._record.reached.set()
                await self._connection.wait(gate)

    async def _instead(self, body: bytes, kind: str) -> bool:
        self._failed()
        await self._connection.answer(200, body, {"content-type": kind, **self._headers()})
        return True

    def _failed(self) -> None:
        self._record.outcome = f"fault:{type(self._reply.fault).__name__.lower()}"
        self._record.reached.set()

    async def _fail(self) -> bool:
        """The faults that end the connection, at the place we are at."""
        match self._reply.fault:
            case Hang():
                self._record.reached.set()
                self._record.outcome = "fault:hang"
                await self._connection.wait()
            case Reset():
                self._failed()
                self._connection.reset()
            case _:
                self._failed()
                self._connection.close()
        return False

    # Whole ---------------------------------------------------------------------------------------

    def _body(self) -> bytes:
        match self._reply.body:
            case bytes(raw):
                return raw
            case str(text):
                return text.encode()
            case None:
                return encode(self._face.whole(self._reply, self._asked))
            case value:
                return encode(value)

    async def _whole(self) -> bool:
        if self._reply.chunks is not None and self._reply.body is None:
            raise WrongForm("this reply is a recorded stream and was asked for whole")
        body, headers, fault = self._body(), {**JSON, **self._headers()}, self._reply.fault
        if isinstance(fault, Cut | Reset | Hang):
            await self._connection.head(200, {**headers, "content-length": str(len(body))})
            await self._connection.write(body[: len(body) // 2])
            return await self._fail()
        if isinstance(fault, Misframed):
            self._failed()
            await self._connection.head(200, {**headers, "transfer-encoding": "chunked"})
            await self._connection.write(b"not-a-size\r\n" + body)
            self._connection.close()
            return False
        if isinstance(fault, Malformed):
            self._failed()
            body = body[: -max(1, len(body) // 4)]
        if isinstance(fault, ErrorEvent):
            self._failed()
            event = self._face.error_event(fault, Shape())
            body = event.partition(b"data: ")[2].strip()
        await self._hold_at(0)
        await self._connection.answer(200, body, headers)
        if fault is None:
            self._record.outcome = "done"
        return True

    # Streamed ------------------------------------------------------------------------------------

    async def _streamed(self) -> bool:
        reply = self._reply
        if reply.body is not None and reply.chunks is None:
            raise WrongForm("this reply is a recorded whole answer and was asked for streamed")
        framing = {"connection": "close"} if reply.end == "eof" else {"transfer-encoding": "chunked"}
        await self._connection.head(200, {**EVENT_STREAM, **framing, **self._headers()})
        events = self._face.events(reply, self._asked)
        mark = self._face.end_mark(reply.shape)
        if mark and reply.end in ("done", "linger"):
            events = [*events, mark]
        if reply.shape.coalesce and not _has_place(reply):
            events = [b"".join(events)]
        if not await self._send(events):
            return False
        return await self._end()

    async def _send(self, events: Sequence[bytes]) -> bool:
        """Sends the events; False when a fault ended the connection on the way."""
        place = _place(self._reply.fault)
        for at, event in enumerate([*events, b""]):
            await self._hold_at(at)
            if place is not None and (at == place or (not event and at < place)):
                going_on = await self._fault_here(event)
                if not going_on:
                    return False
                if isinstance(self._reply.fault, ErrorEvent):
                    return True
            if event:
                await self._put_event(event)
                await self._between(at, len(events))
        return True

    async def _between(self, at: int, count: int) -> None:
        self._record.sent += 1
        if self._reply.pace.between and at + 1 < count:
            await self._connection.wait(seconds=self._reply.pace.between)

    async def _fault_here(self, coming: bytes) -> bool:
        """Acts out the fault; whether the stream goes on after it."""
        match self._reply.fault:
            case Malformed():
                self._failed()
                newline = b"\r\n" if self._reply.shape.crlf else b"\n"
                await self._put(BROKEN_EVENT + newline + newline)
                return True
            case ErrorEvent() as fault:
                self._failed()
                await self._put_event(self._face.error_event(fault, self._reply.shape))
                return True
            case Misframed():
                await self._connection.write(b"not-a-size\r\n")
            case Cut(into=into) if into:
                await self._put(coming[:into])
        return await self._fail()

    async def _end(self) -> bool:
        if self._reply.end in ("eof", "error"):
            if self._record.outcome == "open":
                self._record.outcome = "done" if self._reply.end == "eof" else "fault:cut"
            self._connection.close()
            return False
        if self._reply.end == "linger":
            self._record.outcome = "done"
            self._record.reached.set()
            await self._connection.wait()
        await self._connection.last_chunk()
        if self._record.outcome == "open":
            self._record.outcome = "done"
        return True

    async def _put_event(self, event: bytes) -> None:
        match self._reply.shape.split:
            case "no":
                await self._put(event)
            case "bytes":
                for at in range(len(event)):
                    await self._put(event[at : at + 1])
            case "characters":
                cut = _inside_a_character(event)
                await self._put(event[:cut])
                await self._connection.wait(seconds=SPLIT_PAUSE)
                await self._put(event[cut:])

    async def _put(self, data: bytes) -> None:
        if self._reply.end == "eof":
            await self._connection.write(data)
        else:
            await self._connection.chunk(data)


def _has_place(reply: Reply) -> bool:
    """Whether something happens between two events, so that they cannot go out as one."""
    held = reply.pace.hold is not None and reply.pace.hold.after is not None
    return held or _place(reply.fault) is not None


def _before_the_head(fault: Fault | None) -> bool:
    match fault:
        case Cut(after=None) | Reset(after=None) | Hang(after=None):
            return True
        case _:
            return False


def _place(fault: Fault | None) -> int | None:
    """After how many events the fault comes; None where it has no place among them."""
    match fault:
        case Cut(after=at) | Reset(after=at) | Hang(after=at):
            return at
        case Malformed(after=at) | Misframed(after=at) | ErrorEvent(after=at):
            return at
        case _:
            return None


def _inside_a_character(event: bytes) -> int:
    """A place to cut: inside the first multi-byte character, in the middle where there is none."""
    return next((at + 1 for at, byte in enumerate(event) if byte >= 0xC0), max(1, len(event) // 2))
