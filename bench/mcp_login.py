"""What a login adds to a call over MCP, in microseconds of processor time: a valid token is a look into a dictionary."""

import asyncio
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "app"), str(Path(__file__).resolve().parents[1])]

from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity
from callgate.tools.kinds.mcp.sender import Sender, Visitor
from tests.tools.servers.authority import authority_and_resource, login_to

CALLS = 200_000
BAR = 3.0


async def main() -> None:
    async with authority_and_resource() as servers:
        async with login_to(*servers) as login:
            await login.log_in()
            await measure("per server", login.source, Visitor(OPERATOR))
        async with login_to(*servers, per="user") as login:
            somebody = Identity("key", "somebody@example.com")
            await login.log_in(somebody)
            await measure("per user", login.source, Visitor(somebody))


async def measure(what: str, source: object, visitor: Visitor) -> None:
    sender = Sender(server="tools", visitor=visitor, authorization=source)  # type: ignore[arg-type]
    headers = {"Accept": "application/json"}
    await sender.headers()
    plain = time.process_time()
    for _ in range(CALLS):
        _ = {**headers}
    begun = time.process_time()
    for _ in range(CALLS):
        _ = {**headers, **await sender.headers()}
    micros = ((time.process_time() - begun) - (begun - plain)) / CALLS * 1e6
    print(f"{what}: a valid token adds {micros:.2f} µs to a call (bar: {BAR:g})")


asyncio.run(main())
