"""A turn of which nothing was kept is made again as far as that does no harm."""

import json
from typing import Any

import msgspec
import pytest

from callgate.calls.outcome import Failed
from callgate.conversation.events import CallEnded, CallStarted, HiddenTurns
from callgate.conversation.hidden_history import handle_of
from callgate.conversation.turn_recovery import (
    MAX_CALLS,
    MAX_HINT,
    MAX_RERUN,
    ForgottenCall,
    Hint,
    Recovery,
    forgotten_turns,
    hint_of,
    take_hints,
)
from tests.conversation.test_hidden_history import answer, assistant_message, call, raw
from tests.fakes import CountingTool, FailingTool, Listener, ScriptedToolbox

pytestmark = pytest.mark.anyio


class WritingToolbox(ScriptedToolbox):
    def writes(self, call: Any) -> bool:
        return True


def hint(*calls: ForgottenCall) -> dict[int, Hint]:
    return {0: Hint(list(calls))}


async def remade(toolbox: ScriptedToolbox, *calls: ForgottenCall) -> HiddenTurns:
    [turn] = forgotten_turns([raw(assistant_message(call("c"))), raw(answer("c"))], hint(*calls), {})
    return await Recovery(toolbox, Listener(), most=64).make_again(turn)


def code_of(hidden: HiddenTurns, id: str) -> str:
    return str(json.loads(hidden.results[id]["content"])["error"]["code"])


async def test_a_tool_that_only_reads_is_run_again_in_its_place() -> None:
    tool = CountingTool()
    hidden = await remade(ScriptedToolbox({"echo"}, clock=tool), ForgottenCall(0, "h", "clock", '{"zone":"UTC"}'))
    assert [one["id"] for one in hidden.assistant["tool_calls"]] == ["h", "c"]
    assert hidden.results["h"] == {"role": "tool", "tool_call_id": "h", "content": '{"zone": "UTC"}'}
    assert len(tool.calls) == 1


async def test_a_tool_that_writes_is_not_run_again() -> None:
    tool = CountingTool()
    hidden = await remade(WritingToolbox({"echo"}, mail=tool), ForgottenCall(1, "h", "mail", "{}"))
    assert code_of(hidden, "h") == "result_lost"
    assert [one["id"] for one in hidden.assistant["tool_calls"]] == ["c", "h"]
    assert not tool.calls


@pytest.mark.parametrize(
    "lost",
    [
        ForgottenCall(0, "h", "not_on_offer", "{}"),
        ForgottenCall(0, "h", "echo", "{}"),
        ForgottenCall(0, "h", "clock", None),
    ],
    ids=["not on offer", "the client's own", "without arguments"],
)
async def test_what_may_not_or_cannot_be_run_is_reported_as_lost(lost: ForgottenCall) -> None:
    tool = CountingTool()
    hidden = await remade(ScriptedToolbox({"echo"}, clock=tool), lost)
    assert code_of(hidden, "h") == "result_lost"
    assert not tool.calls


async def test_arguments_pass_the_same_gate() -> None:
    tool = CountingTool()
    schema = {"clock": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}}
    box = ScriptedToolbox({"echo"}, schema, clock=tool)
    hidden = await remade(box, ForgottenCall(0, "a", "clock", '{"zone":'), ForgottenCall(0, "b", "clock", "{}"))
    assert (code_of(hidden, "a"), code_of(hidden, "b")) == ("truncated", "schema_mismatch")
    assert not tool.calls


async def test_a_failure_is_returned_as_it_is() -> None:
    hidden = await remade(
        ScriptedToolbox({"echo"}, clock=FailingTool("no clock")), ForgottenCall(0, "h", "clock", "{}")
    )
    assert hidden.results["h"]["content"] == "no clock"
    assert Failed("no clock").text == "no clock"


async def test_of_all_turns_of_a_request_only_a_few_calls_are_run_again_and_every_listener_sees_them() -> None:
    tool, listener = CountingTool(), Listener()
    recovery = Recovery(ScriptedToolbox({"echo"}, clock=tool), listener, most=64)
    history = [message for n in range(100) for message in (raw(assistant_message(call(f"c{n}"))), raw(answer(f"c{n}")))]
    hints = {2 * n: Hint([ForgottenCall(0, f"h{n}-{m}", "clock", "{}") for m in range(MAX_CALLS)]) for n in range(100)}
    made = [await recovery.make_again(turn) for turn in forgotten_turns(history, hints, {})]
    assert len(made) == 100
    assert len(tool.calls) == MAX_RERUN
    assert [event.call.id for event in listener.of(CallStarted)] == [f"h0-{m}" for m in range(MAX_RERUN)]
    assert len(listener.of(CallEnded)) == MAX_RERUN
    assert code_of(made[0], f"h0-{MAX_RERUN}") == code_of(made[99], "h99-0") == "result_lost"


async def test_no_more_calls_are_run_again_than_one_turn_may_hold() -> None:
    tool = CountingTool()
    recovery = Recovery(ScriptedToolbox({"echo"}, clock=tool), Listener(), most=1)
    [turn] = forgotten_turns(
        [raw(assistant_message(call("c")))], hint(*[ForgottenCall(0, f"h{n}", "clock", "{}") for n in range(2)]), {}
    )
    await recovery.make_again(turn)
    assert len(tool.calls) == 1


def test_no_more_calls_are_made_again_than_a_turn_may_hold() -> None:
    many = [ForgottenCall(0, f"h{n}", "clock", "{}") for n in range(MAX_CALLS + 1)]
    [turn] = forgotten_turns([raw(assistant_message(call("c")))], hint(*many), {})
    assert len(turn.calls) == MAX_CALLS


def test_what_is_kept_is_not_lost() -> None:
    kept = HiddenTurns((), assistant_message(call("c")), {})
    assert (
        list(
            forgotten_turns(
                [raw(assistant_message(call("c")))],
                hint(ForgottenCall(0, "h", "clock", "{}")),
                {handle_of("c", [], 0): kept},
            )
        )
        == []
    )


def test_a_hint_names_the_calls_that_ran_and_none_that_was_broken() -> None:
    ran, broken, own = call("h", "clock", '{"a":1}'), call("b", "clock"), call("c")
    hidden = HiddenTurns((), assistant_message(own, ran, broken), {"h": answer("h"), "b": answer("b")}, ran=("h",))
    assert hint_of(hidden) == {"house": [[1, "h", "clock", '{"a":1}']]}
    assert hint_of(HiddenTurns((), assistant_message(own, broken), {"b": answer("b")})) is None


def test_a_hint_stays_small() -> None:
    large = call("h", "clock", json.dumps({"a": "x" * MAX_HINT}))
    hidden = HiddenTurns((), assistant_message(large, call("c")), {"h": answer("h")}, ran=("h",))
    assert hint_of(hidden) == {"house": [[0, "h", "clock", None]]}


def test_hints_are_taken_out_and_everything_else_stays() -> None:
    marked = {**call("c"), "x_callgate": {"house": [[0, "h", "clock", "{}"]]}}
    odd = {**call("d"), "x_callgate": "nonsense"}
    user = raw({"role": "user", "content": "hi"})
    rest, hints = take_hints([user, raw({**assistant_message(marked, odd), "more": 1})])
    assert rest[0] is user
    assert msgspec.json.decode(rest[1]) == {**assistant_message(call("c"), call("d")), "more": 1}
    assert hints == {1: Hint([ForgottenCall(0, "h", "clock", "{}")])}
