"""Clients' keys: identifies the `Caller` by the headers of a request.

Keys are 256 random bits and stored as SHA-256: they cannot be guessed, so no slow hash is needed. `origin_guard` checks
requests of web pages.
"""

import fnmatch
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, Protocol, TypeAlias

import structlog

from callgate.auth.limits import UNLIMITED, Allowance
from callgate.conversation.errors import ChatError

log = structlog.get_logger("callgate.keys")

KEY_PREFIX: Final = "cg-"
HASH_PREFIX: Final = "sha256:"
_KEY_BYTES: Final = 32

_MAX_KEY_LENGTH: Final = 4096
"""Longer keys are refused without hashing them."""


See: TypeAlias = Literal["none", "own", "all"]
ToolEvents: TypeAlias = Literal["off", "x", "reasoning", "openwebui"]
OfferSetting: TypeAlias = Literal["any", "with_client_tools"]
UsageSetting: TypeAlias = Literal["auto", "sum", "last_turn"]


@dataclass(frozen=True, slots=True)
class KeyEntry:
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
    expires_at: float | None = None
    """Seconds since the epoch."""
    old_hash: str | None = None
    """The hash of the key it replaced, which stays valid until `old_expires_at`."""
    old_expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request, identified by its key."""

    name: str
    models: tuple[str, ...] = ("*",)
    """Names or globs."""
    tools: tuple[str, ...] = ("*",)
    anonymous: bool = False
    approve: bool = False
    """Its key may decide about calls that wait for approval."""
    admin: bool = False
    """Its key may reload the config."""
    see: See = "none"
    """Which recorded runs its key may see."""
    events: ToolEvents | None = None
    """How responses show that tools run, where the request does not set it."""
    usage: UsageSetting | None = None
    """Which token counts answers report, where the request does not set it."""
    offer: OfferSetting | None = None
    """Which requests our tools are offered to; None where its model says."""
    allowance: Allowance = UNLIMITED

    def may_ask(self, model: str) -> bool:
        return "*" in self.models or any(
            glob == model or _compiled(glob).match(model) is not None for glob in self.models
        )


ANONYMOUS: Final = Caller("anonymous", anonymous=True)


class KeySource(Protocol):
    """Keys that are created and revoked while the server runs."""

    def entries(self) -> Sequence[KeyEntry]:
        """Return the current keys; the same object as long as nothing has changed."""
        ...

    @property
    def in_use(self) -> bool:
        """True if it ever had a key, or its server one in the config. When the last one is revoked, every request is refused rather than allowed."""
        ...


class Keyring:
    """The keys of one config, and of a source beside it. With `off`, or where there never was a key, every request has the
    anonymous caller."""

    def __init__(self, entries: Iterable[KeyEntry], *, off: bool = False, source: KeySource | None = None) -> None:
        self._static = () if off else _callers(entries)
        self._source = None if off else source
        self._seen: Sequence[KeyEntry] = ()
        self._callers = self._static
        self._was_open = False
        self._look_again()
        self._was_open = self.open

    @property
    def open(self) -> bool:
        """True if no key is required."""
        return not self._callers and not (self._source is not None and self._source.in_use)

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller. Raises `ChatError` 401. Header names are lower case, as in ASGI and starlette."""
        self._look_again()
        if self.open:
            return ANONYMOUS
        scheme, _, credential = headers.get("authorization", "").strip().partition(" ")
        key = credential.strip() if scheme.lower() == "bearer" else None
        key = key or headers.get("api-key", "").strip() or headers.get("x-api-key", "").strip()
        if not key:
            raise _unauthorized(
                "You didn't provide an API key. Send it as `Authorization: Bearer <key>`, `api-key` or `x-api-key`.",
                None,
            )
        caller = self._caller_of(key)
        if caller is None:
            raise _unauthorized("Incorrect API key provided.", "invalid_api_key")
        return caller

    def known(self, owner: str) -> Caller | None:
        """Return the caller that `owner_name` gave this name, if its key is still valid."""
        self._look_again()
        if self.open:
            return ANONYMOUS if owner == owner_name(ANONYMOUS) else None
        for _, caller, expires_at in self._callers:
            if owner_name(caller) == owner and (expires_at is None or time.time() < expires_at):
                return caller
        return None

    def _caller_of(self, key: str) -> Caller | None:
        """Return the caller of a key. All entries are compared, so that the time does not depend on the matching one."""
        if len(key) > _MAX_KEY_LENGTH:
            return None
        digest = sha256(key.encode(errors="surrogatepass")).digest()
        found, end = None, None
        for known, caller, expires_at in self._callers:
            if hmac.compare_digest(known, digest):
                found, end = caller, expires_at
        if end is not None and time.time() >= end:
            raise _unauthorized("This API key has expired. Ask the operator for another.", "invalid_api_key")
        return found

    def _look_again(self) -> None:
        """Update the keys of the source. For a name in both the config's key counts."""
        if self._source is None or (entries := self._source.entries()) is self._seen:
            return
        was_open, self._seen = self._was_open, entries
        ours = {caller.name for _, caller, _ in self._static}
        self._callers = self._static + _callers(entry for entry in entries if entry.name not in ours)
        self._was_open = self.open
        if was_open and not self._was_open:
            warn_of_first_key([entry.name for entry in entries])


