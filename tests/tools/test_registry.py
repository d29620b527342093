import asyncio
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from callgate.calls.outcome import Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.tools import registry as registry_module
from callgate.tools import tool_names
from callgate.tools.approvals.rules import ApprovalRule
from callgate.tools.executor import CallContext, Policy, Safety, Tool
from callgate.tools.registry import Registry
from callgate.tools.source_supervisor import SourceState, SourceStatus
from callgate.tools.tool_names import SHARE, ToolIdentity, ToolNames, at_once
from tests.tools.executor_kinds import PARAMETERS, everything

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class Echo:
    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        return Returned(call.name)


def a_tool(name: str, parameters: object = PARAMETERS, **policy: object) -> Tool:
    return Tool(name, f"About {name}.", parameters, Echo(), policy=Policy(**policy))  # type: ignore[arg-type]


class FakeSource:
    """A source that does what the test says: fails a number of times, changes its tools, goes away."""

    kind = "fake"

    def __init__(self, name: str, *names: str, failures: int = 0) -> None:
        self.name = name
        self.there = tuple(a_tool(each) for each in names)
        self.failures = failures
        self.opened = 0
        self.closed = 0
        self.tasks: set[object] = set()
        self.gone = asyncio.Event()
        self.close_error: Exception | None = None

    async def open(self) -> None:
        self.tasks.add(asyncio.current_task())
        if self.failures:
            self.failures -= 1
            raise ExceptionGroup("several", [ConnectionRefusedError("nobody home")])
        self.opened += 1
        self.gone.clear()

    def tools(self) -> tuple[Tool, ...]:
        return self.there

    async def lost(self) -> str:
        await self.gone.wait()
        return "it hung up"

    async def close(self) -> None:
        self.tasks.add(asyncio.current_task())
        self.closed += 1
        if self.close_error is not None:
            raise self.close_error


def names(registry: Registry) -> list[str]:
    return [each.name for each in registry.tools()]


def no_delay(failures: int) -> float:
    return 0.0


def ready_registry(*sources: FakeSource, **options: object) -> Registry:
    registry = Registry(delay=no_delay, **options)  # type: ignore[arg-type]
    for source in sources:
        registry.add_source(source)
    return registry


# Schemas ------------------------------------------------------------------------------------------


def test_a_tool_is_compiled_and_encoded_once():
    registry = Registry()
    registry.add(a_tool("weather"))
    (entry,) = registry.tools()
    assert msgspec.json.decode(entry.definition) == {
        "type": "function",
        "function": {"name": "weather", "description": "About weather.", "parameters": PARAMETERS},
    }
    assert entry.tool.check({"city": "Oslo"}) is None
    assert entry.tool.check({"city": 1}) is not None
    assert registry.tools() is registry.tools()
    assert registry.find("weather") is entry


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "no such type"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://169.254.169.254/schema"}}},
        {"type": "object", "properties": {"a": {"const": object()}}},
        {"type": "object", "description": "x" * 300_000},
        True,
    ],
)
def test_a_broken_schema_quarantines_its_tool_and_no_other(parameters):
    registry = Registry()
    registry.add(a_tool("good"), a_tool("broken", parameters), a_tool("also_good"))
    assert names(registry) == ["also_good", "good"]
    (quarantined,) = registry.quarantined()
    assert quarantined.name == "broken"
    assert quarantined.reason


def test_an_empty_schema_becomes_an_object_without_properties():
    registry = Registry()
    registry.add(a_tool("ping", {"$schema": "https://json-schema.org/draft/2020-12/schema"}))
    assert registry.tools()[0].tool.parameters == {"type": "object", "properties": {}}


# Names --------------------------------------------------------------------------------------------


SOURCES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "a b"]),
    st.lists(st.sampled_from(["x", "y", "x y", "x.y", "callgate__x", "", "ü", "z" * 70, "z" * 71]), unique=True),
)


