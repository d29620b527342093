"""Servers as child processes, through a registry: answers, deaths, restarts, and nothing left behind."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.conversation.ports import ProgressReport
from callgate.parsers.pool import ParserPool
from callgate.tools.approvals.rules import ApprovalRule
from callgate.tools.executor import Policy, Safety
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp import session as mcp_session
from callgate.tools.kinds.mcp.pins import Pins
from callgate.tools.kinds.mcp.process import ServerProcess, StdioSpec
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.kinds.mcp.session import MAX_TOOLS
from callgate.tools.kinds.mcp.stdio import StdioLink
from callgate.tools.kinds.mcp.wire import Unreadable, Waiting
from callgate.tools.registry import Registry
from callgate.tools.source_supervisor import CannotOpen, SourceState, SourceStatus
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml
from tests.harness.process import serving_command
from tests.tools.executor_kinds import RAW_MCP, everything, ready, silent

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: they watch over children in ways of their own, and the product runs on the second."""
    return "asyncio", {"use_uvloop": request.param}


@dataclass(slots=True)
class RuntimeManager:
    """A registry with one server in it."""

    registry: Registry
    server: McpSource
    changes: list[tuple[str, str]]
    statuses: list[SourceStatus] = field(default_factory=list)
    progress: list[tuple[str, float | None]] = field(default_factory=list)

    def names(self) -> list[str]:
        return [tool.name for tool in self.registry.tools()]

    def toolbox(self) -> RequestToolbox:
        return RequestToolbox(server_tools=ToolSet(self.registry.tools()), run_id="run_1", limits=self.registry.limits)

    async def run(self, name: str, **arguments: Any) -> Outcome:
        return await self.toolbox().run(ready(name, **arguments), self._report)

    async def text(self, name: str, **arguments: Any) -> str:
        outcome = await self.run(name, **arguments)
        assert isinstance(outcome, Returned), outcome
        return outcome.text

    async def state(self, state: SourceState) -> SourceStatus:
        """Returns when the server is in this state."""
        await everything(lambda: self.registry.sources()[0].state is state)
        return self.registry.sources()[0]

    async def opened_after(self, session: object) -> None:
        """Returns when the server is there again, in another session."""
        await everything(lambda: self.server._session not in (None, session))
        await self.state(SourceState.READY)

    async def _report(self, progress: ProgressReport) -> None:
        self.progress.append((progress.message, progress.fraction))


@contextlib.asynccontextmanager
async def opened_server(
    *words: str,
    env: dict[str, str] | None = None,
    delay: Callable[[int], float] = lambda failures: 0.01,
    **options: Any,
) -> AsyncIterator[RuntimeManager]:
    spec = options.pop("transport", None) or StdioSpec(sys.executable, ("-S", str(RAW_MCP), *words), env or {})
    changes: list[tuple[str, str]] = []
    web = Web()
    parsers = options.pop("parsers", None) or ParserPool()
    pins = Pins(lambda *change: changes.append(change))
    server = McpSource(ServerSpec("raw", spec, prefix="raw", **options), web, pins, parsers)
    statuses: list[SourceStatus] = []
    registry = Registry(delay=delay, on_status=statuses.append, approval=ApprovalRule(never=("*",)))
    registry.add_source(server)
    async with asyncio.timeout(40):
        await registry.open()
        try:
            yield RuntimeManager(registry, server, changes, statuses)
        finally:
            await registry.close()
            await web.close()
            await parsers.close()


