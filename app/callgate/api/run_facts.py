"""Reads recorded runs for the API."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from callgate.conversation.errors import ChatError
from callgate.recorder.read_errors import translate_read_errors
from callgate.recorder.replayable import NotReplayable
from callgate.recorder.row import UNDER_WAY, Recording, RunRow
from callgate.recorder.store import StoreUnusable
from callgate.runtime.manager import RuntimeManager

Found = TypeVar("Found")


def facts_of(row: RunRow) -> dict[str, Any]:
    return {"object": "run", **msgspec.structs.asdict(row), "odd": row.is_odd}


async def read_runs(read: Callable[..., Found], *arguments: Any) -> Found:
    """Read from the database of runs, in a thread."""
    try:
        with translate_read_errors():
            return await asyncio.to_thread(read, *arguments)
    except StoreUnusable as failure:
        message = f"The recorded runs cannot be read: {failure}"
        raise ChatError(503, message, type="server_error", code="runs_unusable") from failure


async def found_run(manager: RuntimeManager, id: str, only: str | None) -> Recording:
    """Return a run. Raises 404 for one of another key than `only`."""
    found = await read_runs(manager.shared.recorder.get, id)
    if found is not None and only in (None, found.row.key):
        return found
    place = None if found is not None else await manager.place_of(id)
    if place is None or only not in (None, place.key):
        raise no_such_run(id)
    raise ChatError(
        404,
        f"Run `{id}` is not here: the process {place.process} has it"
        f"{', where it is under way' if place.state == UNDER_WAY else ''}. This is {manager.shared.recorder.process}; those of"
        " one machine share the runs that have ended, in their `data_dir`.",
        code="run_not_here",
    )


def not_replayable(run: Recording, why: NotReplayable) -> ChatError:
    return ChatError(409, f"Run `{run.row.id}` cannot be asked again: {why}.", code="run_not_replayable")


def no_such_run(id: str) -> ChatError:
    return ChatError(404, f"No run `{id[:64]}` was recorded here.", code="run_not_found")
