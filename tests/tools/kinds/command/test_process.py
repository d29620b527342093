import asyncio
import os
import resource
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate.calls.outcome import Returned
from callgate.parsers.landlock import landlock_abi
from callgate.tools.executor import Policy, Tool
from callgate.tools.kinds.command.command import CommandLine
from callgate.tools.kinds.command.launch import GRACE_SECONDS
from callgate.tools.kinds.command.process import (
    _IMPORT,
    MAX_STDERR,
    STDERR_TAIL,
    Closed,
    Command,
    CommandProcesses,
    CommandResult,
    EndReason,
    LauncherDied,
    NotStarted,
    Paths,
    ProcessLimits,
    TooLong,
    _Child,
    has_pid_namespaces,
)
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.fakes import ready, silent
from tests.tools.executor_kinds import everything, processes_naming

pytestmark = pytest.mark.anyio


NAMESPACE = pytest.mark.skipif(not has_pid_namespaces(), reason="this system gives no PID namespace")
USUAL = {"cwd": "/", "own_pids": False}


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="asyncio"), pytest.param(True, id="uvloop in a namespace", marks=NAMESPACE)],
)
def anyio_backend(request):
    """Both event loops: descriptors are watched and children reaped without the help of either. With and without a
    PID namespace, all the same must hold."""
    USUAL["own_pids"] = request.param
    return "asyncio", {"use_uvloop": request.param}


ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
LANDLOCK = pytest.mark.skipif(not landlock_abi(), reason="this kernel has no Landlock")


def python(script: str, *arguments: str, **options: Any) -> Command:
    argv = (sys.executable, "-I", "-S", "-c", textwrap.dedent(script), *arguments)
    return Command(sys.executable, argv, **{**USUAL, "env": ENVIRONMENT, **options})


def shell(script: str, **options: Any) -> Command:
    """For tests only: what runs commands itself never starts one."""
    return Command("/bin/sh", ("sh", "-c", script), **{**USUAL, "env": ENVIRONMENT, **options})


@asynccontextmanager
async def opened_processes(size: int = 16) -> AsyncIterator[CommandProcesses]:
    files = open_files()
    processes = CommandProcesses(size)
    try:
        async with asyncio.timeout(40):
            yield processes
    finally:
        async with asyncio.timeout(30):
            await processes.close()
    assert processes.running == 0
    assert open_files() == files, "a descriptor was left open"


def open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    return {f"{each.name} {each.readlink()}" for each in folder.iterdir() if each.exists()}


async def run_command_once(command: Command, max_bytes: int = 100_000) -> CommandResult:
    async with opened_processes() as processes:
        return await processes.run(command, max_bytes)


async def test_what_it_writes_and_its_exit_code_come_back():
    ended = await run_command_once(shell("echo out; echo err >&2; exit 3"))
    assert ended == CommandResult(EndReason.ITSELF, 3, None, b"out\n", 0, b"err\n")


async def test_stdin_is_read_to_its_end_however_long_it_is():
    ended = await run_command_once(shell("wc -c", stdin=b"x" * 3_000_000))
    assert ended.stdout.strip() == b"3000000"


async def test_one_that_reads_no_stdin_is_none_the_worse():
    assert (await run_command_once(shell("exit 0", stdin=b"x" * 3_000_000))).code == 0


async def test_without_stdin_it_reads_nothing():
    assert (await run_command_once(shell("cat"))).stdout == b""


async def test_its_environment_is_what_it_was_given_and_nothing_else():
    ended = await run_command_once(Command("/usr/bin/env", ("env",), "/", {**ENVIRONMENT, "KEY": "value with spaces"}))
    assert set(ended.stdout.decode().splitlines()) == {
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "LANG=C.UTF-8",
        "KEY=value with spaces",
    }


