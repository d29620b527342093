"""Callgate's own tools in a run that another process carries on: what they read is read again."""

from types import SimpleNamespace
from typing import Any

import pytest

from callgate.calls.outcome import Failed, Outcome, Returned
from callgate.calls.search_setting import SearchPlan
from callgate.calls.states import ReadyCall
from callgate.runs.durable_run import DurableToolbox
from callgate.tools.executor import Policy, Safety
from callgate.tools.offered_tools import OfferedTools
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox
from tests.fakes import AnsweringTool, silent, tool

pytestmark = pytest.mark.anyio


async def replayed(call: ReadyCall) -> Outcome:
    """The outcome of a call of a stored turn behind which there are others, and of which no outcome is stored."""
    registry = Registry()
    registry.add(tool("clock", AnsweringTool("noon"), policy=Policy(safety=Safety.READ_ONLY)))
    offered = OfferedTools(registry)
    offered.all()
    inner = RequestToolbox(server_tools=offered.narrowed(("*",), ("*",), None, None, SearchPlan(over=0)))
    run: Any = SimpleNamespace(known_outcome=lambda key: None, call_begun_before=lambda key: None)
    calls: Any = SimpleNamespace(key_at=lambda turn, call_id: call_id, ended=lambda key: None)

    async def keep() -> bool:
        return True

    model: Any = SimpleNamespace(has_more=True, keep=keep)
    try:
        return await DurableToolbox(inner, run, calls, model).run(call, silent)
    finally:
        await offered.close()


async def test_a_search_is_made_again_and_a_call_that_was_not_run_is_not():
    found = await replayed(ReadyCall("call_1", "find_tools", {"query": "clock"}, "{}"))
    assert isinstance(found, Returned)
    assert '"clock"' in found.text
    assert isinstance(await replayed(ReadyCall("call_2", "clock", {}, "{}")), Failed)
