"""Knows an issuer: its keys and its endpoints, which are fetched beside requests and kept for a while when it is away."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import structlog

from callgate.access.oidc.signing_keys import NoSigningKeys, SigningKeys
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader

KEYS_SECONDS: Final = 600.0
"""How old keys may be before they are looked at again."""
AGAIN_SECONDS: Final = 60.0
"""How long after one look the next may begin: a token may name any key, and an issuer that is away is not to be pressed."""
KEPT_SECONDS: Final = 6 * 3600.0
"""How long keys count while their issuer is away. Its tokens have ended by then, and a key that it took back has to end too."""
DISCOVERY: Final = "/.well-known/openid-configuration"
DOCUMENT_BYTES: Final = 64 * 1024
DISCOVERY_DOCUMENT: Final = Door(name="the discovery document of an issuer", bytes=DOCUMENT_BYTES)

log = structlog.get_logger("callgate.oidc")

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Gets a document from an address of the issuer. Raises `NotFetched`."""


class NotFetched(Exception):
    """Raised where a document of the issuer could not be had, with the reason."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What an issuer says of itself."""

    jwks: str | None
    authorization: str | None
    token: str | None
    end_session: str | None


@dataclass(frozen=True, slots=True)
class IssuerNews:
    """What became of one look at the issuer."""

    failure: str | None
    """Why it failed; None where it did not."""
    has_keys: bool


class Issuer:
    """One issuer. Nothing of a request goes to it."""

    def __init__(
        self,
        address: str,
        jwks: str | None,
        fetch: Fetch,
        on_news: Callable[[IssuerNews], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`jwks`: where its keys are, if it is not to be asked for that."""
        self.address = address
        self.keys: SigningKeys | None = None
        """Those that count now; None while none are known."""
        self.discovered: Discovered | None = None
        self.generation = 0
        """Changes with the keys."""
        self.failure: str | None = None
        """Why the last look failed; None where it did not."""
        self._jwks = jwks
        self._fetch = fetch
        self._on_news = on_news
        self._clock = clock
        self._fetched_at = -float("inf")
        self._next_look = -float("inf")
        self._looking: asyncio.Task[None] | None = None

    def age(self) -> float:
        """Return the age of its keys in seconds; infinite where it never had any."""
        return self._clock() - self._fetched_at

    def look_in_time(self) -> None:
        """Begin to look at the keys again where they are old, and drop those that are too old to count."""
        now = self._clock()
        if now >= self._next_look and self._looking is None:
            self._begin()
        if self.keys is not None and now >= self._fetched_at + KEPT_SECONDS:
            log.error("issuer_keys_dropped", issuer=self.address, seconds=round(self.age()))
            self.keys = None
            self.generation += 1

    def may_look(self) -> bool:
        """Return whether a look now could bring keys that are not known yet."""
        return self._looking is not None or self._clock() >= self._last_look() + AGAIN_SECONDS

    async def look(self) -> None:
        """Look at the keys, with whoever else wants that now."""
        if self._looking is None:
            self._begin()
        assert self._looking is not None, "it was begun"
        await asyncio.shield(self._looking)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    def _last_look(self) -> float:
        return self._next_look - (KEYS_SECONDS if self.failure is None else AGAIN_SECONDS)

    def _begin(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look(), name="the keys of the issuer")
        self._looking.add_done_callback(self._looked)

    def _looked(self, _: "asyncio.Task[None]") -> None:
        self._looking = None

    async def _look(self) -> None:
        try:
            keys = await self._read()
        except (NotFetched, NoSigningKeys) as error:
            self._note_failure(str(error))
        else:
            self._take(keys)
        self._on_news(IssuerNews(self.failure, self.keys is not None))

    async def _read(self) -> SigningKeys:
        place = self._jwks
        try:
            self.discovered = read_discovery(await self._fetch(self.address.rstrip("/") + DISCOVERY), self.address)
            place = place or self.discovered.jwks
        except NotFetched:
            if place is None:
                raise
        if place is None:
            raise NotFetched("its discovery document has no `jwks_uri`")
        return SigningKeys.of_document(await self._fetch(place))

    def _take(self, keys: SigningKeys) -> None:
        if keys != self.keys:
            self.generation += 1
            names = [key.kid for key in keys.keys]
            log.info("issuer_keys_changed", issuer=self.address, keys=names, unused=keys.unused)
        elif self.failure is not None:
            log.info("issuer_back", issuer=self.address)
        self.keys = keys
        self.failure = None
        self._fetched_at = self._clock()
        self._next_look = self._fetched_at + KEYS_SECONDS

    def _note_failure(self, reason: str) -> None:
        if self.failure is None:
            seconds_left = 0
            if self.keys is not None:
                seconds_left = round(KEPT_SECONDS - self.age())
            log.warning("issuer_away", issuer=self.address, reason=reason, keys_kept_seconds=seconds_left)
        self.failure = reason
        self._next_look = self._clock() + AGAIN_SECONDS


def read_discovery(document: bytes, issuer: str) -> Discovered:
    """Read a discovery document (OpenID Connect Discovery 1.0). Raises `NotFetched` where it is another issuer's, or none."""
    try:
        fields = _read_fields(Untrusted(document, DISCOVERY_DOCUMENT).open())
    except READ_ERRORS as error:
        raise NotFetched(f"its discovery document cannot be read: {type(error).__name__}") from None
    named = fields.get("issuer")
    if named != issuer:
        hint = ""
        if isinstance(named, str) and named.rstrip("/") == issuer.rstrip("/"):
            hint = ": `auth.oidc.issuer` has to be written as it is there, with or without the slash at the end"
        raise NotFetched(f"its discovery document is of {str(named)[:200]!a}{hint}")
    return Discovered(
        _address(fields, "jwks_uri"),
        _address(fields, "authorization_endpoint"),
        _address(fields, "token_endpoint"),
        _address(fields, "end_session_endpoint"),
    )


_read_fields = json_reader(dict[str, Any])


def _address(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if (
        isinstance(value, str)
        and value.startswith(("https://", "http://"))
        and value.isascii()
        and value.isprintable()
        and _has_host(value)
    ):
        return value
    return None


def _has_host(address: str) -> bool:
    try:
        return bool(urlsplit(address).hostname)
    except ValueError:  # a bracket without its other
        return False
