"""MCP over standard input and output: a message a line, each passed on to `/mcp`, of a running server or of one in this process.

Standard output carries messages and nothing else: whatever else is written there, by a tool or a program that it starts, goes to
standard error.
"""

import asyncio
import base64
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
from starlette.types import ASGIApp

from callgate.api.strict_json import open_body
from callgate.conversation.errors import ChatError
from callgate.mcp_server.protocol import (
    INTERNAL_ERROR,
    METHOD_HEADER,
    NAME_HEADER,
    NAMED,
    PARSE_ERROR,
    VERSION_HEADER,
    Envelope,
    Id,
    RpcFailure,
    encode,
    envelope_of,
    failure,
    meta_of,
    text_of,
)
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader

if TYPE_CHECKING:
    from callgate.http.client import HttpClient

MAX_LINE: Final = 64 * 1024 * 1024
ANSWER: Final = Door(name="an answer to an MCP client", bytes=256 * 1024 * 1024)
"""Of the server at the other end of the bridge."""
MAX_DEPTH: Final = 512
LAST_ANSWERS: Final = 1.0
"""Seconds for answers that are under way when standard input ends."""
PATIENCE: Final = 86_400.0
"""The longest silence of an answer; a call may wait for a person."""
CANCELLED: Final = "notifications/cancelled"
_PLAIN: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")

Take = Callable[[bytes], Awaitable[None]]
"""Takes one message of the server."""
Post = Callable[[bytes, Mapping[str, str], Take], Awaitable[None]]
"""Posts a message with headers, and hands on what comes for it. Raises `CannotPost`."""


class CannotPost(Exception):
    """Raised where the server cannot be reached. The text is for people."""


class _Initialized(msgspec.Struct):
    revision: str = msgspec.field(default="", name="protocolVersion")


class _Message(msgspec.Struct):
    """What is looked at of a server's message."""

    id: Id | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_read_message: Final = json_reader(_Message)
_read_initialized: Final = json_reader(_Initialized)


class StdioBridge:
    """Passes the messages of one client on, and the answers back."""

    def __init__(self, post: Post, write: Take, key: str | None = None) -> None:
        """`write` takes each line for the client."""
        self._post = post
        self._write = write
        self._key = key
        self._revision = ""
        """What was agreed on in `initialize`."""
        self._under_way: dict[Id, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, lines: "asyncio.Queue[bytes | None]") -> None:
        """Pass on each line, until there are no more."""
        while (line := await lines.get()) is not None:
            if not line.strip():
                continue
            try:
                envelope = envelope_of(open_body(line.strip()), MAX_DEPTH)
            except RpcFailure as error:
                await self._write(failure(None, error))
                continue
            except ChatError as error:
                await self._write(failure(None, RpcFailure(PARSE_ERROR, error.message)))
                continue
            if envelope.method == CANCELLED:
                self._cancel(envelope)
                continue
            task = asyncio.create_task(self._pass_on(line.strip(), envelope), name="a message")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if envelope.id is not None:
                self._under_way[envelope.id] = task
                if envelope.method == "initialize":
                    await asyncio.wait({task})  # what comes next is of the revision that it agrees on
        await self._end()

    async def _end(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_ANSWERS)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _cancel(self, envelope: Envelope) -> None:
        """Leave a request that the client wants no answer to any more, which stops its tool."""
        try:
            id = _read_id(envelope.params["requestId"])
        except (KeyError, *READ_ERRORS):
            return
        task = self._under_way.get(id)
        if task is not None:
            task.cancel()

    async def _pass_on(self, line: bytes, envelope: Envelope) -> None:
        try:
            await self._post(line, self._headers(envelope), lambda message: self._hand_on(envelope, message))
        except CannotPost as error:
            if envelope.id is not None:
                await self._write(failure(envelope.id, RpcFailure(INTERNAL_ERROR, str(error))))
        except RpcFailure as error:
            await self._write(failure(envelope.id, error))
        finally:
            if envelope.id is not None:
                self._under_way.pop(envelope.id, None)

    async def _hand_on(self, envelope: Envelope, message: bytes) -> None:
        """Write one message of the server, under the id of the request where it has none."""
        try:
            fields = _read_message(Untrusted(message, ANSWER).open())
        except READ_ERRORS as error:
            raise CannotPost(f"what the server answered is no message: {error}") from None
        if bytes(fields.error) and fields.id is None and envelope.id is not None:
            message = encode({"jsonrpc": "2.0", "id": envelope.id, "error": fields.error})
        if envelope.method == "initialize" and bytes(fields.result):
            self._revision = _read_initialized(fields.result).revision
        if b"\n" in message:
            message = message.replace(b"\r", b" ").replace(b"\n", b" ")  # between tokens: strings have none
        await self._write(message)

    def _headers(self, envelope: Envelope) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        meta = meta_of(envelope.params)
        if meta is None or not isinstance(meta.version, str):
            if self._revision and envelope.method != "initialize":
                headers[VERSION_HEADER] = self._revision
            return headers
        headers[VERSION_HEADER] = _in_header(meta.version)
        headers[METHOD_HEADER] = _in_header(envelope.method)
        named = NAMED.get(envelope.method)
        if named is not None and named in envelope.params:
            headers[NAME_HEADER] = _in_header(text_of(envelope.params, named))
        return headers


