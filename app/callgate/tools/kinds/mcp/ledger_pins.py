"""Pinned descriptions of tools in a shared ledger."""

import asyncio
import contextlib
from typing import Final

import msgspec
import structlog

from callgate.state.database import Database, DatabaseAway
from callgate.tools.kinds.mcp.pins import DamagedPins, Pin, Pins
from callgate.untrusted.doors import Door, open_text
from callgate.untrusted.readers import READ_ERRORS, json_reader
from callgate.untrusted.work import TurnShare

_KEEP: Final = "INSERT INTO pins VALUES (?1, ?2) ON CONFLICT (tool) DO UPDATE SET pin = excluded.pin RETURNING tool"
AGAIN_SECONDS: Final = 5.0
PIN: Final = Door(name="pin of the ledger", bytes=80 * 1024, values=100, uncounted=1024)
_read_pin = json_reader(Pin)

log = structlog.get_logger("callgate.tools")


class LedgerPins:
    """Reads the pins when a process starts, and writes each change at once, with retries."""

    def __init__(self, database: Database, pins: Pins) -> None:
        self._database = database
        self._pins = pins
        self._changed: dict[str, Pin] = {}
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the pins, or go on trying to: until then no tool of an MCP server is offered."""
        try:
            await self._read()
        except (DatabaseAway, DamagedPins) as error:  # said by the ledger, or by each server that is down
            self._pins.withhold(str(error))
            self._reading = asyncio.create_task(self._keep_reading(), name="reading pins")

    async def _read(self) -> None:
        """Read the pins. Raises `DatabaseAway`, and `DamagedPins` where one cannot be read: without it a change would be missed."""
        self._pins.keep_in(await self._rows(), self._keep)

    async def read_again(self) -> None:
        """Take what other processes have pinned since."""
        with contextlib.suppress(DatabaseAway, DamagedPins):  # what is held stays so
            self._pins.take_over(await self._rows())

    async def _rows(self) -> dict[str, Pin]:
        pins: dict[str, Pin] = {}
        share = TurnShare()
        for tool, pin in await self._database.fetch("SELECT tool, pin FROM pins"):
            try:
                pins[tool] = _read_pin(open_text(pin, PIN))
            except READ_ERRORS as error:
                raise DamagedPins(
                    f"the ledger's row of `pins` for {tool[:200]!r} cannot be read as what a tool looked like ({error}): delete it to start anew"
                ) from error
            share.take(len(pin))
            if not share.is_left:
                await asyncio.sleep(0)
                share = TurnShare()
        return pins

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            with contextlib.suppress(DatabaseAway, DamagedPins):
                await self._read()
                return

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
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
