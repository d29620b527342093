"""As whom requests to an MCP server are made, and the port that authorizes each of them.

A server's entry decides what an identity is: the operator's own, one for each key, or one for each user of a key. One of them never
stands in for another.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec


class Identity(msgspec.Struct, frozen=True, gc=False):
    """As whom a request to a server is made."""

    key: str = ""
    """The owner of the key (`owner_name` of its caller); empty for the operator's own identity, with which lists are read at the start."""
    user: str = ""
    """The user of that key, where each has a login of his own."""


OPERATOR: Final = Identity()


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A server's answer that it will not take a request as it was authorized."""

    status: int
    """401 or 403."""
    challenges: tuple[str, ...] = ()
    """Its `WWW-Authenticate` headers, as they came: words of the server, which nobody may repeat to a model or a client."""
    authorized_by: str = ""
    """The `Authorization` header that was sent with it; empty for none. One that has been replaced since is no reason to renew it again."""


class NeedsLogin(Exception):
    """No request can be made as this identity until somebody logs in."""

    def __init__(self, words: str, *, address: str = "") -> None:
        """`words`: for a model and its reader. `address`: where to log in, if that can be done in a browser from anywhere."""
        super().__init__(words)
        self.words = words
        self.address = address


class Authorization(Protocol):
    """Authorizes the requests to one server: calls, lists, reads and streams alike."""

    async def headers(self, identity: Identity) -> Mapping[str, str]:
        """Return the headers that authorize a request. Raises `NeedsLogin`. With a valid token it does not wait for anything."""
        ...

    async def headers_after(self, identity: Identity, refusal: Refusal) -> Mapping[str, str]:
        """Return the headers for one more attempt at a request that was refused, and so was not carried out. Raises `NeedsLogin`."""
        ...
