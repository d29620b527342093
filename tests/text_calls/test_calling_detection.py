"""A model is asked in the way that was found out for it: once, when it is first needed, and for everybody who waits."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import CallWritten, Finished, ModelEvent, PromptedCalling, TextDelta
from callgate.conversation.model_requests import as_model_request
from callgate.conversation.ports import ModelRequest, Passthrough, hand_nothing
from callgate.text_calls.calling_detection import CallingDetector, CallingMode, DetectingModel
from callgate.text_calls.families import PROBE_TOOL
from callgate.text_calls.prompted import PromptedModel

pytestmark = pytest.mark.anyio

CLOCK = msgspec.Raw(b'{"type":"function","function":{"name":"get_time","parameters":{"type":"object"}}}')
QUESTION = {"role": "user", "content": "What time is it?"}
ASK = ModelRequest(messages=(QUESTION,), tools=(CLOCK,))
WITHOUT_TOOLS = ModelRequest(messages=(QUESTION,))
NATIVE_CALL: list[ModelEvent] = [CallWritten(PROBE_TOOL, '{"word": "ready"}', "c1"), Finished("tool_calls")]
PROSE: list[ModelEvent] = [TextDelta("I cannot do that."), Finished("stop")]
REFUSES_TOOLS = ChatError(400, "this server takes no tools")
OVERLOADED = ChatError(503, "try later", retryable=True)

Answers = Callable[[ModelRequest], Sequence[ModelEvent] | Exception]


class Said:
    reason_is_raw = True
    hand_to = hand_nothing
    lane = "scripted"

    def __init__(self, events: Sequence[ModelEvent]) -> None:
        self._events = events

    async def __aiter__(self):
        yield self._events


class Scripted:
    """Answers probes and control questions as scripted, and everything else with a word."""

    name = "scripted"

    def __init__(self, answers: Answers | Sequence[ModelEvent] | Exception) -> None:
        self._answers: Answers = answers if callable(answers) else lambda _: answers
        self.probed: list[ModelRequest] = []
        self.asked: list[ModelRequest] = []
        self.probing = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def send(self, request: ModelRequest | Passthrough):
        request = as_model_request(request)
        if PROBE_TOOL in str(request.messages):
            self.probed.append(request)
            self.probing.set()
            await self.gate.wait()
            answer = self._answers(request)
            if isinstance(answer, Exception):
                raise answer
            yield Said(answer)
        else:
            self.asked.append(request)
            yield Said([TextDelta("ok"), Finished("stop")])


class Route:
    """A model of an unknown family with all that was decided for it."""

    def __init__(self, inner: Scripted, name: str = "openai/my-model", word: bool | None = None, **way: Any) -> None:
        self.decided: list[CallingMode] = []
        self.inner = inner

        async def look_up_support() -> bool | None:
            return word

        self.detector = CallingDetector(name, look_up_support, self.decided.append, **way)
        self.model = DetectingModel(inner, self.detector, PromptedModel)

    async def send(self, request: ModelRequest = ASK) -> str:
        """The way in which this question reached the model."""
        async with self.model.send(request) as answer:
            events = [event async for batch in answer for event in batch]
        return next((event.format for event in events if isinstance(event, PromptedCalling)), "native")


async def test_a_model_that_calls_the_probes_tool_is_asked_natively_from_then_on():
    chosen = Route(Scripted(NATIVE_CALL))
    assert [await chosen.send() for _ in range(3)] == ["native"] * 3
    assert len(chosen.inner.probed) == 1
    assert chosen.decided == [CallingMode("native", "probe")]
    assert [ask.tools for ask in chosen.inner.asked] == [(CLOCK,)] * 3


async def test_a_model_that_ignores_tools_is_asked_in_its_familys_format():
    chosen = Route(Scripted(PROSE), "openai/SmolLM3")
    assert [await chosen.send() for _ in range(3)] == ["hermes"] * 3
    assert len(chosen.inner.probed) == 1
    assert chosen.decided == [CallingMode("hermes", "probe")]
    assert [ask.tools for ask in chosen.inner.asked] == [()] * 3


async def test_the_format_may_be_given():
    assert await Route(Scripted(PROSE), format="json").send() == "litellm_json"


async def test_a_request_without_tools_is_never_worth_a_probe():
    chosen = Route(Scripted(NATIVE_CALL))
    assert await chosen.send(WITHOUT_TOOLS) == "native"
    assert (chosen.inner.probed, chosen.decided, chosen.detector.choice) == ([], [], None)


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("openai/my-model", True, CallingMode("native", "litellm")),
        ("openai/my-model", False, CallingMode("hermes", "litellm")),
        ("azure/gpt-4o", None, CallingMode("native", "family")),
        ("mistral/mistral-large-latest", False, CallingMode("mistral", "litellm")),
    ],
)
async def test_what_is_known_is_not_asked(name, word, expected):
    chosen = Route(Scripted(AssertionError("nobody needs to be asked")), name, word)
    async with asyncio.TaskGroup() as group:
        for ask in (WITHOUT_TOOLS, ASK, ASK):
            group.create_task(chosen.send(ask))
    assert chosen.decided == [expected]
    assert chosen.inner.probed == []


async def test_requests_that_come_while_it_is_being_found_out_share_one_probe():
    chosen = Route(Scripted(PROSE))
    chosen.inner.gate.clear()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        asking = [group.create_task(chosen.send()) for _ in range(5)]
        await chosen.inner.probing.wait()
        chosen.inner.gate.set()
    assert [task.result() for task in asking] == ["hermes"] * 5
    assert len(chosen.inner.probed) == 1


async def test_a_request_without_tools_does_not_wait_for_a_probe():
    chosen = Route(Scripted(PROSE))
    chosen.inner.gate.clear()
    async with asyncio.timeout(30):
        probing = asyncio.create_task(chosen.send())
        await chosen.inner.probing.wait()
        assert await chosen.send(WITHOUT_TOOLS) == "native"
        assert not probing.done()
        chosen.inner.gate.set()
        assert await probing == "hermes"


async def test_requests_that_waited_for_a_probe_that_failed_do_not_each_try_it_again():
    chosen = Route(Scripted(OVERLOADED))
    chosen.inner.gate.clear()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        asking = [group.create_task(chosen.send()) for _ in range(5)]
        await chosen.inner.probing.wait()
        chosen.inner.gate.set()
    assert [task.result() for task in asking] == ["native"] * 5
    assert len(chosen.inner.probed) == 1


async def test_a_request_cancelled_while_probing_leaves_the_probe_to_the_next():
    chosen = Route(Scripted(PROSE))
    chosen.inner.gate.clear()
    async with asyncio.timeout(30):
        leaving = asyncio.create_task(chosen.send())
        await chosen.inner.probing.wait()
        staying = asyncio.create_task(chosen.send())
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        chosen.inner.gate.set()
        assert await staying == "hermes"
    assert len(chosen.inner.probed) == 2


@pytest.mark.parametrize("failure", [OVERLOADED, BrokenOff("gone", True), ChatError(504, "too late")])
async def test_a_probe_that_fails_is_reported_and_not_remembered(failure):
    answers: list[Any] = [failure, PROSE]
    chosen = Route(Scripted(lambda _: answers.pop(0)))
    assert await chosen.send() == "native"
    assert chosen.detector.choice is None
    assert await chosen.send() == "hermes"
    assert [choice.decided_by for choice in chosen.decided] == ["nobody", "probe"]
    assert chosen.decided[0].detail == str(failure)


async def test_a_server_that_refuses_tools_and_nothing_else_has_no_native_calls():
    chosen = Route(Scripted(lambda ask: REFUSES_TOOLS if ask.tools else PROSE))
    assert [await chosen.send() for _ in range(2)] == ["hermes"] * 2
    assert [bool(ask.tools) for ask in chosen.inner.probed] == [True, False, True]
    assert chosen.decided == [CallingMode("hermes", "probe")]


async def test_a_server_that_refuses_the_question_for_another_reason_says_nothing_about_tools():
    chosen = Route(Scripted(REFUSES_TOOLS))
    assert await chosen.send() == "native"
    assert [bool(ask.tools) for ask in chosen.inner.probed] == [True, False]
    assert chosen.detector.choice is None


async def test_a_passing_refusal_is_not_taken_for_a_no():
    answers: list[Any] = [ChatError(502, "connection lost"), PROSE, NATIVE_CALL]
    chosen = Route(Scripted(lambda _: answers.pop(0)))
    assert await chosen.send() == "native"
    assert chosen.decided == [CallingMode("native", "probe")]


async def test_a_way_found_through_one_wrapper_counts_for_the_other():
    chosen, other = Route(Scripted(PROSE)), Scripted(NATIVE_CALL)
    await chosen.send()
    async with DetectingModel(other, chosen.detector, PromptedModel).send(ASK) as answer:
        events = [event async for batch in answer for event in batch]
    assert isinstance(events[0], PromptedCalling)
    assert other.probed == []


def test_the_name_is_the_inner_models():
    assert Route(Scripted(PROSE)).model.name == "scripted"
