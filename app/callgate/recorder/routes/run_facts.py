"""Reads recorded runs for the API."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from callgate.api.rights import seen_by
from callgate.callers.caller import Caller, owner_name
from callgate.conversation.errors import ChatError
from callgate.recorder.building import recorder_behind
from callgate.recorder.replayable import NotReplayable
from callgate.recorder.store import StoreUnusable
from callgate.records.row import RecordedRun, RunRow
from callgate.runtime.manager import RuntimeManager

Found = TypeVar("Found")


def facts_of(row: RunRow) -> dict[str, Any]:
    return {"object": "run", **msgspec.structs.asdict(row), "odd": row.is_odd}


async def read_runs(read: Callable[..., Found], *arguments: Any) -> Found:
    """Read from the database of runs, in a thread."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except StoreUnusable as failure:
        message = f"The recorded runs cannot be read: {failure}"
        raise ChatError(503, message, type="server_error", code="runs_unusable") from failure


async def found_run(manager: RuntimeManager, id: str, caller: Caller) -> RecordedRun:
    """Return a run as a caller may see it. Raises 404 for one that it may not see."""
    only = seen_by(manager.current, caller)
    run = await read_runs(recorder_behind(manager.recorder).get, id, owner_name(caller))
    if run is not None and only in (None, run.row.key):
        return run
    raise no_such_run(id)


def not_replayable(run: RecordedRun, why: NotReplayable) -> ChatError:
    return ChatError(409, f"Run `{run.row.id}` cannot be asked again: {why}.", code="run_not_replayable")


def no_such_run(id: str) -> ChatError:
    return ChatError(404, f"No run `{id[:64]}` was recorded here.", code="run_not_found")
