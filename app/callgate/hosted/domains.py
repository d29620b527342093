"""Bounds of addresses by their domains, as the APIs write them: `example.com` with all below it, perhaps with a path."""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

MOST_DOMAINS: Final = 100
_DOMAIN: Final = re.compile(r"(?:[A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+(?:/[!-~]*)?")
_PLAIN_START: Final = re.compile(r"[A-Za-z]+://[^\\/?#@\x00-\x20\x7f]+(?:[/?#]|$)")
"""Of addresses whose host is the same for everybody: readers differ where one has `\\`, `@` or no `//`."""
_PLAIN_HOST: Final = re.compile(r"[a-z0-9_.-]+|[0-9a-f:.]+")


class DomainRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of the domains of addresses."""

    field: str
    """`allowed_domains` or `blocked_domains`."""
    listed: Sequence[str]

    def admits(self, url: str) -> bool:
        if self.field == "allowed_domains":
            return any(is_below(url, domain) for domain in self.listed)
        return not any(is_below(url, domain, in_doubt=True) for domain in self.listed)

    def narrowed(self, named: Any) -> list[str]:
        """Return the domains that a call names within these: of allowed ones those below, of blocked ones both."""
        own: list[str] = []
        if isinstance(named, list):
            own = [domain.lower() for domain in named if isinstance(domain, str) and _DOMAIN.fullmatch(domain)]
        if self.field == "blocked_domains":
            return [*dict.fromkeys([*self.listed, *own])]
        inside = [domain for domain in own if any(is_below(f"http://{domain}", wide) for wide in self.listed)]
        return inside or [*self.listed]


def domains_in(value: Any) -> tuple[str, ...] | None:
    """Read a list of domains; None where it is none."""
    if not isinstance(value, list) or len(value) > MOST_DOMAINS:
        return None
    if not all(isinstance(domain, str) and _DOMAIN.fullmatch(domain) for domain in value):
        return None
    return tuple(domain.lower() for domain in value)


def is_below(url: str, domain: str, *, in_doubt: bool = False) -> bool:
    """True if an address is of a domain or one below it, and of the path that is given with it. `in_doubt`: for what is no address,
    and for one that whoever fetches it may read as another."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").lower()
        if not host.isascii():
            host = host.encode("idna").decode().rstrip(".")
    except ValueError:
        return in_doubt
    if not _PLAIN_START.match(url) or not _PLAIN_HOST.fullmatch(host):
        return in_doubt
    name, slash, path = domain.lower().partition("/")
    if host != name and not host.endswith(f".{name}"):
        return False
    if not path.strip("/"):
        return True
    prefix = slash + path.rstrip("/")
    own_path = parts.path.lower()
    if "/../" in f"{own_path}/" or "//" in own_path or "%" in own_path:
        return in_doubt
    return own_path == prefix or own_path.startswith(f"{prefix}/")
