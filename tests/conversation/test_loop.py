"""The loop: what is asked, what is run, what is emitted, and how a chat ends."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from callgate.calls.outcome import Failed, FailureKind, Image, Returned
from callgate.calls.states import BrokenCall, Finding, Flaw
from callgate.conversation import feedback
from callgate.conversation.attempts import Attempts
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import (
    Attempt,
    CallDelta,
    CallEnded,
    CallNotRun,
    CallsHandedBack,
    CallsNotAlone,
    CallStarted,
    CallWritten,
    ChatEnded,
    ChoiceIgnored,
    EndingKind,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ModelOutput,
    Passed,
    PromptedCalling,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    Responder,
    TextDelta,
    ThinkingBlock,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.loop import Rules, converse
from callgate.conversation.ports import NO_FIELDS, ModelRequest, Passthrough
from callgate.conversation.response_items import ITEMS
from callgate.conversation.usage import Usage
from callgate.tools.toolbox import ClientsOnly
from tests.fakes import (
    AnsweringTool,
    CountingTool,
    EchoTool,
    FailingTool,
    GatedTool,
    HangingTool,
    Listener,
    ReportingTool,
    ScriptedModel,
    ScriptedToolbox,
    Step,
    ask_for,
    broken_off,
    calls,
    counter,
    hangs,
    says,
)

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
USUAL = Rules()
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def chat(
    model: ScriptedModel,
    toolbox: ScriptedToolbox | None = None,
    request: ModelRequest | None = None,
    rules: Rules = USUAL,
    *,
    sees_images: bool = False,
) -> Listener:
    """A chat from its question to its end, and everything that was emitted on the way."""
    listener = Listener()
    box = toolbox or ScriptedToolbox(echo=EchoTool())
    async with asyncio.timeout(PATIENCE):
        await converse(
            request or ask_for(), model, box, listener, new_id=counter("made"), rules=rules, sees_images=sees_images
        )
    return listener


# Answers --------------------------------------------------------------------------------------------------------------


async def test_an_answer_without_calls_ends_the_chat() -> None:
    listener = await chat(ScriptedModel(says("Hello there.", usage={"prompt_tokens": 3, "completion_tokens": 2})))
    assert listener.text == "Hello there."
    assert listener.ended.ending.kind is EndingKind.ANSWERED
    assert listener.ended.ending.finish_reason == "stop"
    assert listener.ended.usage == Usage({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 0})


async def test_a_call_is_run_and_its_result_goes_back_to_the_model() -> None:
    model = ScriptedModel(calls(("echo", {"text": "hi"}), text="Let me see."), says("It said hi."))
    listener = await chat(model)
    assert listener.started == ["echo"]
    assert listener.ended.ending.kind is EndingKind.ANSWERED
    user, assistant, result = model.asked[1].messages
    assert user == {"role": "user", "content": "hello"}
    assert assistant["content"] == "Let me see."
    assert assistant["tool_calls"][0]["function"] == {"name": "echo", "arguments": '{"text": "hi"}'}
    assert result == {"role": "tool", "tool_call_id": "call_echo_0", "content": '{"text": "hi"}'}


async def test_what_the_client_sent_goes_on_as_the_bytes_it_was() -> None:
    raw = msgspec.Raw(b'{"role":"user",  "content":"hi", "x_odd": 1.50}')
    model = ScriptedModel(calls(("echo", {})), says("done"))
    await chat(model, request=ModelRequest(messages=(raw,)))
    assert all(asked.ask.messages[0] is raw for asked in model.asked)


async def test_usage_is_added_up_over_all_turns_details_included() -> None:
    first = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    second = {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 9},
    }
    listener = await chat(ScriptedModel(calls(("echo", {}), usage=first), says("ok", usage=second)))
    assert listener.ended.usage == Usage(
        {
            "prompt_tokens": 30,
            "completion_tokens": 12,
            "total_tokens": 42,
            "prompt_tokens_details": {"cached_tokens": 13},
        }
    )


async def test_a_text_that_was_cut_at_its_length_ends_as_length() -> None:
    listener = await chat(ScriptedModel(says("and then", finish="length")))
    assert listener.ended.ending.finish_reason == "length"


async def test_the_end_is_emitted_once_and_last_and_turns_come_in_order() -> None:
    listener = await chat(ScriptedModel(calls(("echo", {})), says("ok")))
    assert listener.kinds == [
        "TurnStarted",
        "TurnEnded",
        "CallStarted",
        "CallEnded",
        "TurnStarted",
        "TurnEnded",
        "ChatEnded",
    ]


# The gate -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["tool_calls", "stop", "length", None, "end_turn"])
async def test_truncated_arguments_are_never_run_but_explained_whatever_the_finish_reason(finish: str | None) -> None:
    tool = CountingTool()
    model = ScriptedModel(calls(("echo", '{"text": "h'), finish=finish), calls(("echo", {"text": "hi"})), says("ok"))
    listener = await chat(model, ScriptedToolbox(echo=tool))
    assert [call.arguments for call in tool.calls] == [{"text": "hi"}]
    assert listener.turns[0].answer.broken[0].flaw is Flaw.TRUNCATED
    correction = json.loads(model.asked[1].tool_results["call_echo_0"])
    assert correction["error"]["code"] == "truncated"
    assert model.asked[1].messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_whole_calls_run_though_another_of_the_turn_is_broken() -> None:
    model = ScriptedModel(calls(("echo", {"n": 1}), ("echo", '{"n": '), ("echo", {"n": 3})), says("ok"))
    box = ScriptedToolbox(echo=EchoTool())
    await chat(model, box)
    assert [call.arguments for call in box.ran] == [{"n": 1}, {"n": 3}]
    assert list(model.asked[1].tool_results) == ["call_echo_0", "call_echo_1", "call_echo_2"]


async def test_arguments_that_miss_the_schema_are_explained_with_their_place() -> None:
    model = ScriptedModel(calls(("weather", {"city": 7})), says("ok"))
    box = ScriptedToolbox(schemas={"weather": CITY}, weather=EchoTool())
    await chat(model, box)
    error = json.loads(model.asked[1].tool_results["call_weather_0"])["error"]
    assert (error["code"], error["pointer"]) == ("schema_mismatch", "/city")
    assert not box.ran


async def test_an_unknown_tool_is_explained_with_the_names_there_are() -> None:
    model = ScriptedModel(calls(("ecko", {})), says("ok"))
    await chat(model)
    error = json.loads(model.asked[1].tool_results["call_ecko_0"])["error"]
    assert error["code"] == "unknown_tool"
    assert error["did_you_mean"] == ["echo"]


async def test_stop_beside_calls_runs_them_and_is_a_finding() -> None:
    listener = await chat(ScriptedModel(calls(("echo", {}), finish="stop"), says("ok")))
    assert listener.started == ["echo"]
    assert Finding.TOOL_CALLS_WITH_STOP in listener.turns[0].answer.findings


async def test_tool_calls_beside_no_call_is_an_answer_and_a_finding() -> None:
    listener = await chat(ScriptedModel(says("That is all.", finish="tool_calls")))
    assert listener.ended.ending.finish_reason == "stop"
    assert Finding.FINISH_WITHOUT_TOOL_CALLS in listener.turns[0].answer.findings


async def test_a_filtered_turn_runs_nothing_and_ends_the_chat() -> None:
    box = ScriptedToolbox(echo=EchoTool())
    listener = await chat(ScriptedModel(calls(("echo", {}), finish="content_filter")), box)
    assert not box.ran
    assert listener.ended.ending.finish_reason == "content_filter"


@pytest.mark.parametrize("reason", ["LANGUAGE", "engine_dead", "gesprächsende", "max_retries"])
@pytest.mark.parametrize("name", ["echo", "theirs"])
async def test_beside_an_unknown_reason_no_call_runs_and_nobody_is_asked_again(reason: str, name: str) -> None:
    box = ScriptedToolbox({"theirs"}, echo=EchoTool())
    model = ScriptedModel(calls((name, {"n": 1}), text="I look.", finish=reason), says("never"))
    listener = await chat(model, box)
    assert (len(model.asked), box.ran, listener.of(CallsHandedBack)) == (1, [], [])
    assert listener.text == "I look."
    ending = listener.ended.ending
    assert (ending.kind, ending.finish_reason, ending.note) == (EndingKind.GAVE_UP, "length", "unknown_finish_reason")
    account = listener.turns[0].answer
    assert [call.flaw for call in account.calls if isinstance(call, BrokenCall)] == [Flaw.UPSTREAM_ERROR]
    assert (account.unknown_reasons, account.is_cut) == ((reason,), True)
    assert not [attempt for attempt in listener.of(Attempt) if attempt.reason]


@pytest.mark.parametrize("reason", ["LANGUAGE", "engine_dead", "gesprächsende", "max_retries"])
async def test_text_with_an_unknown_reason_is_passed_on_as_an_answer(reason: str) -> None:
    listener = await chat(ScriptedModel(says("That is all.", finish=reason)))
    ending = listener.ended.ending
    assert (listener.text, ending.kind, ending.finish_reason) == ("That is all.", EndingKind.ANSWERED, "stop")
    account = listener.turns[0].answer
    assert (account.unknown_reasons, account.is_cut) == ((reason,), False)


async def test_at_its_limit_a_chat_ends_as_cut_where_calls_beside_an_unknown_reason_were_left_out() -> None:
    model = ScriptedModel(calls(("echo", {})), calls(("echo", {})), calls(("echo", {}), finish="LANGUAGE"))
    listener = await chat(model, rules=Rules(max_iterations=1))
    assert (listener.ended.ending.kind, listener.ended.ending.finish_reason) == (EndingKind.TURN_LIMIT, "length")


@pytest.mark.parametrize("word", ["plenty", "max_retries"])
async def test_bytes_with_an_unknown_reason_are_an_answer_like_any_other(word: str) -> None:
    listener = await passed([Passed(b"a", (Finished(word),))])
    ending = listener.ended.ending
    assert (ending.kind, ending.finish_reason, ending.note) == (EndingKind.ANSWERED, "stop", "")
    assert listener.turns[0].answer.unknown_reasons == (word,)
    listener = await passed([Passed(b"a", (Finished(word), Finished("error")))])
    assert listener.ended.ending.note == "upstream_error"


async def test_a_text_without_a_reason_is_cut_where_its_deployment_has_sent_reasons_before() -> None:
    for gives_reasons, finish in ((True, "length"), (False, "stop")):
        model = GuidedModel(says("Half a", finish=None))
        model.gives_reasons = gives_reasons
        listener = await chat(model)
        account = listener.turns[0].answer
        assert (listener.ended.ending.finish_reason, account.is_cut) == (finish, gives_reasons)
        assert account.findings == (Finding.MISSING_FINISH_REASON,)
        model = GuidedModel(says("All of it."))
        model.gives_reasons = gives_reasons
        assert (await chat(model)).ended.ending.finish_reason == "stop"


async def test_calls_without_a_reason_run_whatever_their_deployment_sent_before() -> None:
    box = ScriptedToolbox(echo=EchoTool())
    model = GuidedModel(calls(("echo", {"n": 1}), finish=None), says("ok"))
    model.gives_reasons = True
    listener = await chat(model, box)
    assert [call.arguments for call in box.ran] == [{"n": 1}]
    assert listener.ended.ending.finish_reason == "stop"


async def test_under_length_a_whole_call_still_runs() -> None:
    box = ScriptedToolbox(echo=EchoTool())
    await chat(ScriptedModel(calls(("echo", {"n": 1}), ("echo", '{"n"'), finish="length"), says("ok")), box)
    assert [call.arguments for call in box.ran] == [{"n": 1}]


async def test_cut_off_twice_the_chat_ends_as_length() -> None:
    cut = calls(("echo", '{"text": "h'), finish="length")
    model = ScriptedModel(cut, cut)
    listener = await chat(model)
    assert len(model.asked) == 2
    assert listener.ended.ending.kind is EndingKind.GAVE_UP
    assert listener.ended.ending.finish_reason == "length"
    assert not listener.of(CallsHandedBack)


async def test_cut_off_twice_the_clients_own_call_is_handed_back_as_it_was_sent() -> None:
    cut = calls(("echo", '{"text": "h'), ("lookup", '{"key": "a'), finish="length")
    box = ScriptedToolbox({"lookup"}, echo=EchoTool())
    box_plans_broken_ones(box)
    listener = await chat(ScriptedModel(cut, cut), box)
    assert [(call.name, call.text) for call in listener.handed_back] == [("lookup", '{"key": "a')]


def box_plans_broken_ones(box: ScriptedToolbox) -> None:
    """`ScriptedToolbox` hands a client's broken calls back at once; a request's toolbox has the model try again."""
    from callgate.calls.states import BrokenCall
    from callgate.conversation.ports import Plan

    given = box.plan

    def plan(settled: Any) -> Plan:
        first = given(settled)
        broken = tuple(call for call in settled if isinstance(call, BrokenCall))
        return Plan(first.ours, tuple(call for call in first.theirs if call not in broken), broken)

    box.plan = plan  # type: ignore[method-assign]


# Limits ---------------------------------------------------------------------------------------------------------------


async def test_a_loop_that_never_ends_gets_ten_turns_and_one_answer_without_tools() -> None:
    endless = [calls(("echo", {"n": n}), ids=[f"call_{n}"]) for n in range(11)]
    model = ScriptedModel(*endless, says("Here is what I found."))
    box = ScriptedToolbox(echo=EchoTool())
    listener = await chat(model, box)
    assert len(box.ran) == 10
    assert listener.ended.ending.kind is EndingKind.TURN_LIMIT
    assert listener.ended.ending.finish_reason == "stop"
    assert listener.text == "Here is what I found."
    last = model.asked[-1]
    assert not last.ask.tools
    assert last.ask.tool_choice is None
    assert last.tool_results["call_10"] == feedback.LIMIT_REACHED
    assert [last.tool_results[f"call_{n}"] for n in range(10)] == [f'{{"n": {n}}}' for n in range(10)]


async def test_exactly_as_many_turns_as_allowed_end_as_an_answer() -> None:
    model = ScriptedModel(calls(("echo", {"n": 1})), calls(("echo", {"n": 2})), says("ok"))
    listener = await chat(model, rules=Rules(max_iterations=2))
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_a_model_that_calls_even_without_tools_is_not_run() -> None:
    model = ScriptedModel(calls(("echo", {"n": 1})), calls(("echo", {"n": 2})), calls(("echo", {"n": 3}), text="Well."))
    box = ScriptedToolbox(echo=EchoTool())
    listener = await chat(model, box, rules=Rules(max_iterations=1))
    assert len(box.ran) == 1
    assert listener.ended.ending.finish_reason == "stop"


async def test_three_turns_in_which_nothing_worked_end_the_loop() -> None:
    broken = [calls(("echo", '{"a"')), calls(("nope", {})), calls(("fail", {}))]
    model = ScriptedModel(*broken, says("I cannot do it."))
    listener = await chat(model, ScriptedToolbox(echo=EchoTool(), fail=FailingTool()))
    assert listener.ended.ending.note == "failed_turns"
    assert not model.asked[3].ask.tools


async def test_one_success_resets_the_count_of_failures() -> None:
    bad, good = calls(("fail", {})), calls(("echo", {}))
    model = ScriptedModel(bad, bad, good, bad, bad, says("ok"))
    listener = await chat(model, ScriptedToolbox(echo=EchoTool(), fail=FailingTool()))
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_the_same_call_with_the_same_result_three_times_running_ends_the_loop() -> None:
    same = calls(("echo", {"n": 1}))
    model = ScriptedModel(same, same, same, says("It does not change."))
    listener = await chat(model)
    assert listener.ended.ending.note == "repeated_call"
    assert listener.text == "It does not change."


async def test_a_chat_that_has_spent_its_tokens_answers_without_tools() -> None:
    dear = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
    model = ScriptedModel(
        calls(("echo", {"n": 1}), usage=dear), calls(("echo", {"n": 2}), usage=dear), says("That was enough.")
    )
    listener = await chat(model, rules=Rules(max_tokens=2000))
    assert (listener.ended.ending.kind, listener.ended.ending.note) == (EndingKind.TURN_LIMIT, "tokens")
    assert not model.asked[2].ask.tools
    assert listener.text == "That was enough."


async def test_the_same_call_with_other_results_may_go_on() -> None:
    poll = calls(("poll", {}))
    model = ScriptedModel(poll, poll, poll, poll, says("Done."))
    listener = await chat(model, ScriptedToolbox(poll=AnsweringTool("1 %", "40 %", "90 %", "100 %")))
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_more_calls_than_a_turn_may_have_are_answered_and_not_run() -> None:
    model = ScriptedModel(calls(*[("echo", {"n": n}) for n in range(5)]), says("ok"))
    box = ScriptedToolbox(echo=EchoTool())
    await chat(model, box, rules=Rules(max_calls_per_turn=3))
    assert len(box.ran) == 3
    assert len(model.asked[1].tool_results) == 5


async def test_more_calls_than_a_chat_may_have_are_answered_and_not_run_in_whichever_turn() -> None:
    turns = [calls(*[("echo", {"turn": turn, "n": n}) for n in range(2)]) for turn in range(3)]
    model = ScriptedModel(*turns, says("ok"))
    box = ScriptedToolbox(echo=EchoTool())
    await chat(model, box, rules=Rules(max_calls=3))
    assert len(box.ran) == 3
    answered = [sum(message.get("role") == "tool" for message in asked.messages) for asked in model.asked]
    assert answered == [0, 2, 4, 6]


# tool_choice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "echo"}}])
async def test_a_forced_choice_is_honoured_once_and_then_the_model_may_answer(choice: Any) -> None:
    model = ScriptedModel(calls(("echo", {})), says("ok"))
    await chat(model, request=ask_for(tool_choice=choice))
    assert [asked.ask.tool_choice for asked in model.asked] == [choice, "auto"]


async def test_without_a_choice_none_is_made_up() -> None:
    model = ScriptedModel(calls(("echo", {})), says("ok"))
    await chat(model)
    assert [asked.ask.tool_choice for asked in model.asked] == [None, None]


# Running --------------------------------------------------------------------------------------------------------------


async def test_calls_of_one_turn_run_together_and_answer_in_their_order() -> None:
    gated, quick = GatedTool(), CountingTool()
    model = ScriptedModel(calls(("slow", {"n": 1}), ("quick", {"n": 2})), says("ok"))
    listener = Listener()
    box = ScriptedToolbox(slow=gated, quick=quick)
    chat = asyncio.create_task(converse(ask_for(), model, box, listener, new_id=counter("made")))
    await quick.wait(1)
    gated.gate.set()
    await chat
    assert list(model.asked[1].tool_results.values()) == ['{"n": 1}', '{"n": 2}']


async def test_calls_run_one_at_a_time_if_the_rules_require_it() -> None:
    counting = CountingTool()
    model = ScriptedModel(calls(*[("echo", {"n": n}) for n in range(4)]), says("ok"))
    await chat(model, ScriptedToolbox(echo=counting), rules=Rules(max_parallel_calls=1))
    assert (len(counting.calls), counting.peak) == (4, 1)


async def test_a_failure_is_an_answer_to_the_model() -> None:
    model = ScriptedModel(calls(("fail", {})), says("I am sorry."))
    listener = await chat(model, ScriptedToolbox(fail=FailingTool("no such city")))
    assert model.asked[1].tool_results["call_fail_0"] == "no such city"
    assert listener.outcomes["call_fail_0"] == Failed("no such city", FailureKind.RAISED)


async def test_progress_is_emitted() -> None:
    model = ScriptedModel(calls(("work", {})), says("ok"))
    listener = await chat(model, ScriptedToolbox(work=ReportingTool("half", "whole")))
    assert listener.kinds.count("CallProgress") == 2


@pytest.mark.parametrize("sees", [True, False])
async def test_images_are_shown_to_models_that_see_and_described_to_others(sees: bool) -> None:
    picture = Returned("a cat", images=(Image("aGk=", "image/png"),))
    model = ScriptedModel(calls(("draw", {})), says("Nice."))
    await chat(model, ScriptedToolbox(draw=AnsweringTool(picture)), sees_images=sees)
    messages = model.asked[1].messages
    assert "aGk=" not in messages[2]["content"]
    assert (messages[-1]["role"] == "user") is sees
    assert ("data:image/png;base64,aGk=" in json.dumps(messages[-1])) is sees


# The client's own calls -----------------------------------------------------------------------------------------------


async def test_a_call_of_the_clients_is_handed_back_and_not_run() -> None:
    listener = await chat(ScriptedModel(calls(("lookup", {"k": 1}))), ScriptedToolbox({"lookup"}, echo=EchoTool()))
    assert listener.ended.ending.kind is EndingKind.HANDED_BACK
    assert listener.ended.ending.finish_reason == "tool_calls"
    assert [call.name for call in listener.handed_back] == ["lookup"]
    assert not listener.of(CallStarted)
    assert all(output.events for output in listener.of(ModelOutput))


# Models that fail -----------------------------------------------------------------------------------------------------


async def test_an_answer_that_broke_off_before_any_content_is_asked_again() -> None:
    lost: list[Step] = broken_off(calls(("echo", {"n": 1})), BrokenOff("reset", transport_error=True), keep=2)
    model = ScriptedModel(lost, calls(("echo", {"n": 2})), says("ok"))
    box = ScriptedToolbox(echo=EchoTool())
    listener = await chat(model, box)
    assert [call.arguments for call in box.ran] == [{"n": 2}]
    assert len(listener.of(Attempt)) == 1


async def test_an_answer_that_broke_off_after_content_was_passed_on_is_an_error() -> None:
    lost = broken_off(says("Once upon a time"), BrokenOff("cut", transport_error=False), keep=1)
    model = ScriptedModel(lost)
    with pytest.raises(ChatError) as caught:
        await chat(model)
    assert caught.value.status == 502


async def test_a_broken_unstreamed_answer_is_asked_again_even_with_text_in_it() -> None:
    lost: list[Step] = [[TextDelta("half")], BrokenOff("cut", transport_error=False)]
    listener = await chat(ScriptedModel(lost, says("whole")), request=ask_for(stream=False))
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_an_answer_that_keeps_breaking_off_is_an_error_and_runs_nothing() -> None:
    lost = broken_off(calls(("echo", {"n": 1})), BrokenOff("cut", transport_error=False), keep=2)
    box = ScriptedToolbox(echo=EchoTool())
    with pytest.raises(ChatError):
        await chat(ScriptedModel(lost, lost, lost), box)
    assert not box.ran


async def test_a_break_after_the_finish_reason_means_nothing() -> None:
    done = calls(("echo", {"n": 1}))
    model = ScriptedModel([*done, BrokenOff("late", transport_error=True)], says("ok"))
    box = ScriptedToolbox(echo=EchoTool())
    await chat(model, box)
    assert len(box.ran) == 1


async def test_an_error_inside_the_answer_runs_nothing() -> None:
    failed: list[Step] = [*calls(("echo", {"n": 1}), finish=None), [ProviderError("overloaded")], [Finished("stop")]]
    box = ScriptedToolbox(echo=EchoTool())
    with pytest.raises(ChatError) as caught:
        await chat(ScriptedModel(failed, failed, failed), box)
    assert caught.value.code == "upstream_error"
    assert not box.ran


async def test_a_refusal_of_the_provider_comes_out_as_it_is() -> None:
    refused = ChatError(429, "slow down", code="rate_limit_exceeded")
    with pytest.raises(ChatError) as caught:
        await chat(ScriptedModel([refused]))
    assert caught.value is refused


# Cancelling -----------------------------------------------------------------------------------------------------------


async def test_cancelling_closes_the_models_answer() -> None:
    model = ScriptedModel(hangs())
    listener = Listener()
    chat = asyncio.create_task(converse(ask_for(), model, ScriptedToolbox(), listener, new_id=counter("made")))
    await listener.wait_for(TurnStarted)
    chat.cancel()
    await asyncio.wait({chat})
    await model.asked[0].closed.wait()
    assert model.asked[0].end == "cancelled"


async def test_cancelling_stops_every_tool_that_runs() -> None:
    one, two = HangingTool(), HangingTool()
    model = ScriptedModel(calls(("one", {}), ("two", {})))
    chat = asyncio.create_task(
        converse(ask_for(), model, ScriptedToolbox(one=one, two=two), Listener(), new_id=counter("made"))
    )
    await one.started.wait()
    await two.started.wait()
    chat.cancel()
    await asyncio.wait({chat})
    assert one.cancelled.is_set()
    assert two.cancelled.is_set()
    assert len(model.asked) == 1


# What is passed on, and what is not ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [
        ExtraField("refusal", "I cannot"),
        ExtraField("images", [{"image_url": {"url": "data:"}}]),
        ExtraField("audio", {"id": "a", "data": "UklGRg=="}),
        ExtraField("annotations", [{"type": "url_citation"}]),
        ExtraField("some_new_field", 1),
        ExtraField(ITEMS, [{"item": {"type": "message"}}, {"item": {"type": "reasoning"}}]),
        ThinkingBlock({"type": "thinking", "thinking": "hm"}),
        Logprobs({"content": [{"token": "a"}]}),
        ReasoningDelta("hm"),
        TextDelta("Hel"),
    ],
    ids=lambda event: getattr(event, "field", type(event).__name__),
)
async def test_a_turn_of_which_anything_was_shown_is_not_asked_again_when_it_breaks_off(shown: ModelEvent) -> None:
    model = ScriptedModel([[shown], BrokenOff("reset", transport_error=True)], says("ok"))
    with pytest.raises(ChatError):
        await chat(model)
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    "hidden",
    [
        CallDelta(0, "c", "echo", "{"),
        Usage({"total_tokens": 1}),
        ChoiceIgnored(1),
        ExtraField(ITEMS, [{"item": {"type": "message"}}]),
    ],
    ids=lambda event: type(event).__name__,
)
async def test_a_turn_of_which_nothing_was_shown_is_asked_again_when_it_breaks_off(hidden: ModelEvent) -> None:
    model = ScriptedModel([[hidden], BrokenOff("reset", transport_error=True)], says("ok"))
    listener = await chat(model)
    assert text_of(listener) == "ok"
    assert len(listener.of(Attempt)) == 1
    assert not is_held(listener)


async def test_what_is_shown_beside_items_that_are_not_is_not_asked_again() -> None:
    batch = [ExtraField(ITEMS, [{"item": {"type": "message"}}]), ExtraField("refusal", "no")]
    with pytest.raises(ChatError):
        await chat(ScriptedModel([batch, BrokenOff("reset", transport_error=True)], says("ok")))


JSON_ANSWER = {"response_format": {"type": "json_object"}}


def text_of(listener: Listener) -> str:
    events = [event for output in listener.of(ModelOutput) for event in output.events]
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_text_of_a_turn_that_calls_our_tools_is_no_part_of_an_answer_in_json() -> None:
    model = ScriptedModel(calls(("echo", {"n": 1}), text="Let me see. "), says('{"n":1}'))
    assert text_of(await chat(model, request=ask_for(params=JSON_ANSWER))) == '{"n":1}'


async def test_text_of_a_turn_whose_calls_were_broken_is_no_part_of_an_answer_in_json() -> None:
    broken = calls(("nobody", {}), text="Let me see. ")
    assert text_of(await chat(ScriptedModel(broken, says("{}")), request=ask_for(params=JSON_ANSWER))) == "{}"


async def test_text_beside_the_clients_calls_alone_is_part_of_an_answer_in_json() -> None:
    box = ScriptedToolbox({"theirs"}, echo=EchoTool())
    listener = await chat(ScriptedModel(calls(("theirs", {}), text="{}")), box, ask_for(params=JSON_ANSWER))
    assert text_of(listener) == "{}"
    kinds = [type(event) for event in listener.events]
    assert kinds.index(ModelOutput, kinds.index(TurnEnded)) < kinds.index(CallsHandedBack)


async def test_text_beside_calls_of_both_sides_is_no_part_of_an_answer_in_json() -> None:
    box = ScriptedToolbox({"theirs"}, echo=EchoTool())
    listener = await chat(
        ScriptedModel(calls(("theirs", {}), ("echo", {}), text="So. ")), box, ask_for(params=JSON_ANSWER)
    )
    assert text_of(listener) == ""


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_text_of_the_last_turn_is_the_answer_in_json_however_it_ended(reason: str) -> None:
    model = ScriptedModel(says('{"n":', finish=reason))
    assert text_of(await chat(model, request=ask_for(params=JSON_ANSWER))) == '{"n":'


async def test_an_answer_in_json_that_broke_off_before_it_was_sent_is_asked_again_and_given_once() -> None:
    model = ScriptedModel([[TextDelta('{"a')], BrokenOff("reset", transport_error=True)], says("{}"))
    assert text_of(await chat(model, request=ask_for(params=JSON_ANSWER))) == "{}"


async def test_half_a_call_of_the_clients_under_length_is_handed_back_as_length() -> None:
    box = ScriptedToolbox({"theirs"}, echo=EchoTool())
    half = await chat(ScriptedModel(calls(("theirs", {}), ("theirs", '{"a'), finish="length")), box)
    assert half.of(ChatEnded)[0].ending.finish_reason == "length"
    whole = await chat(ScriptedModel(calls(("theirs", {"a": 1}), finish="length")), box)
    assert whole.of(ChatEnded)[0].ending.finish_reason == "tool_calls"
    broken = await chat(ScriptedModel(calls(("theirs", {}), ("theirs", "{'a'}"))), box)
    assert broken.of(ChatEnded)[0].ending.finish_reason == "tool_calls"


async def test_a_turn_that_always_breaks_off_before_content_is_asked_again_only_so_often() -> None:
    step: list[Step] = [[CallDelta(0, "c", "echo", "{")], BrokenOff("reset", transport_error=True)]
    model = ScriptedModel(step, repeat_last=True)
    with pytest.raises(ChatError):
        await chat(model)
    assert len(model.asked) == 3


@pytest.mark.parametrize(
    ("usage", "turns"),
    [
        ({"prompt_tokens": 6, "completion_tokens": 5}, 2),
        ({"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 3}, 3),
    ],
)
async def test_tokens_are_the_providers_total_or_else_the_sum_of_its_parts(usage: dict[str, int], turns: int) -> None:
    turn, other = calls(("echo", {"n": 1}), usage=usage), calls(("echo", {"n": 2}))
    model = ScriptedModel(turn, other, says("ok"))
    await chat(model, rules=Rules(max_tokens=10))
    assert [bool(asked.ask.tools) for asked in model.asked[:2]] == [True, turns == 3]


# What a turn is said to have been -------------------------------------------------------------------------------------


async def test_the_account_of_a_turn_says_what_came_how_long_it_took_and_who_answered() -> None:
    model = ScriptedModel(
        [
            [ProviderHead("r1", "m")],
            *calls(("echo", {}), ("theirs", {}), ("echo", '{"n"'), finish="length", usage={"total_tokens": 5}),
        ],
        reason_is_raw=False,
    )
    times = iter([10.0, 12.0, 17.0, 20.0, 24.0])
    listener = Listener()
    box = ScriptedToolbox({"theirs"}, echo=EchoTool())
    rules, new_id = Rules(), counter("made")
    await converse(ask_for(), model, box, listener, new_id=new_id, rules=rules, clock=lambda: next(times))
    [account] = [turn.answer for turn in listener.turns]
    assert (account.first_seconds, account.seconds) == (2.0, 7.0)
    assert (account.reasons, account.usage, account.findings) == (
        ("length",),
        Usage({"total_tokens": 5}),
        (Finding.TOOL_CALLS_WITH_LENGTH,),
    )
    assert ([call.name for call in account.run], [call.name for call in account.handed_back]) == (["echo"], ["theirs"])
    assert [call.flaw for call in account.broken] == [Flaw.TRUNCATED]
    assert (account.reason_is_raw, account.lane, account.attempts) == (False, "scripted", 1)
    assert account.head == ProviderHead("r1", "m")
    assert [event.seconds for event in listener.of(CallEnded)] == [4.0]
    assert listener.ended.last is not None
    assert listener.ended.last.assistant_message()["tool_calls"][1]["function"]["name"] == "theirs"


async def test_the_account_of_a_turn_that_was_asked_again_counts_from_the_first_question() -> None:
    model = ScriptedModel([[CallDelta(0, "c", "echo", "{")], BrokenOff("reset", transport_error=True)], says("ok"))
    times = iter([10.0, 11.0, 13.0, 20.0, 26.0, 30.0])
    listener = Listener()
    await converse(
        ask_for(), model, ScriptedToolbox(echo=EchoTool()), listener, new_id=counter("m"), clock=lambda: next(times)
    )
    [attempt] = listener.of(Attempt)
    assert (attempt.seconds, attempt.reason) == (3.0, "upstream_broke_off")
    [account] = [turn.answer for turn in listener.turns]
    assert (account.first_seconds, account.seconds, account.attempts) == (16.0, 20.0, 2)


async def test_the_account_of_a_prompted_turn_says_how_it_was_asked_and_what_was_no_call() -> None:
    prompted, quoted = PromptedCalling("hermes"), CallNotRun("echo", "quoted")
    listener = await chat(ScriptedModel([[prompted, quoted, TextDelta("Hm.")], [Finished("stop")]]))
    assert (listener.turns[0].answer.prompted, listener.turns[0].answer.not_run) == (prompted, (quoted,))


async def test_an_error_in_the_middle_of_an_answer_is_one_that_may_be_tried_again() -> None:
    failed: list[Step] = [[TextDelta("Hel")], [ProviderError("overloaded")]]
    with pytest.raises(ChatError) as caught:
        await chat(ScriptedModel(failed))
    error = caught.value
    assert (error.status, error.type, error.code) == (502, "server_error", "upstream_error")
    assert (error.detail, error.retryable) == ("overloaded", True)
    with pytest.raises(ChatError) as caught:
        await chat(ScriptedModel([[TextDelta("Hel")], BrokenOff("cut", transport_error=False)]))
    assert (caught.value.code, caught.value.detail, caught.value.retryable) == ("upstream_broke_off", None, True)


async def test_how_a_body_broke_off_decides_nothing_where_the_reason_had_come() -> None:
    for transport_error in (False, True):
        lost: list[Step] = [
            [TextDelta("whole")],
            [Finished("stop")],
            BrokenOff("late", transport_error=transport_error),
        ]
        assert (await chat(ScriptedModel(lost))).ended.ending.kind is EndingKind.ANSWERED


@pytest.mark.parametrize("fragments", [True, False])
async def test_fragments_of_calls_are_emitted_only_for_whom_they_are_shown_to(fragments: bool) -> None:
    pieces: list[Step] = [
        [CallDelta(0, "c", "echo", "{")],
        [CallDelta(0, arguments=" ")],
        [CallDelta(0, arguments="}")],
    ]
    model = ScriptedModel([*pieces, [Finished("stop")]], says("ok", piece=2))
    listener = await chat(model, rules=Rules(emit_fragments=fragments))
    first = [output for output in listener.of(ModelOutput) if output.turn == 0]
    assert len(first) == (4 if fragments else 2), "the first of a turn always says that it has begun"


# Answers that go to the client in their provider's own bytes ----------------------------------------------------------


def passthrough(*, stream: bool = True) -> Passthrough:
    return Passthrough(NO_FIELDS, stream, include_usage=True, n=1, has_tools=False, read=lambda: ask_for(stream=stream))


async def passed(*steps: Step, stream: bool = True) -> Listener:
    listener = Listener()
    model = ScriptedModel(list(steps))
    box = ScriptedToolbox()
    async with asyncio.timeout(PATIENCE):
        await converse(passthrough(stream=stream), model, box, listener, new_id=counter("made"))
    return listener


@pytest.mark.parametrize(
    ("reasons", "kind", "finish"),
    [
        ((), EndingKind.ANSWERED, "stop"),
        (("stop",), EndingKind.ANSWERED, "stop"),
        (("length",), EndingKind.ANSWERED, "length"),
        (("stop", "length", "stop"), EndingKind.ANSWERED, "length"),
        (("tool_calls",), EndingKind.HANDED_BACK, "tool_calls"),
        (("content_filter",), EndingKind.GAVE_UP, "content_filter"),
    ],
)
async def test_bytes_are_emitted_as_they_are_and_end_as_their_reasons_say(
    reasons: tuple[str, ...], kind: EndingKind, finish: str
) -> None:
    pieces = [
        Passed(b"a"),
        Passed(b"b", tuple(map(Finished, reasons))),
        Passed(b"c", usage=Usage({"total_tokens": 3})),
        Passed(b"d"),
    ]
    listener = await passed(*([piece] for piece in pieces))
    assert listener.of(Passed) == pieces
    assert not listener.of(ModelOutput)
    assert (listener.ended.ending.kind, listener.ended.ending.finish_reason) == (kind, finish)
    assert listener.ended.usage == Usage({"total_tokens": 3})
    account = listener.turns[0].answer
    assert (account.reasons, account.usage) == (tuple(dict.fromkeys(reasons)), Usage({"total_tokens": 3}))
    assert (account.findings, account.lane) == ((), "scripted")


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ([Passed(b"b"), ProviderError("overloaded")], "upstream_error"),
        (BrokenOff("cut", transport_error=False), "upstream_broke_off"),
        (BrokenOff("cut", transport_error=True), "upstream_broke_off"),
    ],
)
async def test_bytes_that_were_sent_are_not_asked_for_again_when_they_break_off(last: Step, code: str) -> None:
    with pytest.raises(ChatError) as caught:
        await passed([Passed(b"a")], last)
    assert caught.value.code == code


async def test_bytes_whose_reason_has_come_are_whole_however_the_body_ends() -> None:
    listener = await passed([Passed(b"a", (Finished("stop"),))], BrokenOff("late", transport_error=True))
    assert listener.ended.ending.kind is EndingKind.ANSWERED
    assert listener.turns[0].answer.findings == ()


async def test_an_answer_to_a_question_in_bytes_may_be_events() -> None:
    listener = await passed(*says("Hello."))
    assert (listener.text, listener.ended.ending.finish_reason) == ("Hello.", "stop")


# Models that take no form of the answer beside tools ------------------------------------------------------------------


async def formed(model: ScriptedModel, box: ScriptedToolbox | None = None, **fields: Any) -> Listener:
    listener = Listener()
    async with asyncio.timeout(PATIENCE):
        await converse(
            ask_for(**fields),
            model,
            box or ScriptedToolbox(echo=EchoTool()),
            listener,
            new_id=counter("made"),
            format_with_tools=False,
        )
    return listener


@pytest.mark.parametrize(("finish", "ended"), [("stop", "stop"), ("length", "length")])
async def test_the_answer_in_its_form_is_asked_for_when_no_tool_is_wanted_any_more(finish: str, ended: str) -> None:
    model = ScriptedModel(calls(("echo", {}), text="Let me see."), says("It is 1."), says('{"n":1}', finish=finish))
    params = JSON_ANSWER | {"parallel_tool_calls": False, "seed": 1}
    listener = await formed(model, params=params, tool_choice="required")
    assert listener.text == '{"n":1}'
    assert (listener.ended.ending.kind, listener.ended.ending.finish_reason) == (EndingKind.ANSWERED, ended)
    assert [dict(asked.ask.params) for asked in model.asked] == [
        {"parallel_tool_calls": False, "seed": 1},
        {"parallel_tool_calls": False, "seed": 1},
        JSON_ANSWER | {"seed": 1},
    ]
    assert [(bool(asked.ask.tools), asked.ask.tool_choice) for asked in model.asked] == [
        (True, "required"),
        (True, "auto"),
        (False, None),
    ]
    assert len(model.asked[2].messages) == len(model.asked[1].messages), "what it said on the way is no part of it"
    assert [turn.turn for turn in listener.turns] == [0, 1, 2]


async def test_without_a_form_the_answer_is_the_first_one() -> None:
    assert (await formed(ScriptedModel(says("Hello.")))).text == "Hello."
    listener = Listener()
    model = ScriptedModel([[Passed(b"a", (Finished("stop"),))]])
    ending = await converse(
        passthrough(), model, ScriptedToolbox(), listener, new_id=counter("made"), format_with_tools=False
    )
    assert (ending, len(listener.of(Passed))) == (listener.ended.ending, 1)


async def test_what_was_said_on_the_way_to_a_form_may_be_asked_for_again() -> None:
    model = ScriptedModel([[TextDelta("Hm")], BrokenOff("cut", transport_error=True)], says("So."), says("{}"))
    assert (await formed(model, params=JSON_ANSWER)).text == "{}"


async def test_a_form_is_no_way_out_of_a_limit() -> None:
    same = calls(("echo", {"n": 1}))
    listener = await formed(ScriptedModel(same, same, same, says("{}")), params=JSON_ANSWER)
    assert (listener.ended.ending.kind, listener.ended.ending.note) == (EndingKind.TURN_LIMIT, "repeated_call")


# How a chat ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("finish", "ended"), [("stop", "stop"), ("length", "length")])
async def test_at_a_limit_the_last_answer_says_whether_it_was_cut(finish: str, ended: str) -> None:
    model = ScriptedModel(calls(("echo", {})), calls(("echo", {})), says("Well", finish=finish))
    listener = await chat(model, rules=Rules(max_iterations=1))
    assert (listener.ended.ending.kind, listener.ended.ending.finish_reason) == (EndingKind.TURN_LIMIT, ended)
    assert listener.ended.ending.note == "max_iterations"


async def test_at_a_limit_nothing_that_was_filtered_is_an_answer() -> None:
    model = ScriptedModel(calls(("echo", {})), calls(("echo", {})), says("W", finish="content_filter"))
    listener = await chat(model, rules=Rules(max_iterations=1))
    assert (listener.ended.ending.kind, listener.ended.ending.note) == (EndingKind.GAVE_UP, "content_filter")


async def test_without_tools_the_request_has_no_parameters_for_calls() -> None:
    model = ScriptedModel(calls(("echo", {})), calls(("echo", {})), says("Well."))
    params = {"parallel_tool_calls": False, "seed": 1}
    await chat(model, request=ask_for(params=params, tool_choice="none"), rules=Rules(max_iterations=1))
    assert [dict(asked.ask.params) for asked in model.asked] == [params, params, {"seed": 1}]
    assert [asked.ask.tool_choice for asked in model.asked] == ["none", "none", None]


async def test_a_turn_of_both_sides_is_kept_with_what_ours_came_to() -> None:
    box = ScriptedToolbox({"theirs"}, echo=EchoTool())
    model = ScriptedModel(calls(("theirs", {}), ("echo", {"n": 1}), text="So."))
    listener = await chat(model, box)
    [back] = listener.of(CallsHandedBack)
    assert back.hidden is not None
    assert [result["content"] for result in back.hidden.results.values()] == ['{"n": 1}']
    assert listener.ended.ending.finish_reason == "tool_calls"


async def test_only_two_cut_turns_end_a_chat_and_one_that_ran_is_none() -> None:
    cut, whole = calls(("echo", '{"a'), finish="length"), calls(("echo", {}), ("echo", '{"a'), finish="length")
    listener = await chat(ScriptedModel(whole, whole, cut, says("ok")))
    assert listener.ended.ending.kind is EndingKind.ANSWERED
    listener = await chat(ScriptedModel(cut, cut))
    assert (listener.ended.ending.kind, listener.ended.ending.note) == (EndingKind.GAVE_UP, "cut_off_twice")


async def test_text_beside_the_clients_call_that_was_cut_off_twice_is_part_of_an_answer_in_json() -> None:
    cut = calls(("lookup", '{"key": "a'), text="{}", finish="length")
    box = ScriptedToolbox({"lookup"}, echo=EchoTool())
    box_plans_broken_ones(box)
    listener = await chat(ScriptedModel(cut, cut), box, ask_for(params=JSON_ANSWER))
    assert listener.text == "{}"
    kinds = [type(event) for event in listener.events]
    assert kinds.index(CallsHandedBack) > max(at for at, kind in enumerate(kinds) if kind is ModelOutput)


# How calls are counted ------------------------------------------------------------------------------------------------


async def test_exactly_as_many_calls_as_allowed_are_run() -> None:
    for rules in (Rules(max_calls_per_turn=3), Rules(max_calls=3)):
        model = ScriptedModel(calls(*[("echo", {"n": n}) for n in range(3)]), says("ok"))
        box = ScriptedToolbox(echo=EchoTool())
        await chat(model, box, rules=rules)
        assert [call.arguments for call in box.ran] == [{"n": n} for n in range(3)]


async def test_each_call_that_is_not_run_is_answered_with_its_reason() -> None:
    turn = calls(*[("echo", {"n": n}) for n in range(5)])
    other = calls(*[("echo", {"m": n}) for n in range(2)], ids=["x0", "x1"])
    model = ScriptedModel(turn, other, says("ok"))
    await chat(model, rules=Rules(max_calls_per_turn=4, max_calls=2))
    assert list(model.asked[2].tool_results.values()) == [
        '{"n": 0}',
        '{"n": 1}',
        feedback.ENOUGH_CALLS,
        feedback.ENOUGH_CALLS,
        feedback.TOO_MANY_CALLS,
        feedback.ENOUGH_CALLS,
        feedback.ENOUGH_CALLS,
    ]


async def test_turns_in_which_nothing_was_run_are_no_turns_that_ran_tools() -> None:
    broken = calls(("echo", '{"a'))
    model = ScriptedModel(broken, calls(("echo", {"n": 1})), broken, calls(("echo", {"n": 2})), says("ok"))
    listener = await chat(model, rules=Rules(max_iterations=2))
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_the_same_call_must_come_in_turns_running() -> None:
    same, other = calls(("echo", {"n": 1})), calls(("echo", {"n": 2}))
    listener = await chat(ScriptedModel(same, same, other, same, same, says("ok")))
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_as_many_calls_run_at_once_as_the_rules_allow() -> None:
    gated = GatedTool()
    counting = CountingTool(gated)
    model = ScriptedModel(calls(*[("echo", {"n": n}) for n in range(4)]), says("ok"))
    running = asyncio.create_task(chat(model, ScriptedToolbox(echo=counting), rules=Rules(max_parallel_calls=3)))
    await counting.wait(3)
    assert counting.running == 3
    gated.gate.set()
    await running
    assert (len(counting.calls), counting.peak) == (4, 3)


async def test_a_chat_that_may_run_no_call_has_no_turn_that_ran_tools() -> None:
    model = ScriptedModel(calls(("echo", {"n": 1})), calls(("echo", {"n": 2})), says("ok"))
    box = ScriptedToolbox(echo=EchoTool())
    listener = await chat(model, box, rules=Rules(max_calls=0, max_iterations=1))
    assert (listener.ended.ending.kind, box.ran) == (EndingKind.ANSWERED, [])


async def test_the_first_limit_that_was_reached_is_the_reported_one() -> None:
    model = ScriptedModel(calls(("echo", {"n": 1})), calls(("echo", {"n": 2})), says("ok"))
    listener = await chat(model, rules=Rules(max_iterations=1, max_failed_turns=1))
    assert listener.ended.ending.note == "max_iterations"


async def test_behind_a_turn_that_worked_as_many_may_fail_as_before() -> None:
    bad = calls(("fail", {}))
    model = ScriptedModel(calls(("echo", {})), bad, bad, bad, says("ok"))
    listener = await chat(model, ScriptedToolbox(echo=EchoTool(), fail=FailingTool()))
    assert listener.ended.ending.note == "failed_turns"


async def test_a_provider_without_usage_has_spent_no_tokens() -> None:
    listener = await chat(ScriptedModel(calls(("echo", {})), says("ok")), rules=Rules(max_tokens=1))
    assert (listener.ended.ending.kind, listener.ended.usage) == (EndingKind.ANSWERED, None)


async def test_a_call_is_started_with_whether_it_writes() -> None:
    listener = await chat(ScriptedModel(calls(("echo", {})), says("ok")))
    assert [event.writes for event in listener.of(CallStarted)] == [False]


async def test_a_call_beyond_the_size_that_the_rules_allow_is_broken() -> None:
    model = ScriptedModel(calls(("echo", {"text": "x" * 100})), says("ok"))
    listener = await chat(model, rules=Rules(argument_bytes=50))
    assert [call.flaw for call in listener.turns[0].answer.broken] == [Flaw.ARGUMENTS_TOO_LARGE]


async def test_each_question_has_the_body_that_the_client_sent() -> None:
    original: Any = SimpleNamespace(api="chat")
    model = ScriptedModel(calls(("echo", {})), says("ok"))
    await chat(model, request=ask_for(original=original))
    assert all(asked.ask.original is original for asked in model.asked)


# Text that waits for the end of its turn ------------------------------------------------------------------------------


def is_held(listener: Listener) -> bool:
    """True if the first text came behind the end of its turn."""
    kinds = [
        TextDelta if isinstance(event, ModelOutput) and listener_text(event) else type(event)
        for event in listener.events
    ]
    return kinds.index(TextDelta) > kinds.index(TurnEnded)


def listener_text(output: ModelOutput) -> bool:
    return any(isinstance(event, TextDelta) for event in output.events)


@pytest.mark.parametrize(
    ("form", "clients", "held"),
    [
        ({"type": "json_object"}, set(), True),
        ({"type": "json_schema"}, {"theirs"}, True),
        ({"type": "text"}, set(), False),
        ("json_object", set(), False),
        (None, set(), False),
    ],
)
async def test_text_is_held_only_where_json_is_wanted_of_who_may_call_tools_of_ours(
    form: Any, clients: set[str], held: bool
) -> None:
    box = ScriptedToolbox(clients, echo=EchoTool())
    listener = await chat(ScriptedModel(says("{}")), box, ask_for(params={"response_format": form}))
    assert (is_held(listener), text_of(listener)) == (held, "{}")


async def test_text_is_not_held_where_all_tools_are_the_clients_or_withheld() -> None:
    assert not is_held(await chat(ScriptedModel(says("{}")), ScriptedToolbox({"theirs"}), ask_for(params=JSON_ANSWER)))
    model = ScriptedModel(calls(("echo", {})), calls(("echo", {})), says("{}"))
    listener = await chat(model, request=ask_for(params=JSON_ANSWER), rules=Rules(max_iterations=1))
    assert listener.events[-1] is listener.ended
    assert isinstance(listener.events[-2], TurnEnded), "its text came before"


async def test_nothing_but_text_is_held() -> None:
    batch: list[ModelEvent] = [TextDelta("{}"), Logprobs({"content": []}), ReasoningDelta("hm")]
    listener = await chat(ScriptedModel([batch, [Finished("stop")]]), request=ask_for(params=JSON_ANSWER))
    first, *_, last = listener.of(ModelOutput)
    assert (list(first.events), list(last.events)) == (batch[2:], batch[:2])


# Who is asked ---------------------------------------------------------------------------------------------------------


class Guide:
    """Says who is asked, as a model with several deployments does."""

    number = 7
    last = Responder("m")

    def __init__(self, *, gives_reasons: bool = False) -> None:
        self.heard: list[str] = []
        self.gives_reasons = gives_reasons

    def responder(self) -> Responder:
        return self.last

    def succeeded(self, *, gave_reason: bool) -> bool:
        self.heard.append("succeeded" if gave_reason else "succeeded without a reason")
        return self.gives_reasons and not gave_reason

    async def failed(self, failure: ChatError) -> None:
        self.heard.append(f"failed: {failure.code}")

    async def go_on(self, failure: ChatError) -> None:
        self.heard.append("went on")


class GuidedModel(ScriptedModel):
    gives_reasons = False

    def send(self, request: Any, attempts: Attempts | None = None) -> Any:
        assert attempts is not None
        attempts.chooser = attempts.chooser or Guide(gives_reasons=self.gives_reasons)
        self.guide = attempts.chooser
        return super().send(request, attempts)


async def test_a_model_with_several_deployments_says_who_answered_and_learns_how_it_ended() -> None:
    model = GuidedModel([[CallDelta(0, "c", "echo", "{")], BrokenOff("reset", transport_error=True)], says("ok"))
    listener = await chat(model)
    assert isinstance(model.guide, Guide)
    assert model.guide.heard == ["failed: upstream_broke_off", "went on", "succeeded"]
    account = listener.turns[0].answer
    assert (account.by, account.attempts) == (Guide.last, 7)


async def test_the_account_of_an_unanswered_turn_has_no_answer() -> None:
    listener = Listener()
    model = ScriptedModel([BrokenOff("reset", transport_error=True)], repeat_last=True)
    with pytest.raises(ChatError):
        await converse(ask_for(), model, ScriptedToolbox(), listener, new_id=counter("made"))
    account = listener.turns[0].answer
    assert (account.reason_is_raw, account.lane, account.first_seconds) == (True, "", 0.0)


async def test_an_answer_of_nothing_is_an_empty_answer() -> None:
    listener = await chat(ScriptedModel([]))
    assert (listener.text, listener.ended.ending.kind) == ("", EndingKind.ANSWERED)


@pytest.mark.parametrize(("transport_error", "flaw"), [(True, Flaw.UPSTREAM_ERROR), (False, Flaw.STREAM_ENDED)])
async def test_how_a_body_broke_off_is_the_flaw_of_its_calls(transport_error: bool, flaw: Flaw) -> None:
    lost = broken_off(calls(("echo", {"n": 1})), BrokenOff("cut", transport_error=transport_error), keep=2)
    listener = Listener()
    model = ScriptedModel(lost, repeat_last=True)
    with pytest.raises(ChatError):
        await converse(ask_for(), model, ScriptedToolbox(echo=EchoTool()), listener, new_id=counter("made"))
    assert [call.flaw for call in listener.turns[0].answer.broken] == [flaw]


# Calls with prose behind them -----------------------------------------------------------------------------------------


def goes_on(text: str = "Shall I?", **arguments: Any) -> list[Any]:
    """A turn whose text goes on behind its call, as a reader of text gives it."""
    call = CallWritten("echo", arguments, from_text=True, is_alone=False)
    written = f"<call/> {text}"
    return [[TextDelta("I look. ")], [CallsNotAlone(written), call, TextDelta(text), Finished("stop")]]


async def test_a_call_with_prose_behind_it_is_asked_back_with_its_arguments_and_no_failed_turn() -> None:
    model = ScriptedModel(*[goes_on(text="hm", a=1)] * 2, calls(("echo", {"a": 1})), says("Done."))
    listener = await chat(model, rules=Rules(max_failed_turns=1))
    assert listener.started == ["echo"]
    assert listener.ended.ending.kind is EndingKind.ANSWERED
    _, assistant, result = model.asked[1].messages
    assert assistant["content"] == "I look. hm"
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert json.loads(result["content"])["error"]["code"] == "not_alone"
    assert listener.text == "I look. hmI look. hmDone."


async def test_the_third_answer_running_that_goes_on_is_the_answer_as_it_was_written() -> None:
    model = ScriptedModel(*[goes_on(text="hm")] * 3)
    listener = await chat(model)
    assert listener.started == []
    assert (listener.ended.ending.kind, listener.ended.ending.finish_reason) == (EndingKind.ANSWERED, "stop")
    assert listener.text == "I look. hm" * 2 + "I look. <call/> hm"
    (last,) = [event for event in listener.events if isinstance(event, TurnEnded) and event.turn == 2]
    assert last.answer.broken == ()
    assert [(call.name, call.reason) for call in last.answer.not_run] == [("echo", "not_alone")]
    assert listener.ended.last is not None
    assert listener.ended.last.assistant_message()["content"] == "I look. <call/> hm"


async def test_answers_that_go_on_are_counted_only_while_they_follow_each_other() -> None:
    two = [goes_on()] * 2
    model = ScriptedModel(*two, calls(("echo", {"a": 1})), *two, calls(("echo", {"a": 2})), says("Done."))
    listener = await chat(model)
    assert listener.started == ["echo", "echo"]
    assert len(model.asked) == 7


async def test_an_answer_that_goes_on_and_was_cut_is_asked_for_like_any_other() -> None:
    cut = [*goes_on()[:1], [*goes_on()[1][:-1], Finished("length")]]
    model = ScriptedModel(cut, cut, calls(("echo", {})), says("Done."))
    listener = await chat(model)
    assert listener.started == ["echo"]
    assert listener.ended.ending.kind is EndingKind.ANSWERED


async def test_a_call_of_the_clients_with_prose_behind_it_is_not_handed_out() -> None:
    tool = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}
    box = ClientsOnly(lambda: [msgspec.Raw(msgspec.json.encode(tool))])
    model = ScriptedModel(goes_on(), calls(("echo", {"a": 1})))
    listener = Listener()
    question = ask_for()
    passed = Passthrough(NO_FIELDS, False, False, 1, True, lambda: question)
    async with asyncio.timeout(PATIENCE):
        await converse(passed, model, box, listener, new_id=counter("made"))
    assert len(model.asked) == 2
    assert [message["role"] for message in model.asked[1].messages] == ["user", "assistant", "tool"]
    (handed,) = [event for event in listener.events if isinstance(event, CallsHandedBack)]
    assert [call.name for call in handed.calls] == ["echo"]
    assert listener.ended.ending.finish_reason == "tool_calls"
