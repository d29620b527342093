"""Every case of the corpus through real sockets: the case is what a provider sends, the served product is what answers.

The tools are real as well: HTTP tools with the case's schemas, at a server that writes down what reaches it. The judge
(`tests/corpus`) holds the turn builder and the readers to the cases; here it is shown that nothing between two sockets
undoes that: what runs, what the client sees, what the model is sent, and what the diagnostics say.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from callgate.application import create_app
from callgate.config.schema.whole import Config
from callgate.conversation.finish_words import OPEN, FinishClass, Meaning
from tests.chaos.scale import dealt
from tests.corpus.judge import Case, cases, is_within
from tests.harness.clients import openai_client
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Shape, Upstream, case_reply, whole_body

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

CASES = list(cases())
STREAMED = [case for case in CASES if "chunks" in case.data]
WHOLE = [case for case in CASES if "message" in case.data]
TEXT = [case for case in CASES if "format" in case.data]
LANES = ("direct", "litellm")
FINAL = "That is all."
ASKING = [{"role": "user", "content": "Go on."}]
TURN_FAILURES = {"stream_ended", "upstream_error", "content_filter"}


# What is served -------------------------------------------------------------------------------------------------------


class Workshop:
    """The server behind the tools: writes down every call that really runs."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    async def work(self, request: web.Request) -> web.Response:
        self.runs.append({"name": request.match_info["tool"], "arguments": await request.json()})
        return web.json_response({"done": len(self.runs)})


@dataclass(frozen=True, slots=True)
class Served:
    upstream: Upstream
    workshop: Workshop
    client: AsyncOpenAI


@pytest.fixture(autouse=True)
def _no_task_left() -> None:
    """The servers stay for the whole file, with a task for each connection that is kept open."""


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    workshop = Workshop()
    shop = web.AppRunner(web.Application())
    shop.app.router.add_post("/{tool}", workshop.work)
    await shop.setup()
    site = web.TCPSite(shop, "127.0.0.1", 0)
    await site.start()
    try:
        async with Upstream() as upstream:
            app = create_app(Config.model_validate(config(upstream.url, f"http://127.0.0.1:{shop.addresses[0][1]}")))
            async with serve(app) as url, openai_client(url) as client:
                yield Served(upstream, workshop, client)
    finally:
        await shop.cleanup()


def config(upstream_url: str, shop_url: str) -> dict[str, Any]:
    every = [tool["function"] for case in CASES for tool in case.data["tools"]]
    # Some cases declare less of a tool: the fullest declaration is served.
    functions = {function["name"]: function for function in sorted(every, key=lambda each: len(json.dumps(each)))}
    tools = [
        {
            "kind": "http",
            "name": name,
            "description": function["description"],
            "method": "POST",
            "url": f"{shop_url}/{name}",
            "parameters": function["parameters"],
            "allow_private": True,
        }
        for name, function in functions.items()
    ]
    whole = config_dict(upstream_url, tools=tools, loop={"max_parallel_calls": 1}, upstream={"retries": 0})
    whole["model_list"] = [
        {**entry, "litellm_params": {**entry["litellm_params"], "api_base": upstream_url, "api_key": "sk-upstream"}}
        for case in CASES
        for entry in entries(case)
    ]
    return whole


def entries(case: Case) -> list[dict[str, Any]]:
    names = [tool["function"]["name"] for tool in case.data["tools"]]
    return [
        {
            "model_name": f"{case.id}-{lane}",
            "litellm_params": {"model": f"openai/{case.id}"},
            "lane": lane,
            "tools": names,
            "tool_calling": case.data.get("format", "native"),
        }
        for lane in LANES
    ]


# What comes of it -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """All that can be seen of one request from outside the product."""

    runs: list[dict[str, Any]]
    asked: list[dict[str, Any]]
    """What the model was asked, request by request."""
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    shown_calls: list[Any] = field(default_factory=list)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def turn(self) -> dict[str, Any]:
        """The turn that was the case's."""
        first: dict[str, Any] = self.diagnostics["turns"][0]
        return first

    @property
    def broken(self) -> list[dict[str, Any]]:
        return [
            {"name": call["name"], "reason": call["flaw"]} for call in self.turn["calls"] if call["verdict"] == "broken"
        ]


async def play(served: Served, case: Case, reply: Reply, *, lane: str, stream: bool) -> Outcome:
    seen, ran = len(served.upstream.requests), len(served.workshop.runs)
    served.upstream.script(case.id, [reply, Reply(text=FINAL)])
    outcome = Outcome([], [])
    question: dict[str, Any] = {"model": f"{case.id}-{lane}", "messages": case.data.get("messages", ASKING)}
    try:
        await (_streamed if stream else _whole)(served.client, question, outcome)
    except openai.APIError as error:
        outcome.error = error.message
    outcome.runs = served.workshop.runs[ran:]
    outcome.asked = [request.body for request in list(served.upstream.requests)[seen:]]
    return outcome


