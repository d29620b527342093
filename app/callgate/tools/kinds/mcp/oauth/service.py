"""Logins to the servers of one config: begun, ended, given up, and listed."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec
import structlog

from callgate.state.database import DatabaseAway
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity
from callgate.tools.kinds.mcp.login_tickets import TICKET_SECONDS, USED, LoginTickets, Ticket
from callgate.tools.kinds.mcp.logins import LoginBegun, LoginDone, LoginFailed, LoginState, LoginStatus
from callgate.tools.kinds.mcp.oauth.discovery import CannotLogIn, LoginPlace, demand_pkce, discovered
from callgate.tools.kinds.mcp.oauth.documents import UnusableDocument, checked_address
from callgate.tools.kinds.mcp.oauth.endpoint import CODES, GrantRefused, TokenEndpoint, revoke
from callgate.tools.kinds.mcp.oauth.errand import Errand, OutOfReach
from callgate.tools.kinds.mcp.oauth.own_client import (
    OwnClient,
    configured_client,
    document_client,
    is_loopback,
    registered_client,
)
from callgate.tools.kinds.mcp.oauth.settings import OAuthSection
from callgate.tools.kinds.mcp.oauth.shelf import OAuthServer, Shelf
from callgate.tools.kinds.mcp.oauth.source import OAuthAuthorization
from callgate.tools.kinds.mcp.oauth.tokens import BadGrant, Grant, TokenRow, row_id

LOGIN_SECONDS: Final = 600.0
CLIENT_SECONDS: Final = 30 * 86_400.0
"""How long a registration is used for further logins."""
FOLLOW_SECONDS: Final = 3.0
"""Between two looks at what other processes have logged in to or out of."""
MAX_CODE: Final = 4_096
OFFLINE: Final = "offline_access"

audit = structlog.get_logger("callgate.audit")
log = structlog.get_logger("callgate.tools")


class _Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down before a browser is sent away."""

    server: str
    identity: Identity
    url: str
    issuer: str
    """The one that was found out. The browser has to come back from it."""
    promises_issuer: bool
    token_endpoint: str
    revocation_endpoint: str
    client: OwnClient
    redirect_uri: str
    verifier: str
    resource: str
    scopes: tuple[str, ...]
    browser: str
    """The digest of the browser's secret."""
    ticket: Ticket | None = None
    """By which it was begun; None where a key began it."""