def warn_of_first_key(names: Sequence[str]) -> None:
    """Log that keys are required from now on, on a server that had none so far."""
    log.warning("keys_required", keys=list(names))


def owner_name(caller: Caller) -> str:
    """Return the owner of stored things. No key's name can be taken for anonymous."""
    return "anonymous" if caller.anonymous else f"key {caller.name}"


def mint_key() -> tuple[str, str]:
    """Generate a key, to be shown once, and its hash, to be stored."""
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    return HASH_PREFIX + sha256(key.encode()).hexdigest()


def check_exposure(host: str, auth: str, keys: int, *, had_keys: bool = False) -> str | None:
    """Return why the server must not listen on `host` with this many keys, or None."""
    if keys or auth == "off":
        return None
    if had_keys:
        return (
            "this server had keys, and none is left, which would let everyone in: put one back under `keys`, or say "
            "`auth: off` if that is meant; `callgate keys create NAME` makes one"
        )
    if is_loopback(host):
        return None
    return (
        f"`{host}` can be reached by others and there are no keys: add one under `keys`, "
        "listen on 127.0.0.1, or say `auth: off` to let everyone in; `callgate keys create NAME` makes one"
    )


def nobody_may_approve(host: str, auth: str) -> bool:
    """True if no caller may decide about approvals: everybody is let in without a key, also from other machines."""
    return auth == "off" and not is_loopback(host)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach what listens on `host`. A name other than localhost is not trusted to be."""
    bare = host.strip("[]").lower()
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _caller_of(entry: KeyEntry) -> Caller:
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
        allowance=UNLIMITED if entry.allowance == UNLIMITED else entry.allowance,  # compared by identity
    )


def _callers(entries: Iterable[KeyEntry]) -> tuple[tuple[bytes, Caller, float | None], ...]:
    """Return the digest of each valid key, a name's old key after its current one, with its caller and when it expires."""
    found: list[tuple[bytes, Caller, float | None]] = []
    for entry in entries:
        caller = _caller_of(entry)
        found.append((_digest(entry.hash), caller, entry.expires_at))
        if entry.old_hash is not None:
            ends = [end for end in (entry.old_expires_at, entry.expires_at) if end is not None]
            found.append((_digest(entry.old_hash), caller, min(ends, default=None)))
    return tuple(found)


def _digest(hash: str) -> bytes:
    return bytes.fromhex(hash.removeprefix(HASH_PREFIX))


def _unauthorized(message: str, code: str | None) -> ChatError:
    return ChatError(401, message, type="invalid_request_error", code=code)


@lru_cache(maxsize=4096)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))
