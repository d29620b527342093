"""Logging in to MCP servers in a browser: `/v1/logins` for keys, and what browsers and authorization servers ask for below `/oauth`.

Who logs in for a key holds that key: the login is begun with it, and ended by the browser that began it, which shows a cookie that
no other has. A user of a key, who has none, begins with the ticket in the address that he was given.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from callgate.api.bodies import read_counted
from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.json_body import read_json_body
from callgate.api.middleware import context_of
from callgate.api.rights import caller_after_body, caller_of, check_admin
from callgate.callers.caller import Caller, owner_name
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity
from callgate.tools.kinds.mcp.identities import is_user
from callgate.tools.kinds.mcp.logins import (
    LoginBegun,
    LoginDone,
    LoginFailed,
    LoginState,
    LoginStatus,
    callback_address,
    client_document,
)
from callgate.tools.kinds.mcp.settings import McpServer

if TYPE_CHECKING:  # imported with the first server that is logged in to
    from callgate.tools.kinds.mcp.login_tickets import Ticket
    from callgate.tools.kinds.mcp.oauth.service import OAuthLogins

BODY_BYTES: Final = 16_384
QUERY_BYTES: Final = 16_384
LOGIN_SECONDS: Final = 600
"""How long the browser keeps its half of a login, as the login itself is kept."""
COOKIE: Final = "__Host-callgate-login-"
"""Followed by the login that it is for. Browsers keep one with this prefix for the host that set it alone."""
PLAIN: Final = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
NO_ADDRESS: Final = (
    "A browser cannot come back here from a login without `server.public_url`: `callgate mcp login {server}` logs in."
)
EXAMPLE: Final = '{"server": "…"}'


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """The body that begins a login."""

    server: str
    user: str = ""
    """The user of the key whose login it is, where each has one of his own."""


class TicketBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body by which a user without a key begins a login."""

    ticket: str


def login_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["tools"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}

    @router.get("/v1/logins", summary="The MCP servers that this key may log in to, and who is logged in")
    async def list_logins(request: Request) -> Response:
        caller = caller_of(request, "logins")
        return _private(await _listed(manager, caller))

    @router.post(
        "/v1/logins",
        summary="Begin a login to an MCP server: the address to open in the browser that asked",
        responses={
            403: {"description": "This key may not.", **error},
            404: {"description": "No such server to log in to, or not for this key.", **error},
            409: {"description": "It cannot be logged in to from here.", **error},
        },
        openapi_extra=_body(
            {"server": "The server.", "user": "The user whose login it is, with `per: user`."}, "server"
        ),
    )
    async def begin(request: Request) -> Response:
        context = context_of(request.scope)
        context.route = "logins"
        body = await read_counted(request.receive, BODY_BYTES)
        caller = caller_after_body(manager, context)
        wish = read_json_body(body, Wish, EXAMPLE)
        runtime = manager.current
        section = _section(runtime, wish.server, caller)
        return await _begun(manager, wish.server, _identity(runtime, section, caller, wish.user))

    @router.delete(
        "/v1/logins/{server}",  # noqa: FAST003 - read from the request, see `in_path`
        summary="Log out of an MCP server: the tokens are revoked and forgotten",
        responses={404: {"description": "No such server to log in to, or not for this key.", **error}},
        openapi_extra={
            "parameters": [
                *in_path("server")["parameters"],
                {"name": "user", "in": "query", "schema": {"type": "string"}},
            ]
        },
    )
    async def logout(request: Request) -> Response:
        caller = caller_of(request, "logins")
        runtime = manager.current
        server = request.path_params["server"]
        section = _section(runtime, server, caller)
        identity = _identity(runtime, section, caller, request.query_params.get("user", ""))
        try:
            was_in = await _logins(manager).logout(server, identity)
        except LoginFailed as failure:
            raise _cannot(str(failure)) from None
        return _private({"object": "login", "server": server, "logged_out": was_in})

    @router.post(
        "/oauth/login",
        summary="Begin the login of a user without a key, by the ticket in the address that he was given",
        responses={409: {"description": "The ticket is none, is over, or was used.", **error}},
        openapi_extra=_body({"ticket": "What stands in the address."}, "ticket"),
    )
    async def begin_by_ticket(request: Request) -> Response:
        context_of(request.scope).route = "logins"
        body = await read_counted(request.receive, BODY_BYTES)
        wish = read_json_body(body, TicketBody, '{"ticket": "…"}')
        try:
            ticket = _logins(manager).tickets.open(wish.ticket)
        except LoginFailed as failure:
            raise _cannot(str(failure)) from None
        section = manager.current.config.mcp_servers.get(ticket.server)
        if (
            section is None
            or section.oauth is None
            or section.oauth.per != "user"
            or not _is_key(manager, ticket.identity.key)
        ):
            raise _not_found(ticket.server)
        return await _begun(manager, ticket.server, ticket.identity, ticket)

    @router.get(
        "/oauth/callback",
        summary="Where an authorization server sends a browser back to",
        response_class=PlainTextResponse,
    )
    async def callback(request: Request) -> Response:
        context_of(request.scope).route = "logins"
        state = request.query_params.get("state", "")
        try:
            done = await _finished(manager, request, state)
            text = f"Logged in to {done.server}. This window can be closed."
            if done.by_ticket:
                text += " The address that it was begun by cannot be used again."
        except LoginFailed as failure:
            text = f"Not logged in: {failure}."
        response = PlainTextResponse(text, headers=PLAIN)
        response.delete_cookie(_cookie_of(state), path="/", secure=True, httponly=True, samesite="lax")
        return response

    @router.get("/oauth/client.json", summary="What Callgate says of itself as a client of authorization servers")
    async def describe_client(request: Request) -> Response:
        context_of(request.scope).route = "logins"
        public_url = manager.current.config.server.public_url
        if public_url is None or urlsplit(public_url).scheme != "https" or manager.shared.logins.made is None:
            raise ChatError(
                404, "There is no such document here: it needs `server.public_url` with https.", code="login_not_found"
            )
        return Response(encode(client_document(public_url)), media_type="application/json")

    return router


