"""Thousands of calls at `/mcp` on a few connections: none is lost or answered as another, and nothing of them is left."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chaos import tools
from tests.chaos.scale import report, scaled
from tests.chaos.test_soak import used_by
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import serving_command
from tests.mcp_server.mcp_client import MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1800)]

CALLS = scaled(800, 10_000)
CONNECTIONS = 8
GROWTH_MIB = scaled(60.0, 5.0)
"""Between the first tenth and the end; a short run has to be much wider, because one block of memory is much of it."""
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


class Connection:
    """A client that keeps its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    async def call(self, number: int) -> Any:
        """Call a tool; return what it answers."""
        params = {"name": "count", "arguments": {"label": f"{number} {'x' * 500}"}, "_meta": ENVELOPE}
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
        lines = [
            "POST /mcp HTTP/1.1",
            f"host: {self._host}",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            f"mcp-protocol-version: {MODERN}",
            "mcp-method: tools/call",
            "mcp-name: count",
            f"content-length: {len(body)}",
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 200 "), head
        [length] = [line for line in head.splitlines() if line.startswith("content-length: ")]
        return json.loads(await self._reader.readexactly(int(length.partition(": ")[2])))


async def test_calls_of_mcp_clients_leave_nothing_behind(tmp_path: Path) -> None:
    tool = {"kind": "python", "function": f"{tools.__name__}:count", "safety": "read_only"}
    written = config_dict("http://127.0.0.1:1", tools=[tool], logging={"level": "error"})
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(written))
    marks = tmp_path / "marks"
    async with serving_command(config, environment={tools.MARKS: str(marks)}, fresh=True) as child:
        where = urlsplit(child.url)
        opened = [await asyncio.open_connection(where.hostname, where.port) for _ in range(CONNECTIONS)]
        connections = [Connection(reader, writer, where.netloc) for reader, writer in opened]
        await _call_all(connections, range(CALLS // 10))
        first = used_by(child)
        await _call_all(connections, range(CALLS // 10, CALLS))
        whole = used_by(child)
        for _, writer in opened:
            writer.close()
    growth = whole["mib"] - first["mib"]
    report("calls at /mcp", calls=CALLS, first=first, whole=whole, growth_mib=round(growth, 2))
    ran = [line.partition(" ")[0] for line in marks.read_text().splitlines()]
    assert sorted(map(int, ran)) == list(range(CALLS)), "each ran once"
    assert growth <= GROWTH_MIB
    for name in ("files", "threads", "children"):
        assert whole[name] == first[name], name


async def _call_all(connections: list[Connection], numbers: range) -> None:
    left = iter(numbers)

    async def call_on(connection: Connection) -> None:
        for number in left:
            answer = await connection.call(number)
            assert answer["id"] == number
            assert answer["result"]["content"][0]["text"] == f"counted {number} {'x' * 500}"

    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(call_on(connection))
