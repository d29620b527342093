"""The tokens of one server and identity, and the contract of what keeps them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from callgate.state.sealing import NotSealedHere, Sealer
from callgate.tools.kinds.mcp.authorization import Identity
from callgate.tools.kinds.mcp.oauth.own_client import OwnClient
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import READ_ERRORS, json_reader

PURPOSE: Final = "oauth token"
NOTE_PURPOSE: Final = "oauth note"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What an authorization server has given, and all that renewing it needs. It is kept sealed."""

    access: str
    refresh: str = ""
    resource: str
    """The only place to which the access token goes."""
    client: OwnClient
    token_endpoint: str
    revocation_endpoint: str = ""
    requested: tuple[str, ...] = ()
    """The scopes that were asked for. Empty where none were."""

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.access}"}


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    id: str
    server: str
    identity: Identity
    issuer: str
    scopes: tuple[str, ...] = ()
    """Those that were granted."""
    missing: tuple[str, ...] = ()
    """Those that the server has asked for since."""
    sealed: str
    """A `Grant`. Only this server can open it, and only as this row."""
    is_renewable: bool = False
    life: float | None = None
    """Seconds from the moment it was written for which the token is good."""
    seconds_left: float | None = None
    """The rest of these, at the moment of reading."""
    generation: int = 0
    """One more with each renewal."""


class Tokens(Protocol):
    """Keeps rows. All methods raise `DatabaseAway`. A change names the generation that it is a change of."""

    async def read(self, id: str) -> TokenRow | None: ...

    async def rows(self) -> Sequence[TokenRow]: ...

    async def generations(self) -> Mapping[str, int]:
        """Return the generation of every row."""
        ...

    async def put(self, row: TokenRow) -> int:
        """Write what came of a login, in place of what was there. Return its generation, which is another than any before."""
        ...

    async def claim(self, id: str, generation: int, holder: str, seconds: float) -> bool:
        """Claim the renewal of a row; False where it is another by now, or somebody else has claimed it and is not late."""
        ...

    async def renew(self, row: TokenRow, holder: str) -> bool:
        """Replace the row that `holder` has claimed by its next generation; False where that is not possible any more."""
        ...

    async def release(self, id: str, holder: str) -> None:
        """Give up a claim."""
        ...

    async def lack(self, id: str, generation: int, missing: Sequence[str]) -> None:
        """Note the scopes that a server wants beside those of a row."""
        ...

    async def drop(self, id: str, generation: int | None) -> bool:
        """Delete a row; None: of whatever generation. Return whether it was there."""
        ...

    async def put_note(self, name: str, sealed: str, seconds: float) -> None:
        """Keep a text for some time."""
        ...

    async def add_note(self, name: str, seconds: float) -> bool:
        """Keep an empty text of a new name; False where there is one of this name: true for one only of those who ask."""
        ...

    async def take_note(self, name: str) -> str | None:
        """Return a text and delete it: for one only of those who ask."""
        ...

    async def read_note(self, name: str) -> str | None: ...


class BadGrant(Exception):
    """Raised for a row that cannot be opened here. Its text says why, and nothing of what is in it."""


def row_id(server: str, identity: Identity) -> str:
    """Return the id of a row, in which no part can be taken for another."""
    return hashlib.sha256(msgspec.json.encode([server, identity.key, identity.user])).hexdigest()


def sealed_grant(sealer: Sealer, id: str, grant: Grant) -> str:
    return sealer.seal(PURPOSE, id, msgspec.json.encode(grant))


def opened_grant(sealer: Sealer, row: TokenRow) -> Grant:
    """Raises `BadGrant`."""
    try:
        return _read_grant(written_here(sealer.open(PURPOSE, row.id, row.sealed)))
    except NotSealedHere as error:
        raise BadGrant(str(error)) from None
    except READ_ERRORS:
        raise BadGrant("of another version") from None


_read_grant = json_reader(Grant)
