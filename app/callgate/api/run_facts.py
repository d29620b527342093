"""Recorded runs as they are shown, and looking one up for whoever may see it."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from callgate.conversation.errors import ChatError
from callgate.recorder.recorder import Recorder
from callgate.recorder.replayable import NotReplayable
from callgate.recorder.row import Recording, RunRow
from callgate.recorder.store import StoreUnusable

Found = TypeVar("Found")


def facts_of(row: RunRow) -> dict[str, Any]:
    return {"object": "run", **msgspec.structs.asdict(row), "odd": row.is_odd}


async def read_runs(read: Callable[..., Found], *arguments: Any) -> Found:
    """What is read from the file of runs, in a thread."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except StoreUnusable as failure:
        raise ChatError(503, f"The recorded runs cannot be read: {failure}", code="runs_unusable") from failure


async def found_run(recorder: Recorder, id: str, only: str | None) -> Recording:
    """A run. One of another key than `only` does not exist for its caller."""
    found = await read_runs(recorder.get, id)
    if found is None or only not in (None, found.row.key):
        raise no_such_run(id)
    return found


def not_replayable(run: Recording, why: NotReplayable) -> ChatError:
    return ChatError(409, f"Run `{run.row.id}` cannot be asked again: {why}.", code="run_not_replayable")


def no_such_run(id: str) -> ChatError:
    return ChatError(404, f"No run `{id[:64]}` was recorded here.", code="run_not_found")
