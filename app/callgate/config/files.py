"""Reads the files of a config, which may be anything that a path can name."""

import os
import stat
from pathlib import Path
from typing import Final

from callgate.config.problems import near

MAX_BYTES: Final = 8_388_608
"""The largest file; one that is larger is a wrong path."""


class UnreadableFile(OSError):
    """Raised for what is there and is no file of a config. `strerror` says what it is."""


def read_regular(file: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file. Raises `OSError`, also for a pipe or a device, whose end might never come."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableFile(0, "it is a folder", str(file))
        if not stat.S_ISREG(mode):
            raise UnreadableFile(0, "it is no file but a pipe or a device", str(file))
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise UnreadableFile(0, f"it has more than {max_bytes} bytes", str(file))
    return content


def near_file(file: Path) -> str:
    """Return `; did you mean …?` if the folder of a missing file has one with a similar name, else an empty string."""
    try:
        names = sorted(entry.name for entry in file.absolute().parent.iterdir() if entry.is_file())
    except OSError:
        return ""
    return near(file.name, names)


def read_text(file: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file. Raises `OSError`, and `UnicodeDecodeError` where it is not UTF-8."""
    text = read_regular(file, max_bytes).decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")
