"""A process that is killed between the answer to a renewal and the write: what another process does with the login."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.state.database import Database
from callgate.state.ledger import open_ledger
from callgate.tools.kinds.mcp.authorization import OPERATOR, NeedsLogin
from callgate.tools.kinds.mcp.oauth.ledger_tokens import LedgerTokens
from tests.harness.process import child
from tests.tools.kinds.mcp.oauth.dying_renewal import HAS_ANSWER
from tests.tools.servers.authority import Authority, Login, authority_and_resource, login_to

pytestmark = pytest.mark.anyio

MODULE = "tests.tools.kinds.mcp.oauth.dying_renewal"


class Watched(LedgerTokens):
    """Tokens that say when a renewal was found to be claimed."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.found_claimed = asyncio.Event()

    async def claim(self, id: str, generation: int, holder: str, seconds: float) -> bool:
        is_ours = await super().claim(id, generation, holder, seconds)
        if not is_ours:
            self.found_claimed.set()
        return is_ours


@contextlib.asynccontextmanager
async def login_of_a_killed_process(folder: Path, *, rotates: bool) -> AsyncIterator[tuple[Login, Watched]]:
    """A login that another process was renewing when it was killed, as this process has it."""
    async with authority_and_resource() as (authority, resource):
        authority.rotates = rotates
        ledger = await open_ledger(folder=folder, dead_after=60.0, on_lost=lambda lost: None)
        try:
            tokens = Watched(ledger.database)
            async with login_to(authority, resource, tokens) as login:
                await login.log_in()
                await ledger.database.fetch("UPDATE oauth_tokens SET expires_at = 1")
                login.source.forget(OPERATOR)
                async with child((str(folder), authority.url, resource.url), module=MODULE) as process:
                    await process.line(HAS_ANSWER)
                    process.signal(signal.SIGKILL)
                    assert await process.ended() == -signal.SIGKILL
                yield login, tokens
        finally:
            await ledger.close()


def refreshes(authority: Authority) -> list[str]:
    return [asked["refresh_token"] for asked in authority.asked("/token") if asked["grant_type"] == "refresh_token"]


async def let_the_claim_end(tokens: Watched) -> None:
    """As if the time had passed that a renewal may take."""
    await tokens._database.fetch("UPDATE oauth_tokens SET claimed_until = 1")


async def test_the_login_is_kept_where_its_issuer_takes_a_refresh_token_again(tmp_path: Path) -> None:
    async with login_of_a_killed_process(tmp_path, rotates=False) as (login, tokens):
        assert len(refreshes(login.authority)) == 1
        sending = [asyncio.create_task(login.send()) for _ in range(5)]
        await tokens.found_claimed.wait()
        assert len(refreshes(login.authority)) == 1, "who claimed it may be at work still"
        await let_the_claim_end(tokens)
        sent = {await task for task in sending}
        assert len(sent) == 1
        assert sent <= login.authority.valid
        assert len(refreshes(login.authority)) == 2


async def test_where_it_may_be_used_once_it_is_used_once_more_and_never_again(tmp_path: Path) -> None:
    async with login_of_a_killed_process(tmp_path, rotates=True) as (login, tokens):
        await let_the_claim_end(tokens)
        for _ in range(3):
            with pytest.raises(NeedsLogin):
                await login.send()
        sent = refreshes(login.authority)
        assert len(sent) == 2, "the issuer is asked no third time"
        assert len(set(sent)) == 1
        assert login.authority.reused == 1
        await login.log_in()
        assert await login.send() in login.authority.valid
