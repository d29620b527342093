"""What a server of tools writes is counted before it is read, and never holds the event loop."""

from typing import Any

import mcp_types as types
import pytest

from callgate.calls.outcome import Failed, Returned
from callgate.parsers.jobs import ParserFailed, Reason
from callgate.parsers.pool import ParserPool
from callgate.tools.kinds.mcp import session
from callgate.tools.kinds.mcp.descriptors import Descriptor
from callgate.tools.kinds.mcp.pins import Pins
from callgate.tools.kinds.mcp.server import BYTES_AT_ONCE, TOOLS_AT_ONCE, parts_of
from callgate.tools.kinds.mcp.session import QUIET_SECONDS, RelistPace
from callgate.tools.kinds.mcp.wire import LIST_VALUES, MAX_BATCH, MAX_PARTS, MESSAGE
from callgate.tools.source_supervisor import SourceState
from callgate.untrusted.work import TURN_BYTES, TURN_TEXTS
from tests.harness.turns import turns_counted
from tests.tools.executor_kinds import everything
from tests.tools.kinds.mcp.test_stdio import opened_server

pytestmark = pytest.mark.anyio

FLOODS: dict[str, dict[str, Any]] = {
    "empty lines": {"text": "\n", "times": 1_000_000},
    "lines of spaces": {"text": "   \n", "times": 50_000},
    "notifications": {"text": '{"jsonrpc":"2.0","method":"notifications/message"}\n', "times": 5_000},
    "requests": {"text": '{"jsonrpc":"2.0","method":"ping","id":1}\n', "times": 5_000},
    "a batch": {"text": " ", "times": 1, "end": "[" + "{}," * MAX_BATCH + "{}]"},
    "an endless batch": {"text": "{},", "times": 470_000, "end": "{}]"},
    "a large notification": {"text": "[[],[", "times": 500_000},
}
RESULT = '{"jsonrpc":"2.0","id":"ID","result":{"content":['
RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "too many values": ({"text": "{},", "times": 200_000, "end": "{}]}}"}, "cannot be read"),
    "too many parts": ({"text": "{},", "times": MAX_PARTS, "end": "{}]}}"}, f"more than {MAX_PARTS:,} parts"),
    "too deep": ({"text": "[", "times": 100_000, "end": "]" * 100_000 + "]}}"}, "cannot be read"),
    "cut and too many": ({"text": "{},", "times": 4_000_000, "end": "{}]}}"}, "too long to read"),
    "not a number beside many": ({"text": "{},", "times": 60_000, "end": "NaN]}}"}, "cannot be read"),
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


async def test_what_a_server_writes_is_read_in_shares() -> None:
    async with opened_server() as manager:
        for name, flood in FLOODS.items():
            async with turns_counted() as turns:
                outcome = await manager.run("raw_writes", **flood)
            assert isinstance(outcome, Returned), name
            assert turns.texts <= 3 * TURN_TEXTS, name
            assert turns.bytes <= 2 * (TURN_BYTES + MESSAGE.bytes), name


async def test_a_result_that_is_too_much_is_refused_before_it_is_decoded() -> None:
    async with opened_server() as manager:
        for name, (result, words) in RESULTS.items():
            outcome = await manager.run("raw_writes", start=RESULT, **result)
            assert isinstance(outcome, Failed), name
            assert words in outcome.text, name


async def test_a_list_that_is_too_much_over_all_its_pages_is_refused() -> None:
    async with opened_server("large_list") as manager:
        status = await manager.state(SourceState.DOWN)
        assert "list of an MCP server: more than 8,388,608 bytes" in status.error


async def test_a_list_with_too_many_values_is_refused() -> None:
    async with opened_server("wide_list") as manager:
        status = await manager.state(SourceState.DOWN)
        assert "more than 25,000 values" in status.error


async def test_the_values_of_all_pages_of_a_list_are_counted() -> None:
    async with opened_server("wide_pages") as manager:
        status = await manager.state(SourceState.DOWN)
        assert f"list of an MCP server: more than {LIST_VALUES:,} values" in status.error


async def test_the_schemas_of_a_long_list_are_compiled_by_a_child_first_and_its_tools_pinned_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[int] = []
    look = Pins.look

    def counted(self: Pins, server: str, descriptors: list[Descriptor], *more: Any, **told: Any) -> list[Descriptor]:
        pinned.append(len(descriptors))
        return look(self, server, descriptors, *more, **told)

    monkeypatch.setattr(Pins, "look", counted)
    parsers = ParserPool()
    async with opened_server("many_tools", parsers=parsers) as manager:
        await manager.state(SourceState.READY)
        await manager.registry.settle()
        assert len(manager.registry.tools()) == 2_000
        assert sum(pinned) == 2_000
        assert max(pinned) <= TOOLS_AT_ONCE
        assert parsers.jobs == {"documents": 1}
        assert len(parsers.process_ids()) == 1


class Dying(ParserPool):
    async def run(self, job: Any, payload: Any, source: str) -> Any:
        raise ParserFailed(Reason.DIED)


async def test_a_list_whose_child_dies_costs_this_server_alone() -> None:
    async with opened_server("many_tools", parsers=Dying()) as manager:
        status = await manager.state(SourceState.DOWN)
        assert "the schemas of its tools cannot be read: the process that read it ended" in status.error
        assert manager.registry.tools() == ()


async def test_a_server_that_announces_changes_without_end_is_asked_less_and_less() -> None:
    pace = RelistPace()
    assert [pace.after_list() for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0]
    pace.was_quiet(1)
    assert pace.after_list() == 15.0
    pace.was_quiet(QUIET_SECONDS + 1)
    assert pace.after_list() == 1.0


async def test_it_is_not_listed_before_its_pause_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Pace(RelistPace):
        """Pauses for ever after the third list."""

        def after_list(self, ttl: float = 0.0) -> float:
            pauses.append(super().after_list(ttl))
            if len(pauses) < 3:
                return 0.0
            return 3600.0

    monkeypatch.setattr(session, "RelistPace", Pace)
    async with opened_server("restless") as manager:
        await everything(lambda: len(pauses) == 3)
        lists = {await manager.text("raw_lists") for _ in range(20)}
    assert pauses == [1.0, 2.0, 4.0]
    assert lists == {"4"}, "the first, and three that were announced"


def test_a_list_is_described_in_parts_by_its_size_too() -> None:
    large = types.Tool(name="t", input_schema={"type": "object", "properties": {"a": {"const": "x" * BYTES_AT_ONCE}}})
    small = types.Tool(name="t", input_schema={"type": "object"})
    assert [len(part) for part in parts_of([small] * 45)] == [TOOLS_AT_ONCE, TOOLS_AT_ONCE, 5]
    assert [len(part) for part in parts_of([large] * 3)] == [1, 1, 1]
