"""The parent process of one command or tool server: sets its limits, waits for it, and kills it with all its descendants.

It is run by path as a process of its own (`python -I -S launch.py …`), and starts in about ten milliseconds, because it
imports nothing of ours and little of the standard library. It has one end of a socket to Callgate. When the other end is
closed, because the call was cancelled or Callgate was killed, the command is killed. As a subreaper it also finds descendants
that left the command's process group.

Its command line: the number of the socket's descriptor, settings as `name=value`, `--`, the program and its argv. Its
messages, one per line: `started PID`, `failed WHY`, `ended code N` or `ended signal N`, followed by `after given_up` or
`after processes` where it was killed.
"""

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

GRACE_SECONDS = 0.3
"""The time between SIGTERM and SIGKILL. Less than the wait for a cancelled tool."""
SWEEP_SECONDS = 5.0
"""The timeout for killed processes to end. Only a process stuck in the kernel takes longer."""
LOOK_SECONDS = 0.05
"""How often the descendants are counted, where their number is limited."""
ROOM_FOR_OTHERS = 256
"""Further threads of the same user while a command runs, which the system's own limit counts as well."""

SYSTEM_READ = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/ssl",
    "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf",
    "/etc/gai.conf", "/etc/services", "/etc/protocols",
    "/dev/random", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo",
)  # fmt: skip
"""Paths that nearly all programs need, readable under Landlock without being listed."""
SYSTEM_WRITE = ("/dev/null", "/dev/zero", "/dev/full")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_LINUX = sys.platform == "linux"
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a service manager or a terminal may send to all processes. Only the socket decides when to end."""


def main(arguments: list[str]) -> None:
    line = int(arguments[0])
    os.set_inheritable(line, False)
    _close_all_but(line)
    at = arguments.index("--")
    settings = [(name, value) for name, _, value in (argument.partition("=") for argument in arguments[1:at])]
    program = arguments[at + 1]
    argv = arguments[at + 2 :]
    try:
        own_pids = ("pids", "own") in settings
        if own_pids:
            _enter_pid_namespace()
        wake = _be_woken()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # The command's process id. This process has one thread, so forking it is safe.
        parent = os.getpid()
        mistakes, report = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(parent, report, settings, program, argv)
        os.close(report)
        with open(mistakes, "rb") as pipe:
            mistake = pipe.read()
        if mistake:
            os.waitpid(pid, 0)
            raise _NotStarted(mistake.decode(errors="replace"))
    except _NotStarted as error:
        _say(line, f"failed {error}")
        return
    if ("streams", "given") in settings:
        _close_standard_streams()
    _say(line, f"started {0 if own_pids else pid}")  # a PID inside the namespace is another process's outside
    most = next((int(value) for name, value in settings if name == "processes"), 0)
    grace = next((float(value) for name, value in settings if name == "grace"), GRACE_SECONDS)
    _say(line, _ended(_ChildWatch(line, wake, pid), most, grace))


def try_pid_namespace() -> None:
    """Exit with code 0 if commands can have a PID namespace, else with the reason."""
    try:
        _enter_pid_namespace()
    except _NotStarted as error:
        sys.exit(str(error))


class _NotStarted(Exception):
    """Raised where the command could not be started."""


def _close_all_but(line: int) -> None:
    """Close all other inherited descriptors, because a copy of a pipe's end would keep the pipe open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(3, line)
    os.closerange(line + 1, max(min(soft, 1 << 20), line + 1) if soft != resource.RLIM_INFINITY else 1 << 20)


