"""The MCP transport over a child's standard streams.

The SDK has the session; a tool call bypasses it: its line is written here and its answer is taken out of the stream before
the SDK. The ids of our calls are strings and the SDK's are numbers.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from pydantic import ValidationError

from callgate.tools.kinds.mcp.elicitation import declare
from callgate.tools.kinds.mcp.process import NotReading, ServerProcess, StdioSpec
from callgate.tools.kinds.mcp.sdk import SessionMessage
from callgate.tools.kinds.mcp.wire import (
    FOR_SDK,
    TOO_LARGE,
    Gone,
    Line,
    Lines,
    ListBudget,
    NotSent,
    RpcAnswer,
    RpcMessage,
    ServerRequest,
    Terms,
    Unreadable,
    Waiting,
    answer_in,
    answer_in_part,
    batch_of,
    cancellation,
    encoded,
    id_in_head,
    id_in_tail,
    id_of_unreadable,
    message_of,
    progress_of,
    read_message,
)
from callgate.untrusted.doors import TooMuch, Untrusted, written_here
from callgate.untrusted.pydantic_readers import read_as
from callgate.untrusted.work import TurnShare

MAX_FOR_SDK = 256
"""Queued messages for the SDK, beyond which reading from the server is paused."""
RETRY_SECONDS = 0.01
MAX_SKIPPED_BYTES = 256 * 1024 * 1024
"""The longest line."""


class StdioLink:
    """The connection to one server process: a transport for the SDK, and direct calls for a session."""

    direct = True
    transport = "pipe"
    session_id = ""
    needs_login = None

    def __init__(self, spec: StdioSpec) -> None:
        self._spec = spec
        self._lines = Lines()
        self._ids = itertools.count(1)
        self._waiting: dict[str, Waiting] = {}
        self._backlog: deque[SessionMessage | Exception] = deque()
        self._again: asyncio.TimerHandle | None = None
        self._unread: deque[Line] = deque()
        self._reading: asyncio.Handle | None = None
        self._end: str | None = None
        """Why the child ended, where it has and not all that it wrote was read."""
        self._child: ServerProcess | None = None
        self._terms = Terms("", modern=False)
        self._to_sdk: MemoryObjectSendStream[SessionMessage | Exception] | None = None
        self._writing: asyncio.Task[None] | None = None
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.trouble = ""
        self.budget: ListBudget | None = None
        self.capabilities: Mapping[str, Any] = {}

    def agreed(self, terms: Terms, check: Callable[[], None]) -> None:
        self._terms = terms

    async def ask(self, request: ServerRequest) -> RpcAnswer:
        """Send a request and wait for the answer. A server's own questions name no call here, so that they go to the session."""
        if self._child is None or self.gone.done():
            raise NotSent("the process has ended")
        id = f"c{next(self._ids)}"
        waiting = self._waiting[id] = Waiting()
        try:
            self._child.write(message_of(id, request, self._terms) + b"\n")
            return await waiting.answer(request.report)
        except asyncio.CancelledError:
            with contextlib.suppress(NotReading):  # the cancellation would not be read either
                self._child.write(cancellation(id) + b"\n")
            raise
        except NotReading:
            raise NotSent("it does not read what it is sent") from None
        finally:
            del self._waiting[id]

    # A transport, for the SDK ---------------------------------------------------------------------

    async def __aenter__(
        self,
    ) -> tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]:
        self._child = await ServerProcess.start(self._spec, self._received, self._child_ended)
        self._to_sdk, for_sdk = anyio.create_memory_object_stream[SessionMessage | Exception](MAX_FOR_SDK)
        from_sdk, out = anyio.create_memory_object_stream[SessionMessage](0)
        self._writing = asyncio.create_task(self._write(out), name="input of a tool server")
        return for_sdk, from_sdk

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended("")  # closed by us
        try:
            if self._child is not None:
                await self._child.stop(in_haste=kind is not None)
        finally:
            self.kill()
            if self._writing is not None:
                self._writing.cancel()
                await asyncio.wait([self._writing])

    def kill(self) -> None:
        """Kill the process at once, and fail the waiting calls."""
        if self._child is not None:
            self._child.kill()
        self._ended("")
        if self._again is not None:
            self._again.cancel()
        if self._reading is not None:
            self._reading.cancel()

    async def _write(self, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async with messages:
            async for message in messages:
                declare(message.message, self.capabilities)
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                assert self._child is not None
                try:
                    self._child.write(text.encode() + b"\n")
                except NotReading:
                    self._ended("it does not read what it is sent")

    # Messages of the server -----------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        self._unread.extend(self._lines.feed(data))
        if self._lines.missing > MAX_SKIPPED_BYTES:
            self._ended("it wrote without end and without a line break")
        if self._reading is None:
            self._read_on()

    def _read_on(self) -> None:
        """Route a turn's share of what was received; the event loop goes on before the rest."""
        self._reading = None
        share = TurnShare()
        while self._unread and share.is_left:
            line = self._unread.popleft()
            if line.missing:
                messages = [line]
            else:
                messages = [Line(message) for message in batch_of(line.data)]
            if len(messages) > 1:
                self._unread.extendleft(reversed(messages))
            else:
                share.take(len(line.data))
                self._route(messages[0])
        if self._unread and not self.gone.done():
            self._reading = asyncio.get_running_loop().call_soon(self._read_on)
        elif self._end is not None:
            self._ended(self._end)
        self._flow()

    def _child_ended(self, reason: str) -> None:
        """End, after what it wrote last was read."""
        if self._unread and not self.gone.done():
            self._end = reason
        else:
            self._ended(reason)

    def _flow(self) -> None:
        """Pause reading from the server while there is something of it to be read."""
        if self._child is None:
            return
        if self._unread or self._again is not None:
            self._child.pause()
        else:
            self._child.resume()

    def _route(self, line: Line) -> None:
        if line.missing:
            self._route_in_part(line)
            return
        message = read_message(line.data)
        if message is None and (waiting := self._waiting.get(id_of_unreadable(line.data) or "")) is not None:
            waiting.failed(Unreadable("The tool's server sent an answer that cannot be read."))
        elif message is None:
            assert self._child is not None
            self._child.note(line.data[:300] + b"\n" if line.data.strip() else b"")
        elif message.method is None and isinstance(message.id, str) and message.id in self._waiting:
            waiting = self._waiting[message.id]
            try:
                waiting.answered(answer_in(message))
            except Unreadable as error:
                waiting.failed(error)
        elif message.method == "notifications/progress" and self._progressed(message):
            return
        else:
            self._pass_on(line.data, message)

    def _progressed(self, message: RpcMessage) -> bool:
        progress = progress_of(message)
        if progress is None or not isinstance(progress[0], str) or progress[0] not in self._waiting:
            return False
        self._waiting[progress[0]].progressed(progress[1])
        return True

    def _route_in_part(self, line: Line) -> None:
        """Route an answer that was too long, by the id at its beginning or end."""
        id = id_in_head(line.data) or id_in_tail(line.tail)
        waiting = self._waiting.get(id or "")
        if waiting is None:
            return
        try:
            waiting.answered(answer_in_part(line.data, line.missing))
        except Unreadable as error:
            waiting.failed(error)

    def _pass_on(self, data: bytes, heading: RpcMessage) -> None:
        try:
            if self.budget is not None and heading.method is None:
                self.budget.take(data)
            text = Untrusted(data, FOR_SDK).open()
        except TooMuch as error:
            self._refuse(heading, str(error))
            return
        with contextlib.suppress(ValidationError):  # JSON, but no message of the protocol
            self._put(read_as(jsonrpc_message_adapter, text))

    def _refuse(self, heading: RpcMessage, why: str) -> None:
        """Give the SDK an error in place of an answer; any other message of this size is left out."""
        self.trouble = why
        assert self._child is not None
        self._child.note(why.encode() + b"\n")
        if heading.method is None and heading.id is not None:
            error = {"jsonrpc": "2.0", "id": heading.id, "error": {"code": TOO_LARGE, "message": why}}
            self._put(read_as(jsonrpc_message_adapter, written_here(encoded(error))))

    def _put(self, message: JSONRPCMessage) -> None:
        self._backlog.append(SessionMessage(message))
        if self._again is None:
            self._hand_over()

    def _hand_over(self) -> None:
        self._again = None
        assert self._to_sdk is not None
        try:
            while self._backlog:
                self._to_sdk.send_nowait(self._backlog[0])
                self._backlog.popleft()
        except anyio.WouldBlock:
            self._again = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._hand_over)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._backlog.clear()  # the session is closing
        self._flow()

    def _ended(self, reason: str) -> None:
        if self.gone.done():
            return
        self.gone.set_result(reason)
        for waiting in self._waiting.values():
            waiting.failed(Gone("it ended while the tool ran"))
        if self._to_sdk is not None:
            self._to_sdk.close()
