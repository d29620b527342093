"""The kinds of executor, each with the same eight behaviours, for the contract test.

A new kind is one more class here and one more entry in `KINDS`.
"""

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from msgspec.structs import replace
from msgspec.structs import replace as msgspec_replace

from callgate.calls.outcome import Failed, Outcome
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import ProgressReport
from callgate.tools.executor import CallContext, Policy, Safety, Tool
from callgate.tools.kinds.command.command import CommandLine
from callgate.tools.kinds.command.process import CommandProcesses
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.http.endpoint import HttpEndpoint
from callgate.tools.kinds.mcp.http import HttpSpec
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.kinds.openapi.source import Api, OpenApiSource
from callgate.tools.kinds.python.function import python_tool
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.kinds.web_fetch.fetch import WebFetch
from callgate.tools.toolbox import KEPT_BYTES
from tests.tools.servers import raw_mcp
from tests.tools.servers.http_mcp import HttpMcp

RAW_MCP = Path(raw_mcp.__file__)
FLOOD_BYTES = 100 * 1024 * 1024
BINARY = bytes(range(256)) * 64

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1}},
    "required": ["city"],
    "additionalProperties": False,
}


class Kind(Protocol):
    """One kind of executor under test."""

    flood_memory: int
    """What a flood may take at most: what the tool itself makes, and what is kept of it."""
    cut_is_exact: bool

    async def open(self) -> None: ...

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        """A tool that `answers`, `raises`, `hangs`, `floods` or returns `binary`."""
        ...

    async def has_begun(self) -> None:
        """Returns when a tool that hangs has begun."""
        ...

    async def has_stopped(self) -> None:
        """Returns when what a tool that hangs had started is over, or counted as stuck where it cannot be stopped."""
        ...

    async def shut(self) -> None:
        """Close what the executor lives on, as its runtime does."""
        ...

    async def close(self) -> None:
        """Let go of everything that the test itself holds."""
        ...


class PythonAsync:
    flood_memory = FLOOD_BYTES + 24 * 1024 * 1024
    cut_is_exact = True

    async def open(self) -> None:
        self.threads = ThreadPool(2)
        self.begun, self.stopped = asyncio.Event(), asyncio.Event()

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        async def answers(city: str) -> dict[str, Any]:
            return {"city": city, "degrees": 21}

        async def raises(city: str) -> str:
            raise RuntimeError("the thermometer fell off")

        async def hangs(city: str) -> str:
            self.begun.set()
            try:
                await asyncio.Event().wait()
                return "never"
            finally:
                self.stopped.set()

        async def floods(city: str) -> str:
            return "x" * FLOOD_BYTES

        async def binary(city: str) -> bytes:
            return BINARY

        functions = {each.__name__: each for each in (answers, raises, hangs, floods, binary)}
        return python_tool(functions[behaviour], self.threads, defaults=policy)

    async def has_begun(self) -> None:
        await self.begun.wait()

    async def has_stopped(self) -> None:
        await self.stopped.wait()

    async def shut(self) -> None:
        self.threads.close()

    async def close(self) -> None:
        self.threads.close()


class PythonSync:
    flood_memory = FLOOD_BYTES + 24 * 1024 * 1024
    cut_is_exact = True

    async def open(self) -> None:
        self.threads = ThreadPool(2)
        self.begun, self.release = asyncio.Event(), threading.Event()
        self.loop = asyncio.get_running_loop()

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        def answers(city: str) -> dict[str, Any]:
            return {"city": city, "degrees": 21}

        def raises(city: str) -> str:
            raise RuntimeError("the thermometer fell off")

        def hangs(city: str) -> str:
            self.loop.call_soon_threadsafe(self.begun.set)
            self.release.wait()
            return ""

        def floods(city: str) -> str:
            return "x" * FLOOD_BYTES

        def binary(city: str) -> bytes:
            return BINARY

        functions = {each.__name__: each for each in (answers, raises, hangs, floods, binary)}
        return python_tool(functions[behaviour], self.threads, defaults=policy)

    async def has_begun(self) -> None:
        await self.begun.wait()

    async def has_stopped(self) -> None:
        assert self.threads.stuck == 1, "a thread that cannot be stopped is counted"

    async def shut(self) -> None:
        self.threads.close()

    async def close(self) -> None:
        self.release.set()
        self.threads.close()
        await everything(lambda: not self.threads.stuck)