@pytest.mark.parametrize("given", [{}, {"LANG": "C"}, {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, {"LC_ALL": "POSIX"}])
async def test_what_python_would_add_to_the_environment_is_not_there(given):
    ended = await run_command_once(Command("/usr/bin/env", ("env",), "/", given))
    assert dict(line.split("=", 1) for line in ended.stdout.decode().splitlines()) == given


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LC_ALL": "C"}, {"LANG": "C.UTF-8"}])
async def test_arguments_arrive_as_they_are_in_any_locale(locale):
    words = ("å", "漢字", "\U0001f600", " ", "")
    ended = await run_command_once(Command("/usr/bin/printf", ("printf", "[%s]", *words), "/", locale))
    assert ended.stdout.decode() == "".join(f"[{word}]" for word in words)


async def test_where_there_are_no_files_in_memory_stdin_is_one_on_disk(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert (await run_command_once(shell("cat", stdin=b"from a file"))).stdout == b"from a file"


async def test_it_runs_in_its_folder_with_no_descriptors_but_its_three(tmp_path):
    ended = await run_command_once(
        python("import os; print(os.getcwd(), sorted(os.listdir('/proc/self/fd')))", cwd=str(tmp_path))
    )
    folder, _, files = ended.stdout.decode().partition(" ")
    assert folder == str(tmp_path)
    assert len(files.split()) == 4, "the fourth is the one that lists them"


async def test_it_can_gain_no_privileges():
    ended = await run_command_once(shell("grep NoNewPrivs /proc/self/status"))
    assert ended.stdout.split() == [b"NoNewPrivs:", b"1"]


async def test_signals_are_as_for_any_program():
    ended = await run_command_once(shell("grep -E 'Sig(Ign|Blk)' /proc/self/status"))
    of_libc = 0b11 << 31  # 32 and 33 are its own: no program can set them, and some are started with one ignored
    assert [int(line.split()[1], 16) & ~of_libc for line in ended.stdout.splitlines()] == [0, 0]


async def test_a_missing_command_is_an_error_with_the_reason():
    with pytest.raises(NotStarted, match="/nowhere/at/all: No such file"):
        await run_command_once(Command("/nowhere/at/all", ("all",), "/", ENVIRONMENT))


async def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(NotStarted, match="cwd /nowhere: No such file"):
        await run_command_once(shell("true", cwd="/nowhere"))


async def test_arguments_too_long_for_the_system_start_nothing():
    with pytest.raises(TooLong):
        await run_command_once(Command("/bin/echo", ("echo", *["x" * 131_000] * 40), "/", ENVIRONMENT))


async def test_the_signal_that_killed_it_is_reported():
    assert (await run_command_once(shell("kill -SEGV $$"))).signal == signal.SIGSEGV


# Floods -------------------------------------------------------------------------------------------


async def test_a_flood_is_read_no_further_than_asked_and_ended():
    ended = await run_command_once(Command("/usr/bin/yes", ("yes", "flood"), "/", ENVIRONMENT), max_bytes=1000)
    assert ended.why is EndReason.STDOUT
    assert len(ended.stdout) == 1000
    assert ended.missing > 0


async def test_of_many_errors_the_end_is_kept():
    ended = await run_command_once(python("import sys; sys.stderr.write('x' * 1_000_000 + 'the last word')"))
    assert ended.why is EndReason.ITSELF
    assert len(ended.stderr) == STDERR_TAIL
    assert ended.stderr.endswith(b"the last word")


async def test_a_flood_of_errors_is_ended():
    ended = await run_command_once(
        python(f"import sys\nfor _ in range({MAX_STDERR // 65536 + 2000}): sys.stderr.write('x' * 65536)")
    )
    assert ended.why is EndReason.STDERR


async def test_what_stands_in_the_pipe_at_the_end_is_read(tmp_path):
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.01; done; head -c 50000 /dev/zero"
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(shell(script), 100_000))
        await everything(lambda: processes.running == 1)
        [child] = processes._running
        asyncio.get_running_loop().remove_reader(child._out)  # as if its turn had not come before the end's
        gate.touch()
        assert len((await running).stdout) == 50_000


# Ending -------------------------------------------------------------------------------------------

STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1), os.close(2)
        open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""


async def test_what_it_leaves_running_ends_with_it(tmp_path):
    mark = str(tmp_path / "left-behind")
    script = """
    import os, sys, signal
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.write(write, b".")
        signal.pause()
    os.read(read, 1)
    print("done")
    """
    ended = await run_command_once(python(script, mark))
    assert (ended.code, ended.stdout) == (0, b"done\n")
    assert processes_naming(mark) == []