async def _whole(client: AsyncOpenAI, question: dict[str, Any], outcome: Outcome) -> None:
    answer = await client.chat.completions.create(**question)
    [choice] = answer.choices
    outcome.text = choice.message.content or ""
    outcome.reasoning = (choice.message.model_extra or {}).get("reasoning_content") or ""
    outcome.finish_reason = choice.finish_reason
    outcome.shown_calls = list(choice.message.tool_calls or ())
    outcome.diagnostics = (answer.model_extra or {}).get("x_callgate", {})


async def _streamed(client: AsyncOpenAI, question: dict[str, Any], outcome: Outcome) -> None:
    async for chunk in await client.chat.completions.create(**question, stream=True):
        for choice in chunk.choices:
            outcome.text += choice.delta.content or ""
            outcome.reasoning += (choice.delta.model_extra or {}).get("reasoning_content") or ""
            outcome.finish_reason = choice.finish_reason or outcome.finish_reason
            outcome.shown_calls += choice.delta.tool_calls or ()
        outcome.diagnostics |= (chunk.model_extra or {}).get("x_callgate") or {}


# What must hold -------------------------------------------------------------------------------------------------------


def played(cases: list[Case], *, tools: bool = True) -> list[Any]:
    """Each case on the direct lane; on litellm's, which reads the same answer, every so manieth."""
    return [
        pytest.param(case, lane, id=f"{case.id}-{lane}")
        for lane, among in (("direct", 1), ("litellm", 3))
        for case in dealt([case for case in cases if bool(case.data["tools"]) is tools], among, 0)
    ]


def check(case: Case, outcome: Outcome) -> None:
    expect = case.data["expect"]
    assert outcome.shown_calls == []
    if ends_unknown(case):
        check_unknown(expect, outcome)
    elif failure := failed_by(expect):
        check_failed(expect, outcome, failure, streamed="chunks" in case.data)
    else:
        check_settled(expect, outcome)


def ends_unknown(case: Case) -> bool:
    """True if nobody knows what the finish reasons of a case mean."""
    choices = [
        choice for chunk in case.data.get("chunks", ()) for choice in (chunk or {}).get("choices") or () if choice
    ]
    reasons = [case.data.get("finish_reason"), *(choice.get("finish_reason") for choice in choices)]
    meanings = [OPEN.judge(reason) for reason in reasons if isinstance(reason, str) and reason]
    has_failed = any(meaning == Meaning(FinishClass.ERROR) for meaning in meanings)
    return not has_failed and not all(meaning.is_known for meaning in meanings)


def check_unknown(expect: Mapping[str, Any], outcome: Outcome) -> None:
    """A turn of which nobody knows whether it ended in order: its text is the answer, nothing ran, and nobody is asked again."""
    assert (outcome.runs, len(outcome.asked), outcome.error) == ([], 1, "")
    assert outcome.text == expect["content"]
    assert outcome.broken == expect["incomplete"]
    assert set(outcome.turn["findings"]) == set(expect["warnings"])
    assert outcome.finish_reason == ("length" if expect["incomplete"] else "stop")


def failed_by(expect: Mapping[str, Any]) -> str | None:
    """Why nothing of the case's turn may run, if so."""
    reasons = {call["reason"] for call in expect["incomplete"]} | set(expect["warnings"])
    return next((reason for reason in sorted(TURN_FAILURES) if reason in reasons), None)


def check_settled(expect: Mapping[str, Any], outcome: Outcome) -> None:
    """A turn that the provider finished: its whole calls ran, and the model was sent an error for each of the others."""
    broken = expect["incomplete"]
    assert as_json(outcome.runs) == as_json([name_and_arguments(call) for call in expect["calls"]])
    assert outcome.broken == broken
    assert set(outcome.turn["findings"]) == set(expect["warnings"])
    assert ids_differ(expect["calls"], outcome) == []
    again = bool(expect["calls"] or broken)
    assert outcome.text == (joined(expect["content"], FINAL) if again else expect["content"])
    assert outcome.finish_reason in ("stop", "length")
    if "reasoning" in expect:
        assert outcome.reasoning == expect["reasoning"]
    assert len(outcome.asked) == (2 if again else 1)
    if again:
        check_feedback(expect, outcome, [call["reason"] for call in broken])


def check_feedback(expect: Mapping[str, Any], outcome: Outcome, reasons: list[str]) -> None:
    """What the model reads of its own turn: everything that has to come back, and what was wrong with its calls."""
    said = outcome.asked[1]["messages"][len(ASKING) :]
    results = [message["content"] for message in said if message["role"] == "tool"]
    errors = [json.loads(result)["error"]["code"] for result in results if result.startswith('{"error"')]
    assert errors == reasons
    assert len(results) == len(reasons) + len(expect["calls"])
    assert is_within(expect.get("echo", {}), said[0])


