"""The SDK's client without its server, which is imported once somebody uses it."""

import subprocess
import sys

from tests.harness.process import child_environment

LATE = ("cryptography", "mcp.server", "mcp_types._v2025_11_25", "mcp_types._v2026_07_28")

IMPORTED = f"""
import sys
from callgate.tools.kinds.mcp import building, sdk

assert "mcp.client.client" in sys.modules
print(sorted(sys.modules.keys() & {set(LATE)!r}))
"""
USED = """
import asyncio
from callgate.tools.kinds.mcp import sdk
import mcp

from mcp.server import MCPServer, Server

server = MCPServer("own")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

async def called(server, mode):
    async with mcp.Client(server, mode=mode) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("add", {"a": 1, "b": 2})
        return [tool.name for tool in tools], result.structured_content

for mode in ("legacy", "auto"):
    print(asyncio.run(called(server, mode)))

from mcp import ServerSession, stdio_server
import mcp.server.session, mcp.server.stdio

assert ServerSession is mcp.server.session.ServerSession
assert stdio_server is mcp.server.stdio.stdio_server
assert not isinstance(server, Server)
assert not hasattr(mcp, "no_such_thing")
"""
AFTERWARDS = """
import mcp, mcp.server
from callgate.tools.kinds.mcp import sdk

assert sdk.Client is mcp.Client
assert mcp.client.client.Server is mcp.server.Server
"""


def printed_by(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=child_environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_client_is_imported_without_the_server_and_without_messages_that_nobody_has_sent():
    assert printed_by(IMPORTED) == ["[]"]


def test_a_tool_may_be_a_server_and_a_client_of_the_sdk_itself():
    called = "(['add'], {'result': 3})"
    assert printed_by(USED) == [called, called]


def test_the_sdk_is_left_as_it_is_where_somebody_has_imported_all_of_it():
    assert printed_by(AFTERWARDS) == []