# Who may log in for whom ----------------------------------------------------------------------------------


def _section(runtime: Runtime, server: str, caller: Caller) -> McpServer:
    """Return the entry of a server that somebody logs in to, if a caller may use any tool of it or administers all."""
    section = runtime.config.mcp_servers.get(server)
    if section is None or section.disabled or section.oauth is None or section.oauth.grant != "code":
        raise _not_found(server)
    if not (runtime.access.may_administer(caller) or _uses(runtime, server, caller)):
        raise _not_found(server)
    return section


def _uses(runtime: Runtime, server: str, caller: Caller) -> bool:
    """Return whether a caller may use any tool of a server, as far as it is known which there are."""
    if any(pattern.startswith(f"{server}/") for pattern in caller.tools):
        return True
    return any(tool.source == server for tool in runtime.offered.of_key(caller.tools).by_name.values())


def _identity(runtime: Runtime, section: McpServer, caller: Caller, user: str) -> Identity:
    """Return whose login a caller may begin or end."""
    assert section.oauth is not None, "it is logged in to"
    if section.oauth.per == "server":
        check_admin(runtime, caller)
        return OPERATOR
    if caller.anonymous:
        message = "Each key is itself at this server: log in with a key."
        raise ChatError(403, message, type="permission_error", code="login_needs_key")
    if section.oauth.per == "key":
        return Identity(owner_name(caller))
    if not user:
        message = "Each user is himself at this server: name the `user` whose login it is."
        raise ChatError(400, message, param="user", code="missing_required_parameter")
    if not is_user(user):
        raise ChatError(400, "No user is called so: the name is too long, or has a zero.", param="user")
    return Identity(owner_name(caller), user)


def _is_key(manager: RuntimeManager, owner: str) -> bool:
    return manager.current.access.caller_named(owner) is not None


# A login ------------------------------------------------------------------------------------------------


async def _begun(manager: RuntimeManager, server: str, identity: Identity, ticket: "Ticket | None" = None) -> Response:
    """Begin a login, and give the browser its half of it. `ticket`: by which it is begun."""
    config = manager.current.config
    section = config.mcp_servers[server]
    public_url = config.server.public_url
    assert section.oauth is not None, "it is logged in to"
    if public_url is None or section.oauth.redirect == "loopback":
        raise _cannot(NO_ADDRESS.format(server=server))
    missing = await _missing_scopes(manager, server, identity)
    try:
        begun = await _logins(manager).begin(server, identity, callback_address(public_url), missing, ticket)
    except LoginFailed as failure:
        raise _cannot(str(failure)) from None
    response = _private(_facts_of(begun, server, identity))
    response.set_cookie(
        _cookie_of(begun.state),
        begun.browser,
        max_age=LOGIN_SECONDS,
        path="/",
        secure=True,
        httponly=True,
        samesite="lax",
    )
    return response


def _facts_of(begun: LoginBegun, server: str, identity: Identity) -> dict[str, Any]:
    return {
        "object": "login",
        "server": server,
        **_owner(identity),
        "address": begun.address,
        "issuer": begun.issuer,
        "scopes": begun.scopes,
        "expires_in": LOGIN_SECONDS,
    }