def named(layout: list[tuple[str, list[str]]]) -> dict[tuple[str, str], str]:
    """The names that tools get, by source and original name."""
    tools = {ToolIdentity(source, name): a_tool(name) for source, names_there in layout for name in names_there}
    names_of_tools = at_once(ToolNames().names_of(tools, [source for source, _ in layout]))
    return {(tool.source, tool.original): name for tool, name in names_of_tools.items()}


@given(SOURCES, st.randoms())
def test_names_are_legal_unique_and_the_same_in_every_order(layout, random):
    first = named(list(layout.items()))
    assert all(LEGAL.match(name) for name in first.values())
    assert len(set(first.values())) == sum(map(len, layout.values()))
    assert not any(name.startswith("callgate__") for name in first.values())
    shuffled = [(source, random.sample(tools, len(tools))) for source, tools in layout.items()]
    random.shuffle(shuffled)
    assert named(shuffled) == first


def test_a_name_that_two_sources_have_goes_to_neither():
    given_names = named([("github", ["search", "issue"]), ("jira", ["search"])])
    assert given_names["github", "issue"] == "issue"
    assert given_names["github", "search"].startswith("search_")
    assert given_names["jira", "search"].startswith("search_")


def test_a_tool_of_the_config_keeps_its_name_against_any_source():
    given_names = named([("evil", ["clock"]), ("", ["clock"])])
    assert given_names["", "clock"] == "clock"
    assert given_names["evil", "clock"].startswith("clock_")


@pytest.mark.anyio
async def test_a_server_that_comes_and_goes_does_not_rename_the_tools_of_another():
    github, jira = FakeSource("github", "search"), FakeSource("jira", "search")
    registry = ready_registry(github, jira)
    await registry.open()
    both = names(registry)
    jira.there = ()
    (left,) = names(registry)
    assert left in both
    await registry.close()


@pytest.mark.anyio
async def test_tools_are_offered_in_one_order_however_their_servers_list_them():
    sources = [FakeSource("mail", "send", "list", "archive"), FakeSource("files", "write", "read")]
    turned = [FakeSource("files", "read", "write"), FakeSource("mail", "list", "archive", "send")]
    offered: list[list[bytes]] = []
    for made in (sources, turned):
        registry = ready_registry(*made)
        await registry.open()
        offered.append([bytes(tool.definition) for tool in registry.tools()])
        for source in made:
            source.there = source.there[::-1]
        await registry.settle()
        offered.append([bytes(tool.definition) for tool in registry.tools()])
        await registry.close()
    assert offered == offered[:1] * 4


@pytest.mark.anyio
async def test_a_server_that_invents_names_for_ever_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("callgate.tools.tool_names.MAX_CLAIMS", 50)
    source = FakeSource("s")
    registry = ready_registry(source)
    await registry.open()
    for n in range(60):
        source.there = (a_tool(f"tool_{n}", concurrency=1),)
        assert names(registry) == [f"tool_{n}"]
    assert len(registry._names.claimants()) <= 51
    assert list(registry.limits._of_tools) == ["s/tool_59"]
    await registry.close()


def test_the_original_is_kept_and_patterns_may_name_the_source():
    registry = Registry()
    registry.add(a_tool("get weather"), a_tool("clock"), a_tool("calculator"))
    assert [each.original for each in registry.select(["get_weather_*"])] == ["get weather"]
    assert [each.name for each in registry.select(["c*"])] == ["calculator", "clock"]
    assert [each.name for each in registry.select(["config/cl*"])] == ["clock"]
    assert registry.select([]) == ()
    assert len(registry.select(["*"])) == 3


def test_two_tools_of_the_config_with_one_name_are_a_mistake():
    registry = Registry()
    registry.add(a_tool("clock"))
    with pytest.raises(ValueError, match="clock"):
        registry.add(a_tool("clock"))


