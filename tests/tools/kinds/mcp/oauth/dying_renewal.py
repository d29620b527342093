"""A process that renews a login, and is killed when it has the answer and has written nothing: FOLDER, URL of the authority, of the resource."""

import asyncio
import sys
from pathlib import Path

from callgate.state.ledger import open_ledger
from callgate.tools.kinds.mcp.oauth.ledger_tokens import LedgerTokens
from callgate.tools.kinds.mcp.oauth.tokens import TokenRow
from tests.tools.servers.authority import Authority, Resource, login_to

HAS_ANSWER = "it has the answer"


class DyingTokens(LedgerTokens):
    """Tokens of a process that comes no further than to the write."""

    async def renew(self, row: TokenRow, holder: str) -> bool:
        print(HAS_ANSWER, flush=True)  # noqa: T201 - told to whoever kills it
        await asyncio.Event().wait()
        return False


async def main(folder: str, authority: str, resource: str) -> None:
    ledger = await open_ledger(folder=Path(folder), dead_after=60.0, on_lost=lambda lost: None)
    servers = Authority(url=authority), Resource(Authority(), url=resource)
    async with login_to(*servers, DyingTokens(ledger.database)) as login:
        await login.send()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
