"""The prices of a runtime's models, looked up once each."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from callgate.conversation.errors import ChatError
from callgate.conversation.events import Responder
from callgate.conversation.prices import FREE, Price
from callgate.models.catalogue import Catalogue
from callgate.models.prices import price_of

REMEMBERED: Final = 1024
"""Deployments whose prices are cached; wildcards let clients choose names."""

LONGEST: Final = 200
"""Characters of a name whose price is cached."""

audit = structlog.get_logger("callgate.audit")


class Prices:
    """The prices of deployments, each looked up once. Thread-safe."""

    def __init__(self, catalogue: Catalogue, infos: Mapping[str, Mapping[str, Any]]) -> None:
        """`infos`: the operator's `model_info` of each configured name."""
        self._catalogue = catalogue
        self._infos = infos
        self._cached: dict[tuple[str, str], Price | None] = {}
        self._warned: set[str] = set()
        self.of_responder: Callable[[Responder], Price | None] = _OfResponders(self.of).__getitem__
        """Returns the price of the deployment that answered; None where it is unknown."""

    def of(self, model: str, deployment: str = "") -> Price | None:
        """Return the price of a deployment of a model, by default of the first; None where it is unknown, or there is no such
        model."""
        place = (model, deployment)
        if place in self._cached:
            return self._cached[place]
        price = self._looked_up(model, deployment)
        if len(model) + len(deployment) <= 2 * LONGEST:
            if len(self._cached) >= REMEMBERED:
                self._cached.clear()
            self._cached[place] = price
        return price

    def per_million(self, model: str) -> dict[str, float | None] | None:
        """Return the price of a million tokens of a model in US dollars; None where it is unknown."""
        price = self.of(model)
        if price is None:
            return None
        prices = {"prompt": price.prompt, "completion": price.completion, "cached": price.cached}
        return {name: None if value is None else round(value * 1_000_000, 6) for name, value in prices.items()}

    def for_budget(self, model: str) -> Price:
        """Return the price at which a model's tokens are estimated for budgets. A model without a price costs nothing there,
        which is logged once."""
        return self._charged(model, self.of(model))

    def for_budget_of(self, by: Responder) -> Price:
        """Return the price at which the tokens of a deployment that answered count against budgets."""
        return self._charged(by.model, self.of_responder(by))

    def _charged(self, model: str, price: Price | None) -> Price:
        if price is None and model not in self._warned:
            if len(self._warned) >= REMEMBERED:
                self._warned.clear()
            self._warned.add(model)
            audit.warning("price_unknown", model=model)
        if price is None:
            return FREE
        return price

    def _looked_up(self, model: str, deployment: str) -> Price | None:
        try:
            entries = self._catalogue.entries(model)
        except ChatError:  # a wildcard, which is no model that can be asked
            return price_of({}, self._infos.get(model, {}))
        entry = next((entry for entry in entries if entry.litellm_params["model"] == deployment), entries[0])
        return price_of(entry.litellm_params, self._infos.get(entry.configured_name, {}))


class _OfResponders(dict[Responder, Price | None]):
    """The prices of deployments that answered. A dict, because they are asked for several times in a request."""

    def __init__(self, price_of: Callable[[str, str], Price | None]) -> None:
        self._price_of = price_of

    def __missing__(self, by: Responder) -> Price | None:
        price = self._price_of(by.model, by.deployment)
        if len(by.model) + len(by.deployment) <= 2 * LONGEST:
            if len(self) >= REMEMBERED:
                self.clear()
            self[by] = price
        return price
