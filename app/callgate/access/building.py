"""Builds access control: keys, limits, admission, and the accepted Host and Origin headers."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from callgate.access.key_store import FileKeys
from callgate.access.keys import KeyEntry, Keyring, KeySource, KeysUnknown, WatchedKeys, warn_of_first_key
from callgate.access.limits import Limiter, MemoryLimiter
from callgate.access.meter import Meter
from callgate.access.oidc.settings import Group
from callgate.access.settings import Key, RateLimits, Rights
from callgate.callers.admission import Admission, SharedPlaces
from callgate.callers.allowance import UNLIMITED, Allowance
from callgate.callers.caller import Caller
from callgate.callers.exposure import check_exposure, keyless_may_approve
from callgate.callers.origin_guard import OriginGuard, is_loopback, origin_guard
from callgate.callers.rights import Access
from callgate.callers.sign_in import SignIn
from callgate.calls.search_setting import SearchSetting
from callgate.config.schema.values import moment_of
from callgate.config.schema.whole import Config
from callgate.conversation.events import Responder
from callgate.conversation.prices import Price
from callgate.runtime.access_control import AccessControl
from callgate.state.ledger import SharedLedger
from callgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from callgate.access.ledger_keys import LedgerKeys
    from callgate.access.oidc.building import IssuersInUse
    from callgate.access.oidc.people import People


def keyring_of(config: Config, source: KeySource | None = None, people: "People | None" = None) -> Keyring:
    return Keyring(map(key_entry, config.keys), off=config.auth.mode == "off", source=source, people=people)


def key_entry(key: Key) -> KeyEntry:
    return KeyEntry(
        key.name,
        key.hash,
        expires_at=_moment(key.expires),
        old_hash=key.old_hash,
        old_expires_at=_moment(key.old_expires),
        **_fields_of(key),
    )


def caller_of_group(name: str, group: Group) -> Caller:
    """Return what each member of a group may, with the limits of all together."""
    return Caller(name, **_fields_of(group))


def _fields_of(rights: Rights) -> dict[str, Any]:
    """Return what keys and groups may, by the names that the fields have in `KeyEntry` and `Caller`."""
    return {
        "models": rights.models,
        "tools": rights.tools,
        "approve": rights.approve,
        "admin": rights.admin,
        "see": rights.see,
        "events": rights.events,
        "usage": rights.usage,
        "offer": rights.offer,
        "tool_search": _search_setting_of(rights),
        "client_mcp": rights.client_mcp.value(),
        "allowance": allowance_of(rights),
    }


def allowance_of(limits: RateLimits) -> Allowance:
    allowance = Allowance(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        parallel=limits.parallel,
        budget_per_day=limits.budget_per_day,
        budget_per_month=limits.budget_per_month,
    )
    if allowance == UNLIMITED:
        return UNLIMITED  # compared by identity
    return allowance


def _search_setting_of(rights: Rights) -> SearchSetting | None:
    if rights.tool_search is None:
        return None
    return SearchSetting(**rights.tool_search.values())


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    return moment_of(text)


class KeyedControl:
    """The keys of this process, in the config and beside it, with their limits. They stay when the config changes."""

    def __init__(
        self,
        config: Config,
        ledger: SharedLedger | None,
        keys: "FileKeys | LedgerKeys | None",
        source: KeySource | None,
        metrics: Metrics,
    ) -> None:
        """Made by `open`, of what is open already."""
        self.keys = keys
        self.places = shared_places_of(config)
        self.admission = admission_of(config, self.places)
        self.limiter: Limiter = limiter_of(config, ledger)
        self._source = source
        self._metrics = metrics
        self._issuers: IssuersInUse | None = None
        """None where no config had an issuer yet."""

    def access(self, config: Config) -> Access:
        people = None
        if config.auth.oidc is not None and self._issuers is None:
            from callgate.access.oidc.building import IssuersInUse

            self._issuers = IssuersInUse(self._metrics)
        if self._issuers is not None:
            people = self._issuers.people(config.auth.oidc)
        return access_of(config, self._source, people)

    def issuer_is_away(self) -> bool:
        """Return whether the issuer of the config did not give its keys when it was asked last."""
        issuer = None if self._issuers is None else self._issuers.current
        return issuer is not None and issuer.failure is not None

    async def sign_in(self, config: Config) -> SignIn | None:
        """Return where the page signs people in; None where it cannot."""
        if self._issuers is None or config.auth.oidc is None:
            return None
        return await self._issuers.sign_in(config.auth.oidc)

    async def close_issuers(self) -> None:
        if self._issuers is not None:
            await self._issuers.close()

    def stored_keys(self) -> Sequence[str]:
        if self.keys is None:
            return ()
        try:
            return [key.entry.name for key in self.keys.all()]
        except KeysUnknown:
            return ()

    def remember_keys(self) -> None:
        if isinstance(self.keys, FileKeys):
            self.keys.remember_keys()

    def keys_are_away(self) -> bool:
        return self.keys is not None and self.keys.look_away()

    def warn_of_first_key(self, names: Sequence[str]) -> None:
        warn_of_first_key(names)

    def meter(
        self,
        caller: Caller,
        price: Price,
        prompt_bytes: int,
        max_tokens: int | None,
        choices: int = 1,
        price_of: Callable[[Responder], Price] | None = None,
        *,
        hosted: bool = False,
    ) -> Meter:
        return Meter(self.limiter, caller, price, prompt_bytes, max_tokens, choices, price_of, hosted=hosted)


class WithAccess:
    """Builds access control."""

    @contextlib.asynccontextmanager
    async def open(
        self, config: Config, ledger: SharedLedger | None, on_made: Callable[[str, str], None], metrics: Metrics
    ) -> AsyncIterator[KeyedControl]:
        """Open the key store and the limits. `on_made` is told of each key with rights that is made meanwhile, with its hash."""
        async with contextlib.AsyncExitStack() as stack:
            source: KeySource | None = None
            keys = await key_store_of(config, ledger)
            if keys is not None:
                stack.callback(keys.close)
                mistake = check_exposure(config.server.host, config.auth.mode, keys=0)
                source = WatchedKeys(keys, on_made, may_be_keyless=mistake is None)
            control = KeyedControl(config, ledger, keys, source, metrics)
            if control.places is not None:
                stack.push_async_callback(control.places.close)
            stack.push_async_callback(control.admission.close)
            stack.push_async_callback(control.limiter.close)
            stack.push_async_callback(control.close_issuers)
            yield control


def control_behind(port: AccessControl) -> KeyedControl:
    """Return access control itself, whose keys and spending can be read as well."""
    assert isinstance(port, KeyedControl), "it was put in with all that reads it"
    return port


async def key_store_of(config: Config, ledger: SharedLedger | None) -> "FileKeys | LedgerKeys | None":
    """Return the store of keys that are created while the server runs: in the shared ledger, or in a file."""
    if ledger is not None and config.ledger.url is not None:
        from callgate.access.ledger_keys import LedgerKeys

        keys = LedgerKeys(ledger.database)
        await keys.open()
        return keys
    if config.data_dir is None:
        return None
    return FileKeys(Path(config.data_dir))


def admission_of(config: Config, of_models: SharedPlaces | None) -> Admission:
    limits = config.limits
    return Admission(
        limits.concurrent_requests, limits.queue_seconds, _places_of(config, limits.redis_down, ""), of_models
    )


def shared_places_of(config: Config) -> SharedPlaces | None:
    """Return the places of models and tools, where several processes count them together. While Redis is away each process
    counts alone, also where keys are refused."""
    return _places_of(config, "open", "shared:")


def _places_of(config: Config, down: Literal["open", "closed"], prefix: str) -> SharedPlaces | None:
    store = config.store
    if store.redis_url is not None:
        from callgate.access.redis_places import RedisPlaces

        with contextlib.suppress(ModuleNotFoundError, ValueError):  # reported by `store_of`, which needs the same
            return RedisPlaces(store.redis_url.get_secret_value(), down=down, prefix=store.prefix + prefix)
    folder = _folder_of_workers(config)
    if folder is None:
        return None
    from callgate.access.sqlite_limits import LimitsFile, SqlitePlaces

    return SqlitePlaces(LimitsFile(folder), prefix)


def _folder_of_workers(config: Config) -> Path | None:
    """Return the folder in which several workers count together, where they share no Redis."""
    if config.server.workers == 1 or config.data_dir is None or config.store.redis_url is not None:
        return None
    return Path(config.data_dir)


def limiter_of(config: Config, ledger: SharedLedger | None) -> Limiter:
    """Return the limiter: in Redis for all processes where there is one, else in the folder of several workers, else in this process;
    with spending in the ledger."""
    store = config.store
    if store.redis_url is not None:
        url = store.redis_url.get_secret_value()
        down = config.limits.redis_down
        from callgate.access.redis_limits import RedisLimiter

        if ledger is None:
            return RedisLimiter(url, down=down, prefix=store.prefix)
        return RedisLimiter(
            url, down=down, prefix=store.prefix, remember=ledger.calls.remember_spending, recall=ledger.spent_by
        )
    if ledger is None:
        return MemoryLimiter()
    calls = ledger.calls

    def spent() -> Mapping[tuple[str, str], int] | None:
        return calls.spent

    if (folder := _folder_of_workers(config)) is not None:
        from callgate.access.sqlite_limits import LimitsFile, SqliteLimiter

        return SqliteLimiter(LimitsFile(folder), spent, calls.remember_spending, ledger.spent_by)
    return MemoryLimiter(spent, calls.remember_spending)


def access_of(config: Config, source: KeySource | None = None, people: "People | None" = None) -> Access:
    """Return who may do what by a config, by the keys of a source beside it, and by the tokens of people."""
    keyring = keyring_of(config, source, people)
    guard = origin_guard_of(config, keyring)
    host = config.server.host
    return Access(
        keyring,
        guard.refusal,
        is_local=is_loopback(host),
        keyless_approve=keyless_may_approve(host, config.approvals.keyless),
    )


def origin_guard_of(config: Config, keyring: Keyring) -> OriginGuard:
    server = config.server
    return origin_guard(
        server.host,
        keyless=keyring.may_be_open,
        public_url=server.public_url,
        allowed_hosts=server.allowed_hosts,
        cors_origins=server.cors_origins,
    )
