"""Takes from a process the system calls by which it could reach others: sockets, programs, processes and their memory.

Python knows no seccomp. The filter is a program of the kernel's classic BPF, which is run at every system call.
"""

import ctypes
import errno
import os
import struct
import sys
from dataclasses import dataclass
from typing import Final

_LINUX: Final = sys.platform == "linux"
_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_IF_AT_LEAST: Final = 0x35
_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERROR: Final = 0x00050000
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_FIRST_ARGUMENT: Final = 16
"""Places in the kernel's `struct seccomp_data`; of the argument the lower half."""
_X32: Final = 0x40000000
"""The numbers from here on are those of another set of calls, on x86-64."""
_CLONE_THREAD: Final = 0x00010000
_CLONE3: Final = 435
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2


@dataclass(frozen=True, slots=True)
class _Machine:
    """The numbers of system calls on one architecture."""

    audit: int
    forbidden: tuple[int, ...]
    clone: int
    to_oneself: tuple[int, ...]
    """Calls with a process id first, which are allowed for one's own: `kill`, `tgkill`."""


_EVERYWHERE: Final = (424, 425, 434, 438)
"""pidfd_send_signal, io_uring_setup (which opens sockets too), pidfd_open, pidfd_getfd."""
_MACHINES: Final = {
    "x86_64": _Machine(
        audit=0xC000003E,
        # socket, connect, accept, bind, listen, accept4; fork, vfork, execve, execveat; tkill, rt_sigqueueinfo and
        # rt_tgsigqueueinfo; ptrace, process_vm_readv and _writev; mount, unshare, setns; perf_event_open, bpf,
        # userfaultfd; add_key, request_key, keyctl
        forbidden=(
            *(41, 42, 43, 49, 50, 288, 57, 58, 59, 322, 200, 129, 297, 101, 310, 311),
            *(165, 272, 308, 298, 321, 323, 248, 249, 250),
        ),
        clone=56,
        to_oneself=(62, 234),
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        # the same; there is no fork and no vfork
        forbidden=(
            *(198, 203, 202, 200, 201, 242, 221, 281, 130, 138, 240, 117, 270, 271),
            *(40, 97, 268, 241, 280, 282, 217, 218, 219),
        ),
        clone=220,
        to_oneself=(129, 131),
    ),
}


def give_up_calls() -> bool:
    """Give up the calls, for this thread and all that it starts. False where the system has no such filter, or we no table.

    The process must have given up new privileges before.
    """
    machine = _MACHINES.get(os.uname().machine)
    if not _LINUX or machine is None or sys.byteorder != "little":
        return False
    steps = b"".join(_filter(machine))
    code = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    mode = ctypes.c_ulong(_MODE_FILTER)
    return bool(libc.prctl(_PR_SET_SECCOMP, mode, program, ctypes.c_ulong(0), ctypes.c_ulong(0)) == 0)


def _filter(machine: _Machine) -> list[bytes]:
    refuse = _step(_RETURN, _ERROR | errno.EPERM)
    allow = _step(_RETURN, _ALLOW)
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_IF_EQUAL, machine.audit, then=1, otherwise=0),
        refuse,
        _step(_LOAD, _NUMBER),
        _step(_IF_AT_LEAST, _X32, then=0, otherwise=1),
        refuse,
    ]
    for number in (*machine.forbidden, *_EVERYWHERE):
        steps += [_step(_IF_EQUAL, number, then=0, otherwise=1), refuse]
    # Its flags are in memory, which a filter cannot read. Without it the C library starts threads by `clone`.
    steps += [_step(_IF_EQUAL, _CLONE3, then=0, otherwise=1), _step(_RETURN, _ERROR | errno.ENOSYS)]
    steps += [
        _step(_IF_EQUAL, machine.clone, then=0, otherwise=4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_IF_ANY_BIT, _CLONE_THREAD, then=1, otherwise=0),
        refuse,
        allow,
    ]
    for number in machine.to_oneself:
        steps += [
            _step(_IF_EQUAL, number, then=0, otherwise=4),
            _step(_LOAD, _FIRST_ARGUMENT),
            _step(_IF_EQUAL, os.getpid(), then=1, otherwise=0),
            refuse,
            allow,
        ]
    return [*steps, allow]


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Encode one step; `then` and `otherwise` are the steps that are skipped after a comparison."""
    return struct.pack("HBBI", code, then, otherwise, value)
