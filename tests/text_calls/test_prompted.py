"""A model around a model: what is sent has no tools, what comes back has no markup."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec.structs import replace

from callgate.calls.states import Flaw
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    Finished,
    Logprobs,
    ModelEvent,
    PromptedCalling,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
)
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest, hand_nothing
from callgate.conversation.usage import Usage
from callgate.text_calls import prompts
from callgate.text_calls.prompted import PromptedModel
from callgate.text_calls.prompts import FORMATS, style_for
from callgate.text_calls.thinking import ThinkingMemory
from callgate.text_calls.writers import PastCall
from tests.fakes import AskedOnce, EchoTool, Listener, ScriptedModel, ScriptedToolbox, counter, says

pytestmark = pytest.mark.anyio


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def tool(name: str, **properties: str) -> msgspec.Raw:
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return raw(
        {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}
    )


WEATHER = tool("get_weather", city="string")
CLOCK = tool("get_time")
LOOKUP = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
QUESTION = raw({"role": "user", "content": "Weather in Porto?"})
ASK = ModelRequest(messages=(QUESTION,), tools=(WEATHER, CLOCK))


class Said:
    reason_is_raw = False
    hand_to = hand_nothing
    lane = "scripted"

    def __init__(self, batches, broke_off=None):
        self.batches = batches
        self.broke_off = broke_off

    async def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        for batch in self.batches:
            yield batch
        self.reason_is_raw = True
        if self.broke_off:
            raise self.broke_off


class Scripted:
    name = "scripted"

    def __init__(self, *batches, broke_off=None):
        self.answer = Said(batches, broke_off)
        self.asked: list[ModelRequest] = []
        self.closed = False

    @asynccontextmanager
    async def send(self, request):
        self.asked.append(request)
        try:
            yield self.answer
        finally:
            self.closed = True


async def events_of(model: PromptedModel, request: ModelRequest = ASK) -> list[ModelEvent]:
    """What the answer itself said; that it was asked for in words is said first, and has tests of its own."""
    async with model.send(request) as answer:
        events = [event async for batch in answer for event in batch]
    return [event for event in events if not isinstance(event, PromptedCalling)]


async def sent(request: ModelRequest, format: str = "hermes", *, constrain: bool = False) -> ModelRequest:
    inner = Scripted([TextDelta("ok")])
    await events_of(PromptedModel(inner, format, constrain=constrain), request)
    return inner.asked[0]


def messages_of(request: ModelRequest) -> list[dict[str, Any]]:
    return [message if isinstance(message, dict) else msgspec.json.decode(message) for message in request.messages]


def text_of(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls_of(events: Sequence[ModelEvent]) -> list[CallWritten]:
    return [event for event in events if isinstance(event, CallWritten)]


def call_in_format(format: str, name: str = "get_weather", **arguments: Any) -> str:
    return style_for(format).write("", [PastCall(name, arguments)])


# What is sent ---------------------------------------------------------------------------------------------------------


async def test_tools_are_described_and_not_sent():
    ask = await sent(replace(ASK, tool_choice="auto", params={"parallel_tool_calls": True, "temperature": raw(0)}))
    assert ask.tools == ()
    assert ask.tool_choice is None
    assert ask.params == {"temperature": raw(0)}
    system, user = messages_of(ask)
    assert system["role"] == "system"
    assert "get_weather" in system["content"]
    assert "get_time" in system["content"]
    assert user == {"role": "user", "content": "Weather in Porto?"}


async def test_messages_that_have_nothing_to_do_with_tools_are_not_even_decoded():
    ask = await sent(ASK)
    assert ask.messages[-1] is QUESTION


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_the_description_joins_a_leading_system_message(role):
    ask = await sent(replace(ASK, messages=(raw({"role": role, "content": "Be brief."}), QUESTION)))
    first, *rest = messages_of(ask)
    assert first["role"] == role
    assert first["content"].startswith("Be brief.\n\n")
    assert "get_weather" in first["content"]
    assert len(rest) == 1


async def test_the_description_joins_a_system_message_of_parts():
    parts = [{"type": "text", "text": "Be brief."}]
    ask = await sent(replace(ASK, messages=({"role": "system", "content": parts}, QUESTION)))
    content = messages_of(ask)[0]["content"]
    assert content[0] == parts[0]
    assert "get_weather" in content[1]["text"]


async def test_what_the_caller_gave_is_left_as_it_was():
    system: dict[str, Any] = {"role": "system", "content": "Be brief."}
    user: dict[str, Any] = {"role": "user", "content": "Hi"}
    await sent(replace(ASK, messages=(system, user), tool_choice="required"))
    assert (system, user) == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})


async def test_without_tools_and_calls_nothing_is_touched():
    inner = Scripted([TextDelta("<tool_call> is a tag")])
    ask = ModelRequest(messages=(QUESTION,))
    events = await events_of(PromptedModel(inner, "hermes"), ask)
    assert inner.asked[0] is ask
    assert events == [TextDelta("<tool_call> is a tag")]


async def test_with_the_choice_none_no_tool_is_listed_and_nothing_is_read():
    inner = Scripted([TextDelta(call_in_format("hermes", city="Porto"))])
    events = await events_of(PromptedModel(inner, "hermes"), replace(ASK, tool_choice=raw("none")))
    assert inner.asked[0].messages == ASK.messages
    assert inner.asked[0].tools == ()
    assert inner.asked[0].tool_choice is None
    assert text_of(events) == call_in_format("hermes", city="Porto")


@pytest.mark.parametrize(
    ("choice", "demand"),
    [
        ("required", prompts.MUST_CALL),
        (raw("required"), prompts.MUST_CALL),
        ({"type": "function", "function": {"name": "get_time"}}, prompts.MUST_CALL_ONE.format(name="get_time")),
        (raw({"type": "function", "function": {"name": "get_time"}}), prompts.MUST_CALL_ONE.format(name="get_time")),
    ],
)
async def test_a_required_call_is_asked_for_last_so_that_the_prefix_stays_cached(choice, demand):
    auto = await sent(replace(ASK, tool_choice="auto"))
    forced = await sent(replace(ASK, tool_choice=choice))
    assert messages_of(forced)[0] == messages_of(auto)[0]
    assert messages_of(forced)[-1]["content"] == f"Weather in Porto?\n\n{demand}"


async def test_allowed_tools_narrow_what_is_described():
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    ask = await sent(replace(ASK, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}))
    system, user = messages_of(ask)
    assert "get_time" in system["content"]
    assert "get_weather" not in system["content"]
    assert prompts.MUST_CALL in user["content"]


async def test_one_call_at_a_time_is_asked_for_in_the_prompt():
    ask = await sent(replace(ASK, params={"parallel_tool_calls": raw(False)}))
    assert prompts.ONE_AT_A_TIME in messages_of(ask)[0]["content"]
    assert "parallel_tool_calls" not in ask.params


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": {"type": "mood"}}, "tool_choice"),
        ({"tools": (raw({"type": "custom", "custom": {"name": "x"}}),)}, "tools"),
    ],
)
async def test_what_a_prompt_cannot_express_is_refused_before_the_model_is_asked(change, param):
    inner = Scripted([])
    with pytest.raises(ChatError) as refused:
        await events_of(PromptedModel(inner, "hermes"), replace(ASK, **change))
    assert (refused.value.status, refused.value.param) == (400, param)
    assert inner.asked == []


async def test_react_is_stopped_before_it_invents_a_result_unless_the_client_stops_it_elsewhere():
    assert (await sent(ASK, "react")).params["stop"] == ["\nObservation:"]
    assert (await sent(replace(ASK, params={"stop": "END"}), "react")).params["stop"] == "END"


# The history ----------------------------------------------------------------------------------------------------------


def called(*calls: tuple[str, str, str], content: Any = None) -> dict[str, Any]:
    entries = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": entries}


def result(id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


TWO_CALLS = (
    {"role": "user", "content": "Weather and time?"},
    called(("c1", "get_weather", '{"city": "Porto"}'), ("c2", "get_time", "{}"), content="Let me see."),
    result("c1", "sunny"),
    result("c2", [{"type": "text", "text": "noon"}]),
)


@pytest.mark.parametrize("format", FORMATS)
async def test_earlier_calls_and_results_are_written_as_text_and_roles_alternate(format):
    ask = await sent(replace(ASK, messages=tuple(map(raw, TWO_CALLS))), format)
    system, *prompt = messages_of(ask)
    assert system["role"] == "system"
    assert [message["role"] for message in prompt] == ["user", "assistant"] * (len(prompt) // 2) + ["user"]
    assert all("tool_calls" not in message and isinstance(message["content"], str) for message in prompt)
    assert "Let me see." in prompt[1]["content"]
    assert "Porto" in prompt[1]["content"]
    everything = "\n".join(message["content"] for message in prompt)
    assert everything.index("sunny") < everything.index("noon")


async def test_the_history_is_written_as_the_format_writes_it():
    ask = await sent(replace(ASK, messages=TWO_CALLS), "hermes")
    _, _, assistant, results = messages_of(ask)
    assert assistant["content"] == (
        'Let me see.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Porto"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    )
    assert results["content"] == (
        '<tool_response>\n{"name": "get_weather", "content": "sunny"}\n</tool_response>\n'
        '<tool_response>\n{"name": "get_time", "content": "noon"}\n</tool_response>'
    )


async def test_a_format_with_one_call_a_turn_writes_a_turn_of_two_calls_as_two_turns():
    ask = await sent(replace(ASK, messages=TWO_CALLS), "react")
    assert [message["content"] for message in messages_of(ask)[2:]] == [
        'Thought: Let me see.\nAction: get_weather\nAction Input: {"city": "Porto"}',
        "Observation: sunny",
        "Action: get_time\nAction Input: {}",
        "Observation: noon",
    ]


async def test_a_users_next_message_joins_the_results_before_it():
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
    ask = await sent(replace(ASK, messages=(*TWO_CALLS, raw(image))))
    *_, last = messages_of(ask)
    assert last["role"] == "user"
    assert "noon" in last["content"][0]["text"]
    assert last["content"][1] == image["content"][0]


async def test_two_messages_of_the_clients_own_are_not_joined():
    hi = raw({"role": "user", "content": "Hi"})
    ask = await sent(replace(ASK, messages=(hi, QUESTION)))
    assert ask.messages[1:] == (hi, QUESTION)


async def test_fields_of_an_assistant_message_other_than_its_calls_stay():
    past = {**called(("c1", "get_time", "{}")), "reasoning_content": "hm"}
    ask = await sent(replace(ASK, messages=(QUESTION, past, result("c1", "noon"))))
    assert messages_of(ask)[2]["reasoning_content"] == "hm"


async def test_kimis_own_ids_stay_on_call_and_result():
    past = called(("functions.get_time:7", "get_time", "{}"))
    ask = await sent(replace(ASK, messages=(QUESTION, past, result("functions.get_time:7", "noon"))), "kimi_k2")
    assert "functions.get_time:7" in messages_of(ask)[2]["content"]
    assert "functions.get_time:7" in messages_of(ask)[3]["content"]


async def test_the_legacy_form_of_calls_and_results_is_written_as_well():
    legacy = (
        QUESTION,
        {"role": "assistant", "content": None, "function_call": {"name": "get_time", "arguments": "{}"}},
        {"role": "function", "name": "get_time", "content": "noon"},
    )
    ask = await sent(replace(ASK, messages=legacy))
    assert "function_call" not in messages_of(ask)[2]
    assert '"name": "get_time", "content": "noon"' in messages_of(ask)[3]["content"]


@pytest.mark.parametrize("arguments", ['{"city": "Por', "[1]", "", None])
async def test_arguments_that_are_no_object_are_written_as_none(arguments):
    past = called(("c1", "get_weather", arguments))
    ask = await sent(replace(ASK, messages=(QUESTION, past, result("c1", "broken"))))
    assert '{"name": "get_weather", "arguments": {}}' in messages_of(ask)[2]["content"]


# The answer -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
async def test_a_call_in_the_text_is_emitted_as_a_call_and_not_as_text(format):
    text = call_in_format(format, city="Porto")
    for batches in ([[TextDelta(text)]], [[TextDelta(piece)] for piece in text]):
        events = await events_of(PromptedModel(Scripted(*batches, [Finished("stop")]), format))
        assert [call.name for call in calls_of(events)] == ["get_weather"]
        assert "Porto" in json.dumps(calls_of(events)[0].arguments)
        assert calls_of(events)[0].from_text
        assert text_of(events) == ""


async def test_everything_that_is_no_text_passes():
    others = [ProviderHead("id"), ReasoningDelta("hm"), Logprobs({}), Usage({"total_tokens": 3}), Finished("stop")]
    events = await events_of(PromptedModel(Scripted(others), "hermes"))
    assert events == others


async def test_native_calls_pass_all_the_same():
    native = [CallDelta(0, "c1", "get_time", "{}"), CallWritten("get_time", "{}", "c2")]
    events = await events_of(PromptedModel(Scripted(native), "hermes"))
    assert events == native


async def test_text_is_emitted_as_it_comes_and_what_was_held_back_at_the_end():
    inner = Scripted([TextDelta("Hello ")], [TextDelta("there <tool_")])
    async with PromptedModel(inner, "hermes").send(ASK) as answer:
        batches = [batch async for batch in answer]
    assert text_of(batches[0]) == "Hello"
    assert "".join(text_of(batch) for batch in batches) == "Hello there <tool_"


@pytest.mark.parametrize(
    ("before", "between", "after", "left"),
    [
        ("\n\n", "\n", "\n", ""),
        ("Let me look.\n\n", "\n", "\n", "Let me look."),
        ("First this. ", "\nThen that.\n", "\n\nDone.", "First this.\n\nThen that.\n\nDone."),
        ("", "", "\n\n  Done.\n", "Done.\n"),
    ],
)
async def test_blank_lines_around_a_call_go_with_it(before, between, after, left):
    call = call_in_format("hermes", "get_time")
    text = f"{before}{call}{between}{call}{after}"
    for batches in ([[TextDelta(text)]], [[TextDelta(piece)] for piece in text]):
        events = await events_of(PromptedModel(Scripted(*batches), "hermes"))
        assert text_of(events) == left
        assert len(calls_of(events)) == 2


async def test_blanks_of_an_answer_without_calls_are_the_models_own():
    events = await events_of(PromptedModel(Scripted([TextDelta("  a\n")], [TextDelta("\n b \n")]), "hermes"))
    assert text_of(events) == "  a\n\n b \n"


async def test_no_batch_is_empty():
    inner = Scripted(
        [TextDelta("<tool_")], [TextDelta("call>")], [TextDelta(call_in_format("hermes", "get_time")[11:])]
    )
    async with PromptedModel(inner, "hermes").send(ASK) as answer:
        batches = [list(batch) async for batch in answer]
    assert all(batches)
    assert [call.name for batch in batches for call in calls_of(batch)] == ["get_time"]


async def test_an_answer_that_breaks_off_still_gives_what_it_held_and_then_breaks():
    inner = Scripted([TextDelta('<tool_call>{"name": "get_weather", "argum')], broke_off=BrokenOff("gone", True))
    events: list[ModelEvent] = []

    async def listen() -> None:
        async with PromptedModel(inner, "hermes").send(ASK) as answer:
            async for batch in answer:
                events.extend(batch)

    with pytest.raises(BrokenOff):
        await listen()
    assert [call.name for call in calls_of(events)] == ["get_weather"]
    assert inner.closed


async def test_leaving_early_closes_the_inner_answer():
    inner = Scripted([TextDelta("a")], [TextDelta("b")])
    async with PromptedModel(inner, "hermes").send(ASK) as answer:
        async for _ in answer:
            break
    assert inner.closed


async def test_the_raw_finish_reason_comes_from_the_wrapped_model_when_it_is_asked_for():
    inner = Scripted([TextDelta("a")])
    async with PromptedModel(inner, "hermes").send(ASK) as answer:
        assert not answer.reason_is_raw
        assert [batch async for batch in answer]
        assert answer.reason_is_raw


async def test_the_name_is_the_inner_models():
    assert PromptedModel(Scripted(), "xml").name == "scripted"


# The last turn, without tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
async def test_a_call_in_a_turn_without_tools_is_not_text_and_stays_visible_as_a_call(format):
    inner = Scripted([TextDelta(call_in_format(format, city="Faro"))])
    events = await events_of(PromptedModel(inner, format), replace(ASK, tools=(), messages=TWO_CALLS))
    assert text_of(events) == ""
    assert [call.name for call in calls_of(events)] == ["get_weather"]


async def test_the_last_turn_says_that_no_tool_can_be_called_and_describes_none():
    ask = await sent(replace(ASK, tools=(), messages=TWO_CALLS))
    prompt = messages_of(ask)
    assert [message["role"] for message in prompt] == ["user", "assistant", "user"]
    assert prompt[-1]["content"].endswith(prompts.NO_TOOLS_NOW)


# In the loop ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
async def test_the_loop_runs_the_tools_of_a_prompted_model_without_knowing(format):
    inner = ScriptedModel(says(call_in_format(format, "lookup", word="tea")), says("It is a drink."))
    toolbox = ScriptedToolbox(schemas={"lookup": LOOKUP}, lookup=EchoTool())
    listener = Listener()
    question = ModelRequest(messages=({"role": "user", "content": "What is tea?"},))
    await converse(question, AskedOnce(PromptedModel(inner, format)), toolbox, listener, new_id=counter("call"))
    assert [call.arguments for call in toolbox.ran] == [{"word": "tea"}]
    assert listener.text == "It is a drink."
    *_, last = inner.asked[1].messages
    assert last["role"] == "user"
    assert "tea" in last["content"]
    assert inner.asked[1].ask.tools == ()


# Constrained ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
async def test_a_demanded_call_is_constrained_to_the_shape_of_a_call(choice):
    ask = await sent(replace(ASK, tool_choice=choice), "json", constrain=True)
    schema = ask.params["response_format"]["json_schema"]["schema"]
    names = [shape["properties"]["name"]["enum"][0] for shape in schema.get("anyOf", [schema])]
    assert names == (["get_weather", "get_time"] if choice == "required" else ["get_time"])


async def test_a_call_that_is_not_demanded_is_not_constrained():
    assert "response_format" not in (await sent(ASK, "json", constrain=True)).params


async def test_a_format_that_is_no_bare_json_is_never_constrained():
    assert "response_format" not in (await sent(replace(ASK, tool_choice="required"), "hermes", constrain=True)).params


async def test_a_constrained_model_is_shown_one_example_for_each_tool():
    content = messages_of(await sent(ASK, "json", constrain=True))[0]["content"]
    assert call_in_format("json", "get_time") in content
    assert call_in_format("json", city="some city") in content


# The cost -------------------------------------------------------------------------------------------------------------


async def tokens_added(request: ModelRequest, format: str) -> int:
    async with PromptedModel(Scripted([TextDelta("ok")]), format).send(request) as answer:
        events = [event async for batch in answer for event in batch]
    return sum(event.extra_tokens for event in events if isinstance(event, PromptedCalling))


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_the_cost_is_what_the_question_grew_by(choice):
    question = replace(
        ASK, tool_choice=choice, messages=({"role": "system", "content": "Hi"}, {"role": "user", "content": "?"})
    )
    grown = sum(len(message["content"]) for message in messages_of(await sent(question, "xml")))
    added = grown - len("Hi") - len("?")
    blank_lines = 2 if choice == "auto" else 4
    assert await tokens_added(question, "xml") == -(-(added - blank_lines) // 4)


async def test_the_first_event_of_a_prompted_answer_names_the_format_and_its_cost():
    model = PromptedModel(Scripted([ProviderHead("id")], [TextDelta("Hello")], [TextDelta("you")]), "json")
    async with model.send(ASK) as answer:
        batches = [list(batch) async for batch in answer]
    asked = PromptedCalling("litellm_json", await tokens_added(ASK, "json"))
    assert batches == [[asked, ProviderHead("id")], [TextDelta("Hello")], [TextDelta("you")]]


async def test_an_answer_that_was_not_prompted_has_no_such_event():
    model = PromptedModel(Scripted([TextDelta("a")]), "json")
    async with model.send(ModelRequest(messages=(QUESTION,))) as answer:
        assert [event async for batch in answer for event in batch] == [TextDelta("a")]


# What the client wants of the answer ----------------------------------------------------------------------------------

VERDICT = {"type": "object", "properties": {"verdict": {"$ref": "#/$defs/word"}}, "$defs": {"word": {"type": "string"}}}
WANTS_VERDICT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": VERDICT}}


def wanting(form: Any, **fields: Any) -> ModelRequest:
    return replace(ASK, params={"response_format": form}, **fields)


async def test_a_response_format_is_put_into_the_prompt_while_a_call_may_come():
    ask = await sent(wanting(raw(WANTS_VERDICT)))
    assert "response_format" not in ask.params
    prompt = messages_of(ask)[0]["content"]
    assert prompt.endswith(
        "write nothing but JSON that satisfies this schema:\n" + json.dumps(VERDICT, separators=(",", ":"))
    )
    any_object = await sent(wanting({"type": "json_object"}))
    assert "response_format" not in any_object.params
    assert messages_of(any_object)[0]["content"].endswith("write nothing but one JSON object.")


async def test_a_wanted_form_is_the_servers_business_where_no_tool_is_on_offer():
    for question in (wanting(WANTS_VERDICT, tools=()), wanting(WANTS_VERDICT, tool_choice="none")):
        ask = await sent(question)
        assert ask.params["response_format"] == WANTS_VERDICT
        assert messages_of(ask) == [{"role": "user", "content": "Weather in Porto?"}]


async def test_a_wanted_form_gives_way_to_a_demanded_call():
    ask = await sent(wanting(WANTS_VERDICT, tool_choice="required"))
    assert "response_format" not in ask.params
    assert "verdict" not in json.dumps(messages_of(ask))


async def test_a_wanted_form_is_one_more_shape_where_answers_are_constrained():
    ask = await sent(wanting(WANTS_VERDICT), "json", constrain=True)
    schema = ask.params["response_format"]["json_schema"]["schema"]
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid({"verdict": "fine"})
    assert validator.is_valid({"name": "get_weather", "arguments": {"city": "Porto"}})
    assert not validator.is_valid({"verdict": 3})
    assert "satisfies this schema" not in messages_of(ask)[0]["content"]


async def test_a_form_of_text_is_no_form():
    assert (await sent(wanting({"type": "text"}))).params["response_format"] == {"type": "text"}


# Calls without end ----------------------------------------------------------------------------------------------------


async def test_a_call_that_grows_without_end_is_broken_and_what_follows_is_let_go():
    start = '<tool_call>{"name": "get_weather", "arguments": {"city": "'
    after = '"}}</tool_call> talk <tool_call>{"name": "get_time"}</tool_call>'
    piece = "x" * 10_000
    inner = Scripted(
        [TextDelta("Well. "), TextDelta(start)], *([[TextDelta(piece)]] * 20), [TextDelta(after)], [Finished("stop")]
    )
    events = await events_of(PromptedModel(inner, "hermes", argument_bytes=1024))
    [call] = calls_of(events)
    assert (call.name, call.flaw, call.arguments) == ("get_weather", Flaw.ARGUMENTS_TOO_LARGE, None)
    assert text_of(events) == "Well."
    assert events[-1] == Finished("stop")


async def test_long_text_is_no_call_without_end():
    inner = Scripted(*([[TextDelta("talk " * 5000)]] * 20), [TextDelta(call_in_format("hermes", city="Porto"))])
    events = await events_of(PromptedModel(inner, "hermes", argument_bytes=1024))
    assert len(text_of(events)) > 20 * 5000 * 4
    assert [call.flaw for call in calls_of(events)] == [None]


async def test_a_question_without_tools_costs_nothing():
    assert await tokens_added(ModelRequest(messages=(QUESTION,)), "xml") == 0


async def test_a_call_of_a_tool_without_arguments_comes_before_the_reason_that_ended_the_answer():
    inner = Scripted([TextDelta('<tool_call>{"name": "get_time"}</tool_call>')], [Finished("stop")])
    events = await events_of(PromptedModel(inner, "hermes"))
    assert [type(event).__name__ for event in events] == ["CallWritten", "Finished"]


async def test_thinking_that_the_template_opened_is_reasoning_in_a_stream_once_it_is_known():
    text = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call> would be wrong.\n</think>\nHello.'
    memory = ThinkingMemory("somebodys-model")
    for _ in range(2):
        inner = Scripted(*([TextDelta(piece)] for piece in text), [Finished("stop")])
        events = await events_of(PromptedModel(inner, "hermes", thinking=memory))
        assert calls_of(events) == []
        assert text_of(events).strip() == "Hello."


async def pieces_of(memory: ThinkingMemory, *batches: Sequence[ModelEvent]) -> list[str]:
    inner = Scripted(*batches, [Finished("stop")])
    async with PromptedModel(inner, "hermes", thinking=memory).send(replace(ASK, stream=True)) as answer:
        return [event.text async for batch in answer for event in batch if isinstance(event, TextDelta)]


async def test_a_stream_whose_first_sentence_says_nothing_is_held_only_in_the_first_answers_of_an_unknown_model():
    memory = ThinkingMemory("somebodys-model")
    for answer in range(5):
        pieces = await pieces_of(memory, [TextDelta("Okay, ")], [TextDelta("so it is. ")], [TextDelta("There.")])
        assert len(pieces) == (1 if answer < 3 else 3)


async def test_a_stream_of_an_unknown_model_is_live_behind_its_first_sentence():
    text = "The capital of France is Paris. It lies on the Seine. It has two million inhabitants."
    words = [f"{word} " for word in text.split()]
    pieces = await pieces_of(ThinkingMemory("somebodys-model"), *([TextDelta(word)] for word in words))
    assert pieces[0].strip() == "The capital of France is Paris. It"
    assert "".join(pieces).strip() == text
    assert len(pieces) == len(words) - 5


async def test_a_stream_is_not_held_where_the_provider_sends_the_thinking_apart():
    thought = ReasoningDelta("The user greets.")
    pieces = await pieces_of(ThinkingMemory("somebodys-model"), [thought], [TextDelta("Okay, ")], [TextDelta("hi.")])
    assert pieces == ["Okay,", " hi."]


async def test_tags_of_results_do_not_reach_the_reader_where_results_were_shown():
    echo = "<tool_response>\n18\n</tool_response>\nIt is 18."
    call = {"id": "1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    history = (
        QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "18"},
    )
    for stream in (True, False):
        for pieces in ([echo], [*echo]):
            inner = Scripted(*([TextDelta(piece)] for piece in pieces), [Finished("stop")])
            asked = replace(ASK, messages=history, stream=stream)
            async with PromptedModel(inner, "hermes").send(asked) as answer:
                events = [event async for batch in answer for event in batch]
            assert text_of(events) == "18\nIt is 18."
    inner = Scripted([TextDelta(echo)], [Finished("stop")])
    assert text_of(await events_of(PromptedModel(inner, "hermes"))) == echo


async def test_prefilled_thinking_is_streamed_as_reasoning():
    memory = ThinkingMemory("somebodys-model", "prefilled")
    inner = Scripted([TextDelta("So ")], [TextDelta("it is.")], [TextDelta("</think>")], [TextDelta("Hi.")])
    events = await events_of(PromptedModel(inner, "hermes", thinking=memory))
    assert events[:2] == [ReasoningDelta("So ", source="text"), ReasoningDelta("it is.", source="text")]
    assert text_of(events) == "Hi."
