"""The headers of requests to one server: a valid token at once, an expired one renewed in one flight, and never a login.

A request waits for nobody's request but the renewal. Across processes the renewal is claimed in the table before anything is sent: a
refresh token that is used twice makes some servers revoke all that came of the login.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

import msgspec
import structlog

from callgate.state.database import DatabaseAway
from callgate.tools.kinds.mcp.authorization import Identity, NeedsLogin, Refusal
from callgate.tools.kinds.mcp.logins import LoginState, StateChange, login_page
from callgate.tools.kinds.mcp.oauth.challenges import MAX_SCOPE
from callgate.tools.kinds.mcp.oauth.discovery import CannotLogIn, LoginPlace, challenged, discovered, resource_of
from callgate.tools.kinds.mcp.oauth.documents import TokenAnswer, UnusableDocument
from callgate.tools.kinds.mcp.oauth.endpoint import GrantRefused, TokenEndpoint
from callgate.tools.kinds.mcp.oauth.errand import Errand, OutOfReach
from callgate.tools.kinds.mcp.oauth.own_client import configured_client
from callgate.tools.kinds.mcp.oauth.shelf import OAuthServer, Shelf
from callgate.tools.kinds.mcp.oauth.tokens import BadGrant, Grant, TokenRow, row_id, sealed_grant

MARGIN_SECONDS: Final = 60.0
"""A token is renewed so long before its end, or in the last tenth of its life if that is shorter."""
WAIT_SECONDS: Final = 10.0
"""How long a request waits for a renewal."""
CLAIM_SECONDS: Final = 15.0
"""After so long somebody else may try a renewal: longer than one can take."""
LOOK_SECONDS: Final = 0.1
"""Between two looks at a renewal that another process has claimed."""
PAUSE_SECONDS: Final = 5.0
"""Before an authorization server that could not be reached is asked again."""
TRUST_SECONDS: Final = 60.0
"""A token that was renewed because of a refusal, and is refused as well so soon after, is not renewed again."""
CLOSE_SECONDS: Final = 2.0
WRITE_TRIES: Final = 20
SHOWN_SCOPES: Final = 5
RENEWALS: Final = 1_000_000
"""Generations after one that come of renewing it. Logins have random ones, of 40 bits."""
MAX_IDENTITIES: Final = 4_096
"""The identities of one server whose headers are at hand. For others the table is read."""

log = structlog.get_logger("callgate.tools")


class Ready(msgspec.Struct, frozen=True):
    """The headers of an identity, until they have to be renewed."""

    headers: Mapping[str, str]
    renew_at: float
    generation: int
    """That of the row they are from."""


class OAuthAuthorization:
    """Authorizes the requests to one server."""

    def __init__(self, server: OAuthServer, shelf: Shelf) -> None:
        self.server = server
        self._shelf = shelf
        self.on_another: Callable[[Identity], None] = lambda identity: None
        """Called with an identity whose login is another than before, or is no more."""
        self._ready: dict[Identity, Ready] = {}
        self._used: dict[Identity, int] = {}
        """The generations of the logins by which requests were authorized."""
        self._flights: dict[Identity, asyncio.Task[Ready]] = {}
        self._states: dict[Identity, LoginState] = {}
        self._given: dict[Identity, tuple[str, float]] = {}
        """What was given after a refusal, and when."""
        self._pauses: dict[Identity, tuple[float, str]] = {}
        """Until when an authorization server is not asked again, and why."""
        self._machine = _OwnLogin()
        self._writing: set[asyncio.Task[None]] = set()

    async def headers(self, identity: Identity) -> Mapping[str, str]:
        ready = self._ready.get(identity)
        if ready is not None and time.monotonic() < ready.renew_at:
            return ready.headers
        return (await self._in_one_flight(identity, None)).headers

    async def headers_after(self, identity: Identity, refusal: Refusal) -> Mapping[str, str]:
        ready = self._ready.get(identity)
        if ready is not None and not _is_refused(ready, refusal) and time.monotonic() < ready.renew_at:
            return ready.headers
        if refusal.status == 403:
            return await self._with_more_scopes(identity, refusal)
        return (await self._in_one_flight(identity, refusal)).headers

    def states(self) -> Mapping[Identity, LoginState]:
        """Return the states of the identities that were asked for, by those whose logins count."""
        return self._states

    def forget(self, identity: Identity) -> None:
        """Read again what is kept for an identity, because it is another by now."""
        own = self.server.own(identity)
        for other in [other for other in self._ready if self.server.own(other) == own]:
            del self._ready[other]
        self._given.pop(own, None)
        self._pauses.pop(own, None)

    def forget_others(self, generations: Mapping[str, int]) -> None:
        """Forget what is not in the table any more, or is another there."""
        if self.server.section.grant != "code":
            return
        for identity, ready in list(self._ready.items()):
            own = self.server.own(identity)
            if generations.get(row_id(self.server.name, own)) != ready.generation:
                self.forget(own)
        for own in list(self._used):
            self._look_at(own, generations.get(row_id(self.server.name, own)))

    def _look_at(self, own: Identity, generation: int | None) -> None:
        """Tell of a login that is another than the one that was used before."""
        used = self._used.get(own)
        if generation is not None:
            if used is None and len(self._used) >= MAX_IDENTITIES:
                del self._used[next(iter(self._used))]
            self._used[own] = generation
        else:
            self._used.pop(own, None)
        if used is not None and (generation is None or not 0 <= generation - used < RENEWALS):
            self.on_another(own)

    def is_logged_out(self, identity: Identity) -> None:
        """Take note of the end of a login."""
        own = self.server.own(identity)
        self.forget(own)
        self._look_at(own, None)

    def is_logged_in(self, identity: Identity, generation: int) -> None:
        """Take note of a login."""
        self.forget(identity)
        self._look_at(self.server.own(identity), generation)
        self._say(self.server.own(identity), LoginState.OK, "")

    async def close(self) -> None:
        """Let renewals under way come to their end, whose answers would be lost otherwise."""
        tasks = {*self._flights.values(), *self._writing}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    # -- one flight for all that wait

    async def _in_one_flight(self, identity: Identity, refusal: Refusal | None) -> Ready:
        own = self.server.own(identity)
        while True:
            flight = self._flights.get(own)
            is_ours = flight is None
            if flight is None:
                flight = asyncio.create_task(self._obtained(own, refusal), name="token of a tool server")
                self._flights[own] = flight
                flight.add_done_callback(lambda _: self._flights.pop(own, None))
            await asyncio.wait({flight}, timeout=WAIT_SECONDS)
            if not flight.done():
                raise self._unavailable("its login is being renewed, which takes long")
            if flight.cancelled():
                raise self._unavailable("the server is being shut down")
            if isinstance(error := flight.exception(), NeedsLogin):
                raise NeedsLogin(error.words, address=error.address)
            ready = flight.result()
            if is_ours or refusal is None or not _is_refused(ready, refusal):
                self._keep(identity, ready)
                return ready

    def _keep(self, identity: Identity, ready: Ready) -> None:
        if len(self._ready) >= MAX_IDENTITIES:
            del self._ready[next(iter(self._ready))]
        self._ready[identity] = ready

    async def _obtained(self, own: Identity, refusal: Refusal | None) -> Ready:
        pause, why = self._pauses.get(own, (-inf, ""))
        if time.monotonic() < pause:
            raise self._unavailable(why)
        try:
            if self.server.section.grant == "client_credentials":
                ready = await self._machine_ready(own, refusal)
            else:
                ready = await self._persons_ready(own, refusal)
        except DatabaseAway:
            raise self._unavailable("its login is kept where it cannot be read at the moment") from None
        self._keep(own, ready)
        if self.server.section.grant == "code":
            self._look_at(own, ready.generation)
        if self._states.get(own) is not LoginState.NEEDS_SCOPES:
            self._say(own, LoginState.OK, "")
        return ready

    # -- a person's login

    async def _persons_ready(self, own: Identity, refusal: Refusal | None) -> Ready:
        holder = secrets.token_hex(8)
        until = time.monotonic() + WAIT_SECONDS
        while True:
            row, grant = await self._kept(own)
            ready = _ready(row, grant)
            is_refused = refusal is not None and _is_refused(ready, refusal)
            now = time.monotonic()
            if not is_refused and now < ready.renew_at:
                self._look_for_missing(own, row)
                return ready
            if is_refused:
                assert refusal is not None
                await self._demand_trust(own, row, refusal)
            if not grant.refresh:
                await self._drop(own, row, "it is over, and cannot be renewed")
            if await self._shelf.tokens.claim(row.id, row.generation, holder, CLAIM_SECONDS):
                renewed = await self._renewed(own, row, grant, holder, is_refused=is_refused)
                if renewed is not None:
                    return renewed
            elif time.monotonic() > until:
                raise self._unavailable("its login is being renewed by another process")
            else:
                await asyncio.sleep(LOOK_SECONDS)

    async def _kept(self, own: Identity) -> tuple[TokenRow, Grant]:
        """Return what is kept. Raises `NeedsLogin`."""
        try:
            login = await self._shelf.read(self.server.name, own)
        except BadGrant as error:
            raise self._needs_login(own, f"what is kept of its login cannot be opened ({error})") from None
        if login is None:
            raise self._needs_login(own, "nobody has logged in")
        if not self.server.owns(*login):
            raise self._needs_login(own, "its login was for another address, issuer or client than the entry has now")
        return login

    async def _demand_trust(self, own: Identity, row: TokenRow, refusal: Refusal) -> None:
        """Raise `NeedsLogin` where renewing would not help: after a renewal a moment ago, or at a server that has moved."""
        header, moment = self._given.get(own, ("", -inf))
        if header == refusal.authorized_by and time.monotonic() < moment + TRUST_SECONDS:
            raise self._needs_login(own, "it refuses what it was given a moment ago")
        errand = self._errand()
        try:
            metadata = await resource_of(errand, self.server.url, refusal.challenges)
        except CannotLogIn:
            return  # what cannot be read now says nothing of a move
        if metadata is None or not metadata.authorization_servers or row.issuer in metadata.authorization_servers:
            return
        await self._drop(own, row, f"it does not log in at {row.issuer} any more")

    async def _drop(self, own: Identity, row: TokenRow, why: str) -> None:
        """Forget a login that is no good any more, and raise `NeedsLogin`."""
        await self._shelf.tokens.drop(row.id, row.generation)
        self.is_logged_out(own)
        raise self._needs_login(own, why)

    async def _renewed(
        self, own: Identity, row: TokenRow, grant: Grant, holder: str, *, is_refused: bool
    ) -> Ready | None:
        """Renew what was claimed; None where the row is another by now."""
        endpoint = TokenEndpoint(grant.token_endpoint, grant.client, self.server.section, grant.resource)
        try:
            answer = await endpoint.for_refresh(self._errand(), grant.refresh)
        except (GrantRefused, OutOfReach, UnusableDocument, CannotLogIn) as error:
            if isinstance(error, GrantRefused) and error.is_final(grant.client):
                await self._drop(own, row, f"its authorization server does not renew it ({error.code})")
            await self._shelf.tokens.release(row.id, holder)
            self._pauses[own] = (time.monotonic() + PAUSE_SECONDS, f"its login cannot be renewed: {error}")
            log.warning("mcp_login_not_renewed", server=self.server.name, issuer=row.issuer, error=str(error))
            if not is_refused and (row.seconds_left or 0.0) > 0:
                return Ready(
                    grant.headers, time.monotonic() + min(PAUSE_SECONDS, row.seconds_left or 0.0), row.generation
                )
            raise self._unavailable(f"its login cannot be renewed: {error}") from None
        new_grant = msgspec.structs.replace(
            grant, access=answer.access_token, refresh=answer.refresh_token or grant.refresh
        )
        new_row = msgspec.structs.replace(
            row,
            scopes=_scopes(answer, row.scopes),
            sealed=sealed_grant(self._shelf.sealer, row.id, new_grant),
            is_renewable=True,
            life=answer.life(),
            seconds_left=answer.life(),
            generation=row.generation + 1,
        )
        try:
            if not await self._shelf.tokens.renew(new_row, holder):
                return None
        except DatabaseAway as error:
            self._write_later(new_row, holder, error)
        ready = _ready(new_row, new_grant)
        if is_refused:
            self._given[own] = (ready.headers["Authorization"], time.monotonic())
        self._pauses.pop(own, None)
        return ready

    def _write_later(self, row: TokenRow, holder: str, error: DatabaseAway) -> None:
        """Go on trying to write what was given: what the table has was used up for it."""
        log.error("mcp_login_not_written", server=self.server.name, error=str(error), effect="lost with this process")
        task = asyncio.create_task(self._written(row, holder), name="token that could not be written")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _written(self, row: TokenRow, holder: str) -> None:
        for _ in range(WRITE_TRIES):
            await asyncio.sleep(PAUSE_SECONDS / 10)
            try:
                await self._shelf.tokens.renew(row, holder)
            except DatabaseAway:
                continue
            return

    # -- scopes that are missing

    async def _with_more_scopes(self, identity: Identity, refusal: Refusal) -> Mapping[str, str]:
        """Return the headers with the scopes that a server wants, if that needs nobody. Raises `NeedsLogin`."""
        own = self.server.own(identity)
        try:
            scopes = challenged(refusal.challenges) or ()
        except CannotLogIn as error:
            raise self._unavailable(f"it refused the call, and {error}") from None
        if self.server.section.grant == "client_credentials":
            if not self._machine.widen(scopes, self.server.section.scopes):
                raise self._refused(scopes)
            return (await self._in_one_flight(identity, refusal)).headers
        try:
            row, grant = await self._kept(own)
            missing = tuple(scope for scope in scopes if scope not in grant.requested and scope not in row.scopes)
            if not missing:
                raise self._refused(scopes)
            missing = tuple(dict.fromkeys((*row.missing, *missing)))
            if len(" ".join(missing)) > MAX_SCOPE:
                raise self._refused(scopes)
            await self._shelf.tokens.lack(row.id, row.generation, missing)
        except DatabaseAway:
            raise self._unavailable("its login is kept where it cannot be read at the moment") from None
        self._say(own, LoginState.NEEDS_SCOPES, f"it wants {_shown(missing)} as well")
        raise NeedsLogin(
            f"The tool's server {self.server.name} wants more rights than its login has: {_shown(missing)}. {self._todo(own, missing)}",
            address=self._address(),
        )

    def _look_for_missing(self, own: Identity, row: TokenRow) -> None:
        if row.missing:
            self._say(own, LoginState.NEEDS_SCOPES, f"it wants {_shown(row.missing)} as well")
        elif self._states.get(own) is LoginState.NEEDS_SCOPES:
            self._say(own, LoginState.OK, "")

    def _refused(self, scopes: Sequence[str]) -> NeedsLogin:
        about = f" It wants {_shown(scopes)}, which was asked for." if scopes else ""
        return NeedsLogin(
            f"The tool's server {self.server.name} refuses this to its login, and no other login changes that.{about}"
        )

    # -- Callgate's own login

    async def _machine_ready(self, own: Identity, refusal: Refusal | None) -> Ready:
        machine = self._machine
        if refusal is not None and refusal.status == 401:
            header, moment = self._given.get(own, ("", -inf))
            if header == refusal.authorized_by and time.monotonic() < moment + TRUST_SECONDS:
                raise self._needs_login(own, "it refuses what it was given a moment ago")
            machine.place = None
        section = self.server.section
        errand = self._errand()
        try:
            if machine.place is None:
                machine.place = await discovered(errand, self.server.url, issuer=section.issuer, legacy=False)
            place = machine.place
            client = configured_client(section, place.server)
            assert client is not None, "the settings ask for it"
            wish = machine.wish(place.scopes if section.scopes is None else section.scopes)
            endpoint = TokenEndpoint(place.server.token_endpoint, client, section, place.resource)
            answer = await endpoint.for_client(self._errand(), wish)
        except (CannotLogIn, GrantRefused, OutOfReach, UnusableDocument) as error:
            machine.place = None
            if isinstance(error, GrantRefused) and error.code == "invalid_scope":
                machine.narrow()
            why = f"Callgate cannot log in to it: {error}"
            self._pauses[own] = (time.monotonic() + PAUSE_SECONDS, why)
            raise self._needs_login(own, why) from None
        headers = {"Authorization": f"Bearer {answer.access_token}"}
        if refusal is not None:
            self._given[own] = (headers["Authorization"], time.monotonic())
        self._pauses.pop(own, None)
        machine.issuer = place.server.issuer
        machine.scopes = _scopes(answer, wish)
        return Ready(headers, _renew_at(answer.life(), answer.life(), is_renewable=True), 0)

    @property
    def machine_facts(self) -> tuple[str, tuple[str, ...]]:
        """The issuer and the scopes of Callgate's own login."""
        return self._machine.issuer, self._machine.scopes

    # -- words

    def _needs_login(self, own: Identity, why: str) -> NeedsLogin:
        self._say(own, LoginState.NEEDS_LOGIN, why)
        if self.server.section.grant == "client_credentials":
            return NeedsLogin(
                f"The tool's server {self.server.name} cannot be used: Callgate's own login to it failed."
            )
        return NeedsLogin(
            f"The tool's server {self.server.name} wants a login. {self._todo(own)}", address=self._address()
        )

    def _todo(self, own: Identity, scopes: Sequence[str] = ()) -> str:
        words = f"callgate mcp login {self.server.name}"
        if own.key:
            words += f" --as {own.key}"
        if scopes and len(scopes) <= SHOWN_SCOPES:
            words += f' --scopes "{" ".join(scopes)}"'
        if self._address():
            return f"Log in at {self._address()}, or by `{words}`."
        return f"Log in by `{words}`."

    def _address(self) -> str:
        if self.server.public_url is None or self.server.section.redirect == "loopback":
            return ""
        return login_page(self.server.public_url)

    def _unavailable(self, why: str) -> NeedsLogin:
        """Return the error for what may be better in a moment."""
        return NeedsLogin(f"The tool's server {self.server.name} cannot be used at the moment: {why}. Try again later.")

    def _say(self, own: Identity, state: LoginState, why: str) -> None:
        if self._states.get(own) is not state:
            if len(self._states) >= MAX_IDENTITIES:
                del self._states[next(iter(self._states))]
            self._states[own] = state
            lacking = sum(state is not LoginState.OK for state in self._states.values())
            self._shelf.on_state(
                StateChange(server=self.server.name, identity=own, state=state, reason=why, lacking=lacking)
            )

    def _errand(self) -> Errand:
        return Errand(self._shelf.web(), self.server.rules)


