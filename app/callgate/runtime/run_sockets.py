"""Asks the other processes that share a `data_dir` which of them has a run, where they share no Redis.

Each listens on a Unix socket in the folder.
"""

import asyncio
import contextlib
import secrets
import socket
from pathlib import Path
from typing import Final

import msgspec
import structlog

from callgate.recorder.read_errors import translate_read_errors
from callgate.recorder.recorder import Recorder
from callgate.recorder.store import StoreUnusable
from callgate.runtime.run_news import RUN_ID, RunPlace

ANSWER_SECONDS: Final = 1.0
"""The timeout for all answers together."""
MOST_BYTES: Final = 4096
SUFFIX: Final = ".sock"

log = structlog.get_logger("callgate.runs")


class RunSockets:
    """Answers other processes of this machine about its runs, and asks them about theirs."""

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self._recorder, self._folder = recorder, folder
        self._own = folder / f"process-{secrets.token_hex(6)}{SUFFIX}"
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(self._own))
            self._own.chmod(0o600)
            self._server = await asyncio.start_unix_server(self._answer, sock=listening, limit=MOST_BYTES)
        except OSError as error:  # a folder that can hold none, or whose path is too long for one
            listening.close()
            log.info("runs_not_shown_to_others", reason=str(error))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._own.unlink(missing_ok=True)

    async def place_of(self, id: str) -> RunPlace | None:
        """Find the other process that has a run; None where none answers."""
        if RUN_ID.fullmatch(id) is None:
            return None
        found = await asyncio.to_thread(list, self._folder.glob(f"process-*{SUFFIX}"))
        asked = [asyncio.create_task(_asked(path, id)) for path in found if path != self._own]
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for answer in asyncio.as_completed(asked):
                    if (place := await answer) is not None:
                        return place
        except TimeoutError:
            log.warning("run_not_asked_for", run=id, error=f"no answer after {ANSWER_SECONDS:g} s")
        finally:
            for task in asked:
                task.cancel()
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                id = (await reader.readline()).decode(errors="replace").strip()
                if (place := await self._place(id)) is not None:
                    writer.write(msgspec.json.encode(place))
                    await writer.drain()
        writer.close()

    async def _place(self, id: str) -> RunPlace | None:
        try:
            with translate_read_errors():
                found = await asyncio.to_thread(self._recorder.get, id)
        except StoreUnusable as error:
            log.warning("run_not_asked_for", run=id[:64], error=str(error))
            return None
        return None if found is None else RunPlace(self._recorder.process, found.row.key, found.row.state)


async def _asked(path: Path, id: str) -> RunPlace | None:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except ConnectionRefusedError:  # its process has ended without a word
        await asyncio.to_thread(path.unlink, missing_ok=True)
        return None
    except OSError:
        return None
    try:
        writer.write(id.encode() + b"\n")
        answer = await reader.read(MOST_BYTES)
        return msgspec.json.decode(answer, type=RunPlace) if answer else None
    except (OSError, msgspec.DecodeError):  # another version of us
        return None
    finally:
        writer.close()
