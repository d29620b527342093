"""Makes identities at a server of whose request a call belongs to. One never stands in for another."""

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from callgate.callers.caller import Principal
from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity
from callgate.tools.kinds.mcp.sender import Visitor

Per: TypeAlias = Literal["server", "key", "user"]
"""Whose identity requests have at a server: the operator's, one for each key, or one for each user of a key."""
NOT_A_KEY: Final = "anonymous"
"""The owner of requests without a key (`owner_name`)."""
MAX_USER: Final = 512
MAX_FORWARDED_BYTES: Final = 1024


class NoIdentity(Exception):
    """Raised where a call has no identity at a server. The text is for the model."""


def visitor_of(server: str, per: Per, forwards: Mapping[str, str], principal: Principal) -> Visitor:
    """Return as whom a call is made. `forwards`: the request's header for each header that is sent on. Raises `NoIdentity`."""
    if per == "server":
        return Visitor(OPERATOR)
    if principal.owner in ("", NOT_A_KEY):
        raise NoIdentity(
            f"Not run: the tool's server {server} is used by each key as itself, and this request has no key."
        )
    user = ""
    if per == "user":
        user = principal.user
        if not user:
            raise NoIdentity(
                f"Not run: the tool's server {server} is used by each user as himself, and this request does not name its user"
                " (`user` or `safety_identifier`; `metadata.user_id` in Messages)."
            )
        if not is_user(user):
            raise NoIdentity(
                f"Not run: the name of this request's user has more than {MAX_USER} characters, or one that is none."
            )
    return Visitor(Identity(principal.owner, user), _forwarded(forwards, principal))


def is_user(user: str) -> bool:
    """Return whether somebody may be called so. Postgres keeps no texts with zeros."""
    return 0 < len(user) <= MAX_USER and "\0" not in user


def _forwarded(forwards: Mapping[str, str], principal: Principal) -> tuple[tuple[str, str], ...]:
    """Return the headers that are sent on, by the names that they get."""
    forwarded = []
    for name, source in forwards.items():
        if source in principal.withheld:
            raise NoIdentity(
                f"Not run: the request's header {source} has the key of its caller, which is never sent on."
            )
        value = principal.headers.get(source)
        if value is None:
            continue
        if len(value.encode()) > MAX_FORWARDED_BYTES:
            raise NoIdentity(f"Not run: the request's header {source} has more than {MAX_FORWARDED_BYTES:,} bytes.")
        if not value.isascii() or not value.isprintable():
            raise NoIdentity(f"Not run: the request's header {source} has characters that no header may have.")
        forwarded.append((name, value))
    return tuple(forwarded)


def place_of(server: str, visitor: Visitor) -> str:
    """Return the name under which the tools are pinned that a visitor is listed: that of the server for the operator's own."""
    identity = visitor.identity
    if not identity.key:
        return server
    who = quote(identity.key, safe=" @")
    if identity.user:
        who += f", user {quote(identity.user, safe=' @')}"
    if visitor.forwarded:
        who += f", with {hashlib.sha256(repr(visitor.forwarded).encode()).hexdigest()[:12]}"
    return f"{server} as {who}"
