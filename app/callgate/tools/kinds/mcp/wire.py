"""The MCP messages of tool calls: writes requests, splits lines, reads answers.

The SDK needs several models and tasks for each call. Here only the fields for a call are read, and all sizes are bounded: of
a message that is too long the beginning is read.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callgate.conversation.ports import ProgressReport, Report
from callgate.http.trace_context import TRACE, trace_headers
from callgate.untrusted.doors import SMALL, Door, TooMuch, Untrusted, open_fast, open_text, written_here
from callgate.untrusted.marks import Marks
from callgate.untrusted.pydantic_readers import read_partly
from callgate.untrusted.readers import json_reader, read_leniently

if TYPE_CHECKING:  # which reads what is here
    from callgate.tools.kinds.mcp.elicitation import Elicitations

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The limit of a message: the largest image that providers take, in base64, and some more."""
MESSAGE = Door(name="message of an MCP server", bytes=MAX_MESSAGE_BYTES, values=100_000, keys=100_000)
FOR_SDK = Door(name="message of an MCP server for its SDK", bytes=MAX_MESSAGE_BYTES, values=25_000, keys=25_000)
"""The SDK makes a model of every value, which takes four times as long."""
LIST_BYTES = MAX_MESSAGE_BYTES
LIST_VALUES = 100_000
"""The limits of one list of tools, over all its pages."""
MAX_PARTS = 2_000
"""Parts of one result."""
TOO_LARGE = -32603
"""The protocol's code of an internal error, for an answer that is not read."""
MAX_BATCH = 1_000
"""Messages of one batch."""
TAIL_BYTES = 256
"""Bytes at the end of a message that was too long, where servers in TypeScript write the id."""

CALL: Final = "tools/call"
READ: Final = "resources/read"
_MODERN_META = "io.modelcontextprotocol/"
CAPABILITIES = f"{_MODERN_META}clientCapabilities"
_LAST_ID = re.compile(rb'"id"\s*:\s*"([^"\\]{1,64})"\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True, slots=True)
class Terms:
    """The protocol version and capabilities agreed on when the session was opened."""

    version: str
    modern: bool
    """Whether each request has the client and the version, as required since 2026-07-28."""
    client: Mapping[str, str] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """What the client can do for the server."""

    def meta(self, token: str) -> dict[str, Any]:
        if not self.modern:
            return {"progressToken": token}
        return {
            "progressToken": token,
            f"{_MODERN_META}protocolVersion": self.version,
            f"{_MODERN_META}clientInfo": self.client,
            CAPABILITIES: self.capabilities,
        }


class ServerRequest(msgspec.Struct, frozen=True, eq=False):
    """What a server is asked, and who hears of it until it answers."""

    method: str
    params: Mapping[str, Any]
    report: Report
    is_direct: bool = True
    """It can bypass the SDK."""
    elicitations: "Elicitations | None" = None
    """Puts to a person what the server asks meanwhile, where it may."""


class Gone(Exception):
    """The connection to the server is lost. What was sent may or may not have had an effect."""

    sent = True


class NotSent(Gone):
    """The connection is lost, and nothing of the call reached the server."""

    sent = False


SESSION_FORGOTTEN = "it no longer knows our session"
"""The reason where the server is running and has only lost the session."""


class Forgotten(NotSent):
    """The server does not know our session, and refused the call for that."""


def not_sent(gone: "asyncio.Future[str]", why: str) -> NotSent:
    """Return the error of a call for which there is no connection any more; `gone` has the reason, if it is known."""
    if gone.done() and gone.result() == SESSION_FORGOTTEN:
        return Forgotten()
    return NotSent(why)


class Unreadable(Exception):
    """Raised for an answer that is invalid by the protocol. The text is for the model."""


class RpcError(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Any = None


class Resource(msgspec.Struct):
    uri: str | None = None
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = msgspec.field(default=None, name="mimeType")


class Annotations(msgspec.Struct):
    audience: list[str] | None = None


class Content(msgspec.Struct):
    """A part of a result, with the fields of all types."""

    type: str = ""
    text: str | None = None
    data: str | None = None
    mime_type: str | None = msgspec.field(default=None, name="mimeType")
    uri: str | None = None
    name: str | None = None
    resource: Resource | None = None
    annotations: Annotations | None = None


class Result(msgspec.Struct):
    content: list[Content] = []
    contents: list[Resource] = []
    """Those of a resource that was read."""
    structured: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="structuredContent")
    is_error: bool | None = msgspec.field(default=False, name="isError")
    kind: str | None = msgspec.field(default=None, name="resultType")
    input_requests: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="inputRequests")
    """What a person has to be asked before the request is sent again."""
    request_state: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="requestState")
    """Goes back with it as it came."""


