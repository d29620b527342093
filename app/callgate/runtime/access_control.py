"""The ports of access control: whoever knows keys and their limits is put in behind them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from callgate.callers.admission import Admission, SharedPlaces
from callgate.callers.caller import Caller
from callgate.callers.metering import RequestMeter
from callgate.callers.rights import Access
from callgate.callers.sign_in import SignIn
from callgate.config.schema.whole import Config
from callgate.conversation.events import Responder
from callgate.conversation.prices import Price
from callgate.state.ledger import SharedLedger
from callgate.telemetry.metrics import Metrics


class AccessControl(Protocol):
    """Knows the keys of this process and their limits. It stays when the config changes."""

    @property
    def admission(self) -> Admission: ...

    @property
    def places(self) -> SharedPlaces | None:
        """The places of models and tools, where several processes count them together."""
        ...

    def access(self, config: Config) -> Access:
        """Return who may do what by a config. Raises `BadEntry` where it says what cannot be checked here."""
        ...

    def stored_keys(self) -> Sequence[str]:
        """Return the names of all keys beside those of the config."""
        ...

    def keys_are_away(self) -> bool:
        """Return whether the keys beside those of the config cannot be read at the moment."""
        ...

    def issuer_is_away(self) -> bool:
        """Return whether the issuer of the config did not give its keys when it was asked last."""
        ...

    async def sign_in(self, config: Config) -> SignIn | None:
        """Return where the page signs people in; None where it cannot."""
        ...

    def remember_keys(self) -> None:
        """Remember that the server had keys in its config."""
        ...

    def warn_of_first_key(self, names: Sequence[str]) -> None:
        """Log that keys are required from now on, on a server that had none so far."""
        ...

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
    ) -> RequestMeter:
        """Return the meter that holds one request to the limits of its caller."""
        ...


class AccessParts(Protocol):
    """Builds access control."""

    def open(
        self, config: Config, ledger: SharedLedger | None, on_made: Callable[[str, str], None], metrics: Metrics
    ) -> AbstractAsyncContextManager[AccessControl]:
        """Open it until the end of the block. `on_made` is told of each key with rights that is made meanwhile, with its hash. Raises `BadEntry`
        where it cannot check what the config says."""
        ...