@pytest.mark.anyio
async def test_a_source_that_has_a_name_twice_keeps_one_and_the_other_is_listed():
    registry = ready_registry(FakeSource("s", "a", "a", "b"))
    await registry.open()
    assert names(registry) == ["a", "b"]
    assert [each.name for each in registry.quarantined()] == ["a"]
    await registry.close()


# Approval -----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_destructive_tools_of_which_no_rule_says_anything_wait_and_are_named_once():
    source = FakeSource("s")
    source.there = tuple(a_tool(name, safety=Safety.DESTRUCTIVE) for name in ("drop", "wipe", "spared", "guarded"))
    source.there += (a_tool("read"), a_tool("asks", safety=Safety.DESTRUCTIVE, require_approval=True))
    registry = ready_registry(source, approval=ApprovalRule(always=("s/guarded",), never=("s/spared",)))
    with capture_logs() as logs:
        await registry.open()
        assert [tool.name for tool in registry.unruled()] == ["drop", "wipe"]
        waiting = [tool.name for tool in registry.tools() if tool.tool.policy.require_approval]
        assert waiting == ["asks", "drop", "guarded", "wipe"]
        source.there += (a_tool("burn", safety=Safety.DESTRUCTIVE),)
        assert [tool.name for tool in registry.unruled()] == ["burn", "drop", "wipe"]
        source.there = source.there[:1]
        assert names(registry) == ["drop"]
        await registry.close()
    told = [line["tools"] for line in logs if line["event"] == "destructive_tools_unruled"]
    assert told == [["s/drop", "s/wipe"], ["s/burn"]]


# Sources ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_tools_that_come_change_and_vanish_are_seen_at_the_next_look():
    source = FakeSource("s", "a")
    registry = ready_registry(source)
    assert names(registry) == []
    await registry.open()
    assert names(registry) == ["a"]
    source.there = (a_tool("a"), a_tool("b"))
    assert names(registry) == ["a", "b"]
    source.there = ()
    assert names(registry) == []
    await registry.close()


@pytest.mark.anyio
async def test_a_source_that_fails_does_not_stop_the_start_and_comes_back_by_itself():
    statuses: list[SourceStatus] = []
    hold = asyncio.Event()
    down, up = FakeSource("down", "late", failures=2), FakeSource("up", "early")
    registry = Registry(delay=lambda failures: 30.0 if not hold.is_set() else 0.0, on_status=statuses.append)
    registry.add_source(down)
    registry.add_source(up)
    async with asyncio.timeout(30):
        await registry.open()
        assert names(registry) == ["early"]
        state = {status.name: status for status in registry.sources()}
        assert state["down"].state is SourceState.DOWN
        assert state["down"].error == "ConnectionRefusedError: nobody home"
        assert state["down"].failures == 1
        await registry.close()
    assert [status.state for status in statuses if status.name == "up"] == ["opening", "ready", "closed"]


@pytest.mark.anyio
async def test_a_source_is_tried_again_until_it_opens():
    source = FakeSource("s", "late", failures=3)
    registry = ready_registry(source)
    async with asyncio.timeout(30):
        await registry.open()
        await everything(lambda: names(registry) == ["late"])
        await registry.close()
    assert source.opened == source.closed == 1


@pytest.mark.anyio
async def test_a_source_that_is_lost_is_closed_and_opened_again_in_one_and_the_same_task():
    source = FakeSource("s", "a")
    registry = ready_registry(source)
    async with asyncio.timeout(30):
        await registry.open()
        source.gone.set()
        await everything(lambda: source.opened == 2)
        await everything(lambda: names(registry) == ["a"])
        await registry.close()
    assert source.closed == 2
    assert len(source.tasks) == 1


