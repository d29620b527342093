"""Holds a process to the paths that it is given, by the kernel's Landlock.

It imports nothing of ours and little of the standard library, because the launcher of each command loads it by itself.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable

_LINUX = sys.platform == "linux"
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_OPENAT2 = 437
_AT_FDCWD = -100
_RESOLVE_NO_SYMLINKS = 0x04
_PATH_BENEATH = 1
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file access rights, by the Landlock version that introduced them."""
_NETWORK_SINCE = 4
_ALL_OF_TCP = 0b11
"""To bind and to connect; other protocols are not known to it."""
_SCOPES_SINCE = 6
_ALL_SCOPES = 0b11
"""Signals and abstract sockets to processes outside are forbidden."""


def landlock_abi() -> int:
    """Return the version of Landlock in this kernel; 0 where it has none."""
    if _LINUX:
        return max(_syscall(_CREATE_RULESET, None, 0, 1), 0)
    return 0


class PathRules:
    """The paths that a process and its descendants may open once the rules are in force."""

    def __init__(self, *, network: bool = True) -> None:
        """`network`: TCP stays allowed. Raises `OSError` where there is no Landlock."""
        abi = landlock_abi()
        self._rights = max((bits for since, bits in _RIGHTS.items() if since <= abi), default=0)
        tcp = _ALL_OF_TCP
        if network:
            tcp = 0
        if abi >= _SCOPES_SINCE:
            attributes = struct.pack("QQQ", self._rights, tcp, _ALL_SCOPES)
        elif abi >= _NETWORK_SINCE:
            attributes = struct.pack("QQ", self._rights, tcp)
        else:
            attributes = struct.pack("Q", self._rights)
        self._rules = _checked(_syscall(_CREATE_RULESET, attributes, len(attributes), 0), "a ruleset")

    def read(self, paths: Iterable[str], *, missing_ok: bool = False, links: bool = True) -> None:
        """Allow to read and to execute what is at these paths. `links`: they may lead over symbolic links."""
        self._allow(self._rights & _READING, paths, missing_ok=missing_ok, links=links)

    def write(self, paths: Iterable[str], *, links: bool = True) -> None:
        """Allow everything at these paths."""
        self._allow(self._rights, paths, missing_ok=False, links=links)

    def write_files(self, paths: Iterable[str]) -> None:
        """Allow to read and write these files, if they are there."""
        self._allow(self._rights & (_OF_FILES & ~_EXECUTE), paths, missing_ok=True, links=True)

    def enforce(self) -> None:
        """From here on only these paths can be opened, by this thread and all that it starts."""
        _checked(_syscall(_RESTRICT_SELF, self._rules, 0), "the restriction")
        os.close(self._rules)

    def _allow(self, rights: int, paths: Iterable[str], *, missing_ok: bool, links: bool) -> None:
        open_place: Callable[[str], int] = _opened
        if not links:
            open_place = _opened_without_links
        for path in paths:
            try:
                place = open_place(path)
            except FileNotFoundError:
                if missing_ok:
                    continue
                raise OSError(f"{path} is not there") from None
            if stat.S_ISDIR(os.fstat(place).st_mode):
                fitting = rights
            else:
                fitting = rights & _OF_FILES
            _checked(_syscall(_ADD_RULE, self._rules, _PATH_BENEATH, struct.pack("=Qi", fitting, place), 0), path)
            os.close(place)


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _opened_without_links(path: str) -> int:
    """Open a path without following links, because another command may have put a link there."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    place = _syscall(_OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how))
    if place >= 0:
        return place
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):  # a container whose filter is older than the call
        place = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        if not stat.S_ISLNK(os.fstat(place).st_mode):
            return place
        os.close(place)
        number = errno.ELOOP
    if number == errno.ELOOP:
        raise OSError(f"{path} leads over a link")
    raise OSError(number, os.strerror(number), path)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    """Call `syscall` with all numbers as 64-bit values, because it is variadic."""
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *wide))