async def _finished(manager: RuntimeManager, request: Request, state: str) -> LoginDone:
    """End the login that a browser came back from. Raises `LoginFailed`."""
    logins = manager.shared.logins.made
    items = request.query_params.multi_items()
    parameters = dict(items)
    if logins is None or len(parameters) != len(items) or len(request.url.query) > QUERY_BYTES:
        raise LoginFailed("this is no answer of an authorization server that was asked here")
    done = await logins.finish(state, parameters, browser=request.cookies.get(_cookie_of(state), ""))
    if done.identity.key and not _is_key(manager, done.identity.key):
        await logins.logout(done.server, done.identity)
        raise LoginFailed("the key that it was begun with is none any more")
    return done


def _cookie_of(state: str) -> str:
    return COOKIE + hashlib.sha256(state.encode()).hexdigest()[:16]


async def _missing_scopes(manager: RuntimeManager, server: str, identity: Identity) -> Sequence[str]:
    statuses = await _statuses(manager)
    own = [status for status in statuses if (status.server, status.identity) == (server, identity)]
    return [scope for status in own for scope in status.missing_scopes]


# What there is to log in to -------------------------------------------------------------------------------


async def _listed(manager: RuntimeManager, caller: Caller) -> dict[str, Any]:
    """Describe the logins that concern a caller: its own, and for an operator all."""
    runtime = manager.current
    is_operator = runtime.access.may_administer(caller)
    statuses = await _statuses(manager)
    can = runtime.config.server.public_url is not None
    listed: list[dict[str, Any]] = []
    for name, section in runtime.config.mcp_servers.items():
        if section.disabled or section.oauth is None or section.oauth.grant != "code":
            continue
        of_server = [status for status in statuses if status.server == name]
        may_begin = can and section.oauth.redirect != "loopback"
        if section.oauth.per == "server":
            if is_operator:
                listed.append(_login(name, "server", OPERATOR, of_server, may_begin=may_begin))
            continue
        own = Identity(owner_name(caller))
        is_user_of_it = not caller.anonymous and _uses(runtime, name, caller)
        if section.oauth.per == "key" and is_user_of_it:
            listed.append(_login(name, "key", own, of_server, may_begin=may_begin))
        for status in of_server:
            is_own = False
            if not caller.anonymous:
                is_own = status.identity.key == own.key
            may_begin_it = False
            if is_own:
                may_begin_it = may_begin
            if status.identity not in (OPERATOR, own) and (is_operator or is_own):
                listed.append(_login(name, section.oauth.per, status.identity, of_server, may_begin=may_begin_it))
    return {"object": "list", "data": listed}


def _login(
    server: str, per: str, identity: Identity, statuses: Sequence[LoginStatus], *, may_begin: bool
) -> dict[str, Any]:
    """Describe the login of one identity. `may_begin`: whether who asks may log in for it, here."""
    status = next((status for status in statuses if status.identity == identity), None)
    facts: dict[str, Any] = {"object": "login", "server": server, "per": per, **_owner(identity)}
    facts |= {"for_all_keys": per == "server", "may_begin": may_begin}
    if status is None:
        return facts | {"state": str(LoginState.NEEDS_LOGIN), "issuer": None, "scopes": (), "missing_scopes": ()}
    return facts | {
        "state": str(status.state),
        "issuer": status.issuer or None,
        "scopes": status.scopes,
        "missing_scopes": status.missing_scopes,
    }


def _owner(identity: Identity) -> dict[str, Any]:
    return {"key": identity.key.removeprefix("key ") or None, "user": identity.user or None}


# ----------------------------------------------------------------------------------------------------------


def _logins(manager: RuntimeManager) -> "OAuthLogins":
    logins = manager.shared.logins.made
    if logins is None:
        raise ChatError(404, "No server of this config is logged in to.", code="login_not_found")
    return logins


async def _statuses(manager: RuntimeManager) -> Sequence[LoginStatus]:
    """Return what is known of all logins; nothing where that cannot be read."""
    logins = manager.shared.logins.made
    if logins is None:
        return ()
    try:
        return await logins.statuses()
    except LoginFailed:
        return ()


def _private(body: Any) -> Response:
    return Response(encode(body), media_type="application/json", headers={"cache-control": "no-store"})


def _not_found(server: str) -> ChatError:
    message = f"No server `{server[:64]}` is logged in to, or not by this key."
    return ChatError(404, message, param="server", code="login_not_found")


def _cannot(message: str) -> ChatError:
    return ChatError(409, f"{message[:1].upper()}{message[1:]}".rstrip(".") + ".", code="login_failed")


def _body(described: Mapping[str, str], required: str) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": text} for name, text in described.items()}
    schema = {"type": "object", "additionalProperties": False, "properties": properties, "required": [required]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
