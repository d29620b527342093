"""Notices that a config file has changed: written in place, replaced, or a link turned elsewhere.

Folders are watched and not files. An editor puts a new file in the old one's place, and Kubernetes mounts a file as a
link into a folder that is itself a link, which it turns to another folder. What counts in the end is what is read.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from watchfiles import awatch

DEBOUNCE_MILLISECONDS: Final = 300
"""A save is several events, and the first of them may show half a file."""
LOOK_MILLISECONDS: Final = 5000
"""How often the files are looked at all the same: not every file system reports what happens in it, and what happened
before the watch began was reported to nobody."""
_MAX_LINKS: Final = 40

Digest: TypeAlias = tuple[str | None, ...]
"""What is in files, without keeping it."""


async def changes(files: Callable[[], Iterable[Path]], seen: Digest) -> AsyncGenerator[None, None]:
    """One item for each time that what is read from any of the files is something else than before, and at first than
    what was `seen`.

    `files` is asked again after each change: the new config may name another file.
    """
    now = digest_of(files())
    if now != seen:
        seen = now
        yield
    stop = asyncio.Event()
    try:
        while True:
            folders = folders_to_watch(files())
            watch = awatch(
                *folders,
                recursive=False,
                debounce=DEBOUNCE_MILLISECONDS,
                step=50,
                stop_event=stop,
                rust_timeout=LOOK_MILLISECONDS,
                yield_on_timeout=True,
            )
            async for _ in watch:
                now = await asyncio.to_thread(digest_of, files())
                if now != seen:
                    seen = now
                    yield
                if folders_to_watch(files()) != folders:
                    break
            await watch.aclose()
    finally:
        stop.set()


def folders_to_watch(files: Iterable[Path]) -> set[Path]:
    """The folders in which something changes when one of the files does: where each link on the way lies, and the file."""
    return {folder for file in files for folder in _folders_of(file.absolute()) if folder.is_dir()}


def _folders_of(file: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = [file]
    for _ in range(_MAX_LINKS):  # links may lead in a ring
        if not waiting:
            break
        at = waiting.pop()
        found.add(at.parent)
        for step in (at, *at.parents):
            if step.is_symlink():
                target = step.parent / step.readlink()
                found.add(step.parent)
                waiting.append(target / at.relative_to(step))
    return found


def digest_of(files: Iterable[Path]) -> Digest:
    return tuple(_digest_of_file(file) for file in files)


def _digest_of_file(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None  # just being replaced, or gone; its coming back is a change again