class RpcMessage(msgspec.Struct):
    """A message of a server."""

    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: RpcError | None = None


class _Progress(msgspec.Struct):
    token: int | str | None = msgspec.field(default=None, name="progressToken")
    progress: float | None = None
    total: float | None = None
    message: str | None = None


class _Cancelled(msgspec.Struct):
    id: int | str | None = msgspec.field(default=None, name="requestId")


class RpcAnswer(msgspec.Struct, frozen=True):
    """The answer to a call: a result or an error."""

    result: Result | None = None
    error: RpcError | None = None
    missing: int = 0
    """Bytes of the message that were not kept."""
    raw: msgspec.Raw = msgspec.Raw()
    """The undecoded result, where it was read by itself."""


INPUT_REQUIRED = "input_required"
"""The kind of a result that is none yet: somebody has to be asked first."""
NOBODY_HERE = "The tool asks a person for input, and nobody can be asked from here."


@dataclass(frozen=True, slots=True)
class RpcProgress:
    message: str
    fraction: float | None


class ListBudget:
    """What the pages of one list may still hold. It is asked before anything decodes a page."""

    def __init__(self, most: int = LIST_BYTES) -> None:
        self._most = most
        self._bytes = most
        self._values = LIST_VALUES

    def take(self, page: bytes) -> None:
        """Raises `TooMuch`."""
        self._bytes -= len(page)
        if self._bytes < 0:
            raise TooMuch("list of an MCP server", "bytes", self._most)
        marks = Marks()
        marks.feed(page)
        self._values -= marks.values
        if self._values < 0:
            raise TooMuch("list of an MCP server", "values", LIST_VALUES)


_read_batch = json_reader(list[msgspec.Raw])
_read_message = json_reader(RpcMessage)
_read_result = json_reader(Result)
_read_cancelled = json_reader(_Cancelled)
_read_progress = json_reader(_Progress)


def message_of(id: str, request: ServerRequest, terms: Terms) -> bytes:
    """Return the message of a request."""
    meta = {**terms.meta(id), **trace_headers()}
    return encoded({"jsonrpc": "2.0", "id": id, "method": request.method, "params": {**request.params, "_meta": meta}})


_PLAIN_PARAMS = 2
"""Name and arguments."""


class CallMessages:
    """The messages that call one tool in one session, of which only id and arguments differ."""

    __slots__ = ("_before_arguments", "_before_token", "_end")

    def __init__(self, name: str, terms: Terms) -> None:
        self._before_arguments = b'","method":"tools/call","params":{"name":%b,"arguments":' % encoded(name)
        self._before_token = b',"_meta":{"progressToken":"'
        further = {key: value for key, value in terms.meta("").items() if key != "progressToken"}
        self._end = b'"}}}'
        if further:
            self._end = b'",%b}}' % encoded(further)[1:]

    def message_fast(self, id: str, params: Mapping[str, Any]) -> bytes | None:
        """Return the message of a call. Equals `message_of` for every call of this tool with an id of ours, or returns None: where
        the trace of a request or a person's answer goes with it, and for values that msgspec does not take. To put dicts together
        for each call takes five times as long."""
        if len(params) != _PLAIN_PARAMS or TRACE.get() is not None:
            return None
        try:
            written_arguments = msgspec.json.encode(params["arguments"])
        except _UNWRITABLE:
            return None
        token = id.encode()
        return b'{"jsonrpc":"2.0","id":"%b%b%b%b%b%b' % (
            token,
            self._before_arguments,
            written_arguments,
            self._before_token,
            token,
            self._end,
        )


