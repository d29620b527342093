"""As whom the requests of one session are sent, and what each of them is authorized by.

Every request asks anew: tokens are replaced while a session lives. They go to the server's own address and nowhere else.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from callgate.tools.kinds.mcp.authorization import OPERATOR, Authorization, Identity, NeedsLogin, Refusal

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
INSUFFICIENT: Final = "insufficient_scope"
CHALLENGE: Final = "www-authenticate"
NOTHING: Final[Mapping[str, str]] = {}


class Visitor(msgspec.Struct, frozen=True):
    """As whom a session is: an identity, with the headers of its requests that are sent on."""

    identity: Identity = OPERATOR
    forwarded: tuple[tuple[str, str], ...] = ()


OPERATORS: Final = Visitor()
"""The operator's own."""


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """Adds to each request of a session what says and proves who sends it."""

    server: str
    visitor: Visitor = OPERATORS
    authorization: Authorization | None = None

    async def headers(self) -> Mapping[str, str]:
        """Return the headers for one request. Raises `NeedsLogin`."""
        if self.authorization is None:
            return dict(self.visitor.forwarded)
        authorized = await self.authorization.headers(self.visitor.identity)
        if not self.visitor.forwarded:
            return authorized
        return {**dict(self.visitor.forwarded), **authorized}

    async def headers_after(
        self, status: int, challenges: Sequence[str], sent_headers: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the headers for one more attempt at a request that was refused. Raises `NeedsLogin`."""
        assert self.authorization is not None, "only what is authorized can be refused"
        authorized_by = sent_headers.get("Authorization", "")
        refusal = Refusal(status=status, challenges=tuple(challenges), authorized_by=authorized_by)
        headers = dict(self.visitor.forwarded)
        headers.update(await self.authorization.headers_after(self.visitor.identity, refusal))
        if headers.get("Authorization") == authorized_by:
            raise refused_again(self.server)
        return headers

    def is_refusal(self, status: int, challenges: Sequence[str]) -> bool:
        """Return whether an answer refuses what authorized its request, so that it was not carried out."""
        if self.authorization is None:
            return False
        if status == FORBIDDEN:
            return any(INSUFFICIENT in challenge.lower() for challenge in challenges)
        return status == UNAUTHORIZED


def refused_again(server: str) -> NeedsLogin:
    """Return the error for a server that refuses what it was given anew."""
    return NeedsLogin(
        f"The tool's server {server} refuses the login that is kept for it. Log in again: `callgate mcp login {server}`."
    )


def is_at(url: str, server: str, *, below: bool) -> bool:
    """Return whether a request goes to a server's own address: the same origin and path; `below`: or to what is in its folder."""
    import yarl  # only with what is authorized; the routes of logins need this module without it

    target = yarl.URL(url)
    own = yarl.URL(server)
    if (target.scheme, target.host, target.port) != (own.scheme, own.host, own.port):
        return False
    if not below:
        return target.raw_path == own.raw_path
    folder = own.raw_path.rpartition("/")[0] + "/"
    return target.raw_path.startswith(folder) and ".." not in target.raw_parts