async def test_one_that_ignores_being_asked_is_killed_with_all_its_children(tmp_path):
    mark = tmp_path / "stubborn"
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(python(STUBBORN, str(mark)), 1000))
        await everything(mark.exists)
        assert len(processes_naming(str(mark))) >= 3
        running.cancel()
        _, late = await asyncio.wait([running], timeout=GRACE_SECONDS + 2)
        assert not late
        assert running.cancelled()
        assert processes_naming(str(mark)) == []


async def test_one_that_tidies_up_when_asked_has_the_time_to(tmp_path):
    mark, tidy = tmp_path / "begun", tmp_path / "tidy"
    script = f"trap 'touch {tidy}; exit' TERM; touch {mark}; while :; do sleep 0.01; done"
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(shell(script), 1000))
        await everything(mark.exists)
        running.cancel()
        await asyncio.wait([running])
    assert tidy.exists()


async def test_one_cancelled_twice_is_ended_all_the_same(tmp_path):
    mark = tmp_path / "twice"
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(python(STUBBORN, str(mark)), 1000))
        await everything(mark.exists)
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        await everything(lambda: processes.running == 0)
        assert processes_naming(str(mark)) == []


async def test_closing_ends_what_runs(tmp_path):
    mark = tmp_path / "closing"
    processes = CommandProcesses()
    async with asyncio.timeout(30):
        running = asyncio.create_task(processes.run(python(STUBBORN, str(mark)), 1000))
        await everything(mark.exists)
        await processes.close()
        assert (await running).why is EndReason.GIVEN_UP
        assert processes_naming(str(mark)) == []
        with pytest.raises(Closed):
            await processes.run(shell("true"), 1000)


async def test_when_we_are_killed_outright_the_command_ends(tmp_path):
    mark = tmp_path / "orphan"
    host = f"""
    import asyncio, sys
    from callgate.tools.kinds.command.process import Command, CommandProcesses
    argv = (sys.executable, "-I", "-S", "-c", {STUBBORN!r}, {str(mark)!r})
    asyncio.run(CommandProcesses().run(Command(sys.executable, argv, "/", {ENVIRONMENT!r}), 1000))
    """
    root = Path(__file__).parents[4]
    us = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(host), cwd=root)
    async with asyncio.timeout(30):
        try:
            await everything(mark.exists)
        finally:
            us.kill()
            await us.wait()
        await everything(lambda: processes_naming(str(mark)) == [])


