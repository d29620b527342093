"""Says that more is allowed than was: to the log, to the metrics, and to whoever watches the feed. Every way to allow more ends here."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Final

import structlog

from callgate.records.ports import RunRecorder
from callgate.state.store import KeyValueStore, StoreError
from callgate.telemetry.metrics import Metrics

CLAIMED_SECONDS: Final = 3600.0
"""How long the processes of a server know which of them has counted something that all of them see."""

audit = structlog.get_logger("callgate.audit")


def count_widened(
    metrics: Metrics, widened: Sequence[str], *, by: str, through: str, places: Sequence[str] = ()
) -> None:
    """Log and count what is allowed more. `by`: who said so; `through`: the route, signal or command; `places`: where each stands."""
    audit.warning("authority_widened", by=by, through=through, widened=list(widened), places=list(places))
    metrics.widened.inc(len(widened))


class Widenings:
    """Announces what all processes of a server see, from one of them."""

    def __init__(self, metrics: Metrics, recorder: RunRecorder, claims: KeyValueStore) -> None:
        """`claims`: the store in which one of the processes claims what all of them see."""
        self._metrics = metrics
        self._recorder = recorder
        self._claims = claims
        self._tasks: set[asyncio.Task[None]] = set()

    async def count_once(
        self, widened: Sequence[str], *, by: str, through: str, places: Sequence[str] = (), since: str
    ) -> None:
        """Log and count them in one of the processes that see the same. `since`: what tells them from the same ones at another time."""
        text = json.dumps([list(widened), through, since])
        claim = f"announced:{hashlib.sha256(text.encode()).hexdigest()}"
        try:
            is_first = await self._claims.add(claim, b"1", CLAIMED_SECONDS)
        except StoreError:  # logged by whoever needs it; rather twice than never
            is_first = True
        if is_first:
            count_widened(self._metrics, widened, by=by, through=through, places=places)

    def by_command(self, widened: str, since: str) -> None:
        """Announce what a command did to the key store, which each process sees. `since`: the hash of the key."""
        by = "who may write the key store"
        through = "callgate keys"
        task = asyncio.ensure_future(self.count_once([widened], by=by, through=through, since=since))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        facts = {"by": by, "through": through, "widened": [widened], "places": [], "refused": []}
        self._recorder.watchers.publish("config", {"object": "config", **facts})

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
