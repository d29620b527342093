"""Detects changes of a config file: written in place, replaced, or by another target of a link.

Folders are watched and not files, because an editor replaces the file, and Kubernetes mounts a file as a link into a folder
that is itself a link, which it changes. Contents are compared in the end.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from watchfiles import awatch

from callgate.config.files import read_regular

DEBOUNCE_MILLISECONDS: Final = 300
"""The wait after an event, because saving a file causes several, the first perhaps with half a file."""
QUIET_SECONDS: Final = 1.0
"""How long files have to stay as they are before they are read: who writes one in two steps has written half of it."""
LOOK_MILLISECONDS: Final = 5000
"""How often the files are checked without events, which some file systems do not report."""
_MAX_LINKS: Final = 40

Digest: TypeAlias = tuple[str, ...]
"""The digests of files; of what cannot be read, why not."""


async def changes(
    files: Callable[[], Iterable[Path]],
    digest: Digest,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncGenerator[None, None]:
    """Yield each time that the content of any file has changed and stays as it is, at first compared with `digest`.

    `files` is called again after each change, because the new config may have other files.
    """
    changed = await _changed_and_quiet(files, digest, pause)
    if changed is not None:
        digest = changed
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
                changed = await _changed_and_quiet(files, digest, pause)
                if changed is not None:
                    digest = changed
                    yield
                if folders_to_watch(files()) != folders:
                    break
            await watch.aclose()
    finally:
        stop.set()


async def _changed_and_quiet(
    files: Callable[[], Iterable[Path]], digest: Digest, pause: Callable[[float], Awaitable[object]]
) -> Digest | None:
    """Return the digest of changed files once it has stayed the same for a while; None where they have not changed.

    Files that have changed back count as changed, because what stood there meanwhile may have been read, and refused.
    """
    now = await asyncio.to_thread(digest_of, files())
    if now == digest:
        return None
    before = digest
    while now != before:
        before = now
        await pause(QUIET_SECONDS)
        now = await asyncio.to_thread(digest_of, files())
    return now


def folders_to_watch(files: Iterable[Path]) -> set[Path]:
    """Return the folders to watch for the files: those of all links on the way, and of the files."""
    return {folder for file in files for folder in _folders_of(file.absolute()) if folder.is_dir()}


def _folders_of(file: Path) -> set[Path]:
    folders: set[Path] = set()
    waiting = [file]
    for _ in range(_MAX_LINKS):  # links may be cyclic
        if not waiting:
            break
        at = waiting.pop()
        folders.add(at.parent)
        for step in (at, *at.parents):
            if step.is_symlink():
                target = step.parent / step.readlink()
                folders.add(step.parent)
                waiting.append(target / at.relative_to(step))
    return folders


def digest_of(files: Iterable[Path]) -> Digest:
    return tuple(_digest_of_file(file) for file in files)


def _digest_of_file(file: Path) -> str:
    try:
        return hashlib.sha256(read_regular(file)).hexdigest()
    except OSError as error:
        return error.strerror or type(error).__name__  # missing, perhaps while it is being replaced