_read_id: Final = json_reader(Id)


def _in_header(text: str) -> str:
    """Return a text as a header has it: in base64 unless it is plain."""
    if _PLAIN.fullmatch(text) and not text.startswith("=?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='replace')).decode()}?="


class HttpPost:
    """Posts to a running server."""

    def __init__(self, client: "HttpClient", url: str) -> None:
        self._client = client
        self._url = url

    async def __call__(self, body: bytes, headers: Mapping[str, str], take: Take) -> None:
        from callgate.http.interface import Deadlines, TransportError

        deadlines = Deadlines(connect=10.0, first_byte=PATIENCE, idle=PATIENCE, total=float("inf"))
        try:
            async with self._client.request("POST", self._url, headers, body, deadlines) as response:
                reader = AnswerReader(response.headers().get("content-type", ""), take)
                async for data in response.chunks():
                    await reader.feed(data)
                await reader.finish()
        except TransportError as error:
            raise CannotPost(f"{self._url}: {error}") from None


class AppPost:
    """Posts to an application in this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, body: bytes, headers: Mapping[str, str], take: Take) -> None:
        reader: AnswerReader | None = None
        is_read = False

        async def receive() -> dict[str, Any]:
            nonlocal is_read
            if is_read:
                await asyncio.Event().wait()  # the client leaves by cancelling this task
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal reader
            if message["type"] == "http.response.start":
                types = [value.decode() for name, value in message["headers"] if name.lower() == b"content-type"]
                reader = AnswerReader("".join(types[:1]), take)
            elif reader is not None:
                await reader.feed(message.get("body", b""))
                if not message.get("more_body"):
                    await reader.finish()

        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"%d" % len(body)), *raw],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": {},
        }
        await self._app(scope, receive, send)


class AnswerReader:
    """Takes the messages out of an answer: one, or those of an event stream."""

    def __init__(self, content_type: str, take: Take) -> None:
        self._is_stream = content_type.startswith("text/event-stream")
        self._take = take
        self._unfinished = b""

    async def feed(self, data: bytes) -> None:
        self._unfinished += data
        if not self._is_stream:
            return
        *lines, self._unfinished = self._unfinished.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                await self._take(line.removeprefix(b"data:").strip())

    async def finish(self) -> None:
        if not self._is_stream and self._unfinished.strip():
            await self._take(self._unfinished.strip())


def private_output() -> BinaryIO:
    """Return standard output, and give everybody else standard error in its place."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return output


def read_lines(stream: BinaryIO, lines: "asyncio.Queue[bytes | None]") -> None:
    """Put each line of a stream into a queue, from a thread that ends with it."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        line = b"x"
        while line:
            line = stream.readline(MAX_LINE)
            try:
                loop.call_soon_threadsafe(lines.put_nowait, line or None)
            except RuntimeError:
                return  # the loop is closed

    threading.Thread(target=read, name="standard input", daemon=True).start()


def line_writer(output: BinaryIO) -> Take:
    lock = asyncio.Lock()

    def write(line: bytes) -> None:
        output.write(line + b"\n")
        output.flush()

    async def write_line(line: bytes) -> None:
        async with lock:
            await asyncio.to_thread(write, line)

    return write_line