TWO_OF_A_GROUP = """
import os, signal, sys
if os.fork() == 0:
    open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""


async def test_when_its_launcher_is_killed_the_command_ends_and_its_fate_is_unknown(tmp_path):
    mark = tmp_path / "no-parent"
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(python(TWO_OF_A_GROUP, str(mark)), 1000))
        await everything(mark.exists)
        assert len(processes_naming(str(mark))) >= 3
        [child] = processes._running
        child._launcher.kill()
        with pytest.raises(LauncherDied):
            await running
        await everything(lambda: processes_naming(str(mark)) == [])


async def test_the_command_itself_dies_with_its_launcher_whatever_processes_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(_Child, "_kill_group", lambda *_: None)
    mark = tmp_path / "alone"
    script = "import signal, sys; open(sys.argv[1], 'w').close(); signal.pause()"
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(python(script, str(mark)), 1000))
        await everything(mark.exists)
        [child] = processes._running
        child._launcher.kill()
        with pytest.raises(LauncherDied):
            await running
        await everything(lambda: processes_naming(str(mark)) == [])


@NAMESPACE
async def test_in_a_namespace_what_left_every_group_dies_with_a_killed_launcher(tmp_path):
    mark = tmp_path / "all-of-it"
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(python(STUBBORN, str(mark), own_pids=True), 1000))
        await everything(mark.exists)
        assert len(processes_naming(str(mark))) >= 5
        [child] = processes._running
        child._launcher.kill()
        with pytest.raises(LauncherDied):
            await running
        await everything(lambda: processes_naming(str(mark)) == [])


@NAMESPACE
async def test_in_a_namespace_it_sees_no_other_process_and_ends_none():
    script = """
    import os, signal
    print(sorted(int(each) for each in os.listdir("/proc") if each.isdigit()))
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        os.kill(os.getppid(), number)
    print(os.getppid())
    """
    ended = await run_command_once(python(script, own_pids=True))
    assert (ended.code, ended.stdout) == (0, b"[1, 2]\n1\n")


@pytest.mark.parametrize("missing", ["permission", "program"])
def test_where_there_is_no_namespace_that_is_logged_and_commands_run_without(monkeypatch, missing):
    has_pid_namespaces.cache_clear()
    if missing == "program":
        monkeypatch.setattr("sys.executable", "/nowhere/python")
    else:
        monkeypatch.setattr("callgate.tools.kinds.command.process._IMPORT", f"{_IMPORT}; launch._CLONE_NEWPID = -1")
    try:
        with capture_logs() as logs:
            line = CommandLine(CommandProcesses(), argv=["true"], parameters={}, cwd="/")
        assert not line._command({}).own_pids
        [entry] = logs
        assert entry["event"] == "commands_share_processes"
        assert ("a PID namespace: " if missing == "permission" else "/nowhere/python") in entry["reason"]
    finally:
        has_pid_namespaces.cache_clear()


async def test_a_command_that_stops_its_launcher_ends_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("callgate.tools.kinds.command.process.END_SECONDS", 0.1)
    mark = tmp_path / "stopped"
    script = """
    import os, signal, sys
    os.kill(os.getppid(), signal.SIGSTOP)
    open(sys.argv[1], "w").close()
    signal.pause()
    """
    async with opened_processes() as processes:
        running = asyncio.create_task(processes.run(python(script, str(mark)), 1000))
        await everything(mark.exists)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        await everything(lambda: processes_naming(str(mark)) == [])


async def test_no_zombie_stays_after_many():
    async with opened_processes(4) as processes:
        ended = await asyncio.gather(*(processes.run(shell("exit 7"), 1000) for _ in range(20)))
        assert {each.code for each in ended} == {7}
        assert not zombies()


def zombies() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended between the listing and the reading
        if state == "Z" and int(parent) == os.getpid():
            found.append(int(folder.name))
    return found


async def test_no_more_run_at_once_than_there_are_places(tmp_path):
    async with opened_processes(2) as processes:
        gate = tmp_path / "gate"
        argv = ["/bin/sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.01; done"]
        command = CommandLine(processes, argv=argv, parameters={"type": "object"}, cwd="/")
        registry = Registry()
        registry.add(Tool("wait", "", {"type": "object"}, command, policy=Policy(timeout=60), queue=processes.queue))
        toolbox = RequestToolbox(server_tools=ToolSet(registry.tools()), run_id="run_1", limits=registry.limits)
        running = [asyncio.create_task(toolbox.run(ready("wait"), silent)) for _ in range(5)]
        await everything(lambda: processes.running == 2)
        await asyncio.sleep(0)
        assert processes.running == 2
        gate.touch()
        assert await asyncio.gather(*running) == [Returned("")] * 5


async def test_a_command_runs_though_more_than_a_thousand_files_are_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1500)]
    try:
        async with opened_processes() as processes:
            ended = await processes.run(shell("echo hello"), 1000)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (ended.code, ended.stdout) == (0, b"hello\n")


# ProcessLimits -------------------------------------------------------------------------------------------


async def test_one_that_forks_without_end_is_ended(tmp_path):
    mark = str(tmp_path / "bomb")
    script = """
    import os, signal
    for _ in range(400):  # bounded itself, for the sake of the machine that tests us
        if os.fork() == 0:
            os.setsid()
            signal.pause()
    signal.pause()
    """
    ended = await run_command_once(python(script, mark, limits=ProcessLimits(processes=20)))
    assert ended.why is EndReason.PROCESSES
    assert processes_naming(mark) == []


async def test_the_system_bounds_its_processes_too():
    ended = await run_command_once(shell("grep 'Max processes' /proc/self/limits", limits=ProcessLimits(processes=20)))
    assert ended.stdout.split()[2].isdigit(), "not unlimited"


async def test_processor_time_is_bounded():
    ended = await run_command_once(shell("while :; do :; done", limits=ProcessLimits(cpu_seconds=1)))
    assert ended.signal == signal.SIGXCPU


async def test_memory_is_bounded():
    ended = await run_command_once(python("x = bytearray(300_000_000)", limits=ProcessLimits(memory_bytes=100_000_000)))
    assert ended.code == 1
    assert b"MemoryError" in ended.stderr


async def test_the_size_of_files_is_bounded(tmp_path):
    file = tmp_path / "large"
    ended = await run_command_once(
        shell(f"exec head -c 100000 /dev/zero > {file}", limits=ProcessLimits(file_bytes=5000))
    )
    assert ended.signal == signal.SIGXFSZ
    assert file.stat().st_size == 5000


async def test_open_files_are_bounded():
    ended = await run_command_once(
        python("import os; [os.dup(1) for _ in range(100)]", limits=ProcessLimits(open_files=20))
    )
    assert b"Too many open files" in ended.stderr


# Landlock -----------------------------------------------------------------------------------------


@LANDLOCK
async def test_with_paths_it_opens_what_is_listed_and_the_systems_programs(tmp_path):
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    ended = await run_command_once(
        shell(
            f"cat {tmp_path}/open/file {tmp_path}/closed/file; ls /usr > /dev/null", paths=Paths((f"{tmp_path}/open",))
        )
    )
    assert ended.stdout == b"open"
    assert b"closed/file: Permission denied" in ended.stderr
    assert ended.code == 0


@LANDLOCK
async def test_with_paths_it_writes_only_where_it_may(tmp_path):
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
    script = f"echo x > {tmp_path}/write/new; mkdir {tmp_path}/write/folder; echo x > {tmp_path}/read/new; rm -r {tmp_path}/write/folder"
    paths = Paths(read=(f"{tmp_path}/read",), write=(f"{tmp_path}/write",))
    ended = await run_command_once(shell(script, paths=paths))
    assert ended.code == 0
    assert b"read/new: Permission denied" in ended.stderr
    assert [each.name for each in (tmp_path / "write").iterdir()] == ["new"]
    assert list((tmp_path / "read").iterdir()) == []


@LANDLOCK
@pytest.mark.parametrize("path", ["/proc/{us}/environ", "/etc/shadow", "/root", "/tmp", "/var"])
async def test_with_paths_nothing_of_ours_can_be_read(path):
    ended = await run_command_once(shell(f"exec < {path.format(us=os.getpid())}", paths=Paths()))
    assert ended.code != 0
    assert b"Permission denied" in ended.stderr or b"cannot open" in ended.stderr


@LANDLOCK
@LANDLOCK
@pytest.mark.parametrize("inside", ["", "/deeper"])
async def test_a_path_that_has_become_a_link_opens_nothing(tmp_path, inside):
    (tmp_path / "secret" / "deeper").mkdir(parents=True)
    (tmp_path / "open").symlink_to(tmp_path / "secret")
    with pytest.raises(NotStarted, match="leads over a link"):
        await run_command_once(shell("true", paths=Paths(read=(f"{tmp_path}/open{inside}",))))


@pytest.mark.skipif(landlock_abi() < 6, reason="this kernel's Landlock does not know signals")
async def test_with_paths_it_can_signal_no_process_outside():
    ended = await run_command_once(shell(f"kill -0 {os.getpid()} || kill -0 $PPID || exit 9", paths=Paths()))
    assert ended.code == 9


@LANDLOCK
async def test_a_listed_path_that_is_not_there_is_named():
    with pytest.raises(NotStarted, match="/nowhere is not there"):
        await run_command_once(shell("true", paths=Paths(read=("/nowhere",))))


async def test_where_no_process_can_be_started_the_reason_is_reported(monkeypatch):
    def none_left() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    async with opened_processes() as processes:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pipe", none_left)
            with pytest.raises(NotStarted, match="Too many open files"):
                await processes.run(shell("true"), 1000)
        assert (await processes.run(shell("true"), 1000)).code == 0


async def test_it_does_not_share_our_line(tmp_path):
    """Else a command that outlives its launcher would keep us waiting for its end."""
    ended = await run_command_once(python("import os; print([os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)])"))
    assert b"socket" not in ended.stdout
