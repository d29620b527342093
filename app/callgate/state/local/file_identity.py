"""What the system knows a file by under whatever name, so that a file that was moved or replaced while it is open is noticed."""

from pathlib import Path


def identity_of(path: Path) -> tuple[int, int]:
    """Return the device and the number of the file that has this path now. Raises `OSError` where there is none."""
    status = path.stat()
    return status.st_dev, status.st_ino
