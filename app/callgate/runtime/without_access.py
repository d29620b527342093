"""Stands where no part knows keys: whoever can reach the server is let in, and only a server that this suits starts."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from callgate.callers.admission import Admission
from callgate.callers.caller import Caller
from callgate.callers.exposure import KEYS_FILE, check_exposure, keyless_may_approve
from callgate.callers.metering import NoMeter
from callgate.callers.origin_guard import is_loopback, origin_guard
from callgate.callers.rights import Access, NoKeys
from callgate.config.entry_errors import BadEntry
from callgate.config.schema.whole import Config
from callgate.conversation.events import Responder
from callgate.conversation.prices import Price
from callgate.state.ledger import SharedLedger
from callgate.telemetry.metrics import Metrics

NO_KEYS = "this server has no part that checks keys, and would let everyone in"


class KeylessControl:
    """Lets in whoever can reach the server."""

    places: None = None
    """This process counts alone."""

    def __init__(self, config: Config) -> None:
        self.admission = Admission(config.limits.concurrent_requests, config.limits.queue_seconds)

    def access(self, config: Config) -> Access:
        """Return who may do what by a config. Raises `BadEntry` where it has keys, or wants what needs them."""
        _check(config)
        server = config.server
        guard = origin_guard(
            server.host,
            keyless=True,
            public_url=server.public_url,
            allowed_hosts=server.allowed_hosts,
            cors_origins=server.cors_origins,
        )
        return Access(
            NoKeys(),
            guard.refusal,
            is_local=is_loopback(server.host),
            keyless_approve=keyless_may_approve(server.host, config.approvals.keyless),
        )

    def stored_keys(self) -> Sequence[str]:
        return ()

    def keys_are_away(self) -> bool:
        return False

    def issuer_is_away(self) -> bool:
        return False

    async def sign_in(self, config: Config) -> None:
        """Sign nobody in."""

    def remember_keys(self) -> None:
        """Remember nothing: a config with keys is refused."""

    def warn_of_first_key(self, names: Sequence[str]) -> None:
        """Warn of nothing: there is no first key."""

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
    ) -> NoMeter:
        return NoMeter()


class WithoutAccess:
    """Builds what stands in for access control."""

    @contextlib.asynccontextmanager
    async def open(
        self, config: Config, ledger: SharedLedger | None, on_made: Callable[[str, str], None], metrics: Metrics
    ) -> AsyncIterator[KeylessControl]:
        _check(config)
        if config.data_dir is not None and _had_keys(Path(config.data_dir) / KEYS_FILE):
            raise BadEntry(("data_dir",), None, f"its {KEYS_FILE} has keys, or cannot be read: {NO_KEYS}")
        if ledger is not None and config.ledger.url is not None:
            ((count,),) = await ledger.database.fetch("SELECT COUNT(*) FROM keys")
            if count:
                raise BadEntry(("ledger", "url"), None, f"the ledger has keys: {NO_KEYS}")
        yield KeylessControl(config)


def _check(config: Config) -> None:
    if config.keys:
        raise BadEntry(("keys",), None, NO_KEYS)
    if config.auth.oidc is not None:
        raise BadEntry(("auth", "oidc"), None, "this server has no part that checks tokens, and would let everyone in")
    if config.store.redis_url is not None or config.server.workers > 1:
        where = ("server", "workers") if config.store.redis_url is None else ("store", "redis_url")
        raise BadEntry(where, None, "this server has no part that counts for several processes")
    has_list = "keys" in config.model_fields_set
    mistake = check_exposure(config.server.host, config.auth.mode, 0, has_empty_list=has_list)
    if mistake is not None:
        raise BadEntry(("server", "host"), None, mistake)


def _had_keys(file: Path) -> bool:
    """True if a key store has, or its server ever had, keys; or where that cannot be read."""
    if not file.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            ((has_keys,),) = database.execute("SELECT EXISTS (SELECT 1 FROM keys)")
            ((had_keys,),) = database.execute("PRAGMA user_version")
    except sqlite3.Error:
        return True
    return bool(has_keys or had_keys)
