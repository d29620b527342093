"""The prices of a runtime's models, looked up once each."""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from callgate.conversation.errors import ChatError
from callgate.conversation.events import Responder
from callgate.conversation.prices import FREE, Price
from callgate.upstream.catalogue import Catalogue
from callgate.upstream.prices import price_of

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
        self._known: dict[tuple[str, str], Price | None] = {}
        self._warned: set[str] = set()

    def of(self, model: str, deployment: str = "") -> Price | None:
        """Return the price of a deployment of a model, by default of the first; None where it is unknown, or there is no such
        model."""
        place = (model, deployment)
        if place in self._known:
            return self._known[place]
        price = self._looked_up(model, deployment)
        if len(model) + len(deployment) <= 2 * LONGEST:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[place] = price
        return price

    def of_responder(self, by: Responder) -> Price | None:
        """Return the price of the deployment that answered."""
        try:
            return self._known[by.model, by.deployment]
        except KeyError:
            return self.of(by.model, by.deployment)

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
        return FREE if price is None else price

    def _looked_up(self, model: str, deployment: str) -> Price | None:
        try:
            entries = self._catalogue.entries(model)
        except ChatError:  # a wildcard, which is no model that can be asked
            return price_of({}, self._infos.get(model, {}))
        entry = next((entry for entry in entries if entry.litellm_params["model"] == deployment), entries[0])
        return price_of(entry.litellm_params, self._infos.get(entry.configured_name, {}))
