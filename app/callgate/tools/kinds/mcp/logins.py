"""The port through which the page, its routes and the command line log in to MCP servers."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from callgate.tools.kinds.mcp.authorization import Identity


class LoginState(StrEnum):
    """Whether requests to a server can be made as an identity."""

    OK = "ok"
    NEEDS_LOGIN = "needs_login"
    NEEDS_SCOPES = "needs_scopes"
    """Logged in, and the server has refused something because the login does not reach so far."""


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """Another state of an identity at a server."""

    server: str
    identity: Identity
    state: LoginState
    reason: str
    """Why nobody is logged in any more, for the operator; empty where somebody is."""
    lacking: int
    """The identities at this server whose logins this process has missed."""


class LoginBegun(msgspec.Struct, frozen=True, kw_only=True):
    """A login for which a browser can be sent away. It is over after ten minutes."""

    address: str
    """The page of the authorization server, to be shown whole before it is opened."""
    state: str
    """What the authorization server sends back with the browser."""
    browser: str
    """A secret that binds the login to the browser that began it: it has to come back with that browser, in a `__Host-` cookie."""
    issuer: str
    scopes: tuple[str, ...] = ()


class LoginDone(msgspec.Struct, frozen=True, kw_only=True):
    """A login that came to its end."""

    server: str
    identity: Identity
    issuer: str
    scopes: tuple[str, ...] = ()
    by_ticket: bool = False
    """It was begun by an address that its user was given, which is used up."""


class LoginFailed(Exception):
    """Raised where nobody was logged in. Its text is for the person at the browser, and has nothing of what others wrote."""


class LoginStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said of a login. Never a secret."""

    server: str
    identity: Identity
    per: str
    """`server`, `key` or `user`, as in the server's entry."""
    state: LoginState
    issuer: str = ""
    scopes: tuple[str, ...] = ()
    missing_scopes: tuple[str, ...] = ()
    seconds_left: float | None = None
    """Until the token has to be renewed; None where nobody said."""
    is_renewable: bool = False
    """Whether that needs nobody."""


class Logins(Protocol):
    """The logins to the servers of one config."""

    async def begin(self, server: str, identity: Identity, redirect_uri: str, scopes: Sequence[str] = ()) -> LoginBegun:
        """Find out where to log in, and write down what is expected to come back. `scopes` are asked for beside those that the server
        names. Raises `LoginFailed`."""
        ...

    async def finish(self, state: str, parameters: Mapping[str, str], *, browser: str) -> LoginDone:
        """End a login with the query that the browser came back with. Works once for each state. Raises `LoginFailed`."""
        ...

    async def logout(self, server: str, identity: Identity) -> bool:
        """Revoke and forget the tokens of an identity; return whether there were any."""
        ...

    async def statuses(self) -> Sequence[LoginStatus]:
        """Return the logins that are kept, and those that are missing: of all servers, one of each operator's."""
        ...


def login_facts(status: LoginStatus) -> dict[str, Any]:
    """Return what may be shown of a login."""
    return {
        "server": status.server,
        "per": status.per,
        "key": status.identity.key or None,
        "user": status.identity.user or None,
        "state": str(status.state),
        "issuer": status.issuer or None,
        "scopes": list(status.scopes),
        "missing_scopes": list(status.missing_scopes),
        "seconds_left": None if status.seconds_left is None else round(status.seconds_left),
        "renewable": status.is_renewable,
    }


def client_document(public_url: str, client_name: str = "Callgate") -> Mapping[str, object]:
    """Return what Callgate says of itself as a client, at the address that is its id: `GET /oauth/client.json`. For a `public_url` with
    https."""
    return {
        "client_id": document_address(public_url),
        "client_name": client_name,
        "client_uri": public_url,
        "redirect_uris": [callback_address(public_url), "http://127.0.0.1/callback"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def document_address(public_url: str) -> str:
    return f"{public_url.rstrip('/')}/oauth/client.json"


def callback_address(public_url: str) -> str:
    return f"{public_url.rstrip('/')}/oauth/callback"


def login_page(public_url: str) -> str:
    """Return the address at which a person finds the button that logs in, after showing a key."""
    return f"{public_url.rstrip('/')}/#/tools"