def check_failed(expect: Mapping[str, Any], outcome: Outcome, failure: str, *, streamed: bool) -> None:
    """A turn that the provider did not finish: nothing ran. It is asked again while the client has seen nothing of it."""
    assert outcome.runs == []
    if failure == "content_filter":
        assert outcome.finish_reason == "content_filter"
        assert outcome.broken == expect["incomplete"]
        assert set(outcome.turn["findings"]) == set(expect["warnings"])
    elif outcome.error:
        assert "nothing of it was run" in outcome.error
        assert outcome.text == (expect["content"] if streamed else "")
    else:
        assert expect["content"] == ""
        assert [attempt["reason"] for attempt in outcome.diagnostics["attempts"] if "reason" in attempt] == [failure]
        assert (outcome.text, len(outcome.asked)) == (FINAL, 2)


def ids_differ(calls: list[dict[str, Any]], outcome: Outcome) -> list[tuple[str, str]]:
    """Of the calls whose id is known, those that have another one."""
    ready = [call["id"] for call in outcome.turn["calls"] if call["verdict"] == "ready"]
    assert len(set(ready)) == len(ready)
    pairs = ((call["id"], id_) for call, id_ in zip(calls, ready, strict=True) if "id" in call)
    return [(wanted, got) for wanted, got in pairs if wanted != got]


def joined(before: str, after: str) -> str:
    """Two turns as one text; blanks that stood before a call are no text."""
    return f"{before}\n\n{after}" if before.strip() else after


def name_and_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call["name"], "arguments": call["arguments"]}


def as_json(value: Any) -> str:
    """Compared as JSON, where 1 and true and 1.0 are three different things."""
    return json.dumps(value, sort_keys=True)


# Native calls ---------------------------------------------------------------------------------------------------------


# litellm's models do not know what providers put into them, and pydantic says so when they are written out.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(("case", "lane"), played(STREAMED))
async def test_a_stream_of_the_corpus_has_the_expected_outcome(served: Served, case: Case, lane: str) -> None:
    outcome = await play(served, case, case_reply(case.data), lane=lane, stream=True)
    check(case, outcome)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(("case", "lane"), played(WHOLE))
async def test_a_message_of_the_corpus_has_the_expected_outcome(served: Served, case: Case, lane: str) -> None:
    outcome = await play(served, case, case_reply(case.data), lane=lane, stream=False)
    check(case, outcome)


@pytest.mark.parametrize(("case", "lane"), played(WHOLE, tools=False))
async def test_a_call_where_nothing_is_on_offer_is_the_clients_to_see(served: Served, case: Case, lane: str) -> None:
    outcome = await play(served, case, case_reply(case.data), lane=lane, stream=False)
    assert outcome.runs == []
    assert len(outcome.asked) == 1
    assert [call.function.name for call in outcome.shown_calls] == ["get_weather"]


# Calls in the text ----------------------------------------------------------------------------------------------------


def text_cases() -> list[Any]:
    """Each case on the direct lane, streamed or whole; on litellm's, which hands the same text on, every so manieth."""
    return [
        pytest.param(case, lane, stream, id=f"{case.id}-{'streamed' if stream else 'whole'}-{lane}")
        for lane, among in (("direct", 2), ("litellm", 8))
        for stream in (True, False)
        for case in dealt(TEXT, among, int(stream))
    ]


@pytest.mark.parametrize(("case", "lane", "stream"), text_cases())
async def test_a_text_of_the_corpus_has_the_expected_outcome(
    served: Served, case: Case, lane: str, stream: bool
) -> None:
    outcome = await play(served, case, text_reply(case.data), lane=lane, stream=stream)
    expect = case.data["expect"]
    again = not ends_unknown(case) and bool(expect["calls"] or expect["incomplete"])
    assert outcome.shown_calls == []
    assert as_json(outcome.runs) == as_json([name_and_arguments(call) for call in expect["calls"]])
    assert outcome.broken == expect["incomplete"]
    assert set(outcome.turn["findings"]) == set(expect["warnings"])
    assert collapsed(outcome.text) == collapsed(f"{expect['content']} {FINAL if again else ''}")
    if "reasoning" in expect:
        assert collapsed(outcome.reasoning) == collapsed(expect["reasoning"])
    assert ids_differ(expect["calls"], outcome) == []
    assert outcome.turn["asked_in_words"]["format"] == case.data["format"]
    assert [request.get("tools") for request in outcome.asked] == [None] * (2 if again else 1)


def text_reply(data: Mapping[str, Any]) -> Reply:
    finish = data.get("finish_reason", "stop")
    if "text" in data:
        return Reply(text=data["text"], finish=finish, shape=Shape(piece=5))
    deltas = [{"delta": {"content": piece}} for piece in data["text_chunks"]]
    chunks = [
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, **choice}]}
        for choice in (*deltas, {"delta": {}, "finish_reason": finish})
    ]
    return Reply(chunks=chunks, body=whole_body({"role": "assistant", "content": "".join(data["text_chunks"])}, finish))


def collapsed(text: str) -> str:
    return " ".join(text.split())