class _OwnLogin:
    """What is known of Callgate's own login to one server."""

    def __init__(self) -> None:
        self.place: LoginPlace | None = None
        self.issuer = ""
        self.scopes: tuple[str, ...] = ()
        self._more: tuple[str, ...] = ()
        """The scopes that the server has wanted since."""
        self._requested: tuple[str, ...] = ()

    def wish(self, scopes: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the scopes to ask for."""
        self._requested = tuple(dict.fromkeys((*(scopes or ()), *self._more)))
        return self._requested

    def widen(self, scopes: Sequence[str], allowed: Sequence[str] | None) -> bool:
        """Ask for these too from now on; False where there is nothing new in them, or not all are allowed."""
        fresh = tuple(scope for scope in scopes if scope not in self._requested)
        if not fresh or (allowed is not None and any(scope not in allowed for scope in fresh)):
            return False
        more = (*self._more, *fresh)
        if len(" ".join(more)) > MAX_SCOPE:
            return False
        self._more = more
        return True

    def narrow(self) -> None:
        """Ask for no more than at first: its authorization server does not know all that the server has wanted."""
        self._more = ()


def _is_refused(ready: Ready, refusal: Refusal) -> bool:
    return ready.headers["Authorization"] == refusal.authorized_by


def _ready(row: TokenRow, grant: Grant) -> Ready:
    return Ready(grant.headers, _renew_at(row.seconds_left, row.life, is_renewable=bool(grant.refresh)), row.generation)


def _renew_at(seconds_left: float | None, life: float | None, *, is_renewable: bool) -> float:
    if seconds_left is None:
        return inf  # used until it is refused
    margin = 0.0
    if is_renewable:
        margin = min(MARGIN_SECONDS, (life if life is not None else seconds_left) / 10)
    return time.monotonic() + seconds_left - margin


def _scopes(answer: TokenAnswer, before: tuple[str, ...]) -> tuple[str, ...]:
    if answer.scope is None:
        return before
    return tuple(answer.scope.split())


def _shown(scopes: Sequence[str]) -> str:
    text = ", ".join(f"`{scope[:64]}`" for scope in scopes[:SHOWN_SCOPES])
    if len(scopes) > SHOWN_SCOPES:
        text += f" and {len(scopes) - SHOWN_SCOPES} more"
    return text
