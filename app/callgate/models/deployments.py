"""The deployments of a model name, and the cooldown of each that keeps failing."""

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

from msgspec.structs import replace

from callgate.conversation.events import Responder
from callgate.conversation.ports import Model

FAILURES = 3
"""Consecutive failures before a deployment cools down."""
LONGEST_SECONDS = 300.0
"""The longest cooldown, unless the first is set to longer."""


class Cooldown:
    """The cooldown of a deployment that failed several times in a row.

    When it is over, one trial request may be sent while others still avoid the deployment; if the trial fails, the next
    cooldown is twice as long.
    """

    __slots__ = ("_clock", "_first", "_on_change", "_seconds", "failures", "until")

    def __init__(
        self,
        seconds: float = 0.0,
        on_change: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Off with 0 `seconds`. `on_change` is called with the length of a cooldown that begins, and with 0 when the deployment
        answers again."""
        self.failures = 0
        """Consecutive failures."""
        self.until = -float("inf")
        self._first = self._seconds = seconds
        self._on_change = on_change
        self._clock = clock

    @property
    def seconds(self) -> float:
        """The length of the first cooldown."""
        return self._first

    @property
    def is_resting(self) -> bool:
        """True while it is not to be asked: it is cooling down, or a trial request is running."""
        return self.failures >= FAILURES and self._first > 0

    def seconds_left(self) -> float:
        if self.is_resting:
            return max(self.until - self._clock(), 0.0)
        return 0.0

    def take_trial(self) -> bool:
        """Claim the trial request after a cooldown; return whether it was free. A trial without an answer delays the next by
        another cooldown."""
        now = self._clock()
        if now < self.until:
            return False
        self.until = now + self._seconds
        return True

    def answered(self) -> None:
        if self.is_resting:
            self._on_change(0.0)
        self.failures = 0
        self.until = -float("inf")
        self._seconds = self._first

    def failed(self, *, on_trial: bool, retry_after: float | None = None) -> None:
        self.failures += 1
        if self._first <= 0 or not (on_trial or self.failures == FAILURES):
            return
        longest = max(self._first, LONGEST_SECONDS)
        if on_trial:
            self._seconds = min(self._seconds * 2, longest)
        seconds = max(self._seconds, min(retry_after or 0.0, longest))
        self.until = self._clock() + seconds
        self._on_change(seconds)


class HasHost(Protocol):
    """A model that knows its provider's host."""

    @property
    def host(self) -> str:
        """Empty where only litellm knows it."""
        ...


class Deployment:
    """One deployment of a model, and its cooldown."""

    __slots__ = ("cooldown", "gives_reasons", "model", "place", "responder")

    def __init__(
        self, model: Model, responder: Responder, place: HasHost | None = None, cooldown: Cooldown | None = None
    ) -> None:
        """`place` is for a model that knows its host only after the first request."""
        self.model = model
        self.cooldown = cooldown or Cooldown()
        self.gives_reasons = False
        """It has sent a finish reason, so that an answer without one is cut off."""
        self.responder = responder
        self.place = place

    def seconds_left(self) -> float:
        """The rest of the cooldown in seconds."""
        return self.cooldown.seconds_left()

    def find_host(self, place: HasHost) -> None:
        """Note the host of a model that knew it only after the first request."""
        if place.host != self.responder.host:
            self.responder = replace(self.responder, host=place.host)


class DeploymentPool:
    """The deployments that answer to one name. They are asked in turn, each request starting with the next one."""

    __slots__ = ("deployments", "name", "orders")

    def __init__(self, name: str, deployments: Sequence[Deployment]) -> None:
        self.name = name
        self.deployments = deployments
        starts = range(len(deployments))
        self.orders = cycle([(*deployments[start:], *deployments[:start]) for start in starts])
        """Gives each request the order in which it asks them."""
