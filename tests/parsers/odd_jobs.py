"""Jobs for children of the tests: those that end well, and those that do not."""

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from callgate.parsers.jobs import Refused

PR_GET_DUMPABLE = 3


def echo(payload: bytes) -> bytes:
    return payload


def refuse(payload: bytes) -> bytes:
    raise Refused(f"{payload.decode()} is not for us")


def fail(payload: bytes) -> bytes:
    raise KeyError(payload)


def end(payload: bytes) -> bytes:
    os.kill(os.getpid(), int(payload))
    return payload


def exit_at_once(payload: bytes) -> bytes:
    os._exit(int(payload))


def stall(payload: bytes) -> bytes:
    """Say that it began, by the age of a file, which is all of it that a child may change, and never end."""
    os.utime(payload.decode(), (0, 0))
    while True:
        time.sleep(60)


def stall_for_ever(payload: bytes) -> bytes:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    return stall(payload)


def spin(payload: bytes) -> bytes:
    while True:
        pass


def eat_memory(payload: bytes) -> bytes:
    return b"".join([b"x" * (1 << 20) for _ in range(int(payload))])


def recurse_in_c(payload: bytes) -> bytes:
    import yaml

    yaml.load("[" * 60_000, yaml.CSafeLoader)
    return payload


def write_garbage(payload: bytes) -> bytes:
    for number in range(3, 10):
        try:
            os.write(number, payload)
        except OSError:
            continue
    time.sleep(60)
    return b""


def what_it_sees(payload: bytes) -> bytes:
    descriptors = {}
    for file in Path("/proc/self/fd").iterdir():
        try:
            descriptors[file.name] = str(file.readlink())
        except OSError:
            continue  # the list's own
    sys.stdout.write("this goes nowhere\n")
    sys.stderr.write("nor this\n")
    is_dumpable = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    sees = {"environment": dict(os.environ), "descriptors": descriptors, "dumpable": is_dumpable}
    return json.dumps(sees).encode()


def load_slowly() -> None:
    time.sleep(0.3)


def what_it_reaches(payload: bytes) -> bytes:
    """Try all that a child taken over by what it reads would try; return how each ended."""
    places = json.loads(payload)
    parent = os.getppid()
    buffer = ctypes.create_string_buffer(8)
    libc = ctypes.CDLL(None, use_errno=True)

    def call_of_libc(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) == -1:
            raise OSError(ctypes.get_errno(), name)

    attempts: dict[str, Callable[[], object]] = {
        "TCP": lambda: socket.create_connection(("127.0.0.1", places["port"]), 5),
        "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "Unix socket": lambda: socket.socket(socket.AF_UNIX),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "io_uring": lambda: call_of_libc("syscall", 425, 4, buffer),
        "environment of the parent": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
        "memory of the parent": lambda: os.open(f"/proc/{parent}/mem", os.O_RDONLY),
        "a file": lambda: Path(places["file"]).read_bytes(),
        "a folder": lambda: list(Path(places["folder"]).iterdir()),
        "/etc/passwd": lambda: Path("/etc/passwd").read_bytes(),
        "another program": lambda: subprocess.run(["/bin/true"], check=True),
        "a copy of itself": os.fork,
        "a signal to the parent": lambda: os.kill(parent, 0),
        "to trace the parent": lambda: call_of_libc("ptrace", 16, parent, None, None),
    }
    ends = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            ends[name] = "done"
        except OSError as error:
            ends[name] = errno.errorcode[error.errno or 0]
    thread = threading.Thread(target=lambda: ends.update(thread="runs"))
    thread.start()
    thread.join()
    os.kill(os.getpid(), 0)
    return json.dumps(ends).encode()


def write_a_file(payload: bytes) -> bytes:
    Path(payload.decode()).write_text("x")
    return b""
