"""Clients' keys: identifies the `Caller` by the headers of a request.

Keys are 256 random bits and stored as SHA-256: they cannot be guessed, so no slow hash is needed.
"""

import contextlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from callgate.callers.allowance import UNLIMITED, Allowance
from callgate.callers.caller import (
    ANONYMOUS,
    OF_PERSON,
    Caller,
    OfferSetting,
    See,
    ToolEvents,
    UsageSetting,
    owner_name,
)
from callgate.callers.tokens import looks_like_token
from callgate.calls.search_setting import SearchSetting
from callgate.conversation.errors import ChatError

if TYPE_CHECKING:
    from callgate.access.oidc.people import People
    from callgate.callers.client_mcp import ClientMcp

log = structlog.get_logger("callgate.keys")

KEY_PREFIX: Final = "cg-"
HASH_PREFIX: Final = "sha256:"
BEARER: Final = "authorization"
KEY_HEADERS: Final = ("api-key", "x-api-key")
"""The headers of clients that were made for Azure and for Anthropic."""
_KEY_BYTES: Final = 32

_MAX_KEY_LENGTH: Final = 4096
"""Longer keys are refused without hashing them."""


class KeyEntry(msgspec.Struct, frozen=True):
    """One stored key: its name, its hash (`sha256:` and hex), and what it may use."""

    name: str
    hash: str
    models: tuple[str, ...] = ("*",)
    tools: tuple[str, ...] = ("*",)
    approve: bool = False
    admin: bool = False
    see: See = "none"
    allowance: Allowance = UNLIMITED
    events: ToolEvents | None = None
    usage: UsageSetting | None = None
    offer: OfferSetting | None = None
    tool_search: SearchSetting | None = None
    client_mcp: "ClientMcp | None" = None
    expires_at: float | None = None
    """Seconds since the epoch."""
    old_hash: str | None = None
    """The hash of the key it replaced, which stays valid until `old_expires_at`."""
    old_expires_at: float | None = None