@pytest.mark.anyio
async def test_a_source_that_hangs_while_opening_neither_holds_up_the_start_nor_the_end(monkeypatch):
    monkeypatch.setattr(registry_module, "QUIET_SECONDS", 0.01)

    class Hangs(FakeSource):
        async def open(self) -> None:
            await asyncio.Event().wait()

    registry = ready_registry(Hangs("slow"), FakeSource("quick", "a"))
    async with asyncio.timeout(30):
        with capture_logs() as lines:
            await registry.open(wait=0.05)
        assert [line["servers"] for line in lines if line["event"] == "tool_servers_opening"] == [["slow"]]
        assert names(registry) == ["a"]
        assert [status.state for status in registry.sources()] == ["opening", "ready"]
        await registry.close()
    assert [status.state for status in registry.sources()] == ["closed", "closed"]


@pytest.mark.anyio
async def test_a_source_that_fails_to_close_is_reported_and_the_others_close_too():
    bad, good = FakeSource("bad"), FakeSource("good")
    bad.close_error = RuntimeError("stuck lock")
    registry = ready_registry(bad, good)
    async with asyncio.timeout(30):
        await registry.open()
        await registry.close()
    assert good.closed == 1
    assert "stuck lock" in registry.sources()[0].error


@pytest.mark.anyio
async def test_a_source_cancelled_from_within_is_down_and_not_the_end_of_its_supervisor():
    class Cancelled(FakeSource):
        async def open(self) -> None:
            if not self.opened:
                self.opened += 1
                raise asyncio.CancelledError
            await super().open()

    source = Cancelled("s", "a")
    registry = ready_registry(source)
    async with asyncio.timeout(30):
        await registry.open()
        await everything(lambda: names(registry) == ["a"])
        await registry.close()


MANY = 2_000


@pytest.mark.anyio
async def test_a_long_list_is_registered_in_steps_between_which_the_event_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered = [0]
    claims = [0]
    register = Registry._registered
    claim = tool_names.claimed_name

    def counted(self: Registry, *arguments: Any) -> Any:
        registered[-1] += 1
        return register(self, *arguments)

    def claimed(tool: Tool) -> str:
        claims[-1] += 1
        return claim(tool)

    async def turning() -> None:
        while True:
            registered.append(0)
            claims.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(Registry, "_registered", counted)
    monkeypatch.setattr(tool_names, "claimed_name", claimed)
    source = FakeSource("one", *(f"tool{number}" for number in range(MANY)))
    registry = Registry()
    registry.add_source(source)
    turns = asyncio.create_task(turning())
    try:
        await registry.open()
        assert len(registry.tools()) == MANY
        source.there = tuple(a_tool(f"other{number}") for number in range(MANY))
        assert registry.find("tool0"), "what was there stays until all of the new list is built"
        assert not registry.is_complete()
        await registry.settle()
        assert registry.find("tool0") is None
        assert registry.find("other0")
        assert registry.is_complete()
        assert len(registry.tools()) == MANY
    finally:
        turns.cancel()
        await registry.close()
    assert sum(registered) == 2 * MANY
    assert max(registered) <= SHARE
    assert max(claims) <= SHARE


@pytest.mark.anyio
async def test_a_registry_that_is_closed_stops_building_a_long_list() -> None:
    source = FakeSource("one", "a")
    registry = Registry()
    registry.add_source(source)
    await registry.open()
    source.there = tuple(a_tool(f"other{number}") for number in range(MANY))
    assert registry.find("a")
    await registry.close()
    assert registry.find("other0") is None


@pytest.mark.anyio
async def test_lists_that_change_while_they_are_registered_are_registered_as_they_are_in_the_end() -> None:
    source = FakeSource("one", *(f"tool{number}" for number in range(MANY)))
    registry = Registry()
    registry.add_source(source)
    await registry.open()
    source.there = tuple(a_tool(f"other{number}") for number in range(MANY))
    registry.tools()
    await asyncio.sleep(0)
    source.there = tuple(a_tool(f"last{number}") for number in range(MANY))
    await registry.settle()
    assert {tool.name for tool in registry.tools()} == {f"last{number}" for number in range(MANY)}
    await registry.close()
