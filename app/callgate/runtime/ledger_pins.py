"""Pinned descriptions of tools in a shared ledger."""

import asyncio
from typing import Final

import msgspec
import structlog

from callgate.ledger.database import Database, DatabaseAway
from callgate.tools.mcp_descriptors import Pin, Pins

_KEEP: Final = "INSERT INTO pins VALUES (?1, ?2) ON CONFLICT (tool) DO UPDATE SET pin = excluded.pin RETURNING tool"
AGAIN_SECONDS: Final = 5.0

log = structlog.get_logger("callgate.tools")


class LedgerPins:
    """Reads the pins when a process starts, and writes each change at once, with retries."""

    def __init__(self, database: Database, pins: Pins) -> None:
        self._database, self._pins = database, pins
        self._changed: dict[str, Pin] = {}
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the pins. Raises `DatabaseAway`."""
        rows = await self._database.fetch("SELECT tool, pin FROM pins")
        self._pins.keep_in({tool: msgspec.json.decode(pin, type=Pin) for tool, pin in rows}, self._keep)

    async def close(self) -> None:
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=AGAIN_SECONDS)
            self._writing.cancel()
            await asyncio.wait({self._writing})

    def _keep(self, tool: str, pin: Pin) -> None:
        self._changed[tool] = pin
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="pins")

    async def _write(self) -> None:
        while self._changed:
            tool, pin = next(iter(self._changed.items()))
            try:
                await self._database.fetch(_KEEP, tool, msgspec.json.encode(pin).decode())
            except DatabaseAway as error:
                log.error("tool_pins_unwritable", error=str(error), effect="forgotten at the end")  # noqa: TRY400 - the reason is all there is to say
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if self._changed.get(tool) is pin:
                del self._changed[tool]
