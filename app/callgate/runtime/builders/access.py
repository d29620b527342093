"""Builds access control: keys, limits, admission, and the accepted Host and Origin headers."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from callgate.auth.admission import Admission, SharedPlaces
from callgate.auth.key_store import KeyStore
from callgate.auth.keys import KeyEntry, Keyring, KeySource
from callgate.auth.limits import Allowance, Limiter, MemoryLimiter
from callgate.auth.origin_guard import OriginGuard, origin_guard
from callgate.auth.redis_limits import RedisLimiter
from callgate.auth.redis_places import RedisPlaces
from callgate.config.schema import Config, Key
from callgate.config.schema.values import moment_of
from callgate.ledger.shared import SharedLedger

if TYPE_CHECKING:
    from callgate.runtime.ledger_keys import LedgerKeys


def keyring_of(config: Config, source: KeySource | None = None) -> Keyring:
    return Keyring(map(key_entry, config.keys), off=config.auth == "off", source=source)


def key_entry(key: Key) -> KeyEntry:
    allowance = Allowance(
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        parallel=key.parallel,
        budget_per_day=key.budget_per_day,
        budget_per_month=key.budget_per_month,
    )
    return KeyEntry(
        key.name,
        key.hash,
        key.models,
        key.tools,
        approve=key.approve,
        admin=key.admin,
        see=key.see,
        events=key.events,
        usage=key.usage,
        offer=key.offer,
        allowance=allowance,
        expires_at=_moment(key.expires),
        old_hash=key.old_hash,
        old_expires_at=_moment(key.old_expires),
    )


def _moment(text: str | None) -> float | None:
    return None if text is None else moment_of(text)


async def key_store_of(config: Config, ledger: SharedLedger | None) -> "KeyStore | LedgerKeys | None":
    """Return the store of keys that are created while the server runs: in the shared ledger, or in a file."""
    if ledger is not None and config.ledger.url is not None:
        from callgate.runtime.ledger_keys import LedgerKeys

        keys = LedgerKeys(ledger.database)
        await keys.open()
        return keys
    return None if config.data_dir is None else KeyStore(Path(config.data_dir))


def admission_of(config: Config, of_models: SharedPlaces | None) -> Admission:
    limits = config.limits
    return Admission(
        limits.concurrent_requests, limits.queue_seconds, _places_of(config, limits.redis_down, ""), of_models
    )


def shared_places_of(config: Config) -> SharedPlaces | None:
    """Return the places of models and tools, where several processes count them together. While Redis is away each process
    counts alone, also where keys are refused."""
    return _places_of(config, "open", "shared:")


def _places_of(config: Config, down: Literal["open", "closed"], prefix: str) -> RedisPlaces | None:
    store = config.store
    if store.redis_url is not None:
        with contextlib.suppress(ModuleNotFoundError, ValueError):  # reported by `store_of`, which needs the same
            return RedisPlaces(store.redis_url.get_secret_value(), down=down, prefix=store.prefix + prefix)
    return None


def limiter_of(config: Config, ledger: SharedLedger | None) -> Limiter:
    """Return the limiter: in Redis for all processes where there is one, else in this process, with spending in the ledger."""
    store = config.store
    if store.redis_url is not None:
        url, down = store.redis_url.get_secret_value(), config.limits.redis_down
        if ledger is None:
            return RedisLimiter(url, down=down, prefix=store.prefix)
        return RedisLimiter(
            url, down=down, prefix=store.prefix, remember=ledger.calls.remember_spending, recall=ledger.spent_by
        )
    if ledger is None:
        return MemoryLimiter()
    return MemoryLimiter(ledger.calls.spent, ledger.calls.remember_spending)


def origin_guard_of(config: Config, keyring: Keyring) -> OriginGuard:
    server = config.server
    return origin_guard(
        server.host,
        keyless=keyring.open,
        public_url=server.public_url,
        allowed_hosts=server.allowed_hosts,
        cors_origins=server.cors_origins,
    )