def is_alive(pid: int) -> bool:
    """A process that runs; one that ended and was not collected does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Answers ------------------------------------------------------------------------------------------


async def test_its_tools_carry_its_name_and_keep_their_own_for_patterns() -> None:
    async with opened_server() as it:
        assert "raw_answers" in it.names()
        assert [tool.name for tool in it.registry.select(["raw/ans*"])] == ["raw_answers"]


async def test_without_a_prefix_its_tools_have_their_own_names() -> None:
    assert {"answers", "raises"} <= {name async for name in _names_with_prefix("")}
    assert {"r2_answers"} <= {name async for name in _names_with_prefix("r2")}


async def _names_with_prefix(prefix: str) -> AsyncIterator[str]:
    web = Web()
    server = McpSource(ServerSpec("raw", StdioSpec(sys.executable, ("-S", str(RAW_MCP))), prefix=prefix), web)
    registry = Registry()
    registry.add_source(server)
    await registry.open()
    try:
        for tool in registry.tools():
            yield tool.name
    finally:
        await registry.close()
        await web.close()


async def test_only_the_tools_that_are_allowed_are_taken() -> None:
    async with opened_server(allowed_tools=("ech*", "pid")) as it:
        assert it.names() == ["raw_echo", "raw_pid"]


async def test_annotations_suggest_what_is_safe_and_the_config_overrides_them() -> None:
    async with opened_server(policy=Policy(timeout=7)) as it:
        policies = {tool.original: tool.tool.policy for tool in it.registry.tools()}
        assert policies["answers"].safety is Safety.READ_ONLY
        assert policies["dies"].safety is Safety.DESTRUCTIVE
        assert policies["hangs"].safety is Safety.WRITE
        assert policies["echo"] == Policy(timeout=7)
    async with opened_server(overrides={"safety": Safety.WRITE, "timeout": 3.0}) as it:
        assert {(tool.tool.policy.safety, tool.tool.policy.timeout) for tool in it.registry.tools()} == {
            (Safety.WRITE, 3)
        }


async def test_descriptions_hold_nothing_that_cannot_be_seen() -> None:
    async with opened_server() as it:
        echo = it.registry.find("raw_echo")
        assert echo is not None
        assert echo.tool.description == "Says hello. Never mind."


async def test_progress_is_reported_while_the_tool_runs() -> None:
    async with opened_server() as it:
        assert await it.text("raw_progresses") == "done"
        assert ("step 2", 1.0) in it.progress


async def test_an_error_of_the_protocol_is_reported_to_the_model() -> None:
    async with opened_server() as it:
        assert await it.run("raw_refuses") == Failed("there is no such city")


async def test_a_result_that_is_not_the_protocols_is_a_failure_and_not_a_crash() -> None:
    async with opened_server() as it:
        outcome = await it.run("raw_strange")
        assert isinstance(outcome, Failed)
        assert "not one of the protocol's" in outcome.text
        assert await it.text("raw_echo", a=1) == '{"a": 1}'


async def test_an_answer_that_is_nested_too_deep_is_a_failure_at_once_and_the_server_stays() -> None:
    async with opened_server() as it:
        outcome = await it.run("raw_deep")
        assert isinstance(outcome, Failed)
        assert "cannot be read" in outcome.text
        assert await it.text("raw_echo", a=1) == '{"a": 1}'


@pytest.mark.parametrize("tool", ["raw_nan", "raw_batch"])
async def test_an_answer_in_a_batch_or_beside_a_number_that_is_none_is_an_answer(tool: str) -> None:
    async with opened_server() as it:
        assert await it.text(tool) == "hello"


async def test_noise_and_torn_lines_and_broken_text_do_no_harm() -> None:
    async with opened_server() as it:
        assert await it.text("raw_half") == "lone ? surrogate, � broken byte"


async def test_a_server_that_asks_us_for_a_completion_is_refused_and_goes_on() -> None:
    async with opened_server() as it:
        answer = json.loads(await it.text("raw_asks"))
        assert "error" in answer


async def test_other_messages_wait_for_their_reader_and_none_is_lost() -> None:
    async with opened_server() as it:
        assert await it.text("raw_chatters") == "said it all"
        assert await it.text("raw_echo") == "{}"


async def test_integers_of_any_size_and_any_text_arrive() -> None:
    async with opened_server() as it:
        given = {"n": 2**80, "text": '東京 \U0001f600 \n \\ "'}
        assert json.loads(await it.text("raw_echo", **given)) == given


async def test_many_calls_share_one_session() -> None:
    async with opened_server() as it:
        pids = await asyncio.gather(*(it.text("raw_pid") for _ in range(50)))
        assert len(set(pids)) == 1


async def test_it_sees_a_clean_environment_and_what_the_operator_wrote_down(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with opened_server(env={"MINE": "yes"}) as it:
        seen = json.loads(await it.text("raw_environment"))
        assert seen["MINE"] == "yes"
        assert seen["PATH"] == os.environ["PATH"]
        assert "OPENAI_API_KEY" not in seen


async def test_an_answer_given_twice_or_without_a_request_is_dropped() -> None:
    async with opened_server() as it:
        assert await it.text("raw_twice") == "first"
        assert await it.text("raw_echo", a=1) == '{"a": 1}'


async def test_a_list_without_end_is_read_as_far_as_is_sensible() -> None:
    async with opened_server("endless_list") as it:
        assert await it.text("raw_echo") == "{}"
        assert len(it.registry.quarantined()) < MAX_TOOLS


async def test_tools_that_cannot_be_used_are_listed_with_the_reason_and_touch_no_others() -> None:
    async with opened_server("odd_list") as it:
        reasons = {each.name: each.reason for each in it.registry.quarantined()}
        assert set(reasons) == {"raw_odd", "raw_far", "answers"}
        assert "two tools of this name" in reasons["answers"]
        assert await it.text("raw_answers", city="Oslo")


async def test_a_server_of_an_unknown_version_is_refused() -> None:
    async with opened_server("ancient", delay=lambda failures: 60) as it:
        status = await it.state(SourceState.DOWN)
        assert "1999-01-01" in status.error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.sampled_from(["c1", "c2", 1, 2.5, None, True]) | JSON,
        "method": st.sampled_from(["notifications/progress", "ping", "tools/call", "notifications/cancelled"]) | JSON,
        "params": st.dictionaries(st.sampled_from(["progressToken", "progress", "total", "_meta"]), JSON) | JSON,
        "result": st.dictionaries(st.sampled_from(["content", "isError", "structuredContent"]), JSON) | JSON,
        "error": st.dictionaries(st.sampled_from(["code", "message"]), JSON) | JSON,
    },
)


@settings(deadline=None)
@given(st.lists(MESSAGES.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=40), max_size=8))
async def test_nothing_that_a_server_writes_breaks_the_reading(lines: list[bytes]) -> None:
    link = StdioLink(StdioSpec("unused"))
    link._child = ServerProcess(lambda data: None, lambda why: None)
    waiting = link._waiting["c1"] = Waiting()
    link._to_sdk, for_sdk = anyio.create_memory_object_stream[Any](1000)
    link._received(b"\n".join([*lines, b'{"jsonrpc":"2.0","id":"c1","result":{"content":[]}}', b""]))
    async with asyncio.timeout(30):
        with contextlib.suppress(Unreadable):
            await waiting.answer(silent)
    link.kill()
    for_sdk.close()


# Changes ------------------------------------------------------------------------------------------


async def test_tools_are_listed_again_after_list_changed_and_changes_are_logged() -> None:
    async with opened_server() as it:
        assert await it.text("raw_changes") == "changed"
        await everything(lambda: "raw_fresh" in it.names())
        assert it.changes == [("raw", "echo")]
        assert await it.text("raw_fresh", a=1) == '{"a": 1}'


async def test_a_server_too_busy_to_list_its_tools_is_left_alone_and_asked_again(monkeypatch) -> None:
    monkeypatch.setattr(mcp_session, "ASK_SECONDS", 0.5)
    async with opened_server("deaf_once") as it:
        session = it.server._session
        assert await it.text("raw_changes") == "changed"
        await everything(lambda: "raw_fresh" in it.names())
        assert it.server._session is session


async def test_tools_that_went_are_offered_no_longer() -> None:
    async with opened_server() as it:
        await it.text("raw_renames")
        await everything(lambda: it.names() == ["raw_other"])
        assert it.changes == []


async def test_a_restart_that_brings_the_same_tools_rebuilds_nothing() -> None:
    async with opened_server() as it:
        before = it.server.tools()
        session = it.server._session
        os.kill(int(await it.text("raw_pid")), signal.SIGKILL)
        await it.opened_after(session)
        assert it.server.tools() is before


async def test_a_server_of_the_newest_protocol_announces_new_tools_over_its_pipes_too(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(GROWING)
    async with opened_server(transport=StdioSpec(sys.executable, (str(script),))) as it:
        await it.state(SourceState.READY)
        assert it.server._session is not None
        assert await it.text("raw_grow") == "ok"
        await everything(lambda: "raw_grown" in it.names())
        assert await it.text("raw_grown") == "grown"


GROWING = """
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("growing")

