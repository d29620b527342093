"""Finds who listens on a port of this machine, as far as Linux says it to this user."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""
_STOPPED: Final = frozenset("Tt")
PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class PortHolder:
    """A process that listens."""

    pid: int
    name: str
    is_stopped: bool

    def __str__(self) -> str:
        text = f"process {self.pid}, `{self.name}`"
        if self.is_stopped:
            text += f", which is stopped: `kill -CONT {self.pid}` lets it go on, and `kill -KILL {self.pid}` ends it"
        return text


def holders_of(port: int) -> list[PortHolder]:
    """Return the processes of this user that listen on a port; none where that cannot be found out."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return []
    holders: list[PortHolder] = []
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if not sockets.isdisjoint(str(link.readlink()) for link in (folder / "fd").iterdir()):
                holders.append(_described(folder))
    return sorted(holders, key=lambda holder: holder.pid)


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _described(folder: Path) -> PortHolder:
    # The name may contain anything, parentheses too.
    before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
    return PortHolder(int(folder.name), before.partition("(")[2], after.split()[0] in _STOPPED)