class OAuthLogins:
    """Logs in to the servers of one config. Other processes with the same table may end what this one began."""

    def __init__(self, shelf: Shelf, public_url: str | None = None) -> None:
        self._shelf = shelf
        self._public_url = public_url
        self.tickets = LoginTickets(shelf.sealer, public_url)
        self._servers: dict[str, OAuthAuthorization] = {}
        """Those of the config that is served."""
        self._made: dict[str, OAuthAuthorization] = {}
        """Those of the config that was read last, which may yet be refused."""
        self._following: asyncio.Task[None] | None = None
        self.on_login: Callable[[str], None] = lambda server: None
        """Called with the name of a server that somebody has logged in to."""
        self.on_another: Callable[[str, Identity], None] = lambda server, identity: None
        """Called with a server, and an identity whose login there is another than before, or is no more."""

    def authorization(self, name: str, url: str, section: OAuthSection, rules: AddressRules) -> OAuthAuthorization:
        """Return what authorizes the requests to a server of a config."""
        server = OAuthServer(name=name, url=url, section=section, rules=rules, public_url=self._public_url)
        for source in (self._servers.get(name), self._made.get(name)):
            if source is not None and source.server == server:
                self._made[name] = source
                return source
        source = self._made[name] = OAuthAuthorization(server, self._shelf)
        source.on_another = lambda identity: self.on_another(name, identity)
        return source

    def use(self, names: Iterable[str]) -> None:
        """Log in to these servers from now on, and to no others."""
        self._servers = {name: self._made[name] for name in names if name in self._made}
        self._made = {}

    async def identities(self, server: str) -> list[Identity]:
        """Return who is logged in to a server beside the operator; nobody where that cannot be read now."""
        try:
            rows = await self._shelf.tokens.rows()
        except DatabaseAway:
            return []
        return [row.identity for row in rows if row.server == server and row.identity != OPERATOR]

    # -- a login

    async def begin(
        self,
        server: str,
        identity: Identity,
        redirect_uri: str,
        scopes: Sequence[str] = (),
        ticket: Ticket | None = None,
    ) -> LoginBegun:
        if ticket is not None:
            await self._demand_unused(ticket)
        source = self._known(server)
        own = source.server.own(identity)
        section = source.server.section
        try:
            errand = self._errand(source)
            place = await discovered(errand, source.server.url, issuer=section.issuer, legacy=section.legacy)
            demand_pkce(place)
            address = checked_address(place.server.authorization_endpoint)
            client = await self._client(source, place, redirect_uri)
            wish = await self._scopes(source, own, place, scopes)
        except (CannotLogIn, UnusableDocument) as error:
            raise LoginFailed(f"cannot log in to {server}: {error}") from None
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None
        state = secrets.token_urlsafe(32)
        browser = secrets.token_urlsafe(32)
        verifier = secrets.token_urlsafe(48)
        begun = _Begun(
            server=server,
            identity=own,
            url=source.server.url,
            issuer=place.server.issuer,
            promises_issuer=bool(place.server.authorization_response_iss_parameter_supported),
            token_endpoint=place.server.token_endpoint,
            revocation_endpoint=place.server.revocation_endpoint or "",
            client=client,
            redirect_uri=redirect_uri,
            verifier=verifier,
            resource=place.resource,
            scopes=wish,
            browser=_digest(browser),
            ticket=ticket,
        )
        try:
            await self._shelf.put_note(_login(state), begun, LOGIN_SECONDS)
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None
        query = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
            "resource": place.resource,
        }
        if wish:
            query["scope"] = " ".join(wish)
        if OFFLINE in wish:
            query["prompt"] = "consent"  # OpenID Connect gives no refresh token without it
        joint = "&" if "?" in address else "?"
        return LoginBegun(
            address=f"{address}{joint}{urlencode(query)}",
            state=state,
            browser=browser,
            issuer=place.server.issuer,
            scopes=wish,
        )

    async def finish(self, state: str, parameters: Mapping[str, str], *, browser: str) -> LoginDone:
        begun = await self._begun(state, browser)
        if begun is None:
            raise LoginFailed("this login is over, was begun in another browser, or was never begun: begin it again")
        source = self._known(begun.server)
        section = source.server.section
        issuer = parameters.get("iss")
        if issuer is None and begun.promises_issuer:
            raise LoginFailed("the answer does not say which authorization server it is from: nobody was logged in")
        if issuer is not None and issuer != begun.issuer:
            raise LoginFailed("the answer is from another authorization server than was asked: nobody was logged in")
        if (error := parameters.get("error")) is not None:
            raise LoginFailed(f"the authorization server did not log in ({error if error in CODES else 'refused'})")
        code = parameters.get("code", "")
        if not 0 < len(code) <= MAX_CODE or source.server.url != begun.url:
            raise LoginFailed("the answer has no code that can be used: nobody was logged in")
        endpoint = TokenEndpoint(begun.token_endpoint, begun.client, section, begun.resource)
        try:
            answer = await endpoint.for_code(self._errand(source), code, begun.verifier, begun.redirect_uri)
        except GrantRefused as refused:
            raise LoginFailed(f"the authorization server gave no token for the code ({refused.code})") from None
        except (OutOfReach, UnusableDocument, CannotLogIn) as problem:
            raise LoginFailed(f"the authorization server gave no token for the code: {problem}") from None
        grant = Grant(
            access=answer.access_token,
            refresh=answer.refresh_token or "",
            resource=begun.resource,
            client=begun.client,
            token_endpoint=begun.token_endpoint,
            revocation_endpoint=begun.revocation_endpoint,
            requested=begun.scopes,
        )
        scopes = begun.scopes
        if answer.scope is not None:
            scopes = tuple(answer.scope.split())
        row = self._shelf.row(begun.server, begun.identity, begun.issuer, grant, answer, scopes)
        if not source.server.owns(row, grant):
            raise LoginFailed("the server's entry is another by now: begin the login again")
        if begun.ticket is not None:
            await self._use_up(begun.ticket, source, grant)
        try:
            generation = await self._shelf.tokens.put(row)
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None
        source.is_logged_in(begun.identity, generation)
        audit.info("mcp_logged_in", **_facts(begun.server, begun.identity), issuer=begun.issuer, scopes=list(scopes))
        self.on_login(begun.server)
        return LoginDone(
            server=begun.server,
            identity=begun.identity,
            issuer=begun.issuer,
            scopes=scopes,
            by_ticket=begun.ticket is not None,
        )

    async def _demand_unused(self, ticket: Ticket) -> None:
        """Raise `LoginFailed` for a ticket by which somebody has logged in, or by one that was made later for the same user."""
        tokens = self._shelf.tokens
        name = _last_used(ticket)
        try:
            is_used = await tokens.read_note(_used(ticket)) is not None
            last = self._shelf.open_note(name, await tokens.read_note(name), float)
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None
        if is_used or (last is not None and ticket.made <= last):
            raise LoginFailed(USED)

    async def _use_up(self, ticket: Ticket, source: OAuthAuthorization, grant: Grant) -> None:
        """Use a ticket up, and all that were made before it for the same user. Of several that come back by one the first counts, in
        whichever process; what the others were given is revoked. Raises `LoginFailed`."""
        try:
            await self._demand_unused(ticket)
            if not await self._shelf.tokens.add_note(_used(ticket), TICKET_SECONDS):
                raise LoginFailed(USED)
            await self._shelf.put_note(_last_used(ticket), max(time.time(), ticket.made), TICKET_SECONDS)
        except LoginFailed:
            await self._revoked(source, grant)
            raise
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None

    async def _begun(self, state: str, browser: str) -> _Begun | None:
        """Return what was written down for a state, once, and to the browser that began it."""
        name = _login(state)
        tokens = self._shelf.tokens
        try:
            begun = self._shelf.open_note(name, await tokens.read_note(name), _Begun)
            if begun is None or not hmac.compare_digest(begun.browser, _digest(browser)):
                return None
            return self._shelf.open_note(name, await tokens.take_note(name), _Begun)
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None

    async def _client(self, source: OAuthAuthorization, place: LoginPlace, redirect_uri: str) -> OwnClient:
        section = source.server.section
        if (client := configured_client(section, place.server)) is not None:
            return client
        if (client := document_client(self._public_url, place.server)) is not None:
            return client
        errand = self._errand(source)
        if is_loopback(redirect_uri):  # its port is another each time, and not every server lets that pass
            return await registered_client(errand, place.server, redirect_uri, section.client_name)
        about = [source.server.name, place.server.issuer, redirect_uri, section.client_name]
        name = f"client:{hashlib.sha256(msgspec.json.encode(about)).hexdigest()}"
        login = self._shelf.open_note(name, await self._shelf.tokens.read_note(name), OwnClient)
        if login is not None:
            return login
        client = await registered_client(errand, place.server, redirect_uri, section.client_name)
        await self._shelf.put_note(name, client, CLIENT_SECONDS)
        return client

    async def _scopes(
        self, source: OAuthAuthorization, own: Identity, place: LoginPlace, extra: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the scopes to ask for: those of before and those that were missing, too."""
        section = source.server.section
        base = section.scopes if section.scopes is not None else place.scopes
        before: tuple[str, ...] = ()
        with contextlib.suppress(BadGrant):
            login = await self._shelf.read(source.server.name, own)
            if login is not None and source.server.owns(*login) and login[0].issuer == place.server.issuer:
                before = (*login[1].requested, *login[0].missing)
        wish = tuple(dict.fromkeys((*before, *(base or ()), *extra)))
        if section.scopes is None and wish and OFFLINE in (place.server.scopes_supported or ()):
            wish = tuple(dict.fromkeys((*wish, OFFLINE)))
        return wish

    # -- its end

    async def logout(self, server: str, identity: Identity) -> bool:
        source = self._known(server)
        own = source.server.own(identity)
        try:
            login = None
            with contextlib.suppress(BadGrant):
                login = await self._shelf.read(server, own)
            was_there = await self._shelf.tokens.drop(row_id(server, own), None)
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None
        source.is_logged_out(own)
        is_revoked = False
        if login is not None:
            is_revoked = await self._revoked(source, login[1])
        if was_there:
            audit.info("mcp_logged_out", **_facts(server, own), revoked=is_revoked)
        return was_there

    async def _revoked(self, source: OAuthAuthorization, grant: Grant) -> bool:
        """Have the tokens revoked where that is offered; return whether that was done."""
        if not grant.revocation_endpoint:
            return False
        errand = self._errand(source)
        section = source.server.section
        pairs = [("refresh_token", grant.refresh), ("access_token", grant.access)]
        results = [False]
        try:
            results = [
                await revoke(errand, grant.revocation_endpoint, grant.client, section, token, kind)
                for kind, token in pairs
                if token
            ]
        except (OutOfReach, CannotLogIn) as error:
            log.warning("mcp_login_not_revoked", server=source.server.name, error=str(error))
            return False
        return all(results)

    async def statuses(self) -> Sequence[LoginStatus]:
        try:
            rows = await self._shelf.tokens.rows()
        except DatabaseAway:
            raise LoginFailed(_AWAY) from None
        statuses: list[LoginStatus] = []
        for name, source in self._servers.items():
            if source.server.section.grant == "client_credentials":
                statuses.append(_machine_status(source))
                continue
            own_rows = [row for row in rows if row.server == name]
            statuses += [self._status(source, row) for row in own_rows]
            if not any(row.identity == OPERATOR for row in own_rows):
                statuses.append(_missing(source))
        return statuses

    def _status(self, source: OAuthAuthorization, row: TokenRow) -> LoginStatus:
        state = source.states().get(row.identity, LoginState.OK)
        if row.missing:
            state = LoginState.NEEDS_SCOPES
        elif row.seconds_left is not None and row.seconds_left <= 0 and not row.is_renewable:
            state = LoginState.NEEDS_LOGIN
        return LoginStatus(
            server=row.server,
            identity=row.identity,
            per=source.server.section.per,
            state=state,
            issuer=row.issuer,
            scopes=row.scopes,
            missing_scopes=row.missing,
            seconds_left=row.seconds_left,
            is_renewable=row.is_renewable,
        )

    # -- what other processes do

    def follow(self) -> None:
        """Look from now on for what other processes log in to and out of."""
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="logins of other processes")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        for server in self._servers.values():
            await server.close()

    async def _follow(self) -> None:
        before: Mapping[str, int] = {}
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                now = await self._shelf.tokens.generations()
            except DatabaseAway:  # said by its presence
                continue
            for name, source in list(self._servers.items()):
                source.forget_others(now)
                id = row_id(name, OPERATOR)
                if id in now and id not in before and source.states().get(OPERATOR) is LoginState.NEEDS_LOGIN:
                    self.on_login(name)
            before = now

    def _known(self, server: str) -> OAuthAuthorization:
        source = self._servers.get(server)
        if source is None:
            raise LoginFailed(f"there is no server {server[:100]!r} with `oauth` in the config")
        if source.server.section.grant != "code":
            raise LoginFailed(f"nobody logs in to {server}: its entry says `grant: {source.server.section.grant}`")
        return source

    def _errand(self, source: OAuthAuthorization) -> Errand:
        return Errand(self._shelf.web(), source.server.rules)


_AWAY: Final = "logins are kept where they cannot be read or written at the moment: try again later"


def _missing(source: OAuthAuthorization) -> LoginStatus:
    section = source.server.section
    return LoginStatus(
        server=source.server.name,
        identity=OPERATOR,
        per=section.per,
        state=LoginState.NEEDS_LOGIN,
        issuer=section.issuer or "",
    )


def _machine_status(source: OAuthAuthorization) -> LoginStatus:
    section = source.server.section
    issuer, scopes = source.machine_facts
    state = source.states().get(OPERATOR)
    if state is None:
        state = LoginState.OK  # it logs in when it has to
    return LoginStatus(
        server=source.server.name,
        identity=OPERATOR,
        per=section.per,
        state=state,
        issuer=issuer or section.issuer or "",
        scopes=scopes,
        is_renewable=True,
    )


def _facts(server: str, identity: Identity) -> dict[str, str]:
    facts = {"server": server}
    if identity.key:
        facts["key"] = identity.key
    if identity.user:
        facts["user"] = identity.user
    return facts


def _login(state: str) -> str:
    return f"login:{_digest(state)}"


def _used(ticket: Ticket) -> str:
    return f"ticket:{_digest(ticket.id)}"


def _last_used(ticket: Ticket) -> str:
    return f"tickets:{_digest(row_id(ticket.server, ticket.identity))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
