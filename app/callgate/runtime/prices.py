"""The prices of a runtime's models."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, Final

import structlog

from callgate.conversation.errors import ChatError
from callgate.conversation.events import Responder
from callgate.conversation.prices import Price
from callgate.upstream.catalogue import Catalogue
from callgate.upstream.prices import price_at_hand, price_of
from callgate.upstream.resolve import ModelConfig

REMEMBERED: Final = 1024
"""Deployments whose prices are kept; a wildcard lets clients make up names."""

LONGEST: Final = 200
"""Characters of a name. What is longer, which only a client makes up, is looked up each time."""

audit = structlog.get_logger("callgate.audit")


class Prices:
    """What each deployment costs, looked up once."""

    def __init__(self, catalogue: Catalogue, infos: Mapping[str, Mapping[str, Any]]) -> None:
        """`infos`: the operator's `model_info` of each configured name."""
        self._catalogue = catalogue
        self._infos = infos
        self._known: dict[tuple[str, str], Price | None] = {}
        self._not_at_hand: dict[tuple[str, str], bool] = {}

    async def of(self, model: str) -> Price | None:
        """The price of a model, looked up in a thread; None where nobody knows, or where there is no such model."""
        entry = self._entry(model, "")
        if entry is None:
            return None
        place = (model, str(entry.litellm_params["model"]))
        if place not in self._known:
            price = await asyncio.to_thread(price_of, entry.litellm_params, self._infos.get(entry.configured_name, {}))
            if price is None:
                audit.warning("price_unknown", model=entry.model_name)
            self._remember(place, price)
        return self._known[place]

    def at_hand(self, by: Responder) -> Price | None:
        """The price of who answered, without waiting and without loading anything. From any thread."""
        place = (by.model, by.deployment)
        if place in self._known:
            return self._known[place]
        # What is not at hand is not looked for again, until there is a list to look in.
        if self._not_at_hand.get(place) is (has_list := "litellm" in sys.modules):
            return None
        entry = self._entry(by.model, by.deployment)
        infos = self._infos
        price = None if entry is None else price_at_hand(entry.litellm_params, infos.get(entry.configured_name, {}))
        if price is not None:
            self._remember(place, price)
        elif _is_short(place):
            if len(self._not_at_hand) >= REMEMBERED:
                self._not_at_hand.clear()
            self._not_at_hand[place] = has_list
        return price

    def _entry(self, model: str, deployment: str) -> ModelConfig | None:
        try:
            entries = self._catalogue.entries(model)
        except ChatError:
            return None
        return next((entry for entry in entries if entry.litellm_params["model"] == deployment), entries[0])

    def _remember(self, place: tuple[str, str], price: Price | None) -> None:
        if not _is_short(place):
            return
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[place] = price


def _is_short(place: tuple[str, str]) -> bool:
    return sum(map(len, place)) <= 2 * LONGEST