@server.tool()
async def grow(context: Context) -> str:
    async def grown() -> str:
        return "grown"

    server.add_tool(grown, "grown", description="It was not there before.")
    await context.notify_tools_changed()
    return "ok"

server.run("stdio")
"""


# Deaths -------------------------------------------------------------------------------------------


async def test_a_server_that_dies_in_a_call_fails_it_with_a_clear_error_and_is_started_again() -> None:
    async with opened_server() as it:
        first = await it.text("raw_pid")
        outcome = await it.run("raw_dies")
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNKNOWN
        assert "may or may not have happened" in outcome.text
        await everything(lambda: any(status.state is SourceState.DOWN for status in it.statuses))
        await it.state(SourceState.READY)
        assert await it.text("raw_pid") != first
        down = next(status for status in it.statuses if status.state is SourceState.DOWN)
        assert "it ended with code 3: out of paper" in down.error


async def test_a_server_killed_from_outside_fails_every_call_under_way() -> None:
    async with opened_server(overrides={"safety": Safety.READ_ONLY}) as it:
        pid = int(await it.text("raw_pid"))
        calls = [asyncio.create_task(it.run("raw_hangs", city="Oslo")) for _ in range(3)]
        await it.text("raw_echo")
        os.kill(pid, signal.SIGKILL)
        for call in calls:
            outcome = await call
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.UNAVAILABLE
        await everything(lambda: any("it was ended by SIGKILL" in status.error for status in it.statuses))


async def test_a_server_that_closes_its_output_and_lives_on_is_ended_and_started_again() -> None:
    async with opened_server() as it:
        session, pid = it.server._session, int(await it.text("raw_pid"))
        outcome = await it.run("raw_closes")
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNKNOWN
        await it.opened_after(session)
        assert not is_alive(pid)
        assert any("it closed its output" in status.error for status in it.statuses)


async def test_an_answer_written_just_before_the_end_is_still_read() -> None:
    async with opened_server() as it:
        assert await it.text("raw_last_words") == "goodbye"


async def test_while_it_is_down_its_tools_stay_on_offer_and_fail_with_the_reason() -> None:
    async with opened_server(delay=lambda failures: 60) as it:
        box = it.toolbox()
        await it.run("raw_dies")
        await it.state(SourceState.DOWN)
        outcome = await box.run(ready("raw_echo"), silent)
        assert outcome == Failed(
            "Not run: the tool's server, raw, cannot be reached at the moment. Try again later, or go on without it.",
            FailureKind.UNAVAILABLE,
        )
        assert "raw_echo" in it.names(), "an unknown tool is one that never was"


async def test_a_server_that_cannot_start_is_shown_with_its_last_output() -> None:
    async with opened_server("fails", delay=lambda failures: 60) as it:
        status = await it.state(SourceState.DOWN)
        assert status.error == "it ended with code 1: no licence found"


async def test_a_command_that_is_not_there_is_named() -> None:
    async with opened_server(transport=StdioSpec("no-such-server-anywhere"), delay=lambda failures: 60) as it:
        status = await it.state(SourceState.DOWN)
        assert status.error == "there is no program no-such-server-anywhere"


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    async with opened_server(transport=StdioSpec(sys.executable, cwd=gone), delay=lambda failures: 60) as it:
        status = await it.state(SourceState.DOWN)
        assert status.error == f"there is no folder {gone}"


async def test_a_program_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "server").write_text("#!/bin/sh\n")
    async with opened_server(transport=StdioSpec(str(tmp_path / "server")), delay=lambda failures: 60) as it:
        status = await it.state(SourceState.DOWN)
        assert status.error == f"{tmp_path}/server cannot be run: Permission denied"


async def test_a_server_that_never_answers_is_ended_when_the_registry_closes() -> None:
    async with asyncio.timeout(30):
        web = Web()
        server = McpSource(ServerSpec("raw", StdioSpec(sys.executable, ("-S", str(RAW_MCP), "silent")), prefix=""), web)
        opening = asyncio.create_task(server.open())
        await everything(lambda: bool(_children_of_ours()))
        [child] = _children_of_ours()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await everything(lambda: not is_alive(child))
        await web.close()


async def test_a_runtime_that_closes_while_a_server_opens_leaves_no_process() -> None:
    web = Web()
    registry = Registry()
    registry.add_source(
        McpSource(ServerSpec("raw", StdioSpec(sys.executable, ("-S", str(RAW_MCP), "silent")), prefix=""), web)
    )
    async with asyncio.timeout(30):
        await registry.open(wait=0)
        await everything(lambda: bool(_children_of_ours()))
        [child] = _children_of_ours()
        await registry.close()
        await everything(lambda: not is_alive(child))
    await web.close()


async def test_restarts_leave_no_open_files() -> None:
    async with opened_server() as it:
        await it.text("raw_pid")
        before = _open_files()
        for _ in range(5):
            session = it.server._session
            os.kill(int(await it.text("raw_pid")), signal.SIGKILL)
            await it.opened_after(session)
        assert _open_files() <= before


async def test_through_deaths_at_any_moment_every_call_ends_and_nothing_is_left() -> None:
    chance = random.Random(7)
    async with opened_server() as it:
        files, deaths = _open_files(), 0
        ends: Counter[str] = Counter()

        async def caller() -> None:
            while deaths < 5:
                if "raw_echo" not in it.names():
                    await asyncio.sleep(0.002)
                    continue
                box = it.toolbox()
                name = chance.choice(["raw_echo", "raw_echo", "raw_progresses", "raw_half"])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(0.01, 0.3)):
                        ends[type(await box.run(ready(name), silent)).__name__] += 1

        callers = [asyncio.create_task(caller()) for _ in range(20)]
        for _ in range(5):
            session = it.server._session
            before = ends["Returned"]
            await everything(lambda before=before: ends["Returned"] > before)  # type: ignore[misc]
            [launcher] = _children_of_ours()
            [server] = _children_of(launcher)
            pid, number = chance.choice(
                [(launcher, signal.SIGKILL), (server, signal.SIGKILL), (server, signal.SIGTERM)]
            )
            os.kill(pid, number)
            await it.opened_after(session)
            deaths += 1
        await asyncio.gather(*callers)
        assert ends.keys() == {"Returned", "Failed"}
        await everything(lambda: _open_files() <= files)
        assert len(_children_of_ours()) == 1


async def test_output_without_a_line_break_is_not_kept_and_ends_the_server() -> None:
    async with opened_server("endless", delay=lambda failures: 60) as it:
        status = await it.state(SourceState.DOWN)
        assert "without end and without a line break" in status.error


# What they leave behind ---------------------------------------------------------------------------


async def test_what_it_forked_is_ended_with_it_even_if_it_ignores_the_asking() -> None:
    async with opened_server() as it:
        fork = int(await it.text("raw_forks"))
        assert is_alive(fork)
    await everything(lambda: not is_alive(fork))


async def test_what_it_forked_is_ended_when_it_dies_by_itself() -> None:
    async with opened_server(delay=lambda failures: 60) as it:
        fork = int(await it.text("raw_forks"))
        await it.run("raw_dies")
        await it.state(SourceState.DOWN)
        await everything(lambda: not is_alive(fork))


async def test_a_server_that_ignores_every_asking_is_killed() -> None:
    async with opened_server("stubborn") as it:
        pid = int(await it.text("raw_pid"))
    assert not is_alive(pid)


async def test_what_left_its_process_group_is_ended_with_it() -> None:
    async with opened_server() as it:
        fork = int(await it.text("raw_escapes"))
        assert is_alive(fork)
    assert not is_alive(fork)


async def test_a_server_that_ignores_the_end_of_its_input_does_not_outlive_a_kill_of_ours(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    server = {"command": sys.executable, "args": ["-S", str(RAW_MCP), "stubborn"], "prefix": "raw"}
    listed = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]
    config.write_text(as_yaml({"model_list": listed, "mcp_servers": {"raw": server}}))
    async with serving_command(config) as served, http_client(served.url) as client:
        await everything(lambda: bool(_stubborn_below(served.process.pid)))
        listing = (await client.get("/v1/tools")).text
        assert "raw_echo" in listing
        processes = _stubborn_below(served.process.pid)
        served.signal(signal.SIGKILL)
        await served.ended()
        await everything(lambda: not any(map(is_alive, processes)))


def _stubborn_below(ancestor: int) -> list[int]:
    """What runs the server that ignores everything, among all that a process started."""
    found, left = [], [ancestor]
    while left:
        children = Path(f"/proc/{(pid := left.pop())}/task/{pid}/children")
        with contextlib.suppress(OSError):
            left += map(int, children.read_text().split())
            found += [pid] if b"stubborn" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
    return found


async def test_closing_while_a_call_runs_fails_the_call() -> None:
    async with opened_server() as it:
        call = asyncio.create_task(it.run("raw_hangs", city="Oslo"))
        await it.text("raw_echo")
    outcome = await call
    assert isinstance(outcome, Failed)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _children_of_ours() -> list[int]:
    return _children_of(os.getpid())


def _children_of(parent: int) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if (entry / "cmdline").exists() and b"raw_mcp.py" in _read(entry / "cmdline") and _parent(entry) == parent
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent(entry: Path) -> int:
    fields = _read(entry / "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


async def test_why_a_program_did_not_start_is_known_though_its_end_is_noticed_first() -> None:
    ends: list[str] = []
    spec = StdioSpec("/no/such")
    process = ServerProcess(lambda data: None, ends.append, spec)
    process._line, launcher = socket.socketpair()
    process._line.setblocking(False)
    beginning = asyncio.create_task(process._begun(asyncio.get_running_loop(), spec))
    await asyncio.sleep(0)
    launcher.sendall(b"failed 2: No such file or directory\n")
    launcher.close()
    process._exited.set()
    process._finish()
    with pytest.raises(CannotOpen, match="there is no program /no/such"):
        await beginning
    assert ends == ["there is no program /no/such"]
    process.kill()