def _close_standard_streams() -> None:
    """Close our copies of the standard streams, so that their other end notices when the command closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


# A PID namespace ----------------------------------------------------------------------------------

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_REC = 1 << 14
_MS_PRIVATE = 1 << 18
_MS_NOSUID = 1 << 1
_MS_NODEV = 1 << 2
_MS_NOEXEC = 1 << 3


def _enter_pid_namespace() -> None:
    """Continue as the first process of a new PID namespace: when it ends, the kernel kills all others there.

    The original process stays outside and waits. When it is killed, the first process is killed too, and so all of them.
    """
    user = os.geteuid()
    group = os.getegid()
    try:
        if not _LINUX:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if _libc().unshare(_CLONE_NEWPID | _CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if user:  # the same user inside, and no other
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        alive, lifeline = os.pipe()
        first = os.fork()
        if first:
            _close_all_but(lifeline)
            for number in _IGNORED:
                signal.signal(number, signal.SIG_IGN)
            _, status = os.waitpid(first, 0)
            os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))
        os.close(lifeline)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if select.select([alive], [], [], 0)[0]:
            os._exit(1)  # the process outside was killed before the death signal was set
        os.close(alive)
        _mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE)
        _mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError as error:
        raise _NotStarted(f"a PID namespace: {os.strerror(error.errno or 0)}") from None


def _mount(what: bytes, where: bytes, kind: bytes | None, flags: int) -> None:
    if _libc().mount(what, where, kind, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _be_woken() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    wake, write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return wake


def _say(line: int, text: str) -> None:
    # The reader may be gone.
    with contextlib.suppress(OSError):
        os.write(line, text.replace("\n", " ").encode(errors="replace") + b"\n")


# The command's beginning --------------------------------------------------------------------------


def _become(parent: int, report: int, settings: list[tuple[str, str]], program: str, argv: list[str]) -> None:
    step = "a session of its own"
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for number in (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        # When memory runs out, the kernel should kill a tool and not the server.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
        for name, value in settings:
            step = f"{name} {value}"
            if name == "cwd":
                os.chdir(value)
            elif ("streams", "given") not in settings:
                _limit(name, value)
        if ("privileges", "kept") not in settings:
            step = "giving up privileges"
            _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if ("landlock", "on") in settings:
            step = "Landlock"
            import landlock  # type: ignore[import-not-found]  # from the folder of the parsers, which only a launcher has on its path

            rules = landlock.PathRules()
            rules.read(SYSTEM_READ, missing_ok=True)
            rules.write_files(SYSTEM_WRITE)
            rules.read((program,))
            rules.read((value for name, value in settings if name == "read"), links=False)
            rules.write((value for name, value in settings if name == "write"), links=False)
            rules.enforce()
        step = program
        if ("lc_ctype", "given") not in settings:
            os.environ.pop("LC_CTYPE", None)  # Python adds it by itself where the locale is C
        os.execve(program, argv, os.environ)  # noqa: S606 - there is no shell in this, which is the point
    except BaseException as error:  # noqa: BLE001 - a second copy of the launcher must never go on from here
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else repr(error)
        os.write(report, f"{step}: {reason}".encode(errors="replace"))
    finally:
        os._exit(127)


def _limit(name: str, value: str) -> None:
    match name:
        case "cpu_seconds":
            _set(resource.RLIMIT_CPU, int(value), room=1)  # first SIGXCPU, which is recognizable, then SIGKILL
        case "memory_bytes":
            # Not the address space, because runtimes reserve gigabytes that they do not use.
            _set(resource.RLIMIT_DATA, int(value))
        case "file_bytes":
            _set(resource.RLIMIT_FSIZE, int(value))
        case "open_files":
            _set(resource.RLIMIT_NOFILE, int(value))
        case "processes":
            if _LINUX:
                # The number of all threads in the system, an upper bound for this user's that is cheap to read.
                with open("/proc/loadavg") as file:
                    threads = int(file.read().split()[3].partition("/")[2])
                _set(resource.RLIMIT_NPROC, threads + int(value) + ROOM_FOR_OTHERS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set(kind: int, value: int, room: int = 0) -> None:
    _, most = resource.getrlimit(kind)
    if most == resource.RLIM_INFINITY:
        hard = value + room
    else:
        hard = min(value + room, most)
    resource.setrlimit(kind, (min(value, hard), hard))


# The command's end --------------------------------------------------------------------------------


class _ChildWatch:
    """One running command with all its descendants."""

    def __init__(self, line: int, wake: int, pid: int) -> None:
        self._line = line
        self._wake = wake
        self.pid = pid
        self.status: int | None = None
        self.childless = False

    def wait(self, seconds: float | None, *, listen: bool = True) -> bool:
        """Wait until a child ends or the time is over, or return True when the socket is closed."""
        # Not `select`, which takes no descriptor above 1023: the socket has the number that it had in Callgate.
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if listen:
            poll.register(self._line, select.POLLIN)
        ready = [file for file, _ in poll.poll(None if seconds is None else max(seconds, 0.0) * 1000)]
        if self._wake in ready:
            os.read(self._wake, 4096)
        self._reap()
        return self._line in ready

    def _reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    self.status = status
        except ChildProcessError:
            self.childless = True


def _ended(watch: _ChildWatch, most: int, grace: float) -> str:
    """Wait for the end of the command, or kill it; then kill its remaining descendants."""
    why = ""
    while watch.status is None and not why:
        if watch.wait(LOOK_SECONDS if most else None) and watch.status is None:
            why = " after given_up"
        elif most and sum(1 for _ in _descendants()) > most:
            why = " after processes"
    if why == " after given_up":
        _signal_group(watch.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while not watch.childless and (seconds := deadline - time.monotonic()) > 0:
            watch.wait(seconds, listen=False)
    _sweep(watch)
    if watch.status is None:
        return f"ended signal {signal.SIGKILL}{why}"
    code = os.waitstatus_to_exitcode(watch.status)
    if code >= 0:
        return f"ended code {code}{why}"
    return f"ended signal {-code}{why}"


def _sweep(watch: _ChildWatch) -> None:
    """Kill all descendants of the command, repeatedly, because they may have forked meanwhile."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while not watch.childless and time.monotonic() < deadline:
        if watch.status is None or not _LINUX:
            _signal_group(watch.pid, signal.SIGKILL)
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        watch.wait(0.01, listen=False)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _descendants() -> Iterator[int]:
    """Yield all descendants of this process in /proc; orphans are our children."""
    children = _listed if os.path.exists(f"/proc/self/task/{os.getpid()}/children") else _looked_for()
    pids = [os.getpid()]
    while pids:
        child_pids = list(children(pids.pop()))
        pids += child_pids
        yield from child_pids


def _listed(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return  # it ended
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            yield from map(int, file.read().split())


def _looked_for() -> Callable[[int], Iterable[int]]:
    """Return a function that finds children by parent ids, where the kernel has no lists of children."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    return lambda pid: children.get(pid, ())


# The system ---------------------------------------------------------------------------------------


def _prctl(option: int, value: int) -> None:
    if _LINUX and _libc().prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    main(sys.argv[1:])