def cancellation(id: str) -> bytes:
    params = {"requestId": id, "reason": "the client no longer waits for it"}
    return encoded({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


_UNWRITABLE = (OverflowError, UnicodeEncodeError, msgspec.MsgspecError)
"""For values that msgspec does not take, such as integers beyond 64 bits."""


def encoded(message: Any) -> bytes:
    try:
        return msgspec.json.encode(message)
    except _UNWRITABLE:
        return json.dumps(message, separators=(",", ":")).encode()


def batch_of(data: bytes) -> list[bytes]:
    """Split a batch, which the protocol once had, into messages; one that is too large is one message that cannot be read."""
    if not data.lstrip().startswith(b"["):
        return [data]
    try:
        messages = _read_batch(Untrusted(data, MESSAGE).open())
    except (TooMuch, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [data]
    if len(messages) > MAX_BATCH:
        return [data]
    return [bytes(message) for message in messages]


def read_message(data: bytes) -> RpcMessage | None:
    """Read a message; None where it is invalid, or more than its door lets through."""
    try:
        text = Untrusted(data, MESSAGE).open()
    except TooMuch:
        return None
    try:
        return _read_message(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    if len(text) > SMALL or not text.lstrip().startswith(b"{"):
        return None
    try:
        # Lone surrogates, invalid UTF-8 and NaN make single values invalid, not the whole message.
        loose = read_leniently(open_text(text.decode("utf-8", "replace"), MESSAGE), parse_constant=lambda _: None)
        return _read_message(written_here(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace")))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


class _Answered(msgspec.Struct):
    """A response with a result. What has anything else besides is read by `answer_in`."""

    result: Result
    id: int | str | None = None
    method: Any = msgspec.UNSET
    error: Any = msgspec.UNSET


_read_answered = json_reader(_Answered)


def answer_fast(data: bytes, id: str) -> RpcAnswer | None:
    """Read the answer to one request, which names it, at once. Equals `answer_in` of the first message of `batch_of` that answers it, but
    for `raw`, or returns None. Reading a message and its result one after the other takes three times as long."""
    text = open_fast(data, MESSAGE)
    if text is None:
        return None
    try:
        answered = _read_answered(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if answered.method is not msgspec.UNSET or answered.error is not msgspec.UNSET:
        return None
    if answered.id != id:  # a whole answer may have none, and an event may not
        return None
    return RpcAnswer(_bounded(answered.result))


def answer_in(message: RpcMessage) -> RpcAnswer:
    """Return the answer in a response."""
    if message.error is not None:
        return RpcAnswer(error=message.error)
    try:
        result = _read_result(message.result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("The tool's server sent a result that is not one of the protocol's.") from error
    return RpcAnswer(_bounded(result), raw=message.result)


def answer_from(result: Mapping[str, Any]) -> RpcAnswer:
    """Return the answer for a result that is decoded already."""
    return _converted(dict(result), 0)


def answer_in_part(head: bytes, missing: int) -> RpcAnswer:
    """Read an answer of which only the beginning was kept."""
    try:
        message = read_partly(Untrusted(head, MESSAGE).open())
    except ValueError as error:
        raise Unreadable(f"The tool's answer was too long to read ({len(head) + missing} bytes).") from error
    result = message.get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict):
        raise Unreadable(f"The tool's answer was too long to read ({len(head) + missing} bytes).")
    return _converted(result, missing)


def id_in_tail(tail: bytes) -> str | None:
    match = _LAST_ID.search(tail)
    if match:
        return match[1].decode("ascii", "replace")
    return None


def id_of_unreadable(data: bytes) -> str | None:
    """Find the id in a message that cannot be parsed, at its beginning or end."""
    return id_in_head(data) or id_in_tail(data[-TAIL_BYTES:])


def id_in_head(head: bytes) -> str | None:
    match = re.match(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*"([^"\\]{1,64})"', head)
    if match:
        return match[1].decode("ascii", "replace")
    return None


def cancelled_id(message: RpcMessage) -> str:
    """Return the id of the request that a server takes back; empty where it names none."""
    try:
        return str(_read_cancelled(message.params).id)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def progress_of(message: RpcMessage) -> tuple[int | str | None, RpcProgress] | None:
    """Return the id of the call that a progress notification is about, and its progress."""
    try:
        read = _read_progress(message.params)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    fraction = None
    if read.progress is not None and read.total:
        fraction = min(max(read.progress / read.total, 0.0), 1.0)
    words = read.message or (f"{read.progress:g}" if read.progress is not None and fraction is None else "")
    return read.token, RpcProgress(words, fraction)


class Waiting:
    """A running call: fed by the reader, awaited by the caller. The latest progress counts, and the first answer."""

    __slots__ = ("_answer", "_error", "_news", "_progress")

    def __init__(self) -> None:
        self._news: asyncio.Future[None] | None = None
        self._progress: RpcProgress | None = None
        self._answer: RpcAnswer | None = None
        self._error: Exception | None = None

    def progressed(self, progress: RpcProgress) -> None:
        self._progress = progress
        self._wake()

    def answered(self, answer: RpcAnswer) -> None:
        self._answer = self._answer or answer
        self._wake()

    def failed(self, error: Exception) -> None:
        self._error = error
        self._wake()

    async def answer(self, report: Report) -> RpcAnswer:
        while self._answer is None and self._error is None:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
            if (progress := self._progress) is not None:
                self._progress = None
                await report(ProgressReport(progress.message, progress.fraction))
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


@dataclass(frozen=True, slots=True)
class Line:
    data: bytes
    missing: int = 0
    tail: bytes = b""
    """The end of a line that was too long."""


class Lines:
    """Splits a stream into lines. Of a line that is too long the beginning and the last bytes are kept."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max = max_bytes
        self._kept = bytearray()
        self._tail = b""
        self.missing = 0
        """The number of dropped bytes of the current line."""

    def feed(self, data: bytes) -> Iterator[Line]:
        *whole, last_piece = data.split(b"\n")
        for piece in whole:
            if not piece and not self._kept:
                continue  # an empty line
            if not self._kept and len(piece) <= self._max:
                yield Line(piece)
            else:
                self._take(piece)
                yield self._line()
        self._take(last_piece)

    def rest(self) -> Line:
        """Return the data after the last newline."""
        return self._line()

    def _take(self, piece: bytes) -> None:
        room = self._max - len(self._kept)
        self._kept += piece[:room] if room < len(piece) else piece
        if room < len(piece):
            self.missing += len(piece) - room
            self._tail = (self._tail + piece[max(room, len(piece) - TAIL_BYTES) :])[-TAIL_BYTES:]

    def _line(self) -> Line:
        line = Line(bytes(self._kept), self.missing, self._tail)
        self._kept = bytearray()
        self.missing = 0
        self._tail = b""
        return line


_UNDECODED = {"structuredContent": "structured", "inputRequests": "input_requests", "requestState": "request_state"}
"""The fields of a result that are kept as they came."""


def _converted(result: dict[str, Any], missing: int) -> RpcAnswer:
    apart = {name: result.pop(key, None) for key, name in _UNDECODED.items()}
    try:
        converted = msgspec.convert(result, Result, strict=False)
        for name, value in apart.items():
            if value is not None:
                setattr(converted, name, msgspec.Raw(encoded(value)))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Unreadable("The tool's server sent a result that is not one of the protocol's.") from error
    return RpcAnswer(_bounded(converted), missing=missing)


def _bounded(result: Result) -> Result:
    if len(result.content) > MAX_PARTS or len(result.contents) > MAX_PARTS:
        raise Unreadable(f"The tool's server sent a result of more than {MAX_PARTS:,} parts.")
    return result