class KeysUnknown(ChatError):
    """Raised where the keys that are created while the server runs cannot be read, so that a key may be one of them."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "Keys cannot be checked at the moment. Try again in a moment.",
            type="server_error",
            code="keys_unavailable",
            retry_after=1.0,
        )


class Look(msgspec.Struct, eq=False):
    """A look at keys. What it has shown does not change before it ends."""

    until: float
    """By the monotonic clock; moved into the past by whoever looks again or writes before that."""


NO_LOOK: Final = Look(-math.inf)


class KeySource(Protocol):
    """Keys that are created and revoked while the server runs."""

    @property
    def look(self) -> Look:
        """The look that the current keys are from."""
        ...

    def entries(self) -> Sequence[KeyEntry]:
        """Return the current keys; the same object as long as nothing has changed. Raises `KeysUnknown`."""
        ...

    @property
    def in_use(self) -> bool:
        """True if it ever had a key, or its server one in the config, and while that is unknown. When the last one is revoked, every
        request is refused rather than allowed."""
        ...


class WatchedKeys:
    """A source that tells of every key with rights that is made while the server runs."""

    def __init__(self, source: KeySource, on_made: Callable[[str, str], None], *, may_be_keyless: bool = True) -> None:
        """`may_be_keyless`: whether a server whose keys were unknown when it began may turn out to need none."""
        self._source = source
        self._on_made = on_made
        self._may_be_keyless = may_be_keyless
        self._seen: Sequence[KeyEntry] | None = None
        """Those that were known last; None while none were read."""
        with contextlib.suppress(KeysUnknown):
            self._seen = source.entries()
            self._may_be_keyless = True  # as was found out before it began to listen

    @property
    def look(self) -> Look:
        return self._source.look

    def entries(self) -> Sequence[KeyEntry]:
        entries = self._source.entries()
        if entries is self._seen:
            return entries
        if self._seen is None:
            self._seen = entries
        else:
            before = {entry.name: entry for entry in self._seen}
            self._seen = entries
            for entry in entries:
                added = rights_of(entry) - (rights_of(before[entry.name]) if entry.name in before else set())
                if added:
                    self._on_made(f"keys.{entry.name} may {', '.join(sorted(added))}", entry.hash)
        return entries

    @property
    def in_use(self) -> bool:
        return self._source.in_use or not self._may_be_keyless


def rights_of(entry: KeyEntry) -> set[str]:
    """Return what a key may beside asking models and using tools."""
    rights = {"approve": entry.approve, "administer": entry.admin, f"see {entry.see} runs": entry.see != "none"}
    return {right for right, is_given in rights.items() if is_given}


class Keyring:
    """The keys of one config, and of a source beside it, and who may come with a token instead. With `off`, or where there never was
    a key and nobody has tokens, every request has the anonymous caller."""

    def __init__(
        self,
        entries: Iterable[KeyEntry],
        *,
        off: bool = False,
        source: KeySource | None = None,
        people: "People | None" = None,
    ) -> None:
        self._people = None if off else people
        self._static = () if off else _callers(entries)
        self._source = None if off else source
        self._seen: Sequence[KeyEntry] = ()
        self._callers = self._static
        self._generation = 0
        self._unknown: KeysUnknown | None = None
        """Raised for a key that is none of the config's, while the source cannot be read."""
        self._look = NO_LOOK if self._source is not None else Look(math.inf)
        """The look of the source that these keys are from."""
        self._next_end = _next_end(self._callers)
        self._was_open = False
        self._look_again()
        self._was_open = self.open

    @property
    def open(self) -> bool:
        """True if no key is required."""
        return not self._callers and self._people is None and not (self._source is not None and self._source.in_use)

    @property
    def may_be_open(self) -> bool:
        """True if no key is required, also where that is not known yet."""
        return self.open or (not self._callers and self._people is None and self._unknown is not None)

    def generation(self) -> int:
        """Return a number that changes with every change of the keys, here or in another process, and when one expires."""
        if time.monotonic() >= self._look.until:  # else looking again would show the same, for twice the instructions
            self._look_again()
        if time.time() >= self._next_end:
            self._generation += 1
            self._next_end = _next_end(self._callers)
        if self._people is not None:
            return self._generation + self._people.generation()
        return self._generation

    def last_generation(self) -> int:
        """Return that number as it was when somebody looked last. Who compares it later misses no change since."""
        if self._people is not None:
            return self._generation + self._people.last_generation()
        return self._generation

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller. Raises `ChatError` 401. Header names are lower case, as in ASGI and starlette."""
        self._look_again()
        if self.open:
            return ANONYMOUS
        credentials = _credentials_in(headers)
        is_named = any(credentials.values())
        if not is_named and self._unknown is not None and not self._callers and self._people is None:
            raise self._unknown  # perhaps none is needed
        if not is_named:
            raise _unauthorized(
                "You didn't provide an API key. Send it as `Authorization: Bearer <key>`, `api-key` or `x-api-key`.",
                None,
            )
        if len(credentials) > 1:
            _check_same(credentials)
        key = next(iter(credentials.values()))
        caller = self._caller_of(key)
        if caller is None and self._people is not None and BEARER in credentials and looks_like_token(key):
            return self._people.identify(key)
        if caller is None and self._unknown is not None:
            raise self._unknown
        if caller is None:
            raise _unauthorized("Incorrect API key provided.", "invalid_api_key")
        return caller

    def known(self, owner: str) -> Caller | None:
        """Return the caller that `owner_name` gave this name, if its key is still valid. Raises `KeysUnknown`."""
        self._look_again()
        if self.open:
            if owner == owner_name(ANONYMOUS):
                return ANONYMOUS
            return None
        for _, caller, expires_at in self._callers:
            if owner_name(caller) == owner and (expires_at is None or time.time() < expires_at):
                return caller
        if self._people is not None and owner.startswith(OF_PERSON):
            return self._people.known(owner.removeprefix(OF_PERSON))
        if self._unknown is not None:
            raise self._unknown
        return None

    def _caller_of(self, key: str) -> Caller | None:
        """Return the caller of a key. All entries are compared, so that the time does not depend on the matching one."""
        if len(key) > _MAX_KEY_LENGTH:
            return None
        digest = sha256(key.encode(errors="surrogatepass")).digest()
        matching = None
        end = None
        for expected, caller, expires_at in self._callers:
            if hmac.compare_digest(expected, digest):
                matching = caller
                end = expires_at
        if end is not None and time.time() >= end:
            raise _unauthorized("This API key has expired. Ask the operator for another.", "invalid_api_key")
        return matching

    def _look_again(self) -> None:
        """Update the keys of the source. For a name in both the config's key counts."""
        if self._source is None:
            return
        try:
            entries = self._source.entries()
        except KeysUnknown as unknown:
            if self._unknown is None:
                self._generation += 1
                self._callers = self._static
                self._seen = ()
            self._unknown = unknown
            return
        self._look = self._source.look
        if self._unknown is not None:
            self._unknown = None
            self._generation += 1
        if entries is self._seen:
            return
        was_open = self._was_open
        self._seen = entries
        ours = {caller.name for _, caller, _ in self._static}
        self._callers = self._static + _callers(entry for entry in entries if entry.name not in ours)
        self._generation += 1
        self._next_end = _next_end(self._callers)
        self._was_open = self.open
        if was_open and not self._was_open:
            warn_of_first_key([entry.name for entry in entries])


