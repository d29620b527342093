"""What a tool call over MCP costs us, in microseconds of processor time: past the SDK, and through it.

The servers are as quick as servers can be and run in processes of their own, so what is measured is this side alone.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "app"), str(Path(__file__).resolve().parents[1])]

import uvloop

from callgate.calls.states import ReadyCall
from callgate.tools.executor import CallContext, Safety
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.http import HttpSpec, rules_for
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet

CALLS = 2000
ROUNDS = 5
"""Calls one after another in a chat of five rounds; the sum is what such a chat pays."""

RESULT = '{"content":[{"type":"text","text":"21 C"}],"structuredContent":{"degrees":21},"isError":false}'
GREETING = '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"quick","version":"1"}}'
TOOLS = '{"tools":[{"name":"weather","description":"Weather.","inputSchema":{"type":"object"}}]}'

ANSWERS = f"""
import json
def answer(message):
    id, method = json.dumps(message.get("id")), message.get("method")
    if method == "tools/call": body = '"result":' + {RESULT!r}
    elif method == "initialize": body = '"result":' + {GREETING!r}
    elif method == "tools/list": body = '"result":' + {TOOLS!r}
    elif "id" in message: body = '"error":{{"code":-32601,"message":"no"}}'
    else: return b""
    return ('{{"jsonrpc":"2.0","id":' + id + "," + body + "}}").encode()
"""
STDIO_SERVER = (
    ANSWERS
    + """
import sys
for line in sys.stdin.buffer:
    said = answer(json.loads(line))
    if said:
        sys.stdout.buffer.write(said + b"\\n")
        sys.stdout.buffer.flush()
"""
)
HTTP_SERVER = (
    ANSWERS
    + """
import asyncio, sys
import uvloop
KIND = sys.argv[1]
class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.got = transport, b""
    def data_received(self, data):
        self.got += data
        while (end := self.got.find(b"\\r\\n\\r\\n")) >= 0:
            head = self.got[:end].lower()
            length = int(head.split(b"content-length:")[1].split(b"\\r\\n")[0]) if b"content-length:" in head else 0
            if len(self.got) < end + 4 + length:
                return
            body, self.got = self.got[end + 4:end + 4 + length], self.got[end + 4 + length:]
            said = answer(json.loads(body)) if body else b""
            if KIND == "events" and b'"content"' in said:
                said = b"event: message\\ndata: " + said + b"\\n\\n"
                kind = b"text/event-stream"
            else:
                kind = b"application/json"
            status = b"200 OK" if said else b"202 Accepted"
            self.transport.write(b"HTTP/1.1 " + status + b"\\r\\nContent-Type: " + kind + b"\\r\\nContent-Length: "
                + str(len(said)).encode() + b"\\r\\n\\r\\n" + said)
async def main():
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
uvloop.run(main())
"""
)


async def silent(message: str, fraction: float | None = None) -> None:
    """A progress report that goes nowhere."""


async def measured(label: str, call: Callable[[], Awaitable[object]]) -> None:
    for _ in range(100):
        await call()
    cpu, wall = _cpu(), time.perf_counter()
    for _ in range(CALLS):
        await call()
    cpu, wall = (_cpu() - cpu) / CALLS * 1e6, (time.perf_counter() - wall) / CALLS * 1e6
    print(f"{label:34} {cpu:8.0f} us CPU {wall:8.0f} us wall {cpu * ROUNDS:8.0f} us CPU for {ROUNDS} rounds")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def compared(label: str, spec: StdioSpec | HttpSpec) -> None:
    web = Web()
    server = McpSource(ServerSpec("quick", spec, prefix="", overrides={"safety": Safety.READ_ONLY}), web)
    registry = Registry()
    registry.add_source(server)
    await registry.open()
    [tool] = server.tools()
    call = ReadyCall("call_1", "weather", {"city": "Oslo"}, '{"city":"Oslo"}')
    occasion = CallContext("run_1", 0, "key", silent, 65_536)
    box = RequestToolbox(server_tools=ToolSet(registry.tools()), run_id="run_1", limits=registry.limits)
    session = server._session  # noqa: SLF001 - to go the way that calls do not go
    assert session is not None
    await measured(f"{label}, ours", lambda: tool.executor.execute(call, occasion))
    await measured(f"{label}, ours in a toolbox", lambda: box.run(call, silent))
    await measured(f"{label}, the SDK's", lambda: session.call("weather", call.arguments, silent, direct=False))
    await registry.close()
    await web.close()


async def main() -> None:
    await compared("stdio", StdioSpec(sys.executable, ("-S", "-c", STDIO_SERVER)))
    for kind in ("json", "events"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HTTP_SERVER, kind, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        url = f"http://127.0.0.1:{port}/mcp"
        try:
            await compared(f"HTTP, {kind}", HttpSpec(url, rules=rules_for(url)))
        finally:
            process.terminate()
            await process.wait()


if __name__ == "__main__":
    uvloop.run(main())