class Http:
    flood_memory = 24 * 1024 * 1024
    cut_is_exact = False

    async def open(self) -> None:
        self.web = Web()
        self.begun, self.stopped = asyncio.Event(), asyncio.Event()
        self.connections: set[asyncio.StreamWriter] = set()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        executor = HttpEndpoint(
            self.web,
            method="POST",
            url=f"http://127.0.0.1:{self.port}/{behaviour}",
            rules=AddressRules(allow_private=True),
        )
        return Tool(behaviour, f"It {behaviour}.", PARAMETERS, executor, policy=policy, kind="http")

    async def has_begun(self) -> None:
        await self.begun.wait()

    async def has_stopped(self) -> None:
        await self.stopped.wait()

    async def shut(self) -> None:
        await self.web.close()

    async def close(self) -> None:
        await self.web.close()
        self.server.close()
        await everything(lambda: not self.connections)  # each saw its client go: no socket of ours is left open
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while head := await _head(reader):
                await self._answer(head, reader, writer)
        except ConnectionError:
            pass  # the client has had enough
        finally:
            self.connections.discard(writer)
            self.stopped.set()
            writer.close()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match head.split()[1]:
            case "/answers":
                await _send(writer, "200 OK", "application/json", b'{"city":"Oslo","degrees":21}')
            case "/raises":
                await _send(writer, "500 Internal Server Error", "text/plain", b"the thermometer fell off")
            case "/binary":
                await _send(writer, "200 OK", "application/octet-stream", BINARY)
            case "/floods":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
                for _ in range(FLOOD_BYTES // 65536):
                    writer.write(b"x" * 65536)
                    await writer.drain()
                writer.close()
            case "/hangs":
                self.begun.set()
                assert await reader.read() == b""


class WebFetchKind(Http):
    """The same server, as pages."""

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        rules = AddressRules(allow_private=True)
        inner = WebFetch(self.web, None, rules=rules, max_bytes=KEPT_BYTES, max_redirects=0)
        executor = PageOf(inner, f"http://127.0.0.1:{self.port}/{behaviour}")
        return Tool(behaviour, f"It {behaviour}.", PARAMETERS, executor, policy=policy, kind="web_fetch")


class PageOf:
    """Fetches one page whatever it is asked for, and leaves out its address."""

    def __init__(self, inner: WebFetch, url: str) -> None:
        self._inner = inner
        self._url = url

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        outcome = await self._inner.execute(ready(call.name, url=self._url), context)
        if isinstance(outcome, Failed):
            return outcome
        return msgspec_replace(outcome, text=outcome.text.removeprefix(self._url).lstrip())


class OpenApi(Http):
    """The same server, described by a document."""

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        operation = {
            "operationId": behaviour,
            "requestBody": {"required": True, "content": {"application/json": {"schema": PARAMETERS}}},
        }
        document = {
            "openapi": "3.1.0",
            "servers": [{"url": f"http://127.0.0.1:{self.port}"}],
            "paths": {f"/{behaviour}": {"post": operation}},
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(document, file)
            file.flush()
            api = Api(rules=AddressRules(allow_private=True), policy=policy, safety=policy.safety)
            [tool] = OpenApiSource("server", api, file.name, lambda: self.web).tools()
        return tool


class CommandKind:
    flood_memory = 24 * 1024 * 1024
    cut_is_exact = False

    SCRIPTS: ClassVar[dict[str, str]] = {
        "answers": """import json, sys; print(json.dumps({"city": sys.argv[1], "degrees": 21}, separators=(",", ":")), end="")""",
        "raises": """import sys; sys.exit("the thermometer fell off")""",
        "hangs": """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[2], "w").close()
while True:
    signal.pause()
""",
        "floods": f"""
import sys
for _ in range({FLOOD_BYTES} // 65536):
    sys.stdout.write("x" * 65536)
""",
        "binary": """import sys; sys.stdout.buffer.write(bytes(range(256)) * 64)""",
    }

    async def open(self) -> None:
        self.processes = CommandProcesses()
        self.folder = tempfile.TemporaryDirectory()
        self.mark = Path(self.folder.name, "begun")

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        executor = CommandLine(
            self.processes,
            argv=[sys.executable, "-I", "-S", "-c", self.SCRIPTS[behaviour], "{city}", str(self.mark)],
            parameters=PARAMETERS,
            cwd="/",
        )
        return Tool(behaviour, f"It {behaviour}.", PARAMETERS, executor, policy=policy, kind="command")

    async def has_begun(self) -> None:
        await everything(self.mark.exists)

    async def has_stopped(self) -> None:
        await everything(lambda: self.processes.running == 0 and not processes_naming(str(self.mark)))

    async def shut(self) -> None:
        await self.processes.close()

    async def close(self) -> None:
        await self.processes.close()
        self.folder.cleanup()


class McpStdio:
    flood_memory = 64 * 1024 * 1024  # a message of 8 MiB is kept, as bytes and as text, while it is read
    cut_is_exact = False

    async def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.begun = Path(self.folder.name) / "begun"
        self.cancelled = Path(self.folder.name) / "cancelled"
        self.web = Web()
        env = {"BEGUN": str(self.begun), "CANCELLED": str(self.cancelled)}
        spec = StdioSpec(sys.executable, ("-S", str(RAW_MCP)), env)
        self.server = McpSource(ServerSpec("raw", spec, prefix=""), self.web)
        await self.server.open()

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        tool = next(tool for tool in self.server.tools() if tool.name == behaviour)
        return replace(tool, policy=policy)

    async def has_begun(self) -> None:
        await everything(self.begun.exists)

    async def has_stopped(self) -> None:
        await everything(self.cancelled.exists)

    async def shut(self) -> None:
        await self.server.close()

    async def close(self) -> None:
        await self.server.close()
        await self.web.close()
        self.folder.cleanup()


class McpHttp:
    events = False
    flood_memory = 64 * 1024 * 1024  # as above
    cut_is_exact = False

    async def open(self) -> None:
        self.http = HttpMcp(events=self.events)
        await self.http.start()
        self.web = Web()
        spec = HttpSpec(self.http.url, rules=AddressRules(allow_private=True))
        self.server = McpSource(ServerSpec("http", spec, prefix=""), self.web)
        await self.server.open()

    def tool(self, behaviour: str, policy: Policy) -> Tool:
        tool = next(tool for tool in self.server.tools() if tool.name == behaviour)
        return replace(tool, policy=policy)

    async def has_begun(self) -> None:
        await self.http.begun.wait()

    async def has_stopped(self) -> None:
        await self.http.stopped.wait()
        await everything(lambda: bool(self.http.said("notifications/cancelled")))

    async def shut(self) -> None:
        await self.server.close()

    async def close(self) -> None:
        await self.server.close()
        await self.web.close()
        await everything(lambda: not self.http.connections)  # no socket of ours is left open
        await self.http.stop()


class McpEvents(McpHttp):
    events = True


KINDS: dict[str, Callable[[], Kind]] = {
    "mcp stdio": McpStdio,
    "mcp http": McpHttp,
    "mcp events": McpEvents,
    "python async": PythonAsync,
    "python sync": PythonSync,
    "http": Http,
    "openapi": OpenApi,
    "command": CommandKind,
    "web_fetch": WebFetchKind,
}


@asynccontextmanager
async def opened_kind(name: str) -> AsyncIterator[Kind]:
    kind = KINDS[name]()
    await kind.open()
    try:
        yield kind
    finally:
        async with asyncio.timeout(30):
            await kind.close()


async def everything(done: Callable[[], bool]) -> None:
    """Let the loop run until `done`. The caller bounds the wait."""
    while not done():  # noqa: ASYNC110 - what is waited for is in other people's objects, which emit no event
        await asyncio.sleep(0.001)


def processes_naming(word: str) -> list[int]:
    """The ids of processes with this word on their command line; a zombie has none any more."""
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if word in command_line(each)]


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it ended meanwhile
        return ""


async def silent(progress: ProgressReport) -> None:
    """A progress report that goes nowhere."""


def ready(name: str, /, **arguments: Any) -> ReadyCall:
    return ReadyCall("call_1", name, arguments, "{}")


def an_occasion(max_bytes: int = 1_000_000) -> CallContext:
    return CallContext(run_id="run_1", turn=0, key="key_1", report=silent, max_bytes=max_bytes)


READ_ONLY = Policy(safety=Safety.READ_ONLY)


async def _head(reader: asyncio.StreamReader) -> str:
    """The head of the next request, its body read and dropped; empty when there is none."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return ""
    length = next((line[15:] for line in head.splitlines() if line.lower().startswith("content-length:")), "0")
    await reader.readexactly(int(length))
    return head


async def _send(writer: asyncio.StreamWriter, status: str, mime_type: str, body: bytes) -> None:
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: {mime_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    await writer.drain()