def _credentials_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what a request says of who it is, by the names of the headers. Another scheme than `Bearer` is for whoever stands before
    this server."""
    credentials: dict[str, str] = {}
    scheme, _, credential = headers.get(BEARER, "").strip().partition(" ")
    if scheme.lower() == "bearer" or (not scheme and BEARER in headers):
        credentials[BEARER] = credential.strip()
    for name in KEY_HEADERS:
        if name in headers:
            credentials[name] = headers[name].strip()
    return credentials


def _check_same(credentials: Mapping[str, str]) -> None:
    """Refuse a request that does not say of one and the same caller whose it is: whoever stands before this server may have looked at
    the other."""
    names = " and ".join(f"`{name}`" for name in credentials)
    if not all(credentials.values()):
        raise _unauthorized(f"Of {names} one is empty. Send your API key in one of them.", "invalid_api_key")
    if len(set(credentials.values())) > 1:
        raise _unauthorized(f"{names} are different API keys. Send one of them.", "invalid_api_key")


def warn_of_first_key(names: Sequence[str]) -> None:
    """Log that keys are required from now on, on a server that had none so far."""
    log.warning("keys_required", keys=list(names))


def mint_key() -> tuple[str, str]:
    """Generate a key, to be shown once, and its hash, to be stored."""
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    return HASH_PREFIX + sha256(key.encode()).hexdigest()


def caller_of(entry: KeyEntry) -> Caller:
    """Return who asks with a key."""
    return Caller(
        entry.name,
        entry.models,
        entry.tools,
        approve=entry.approve,
        admin=entry.admin,
        see=entry.see,
        events=entry.events,
        usage=entry.usage,
        offer=entry.offer,
        tool_search=entry.tool_search,
        client_mcp=entry.client_mcp,
        allowance=UNLIMITED if entry.allowance == UNLIMITED else entry.allowance,  # compared by identity
    )


def _callers(entries: Iterable[KeyEntry]) -> tuple[tuple[bytes, Caller, float | None], ...]:
    """Return the digest of each valid key, a name's old key after its current one, with its caller and when it expires."""
    callers: list[tuple[bytes, Caller, float | None]] = []
    for entry in entries:
        caller = caller_of(entry)
        callers.append((_digest(entry.hash), caller, entry.expires_at))
        if entry.old_hash is not None:
            ends = [end for end in (entry.old_expires_at, entry.expires_at) if end is not None]
            callers.append((_digest(entry.old_hash), caller, min(ends, default=None)))
    return tuple(callers)


def _next_end(callers: Iterable[tuple[bytes, Caller, float | None]]) -> float:
    """Return when the next of these keys expires."""
    now = time.time()
    return min((end for _, _, end in callers if end is not None and end > now), default=math.inf)


def _digest(hash: str) -> bytes:
    return bytes.fromhex(hash.removeprefix(HASH_PREFIX))


def _unauthorized(message: str, code: str | None) -> ChatError:
    return ChatError(401, message, type="invalid_request_error", code=code)
