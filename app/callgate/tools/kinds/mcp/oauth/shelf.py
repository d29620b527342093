"""What is kept of logins, opened and sealed again; and what is known of one server that is logged in to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from callgate.state.sealing import NotSealedHere, Sealer
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity
from callgate.tools.kinds.mcp.logins import StateChange
from callgate.tools.kinds.mcp.oauth.documents import TokenAnswer, covers
from callgate.tools.kinds.mcp.oauth.settings import OAuthSection
from callgate.tools.kinds.mcp.oauth.tokens import (
    NOTE_PURPOSE,
    BadGrant,
    Grant,
    TokenRow,
    Tokens,
    opened_grant,
    row_id,
    sealed_grant,
)
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import READ_ERRORS, read_shape

if TYPE_CHECKING:
    from callgate.tools.kinds.http.client import Web

T = TypeVar("T")


class OAuthServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server that is logged in to."""

    name: str
    url: str
    section: OAuthSection
    rules: AddressRules
    """The addresses that it may lead to."""
    public_url: str | None = None

    def own(self, identity: Identity) -> Identity:
        """Return whose login counts for a request as `identity`."""
        match self.section.per:
            case "server":
                return OPERATOR
            case "key":
                return Identity(identity.key)
            case "user":
                return identity

    def owns(self, row: TokenRow, grant: Grant) -> bool:
        """Return whether tokens are still for this server, as its entry describes it."""
        section = self.section
        return (
            covers(grant.resource, self.url)
            and section.issuer in (None, row.issuer)
            and grant.client.issuer == row.issuer
            and (not grant.client.is_configured or grant.client.id == section.client_id)
        )


@dataclass(frozen=True, slots=True)
class Shelf:
    """What logins need of the process."""

    tokens: Tokens
    sealer: Sealer
    web: "Callable[[], Web]"
    on_state: Callable[[StateChange], None]

    async def read(self, server: str, identity: Identity) -> tuple[TokenRow, Grant] | None:
        """Return what is kept for an identity. Raises `DatabaseAway` and `BadGrant`."""
        row = await self.tokens.read(row_id(server, identity))
        if row is None:
            return None
        if (row.server, row.identity) != (server, identity):
            raise BadGrant("of another server or identity")
        return row, opened_grant(self.sealer, row)

    def row(
        self, server: str, identity: Identity, issuer: str, grant: Grant, answer: TokenAnswer, scopes: tuple[str, ...]
    ) -> TokenRow:
        """Return the row of what was given. `scopes`: those that were granted."""
        id = row_id(server, identity)
        return TokenRow(
            id=id,
            server=server,
            identity=identity,
            issuer=issuer,
            scopes=scopes,
            sealed=sealed_grant(self.sealer, id, grant),
            is_renewable=bool(grant.refresh),
            life=answer.life(),
            seconds_left=answer.life(),
        )

    async def put_note(self, name: str, value: object, seconds: float) -> None:
        await self.tokens.put_note(name, self.sealer.seal(NOTE_PURPOSE, name, msgspec.json.encode(value)), seconds)

    def open_note(self, name: str, sealed: str | None, shape: type[T]) -> T | None:
        """Return what a note says; None where there is none that can be opened."""
        if sealed is None:
            return None
        try:
            return read_shape(written_here(self.sealer.open(NOTE_PURPOSE, name, sealed)), shape)
        except (NotSealedHere, *READ_ERRORS):
            return None
