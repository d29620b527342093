"""What a call costs an MCP client's server: `python bench/mcp_server.py`.

Requests go to the application in this process, without sockets: the least CPU time of a request over 40 batches of 25, so that a busy
machine does not fail it. A call may take 200 µs at 2026-07-28, and a cached list of 300 tools 1 ms, or the exit code says so.
"""

import asyncio
import gc
import io
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "app"), str(ROOT)]

from callgate.application import create_app
from callgate.config import redaction
from callgate.config.schema.whole import Config
from callgate.telemetry import logs

BATCHES, BATCH = 40, 25
TOOLS = 300
BARS = {"tools/call, 2026-07-28": 200.0, f"tools/list of {TOOLS}, cached": 1000.0}
"""Microseconds."""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
NAMED = {"tools/call": "name"}


class Nowhere(io.StringIO):
    """Takes log lines, and keeps none."""

    def write(self, text: str) -> int:
        return len(text)


def config() -> Config:
    parameters = {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": "What it is for."} for name in ("title", "body", "labels")
        },
    }
    many = [
        {
            "kind": "http",
            "name": f"tool_{number:03}",
            "description": "Does something with an issue, a file or a message. " * 4,
            "url": f"http://127.0.0.1:9/{number}",
            "method": "POST",
            "parameters": parameters,
            "safety": "read_only",
        }
        for number in range(TOOLS - 3)
    ]
    model = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
    builtin = {"kind": "python", "module": "callgate.tools.builtin"}
    return Config.model_validate({"model_list": [model], "tools": [builtin, *many]})


async def main() -> int:
    logs.configure(redaction.current, level="info", format="json", stream=Nowhere())
    app = create_app(config())
    sum_up = {"name": "calculator", "arguments": {"expression": "1+1"}}
    work: dict[str, Callable[[], Awaitable[bytes]]] = {
        "tools/call, 2026-07-28": lambda: post(app, "tools/call", sum_up),
        "tools/call, 2025-11-25": lambda: post(app, "tools/call", sum_up, modern=False),
        f"tools/list of {TOOLS}, cached": lambda: post(app, "tools/list", {}),
    }
    failed = False
    async with app.router.lifespan_context(app):
        began = time.process_time()
        size = len(await post(app, "tools/list", {}))
        print(f"the first list: {(time.process_time() - began) * 1e6:9.0f} us, {size} bytes")
        for label, ask in work.items():
            took = await least(ask)
            bar = BARS.get(label)
            failed |= bar is not None and took > bar
            print(f"{label:28} {took:7.1f} us of CPU{f' (at most {bar:g})' if bar else ''}")
    return 1 if failed else 0


async def least(ask: Callable[[], Awaitable[bytes]]) -> float:
    for _ in range(BATCH):
        await ask()
    gc.collect()
    best = float("inf")
    for _ in range(BATCHES):
        began = time.process_time()
        for _ in range(BATCH):
            await ask()
        best = min(best, (time.process_time() - began) / BATCH)
    return best * 1e6


async def post(app: Any, method: str, params: dict[str, Any], *, modern: bool = True) -> bytes:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **({"_meta": META} if modern else {})}}
    body = json.dumps(message).encode()
    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"mcp-protocol-version", b"2026-07-28" if modern else b"2025-11-25"),
    ]
    if modern:
        headers.append((b"mcp-method", method.encode()))
        if method in NAMED:
            headers.append((b"mcp-name", params[NAMED[method]].encode()))
    parts: list[bytes] = []
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        parts.append(message.get("body", b""))

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
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    await app(scope, receive, send)
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
