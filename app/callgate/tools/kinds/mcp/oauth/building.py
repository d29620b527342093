"""Builds the logins of a config's servers, where any has `oauth`. Imported with the first such server."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.config.schema.whole import Config
from callgate.state.sealing import Sealer
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.mcp.http import rules_for
from callgate.tools.kinds.mcp.logins import StateChange
from callgate.tools.kinds.mcp.oauth.discovery import CannotLogIn
from callgate.tools.kinds.mcp.oauth.ledger_tokens import LedgerTokens
from callgate.tools.kinds.mcp.oauth.memory_tokens import MemoryTokens
from callgate.tools.kinds.mcp.oauth.own_client import private_key
from callgate.tools.kinds.mcp.oauth.service import OAuthLogins
from callgate.tools.kinds.mcp.oauth.settings import OAuthSection
from callgate.tools.kinds.mcp.oauth.shelf import Shelf
from callgate.tools.kinds.mcp.oauth.source import OAuthAuthorization
from callgate.tools.kinds.mcp.oauth.tokens import Tokens
from callgate.tools.kinds.mcp.settings import McpServer

if TYPE_CHECKING:
    from callgate.state.database import Database
    from callgate.tools.kinds.http.client import Web


def say_nothing(change: StateChange) -> None:
    """Take note of nothing."""


def logins_of(
    config: Config,
    sealer: Sealer,
    database: "Database | None",
    web: "Callable[[], Web]",
    on_state: Callable[[StateChange], None] = say_nothing,
) -> OAuthLogins:
    """Return the logins, kept in the ledger's database, else in memory. Raises `ValueError` where they would be sealed with a secret that
    other machines do not have."""
    if config.ledger.url is not None and sealer.source != "environment":
        raise ValueError(
            "logins in Postgres are sealed with the variable CALLGATE_SECRET, which is not set: `openssl rand -hex 32` makes one"
        )
    tokens: Tokens = MemoryTokens()
    if database is not None:
        tokens = LedgerTokens(database)
    return OAuthLogins(Shelf(tokens, sealer, web, on_state), config.server.public_url)


def check_oauth(section: OAuthSection) -> None:
    """Raise `ValueError` for a key that is none."""
    if section.private_key is not None:
        try:
            private_key(section.private_key.get_secret_value())
        except CannotLogIn as error:
            raise ValueError(str(error)) from None


def authorization_of(logins: OAuthLogins, name: str, section: McpServer) -> OAuthAuthorization:
    """Return what authorizes the requests to a server."""
    assert section.url is not None, "`oauth` goes with `url`"
    assert section.oauth is not None, "only such a server is logged in to"
    return logins.authorization(name, section.url, section.oauth, oauth_rules(section))


def oauth_rules(section: McpServer) -> AddressRules:
    """Return the addresses that a server may lead a login to: public ones, its own host, and others only if its entry says
    `allow_private`. An issuer that the operator names may be as private as a server."""
    assert section.url is not None, "`oauth` goes with `url`"
    if section.allow_private:
        return AddressRules(allow_private=True)
    hosts = rules_for(section.url, allow_private=section.allow_private).hosts
    if section.oauth is not None and section.oauth.issuer is not None:
        hosts |= rules_for(section.oauth.issuer, allow_private=section.allow_private).hosts
    return AddressRules(hosts=hosts)
