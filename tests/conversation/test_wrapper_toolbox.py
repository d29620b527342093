"""A wrapper that changes nothing is the toolbox inside; one that moves calls keeps their order."""

import pytest

from callgate.calls.outcome import Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import Plan
from callgate.conversation.wrapper_toolbox import WrapperToolbox, in_order_of
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.fakes import AnsweringTool, ready, silent, tool

pytestmark = pytest.mark.anyio


async def test_a_wrapper_answers_what_the_toolbox_inside_answers():
    registry = Registry()
    registry.add(tool("echo", AnsweringTool("said")))
    inner = RequestToolbox(server_tools=ToolSet(registry.tools()))
    wrapper = WrapperToolbox(inner)
    call = ready("echo")
    assert wrapper.offer is inner.offer
    assert wrapper.definitions() is inner.definitions()
    assert wrapper.plan([call]) == inner.plan([call])
    assert not wrapper.is_clients("echo")
    assert wrapper.writes(call) == inner.writes(call)
    assert wrapper.is_ordered(call) == inner.is_ordered(call)
    assert await wrapper.run(call, silent) == Returned("said")


def test_calls_that_were_moved_stand_in_the_order_of_the_turn():
    calls: list[ReadyCall] = [ready("t", {}, f"call_{number}") for number in range(4)]
    plan = Plan(ours=(calls[3], calls[0]), theirs=(calls[2], calls[1]), broken=())
    ordered = in_order_of(calls, plan)
    assert [call.id for call in ordered.ours] == ["call_0", "call_3"]
    assert [call.id for call in ordered.theirs] == ["call_1", "call_2"]
