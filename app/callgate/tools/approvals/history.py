"""What became of the calls that waited for a person: who decided, when, and why. In memory, of this process."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from callgate.tools.approvals.queue import SettledApproval

KEPT: Final = 200
"""How many are remembered."""
FACTS: Final = ("id", "object", "kind", "tool", "source", "safety", "hash", "run", "call", "caller", "since")
"""The facts of a call that are remembered. All others may be long, or are texts of a run, which are kept with it or not at all."""


class ApprovalHistory:
    """Remembers the newest decisions."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._settled: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._now = now

    def add(self, settled: SettledApproval) -> None:
        """Remember how a call that waited ended."""
        told = settled.approval.facts()
        facts = {name: told[name] for name in FACTS}
        end = {"decision": str(settled.decision), "by": settled.by, "reason": settled.reason, "ended": int(self._now())}
        self._settled.append(facts | end)

    def newest(self) -> list[dict[str, Any]]:
        """Return them, the newest first."""
        return list(reversed(self._settled))
