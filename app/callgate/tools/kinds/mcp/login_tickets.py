"""Addresses where users without a key log in to MCP servers.

A user of a key has no key of his own to show on the page. The address that he is given has a ticket instead: it is sealed, says for whom it
is, and is good for an hour and for one login.
"""

import secrets
import time
from typing import Final

import msgspec

from callgate.state.sealing import NotSealedHere, Sealer
from callgate.tools.kinds.mcp.authorization import Identity
from callgate.tools.kinds.mcp.logins import LoginFailed
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import READ_ERRORS, json_reader

TICKET_SECONDS: Final = 3_600
MAX_TICKET: Final = 4_096
PURPOSE: Final = "login of a user"
OWNER: Final = "ticket"
USED: Final = "this address has been used, or a later one: ask again, and a new one is given"


class Ticket(msgspec.Struct, frozen=True):
    """Whose login an address is for."""

    server: str
    identity: Identity
    made: float
    until: float
    id: str


class LoginTickets:
    """Makes tickets, and opens them."""

    def __init__(self, sealer: Sealer, public_url: str | None) -> None:
        self._sealer = sealer
        self._public_url = (public_url or "").rstrip("/")

    def link(self, server: str, identity: Identity) -> str:
        """Return the address where a user logs in to a server, for an hour."""
        now = time.time()
        ticket = Ticket(server, identity, now, now + TICKET_SECONDS, secrets.token_urlsafe(12))
        sealed = self._sealer.seal(PURPOSE, OWNER, msgspec.json.encode(ticket))
        return f"{self._public_url}/#/login/{sealed}"

    def open(self, sealed: str) -> Ticket:
        """Return what a ticket says. Raises `LoginFailed`."""
        try:
            if len(sealed) > MAX_TICKET:
                raise NotSealedHere("too long")
            ticket = _read_ticket(written_here(self._sealer.open(PURPOSE, OWNER, sealed)))
        except (NotSealedHere, *READ_ERRORS):
            raise LoginFailed("this address is none that was made here") from None
        if ticket.until < time.time():
            raise LoginFailed("this address is over: ask again, and a new one is given")
        return ticket


_read_ticket = json_reader(Ticket)
