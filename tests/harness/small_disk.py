"""A disk that is soon full: a file system in memory of a few megabytes. Only root may mount one."""

import contextlib
import errno
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PIECE = 65_536


class SmallDisk:
    """A folder on it, and what fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Leave not a byte."""
        for piece in (b"x" * PIECE, b"x" * 512, b"x"):
            with self._filler.open("ab", buffering=0) as file:
                try:
                    while True:
                        file.write(piece)
                except OSError as error:
                    assert error.errno == errno.ENOSPC  # noqa: PT017 - what is waited for

    def free(self) -> None:
        self._filler.unlink()


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[SmallDisk]:
    folder = Path(tempfile.mkdtemp(prefix="callgate-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@functools.cache
def can_be_mounted() -> bool:
    if os.geteuid() != 0:
        return False
    with contextlib.suppress(OSError, subprocess.CalledProcessError), small_disk(1):
        return True
    return False
