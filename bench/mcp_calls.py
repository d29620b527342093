"""What a tool call over MCP costs us, in microseconds of processor time: past the SDK, and through it.

The servers are as quick as servers can be and run in processes of their own, so what is measured is this side alone.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "app"), str(Path(__file__).resolve().parents[1])]

import uvloop

from callgate.calls.states import ReadyCall
from callgate.state.sealing import Sealer
from callgate.tools.executor import CallContext, Safety
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.authorization import OPERATOR
from callgate.tools.kinds.mcp.http import HttpSpec, rules_for
from callgate.tools.kinds.mcp.oauth.building import say_nothing
from callgate.tools.kinds.mcp.oauth.memory_tokens import MemoryTokens
from callgate.tools.kinds.mcp.oauth.service import OAuthLogins
from callgate.tools.kinds.mcp.oauth.settings import OAuthSection
from callgate.tools.kinds.mcp.oauth.shelf import Shelf
from callgate.tools.kinds.mcp.oauth.source import Ready
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.sender import Sender
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.kinds.mcp.wire import CALL, ServerRequest
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet

CALLS = 2000
TURNS = 12
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
    params = {"name": "weather", "arguments": call.arguments}
    request = ServerRequest(CALL, params, silent, is_direct=False)
    await measured(f"{label}, the SDK's", lambda: session.call(request))
    await registry.close()
    await web.close()


async def authorized(spec: HttpSpec) -> None:
    """What a login that is kept adds to a call, beside the same call without: in turns, the least of each."""
    web = Web()
    shelf = Shelf(MemoryTokens(), Sealer(("x" * 32,), "process"), lambda: web, say_nothing)
    logins = OAuthLogins(shelf)
    authorization = logins.authorization("quick", spec.url, OAuthSection(), spec.rules)
    token = {"Authorization": f"Bearer {'t' * 900}"}
    authorization._ready[OPERATOR] = Ready(token, inf, 0)  # noqa: SLF001 - as after a login
    call = ReadyCall("call_1", "weather", {"city": "Oslo"}, '{"city":"Oslo"}')
    occasion = CallContext("run_1", 0, "key", silent, 65_536)
    least = {"without": inf, "with": inf}
    registries = []
    for login, given in (("without", None), ("with", authorization)):
        registry = Registry()
        registry.add_source(McpSource(ServerSpec(login, spec, prefix="", authorization=given), web))
        await registry.open()
        registries.append((login, registry, registry.tools()[0].tool))
    for _ in range(TURNS):
        for login, _, tool in registries:
            before = _cpu()
            for _ in range(CALLS // 4):
                await tool.executor.execute(call, occasion)
            least[login] = min(least[login], (_cpu() - before) / (CALLS // 4) * 1e6)
    print(f"HTTP, json: {least['without']:.1f} us CPU without a login, {least['with']:.1f} us with one")
    sender = Sender(server="quick", authorization=authorization)
    headers = {f"X-Header-{number}": "x" * 20 for number in range(8)}
    before = _cpu()
    for _ in range(100_000):
        _ = {**headers, **await sender.headers()}
    print(f"its headers alone: {(_cpu() - before) / 100_000 * 1e6:.2f} us CPU a call")
    for _, registry, _ in registries:
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
            if kind == "json":
                await authorized(HttpSpec(url, rules=rules_for(url)))
        finally:
            process.terminate()
            await process.wait()


if __name__ == "__main__":
    uvloop.run(main())
