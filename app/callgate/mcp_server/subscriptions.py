"""`subscriptions/listen`: a client hears when its own list of tools has changed."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from starlette.types import Receive

from callgate.api.answers import run_unless_disconnected
from callgate.api.rights import Capability
from callgate.callers.caller import Caller
from callgate.conversation.errors import ChatError
from callgate.mcp_server.protocol import SUBSCRIPTION_ID, Id, encode, notification
from callgate.mcp_server.reply import Reply

MOST_OF_ONE: Final = 20
"""Streams of one key."""
LOOK_SECONDS: Final = 0.25
"""How often the list is compared, which costs nothing while no tool has changed."""
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class Subscriptions:
    """The streams that are open in this process."""

    def __init__(self, draining: asyncio.Event) -> None:
        self._draining = draining
        self._open: Counter[str] = Counter()

    def count(self) -> int:
        return self._open.total()

    async def listen(
        self,
        capability: Capability[Caller],
        id: Id,
        *,
        to_tools: bool,
        digest_of: Callable[[Caller], bytes],
        receive: Receive,
        reply: Reply,
    ) -> bytes:
        """Tell a client of changes until the server drains or the client leaves; return the last result. `digest_of` returns what
        changes with the list of a caller. Raises `ClientDisconnected`, and `ChatError` where the key may listen no more."""
        with self._place(capability.owner()):
            meta = {SUBSCRIPTION_ID: id}
            honoured = {"toolsListChanged": True} if to_tools else {}

            async def tell() -> None:
                before = digest_of(capability.ask())
                await reply.event(notification(ACKNOWLEDGED, {"notifications": honoured, "_meta": meta}))
                while not self._draining.is_set():
                    now = digest_of(capability.ask())
                    if now != before and to_tools:
                        await reply.event(notification(TOOLS_CHANGED, {"_meta": meta}))
                    before = now
                    await self._until_drained()

            await run_unless_disconnected(tell(), receive)
            return encode({"resultType": "complete", "_meta": meta})

    async def _until_drained(self) -> None:
        """Pause, but not beyond the beginning of the drain."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._draining.wait()

    @contextlib.contextmanager
    def _place(self, owner: str) -> Iterator[None]:
        if self._open[owner] >= MOST_OF_ONE:
            message = f"This key has {MOST_OF_ONE} subscriptions open already."
            raise ChatError(429, message, type="rate_limit_error", code="too_many_subscriptions")
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]
