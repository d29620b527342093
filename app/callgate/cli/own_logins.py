"""Opens the logins to the MCP servers of a config for one command, where a server of the same config keeps them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from callgate.cli.shared import give_up
from callgate.config.entry_errors import BadEntry
from callgate.config.load import Loaded
from callgate.config.schema.whole import Config
from callgate.state.building import ledger_of, opened_sealer
from callgate.state.database import DatabaseAway, NotMigrated

if TYPE_CHECKING:
    from callgate.tools.kinds.http.client import Web
    from callgate.tools.kinds.mcp.oauth.service import OAuthLogins


def has_logins(config: Config) -> bool:
    """Return whether any server is logged in to."""
    entries = (server.oauth for server in config.mcp_servers.values() if not server.disabled)
    return any(entry is not None and entry.grant != "none" for entry in entries)


@asynccontextmanager
async def opened_logins(loaded: Loaded, web: "Web | None" = None) -> "AsyncIterator[OAuthLogins]":
    """Open the logins; exits with an error message where they cannot be."""
    from callgate.tools.kinds.http.client import Web
    from callgate.tools.kinds.mcp.oauth.building import authorization_of, check_oauth, logins_of

    config = loaded.config
    try:
        sealer = opened_sealer(config)
        ledger = await ledger_of(config, _say_nothing)
    except (BadEntry, NotMigrated, DatabaseAway, OSError) as error:
        raise give_up(f"the logins cannot be read: {error}") from None
    own_web = web or Web()
    async with AsyncExitStack() as stack:
        if ledger is not None:
            stack.push_async_callback(ledger.close)
        if web is None:
            stack.push_async_callback(own_web.close)
        try:
            logins = logins_of(config, sealer, None if ledger is None else ledger.database, lambda: own_web)
            stack.push_async_callback(logins.close)
            for name, server in config.mcp_servers.items():
                if server.oauth is not None and server.oauth.grant != "none" and not server.disabled:
                    check_oauth(server.oauth)
                    authorization_of(logins, name, server)
        except ValueError as error:
            raise give_up(f"mcp_servers: {error}") from None
        logins.use(config.mcp_servers)
        yield logins


def _say_nothing(count: int) -> None:
    """Leave it to a server to say what was lost."""
