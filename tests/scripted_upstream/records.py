"""What the upstream saw: one record per request, and events to wait on so that no test sleeps."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

GEMINI_PATH = re.compile(r"/v1beta/models/([^:]+):(generateContent|streamGenerateContent)")
"""Google has the model and the wish for a stream in the address."""
PATIENCE = 30.0
"""Seconds a wait may last before it fails the test; far above what loopback needs on a busy machine."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request and what became of it."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any] = field(default_factory=dict)
    """The parsed body; empty when it was no JSON object."""
    status: int | None = None
    outcome: str = "open"
    """done, client_disconnected, fault:<kind>, rejected:<status>, released (the upstream was closed first), or
    crashed (a function of the script raised; the test fails for it)."""
    sent: int = 0
    """Events of a streamed answer that went out."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the answer came to its fault or to its hold."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the exchange is over, whichever side ended it."""

    @property
    def model(self) -> str:
        named = GEMINI_PATH.fullmatch(self.path)
        return named[1] if named else str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream")) or self.path.endswith(":streamGenerateContent")

    @property
    def messages(self) -> list[dict[str, Any]]:
        found = self.body.get("messages")
        return [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []

    @property
    def tool_names(self) -> list[str]:
        """The tools on offer, in order; OpenAI's shape and Anthropic's."""
        return [str((tool.get("function") or tool).get("name")) for tool in self.body.get("tools") or []]

    @property
    def tool_results(self) -> dict[str, str]:
        """What the request says each call came to, by call id, as text."""
        return {str(m.get("tool_call_id")): text_of(m.get("content")) for m in self.messages if m.get("role") == "tool"}

    @property
    def turn(self) -> int:
        """How many turns of the model follow the newest thing a user said."""
        turns = 0
        for message in reversed(self.messages):
            if message.get("role") == "user" and not _only_tool_results(message):
                break
            turns += message.get("role") == "assistant"
        return turns

    async def until_reached(self, within: float = PATIENCE) -> None:
        await self._until(self.reached, "came to its fault or hold", within)

    async def until_closed(self, within: float = PATIENCE) -> str:
        """Waits for the end of the exchange and says how it ended."""
        await self._until(self.closed, "was over", within)
        return self.outcome

    async def _until(self, event: asyncio.Event, what: str, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await event.wait()
        except TimeoutError:
            raise AssertionError(f"request {self.number} for {self.model!r} never {what} ({self.outcome})") from None


class RequestLog(Sequence[RequestRecord]):
    """All requests in the order in which they arrived."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []
        self._arrival = asyncio.Event()

    def add(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._arrival.set()
        self._arrival = asyncio.Event()

    async def wait(self, count: int, within: float = PATIENCE) -> list[RequestRecord]:
        """Waits until at least so many requests have arrived."""
        try:
            async with asyncio.timeout(within):
                while len(self._records) < count:
                    await self._arrival.wait()
        except TimeoutError:
            raise AssertionError(f"waited for {count} requests, saw {len(self._records)}") from None
        return list(self._records)

    def of(self, model: str) -> list[RequestRecord]:
        return [record for record in self._records if record.model == model]

    def clear(self) -> None:
        self._records.clear()

    @overload
    def __getitem__(self, at: int) -> RequestRecord: ...

    @overload
    def __getitem__(self, at: slice) -> list[RequestRecord]: ...

    def __getitem__(self, at: int | slice) -> RequestRecord | list[RequestRecord]:
        return self._records[at]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._records)


@dataclass(slots=True)
class Stats:
    """How busy the upstream is and was."""

    active: int = 0
    peak_active: int = 0
    connections: int = 0
    peak_connections: int = 0
    opened: int = 0
    """Connections ever accepted; fewer than requests means that they were kept alive."""
    disconnects: int = 0
    """Requests whose client left before the answer was over."""

    def connection_opened(self) -> None:
        self.opened += 1
        self.connections += 1
        self.peak_connections = max(self.peak_connections, self.connections)

    def request_started(self) -> None:
        self.active += 1
        self.peak_active = max(self.peak_active, self.active)


def text_of(content: Any) -> str:
    """The text of a message's content, in whichever of its two forms."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _only_tool_results(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, dict) and part.get("type") == "tool_result" for part in content)
    )
