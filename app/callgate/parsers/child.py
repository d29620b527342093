"""The child process: limits itself, then runs one job after the other until its input ends.

It has no environment but a few plain variables and no descriptor but its two pipes. Before it imports what it runs it gives up
the network, other processes, and all files but those of Python and of the package that it runs. The kernel kills it with its
parent, also in the middle of a job.
"""

import ctypes
import gc
import importlib
import importlib.util
import math
import os
import resource
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from callgate.parsers.jobs import HEAD, JobAnswer, JobQuestion, Refused, frame, question_in
from callgate.parsers.landlock import PathRules, landlock_abi
from callgate.parsers.seccomp import give_up_calls
from callgate.untrusted.doors import TooMuch

OPEN_FILES = 64
SYSTEM_FILES: Final = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
    "/dev/random", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip
"""What libraries read, and nobody's secret."""
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def main(parent: int, start_seconds: float, seconds: float, memory_bytes: int) -> None:
    _limit(parent, memory_bytes)
    _limit_processor_time(start_seconds)
    questions, answers = _own_pipes()
    missing: str | None = None
    libraries: set[str] = set()
    while (data := _read_frame(questions)) is not None:
        question = question_in(data)
        del data
        if missing is None:
            missing = ", ".join(_confine(question.function))
        try:
            if question.loading and question.loading not in libraries:
                _named(question.loading)()
                libraries.add(question.loading)
            function = _named(question.function)
        except Exception as error:  # noqa: BLE001 - it failed before it began
            _write(answers, frame(JobAnswer("failed", type(error).__name__.encode())))
            return
        _write(answers, frame(JobAnswer("begun", missing.encode())))
        _limit_processor_time(seconds)
        answer = _answer_of(function, question)
        _write(answers, frame(answer))
        if answer.status == "failed":
            return  # what it left behind is not known
        gc.collect()
        gc.freeze()  # what was imported stays, and is not looked through after each job


def _limit(parent: int, memory_bytes: int) -> None:
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        try:
            # When memory runs out, the kernel should kill this process and not the server.
            with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - no file on a disk
                file.write("500")
        except OSError:
            pass  # not everywhere allowed
        # Processes of the same user neither trace it nor read its memory, which holds what it reads. From here on the files of
        # `/proc/self` are root's.
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it ended before its death could be a signal
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)  # noqa: PLW2901 - as far as it may be
        resource.setrlimit(kind, (most, most))


def _limit_processor_time(seconds: float) -> None:
    """Set the limit of one job, beyond what the process has used."""
    used = math.ceil(time.process_time() + seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY:
        used = min(used, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (used, hard))


def _own_pipes() -> tuple[int, int]:
    """Return descriptors of the pipes that nothing else knows: what a library prints goes nowhere."""
    questions = os.dup(0)
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    return questions, answers


def _confine(function: str) -> Iterator[str]:
    """Give up the network, other processes and files. Yield what could not be given up."""
    if not give_up_calls():
        yield "seccomp"
    if not landlock_abi():
        yield "landlock"
        return
    rules = PathRules(network=False)
    rules.read(SYSTEM_FILES, missing_ok=True)
    rules.read(_python_files(function), missing_ok=True)
    rules.write_files((os.devnull,))
    rules.enforce()


def _python_files(function: str) -> Iterator[str]:
    """Yield the folders of Python, of the packages that are installed, and of the package of a function."""
    yield from {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for prefix in {sys.prefix, sys.base_prefix}:
        yield os.path.join(prefix, "lib")  # noqa: PTH118 - texts all along
    for entry in sys.path:
        if entry.endswith((".zip", "site-packages", "dist-packages", "lib-dynload")):
            yield entry
    for package in {"callgate", function.partition(".")[0]}:
        spec = importlib.util.find_spec(package)
        if spec is not None:
            yield from spec.submodule_search_locations or ()


def _named(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _answer_of(function: Callable[[bytes], bytes], question: JobQuestion) -> JobAnswer:
    try:
        return JobAnswer("done", function(question.payload))
    except (Refused, TooMuch) as error:
        return JobAnswer("refused", str(error).encode(errors="replace"))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's failure, told to the parent
        return JobAnswer("failed", type(error).__name__.encode())


def _read_frame(pipe: int) -> bytes | None:
    """Return the next frame; None at the end of the input."""
    head = _read(pipe, HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    data = _read(pipe, length)
    if len(data) < length:
        return None
    return data


def _read(pipe: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = os.read(pipe, min(length - len(data), 1 << 20))
        if not piece:
            break
        data += piece
    return bytes(data)


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]
