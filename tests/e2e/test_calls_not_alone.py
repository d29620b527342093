"""Calls that a model writes as text with prose behind them, as clients meet them on all three APIs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from typer.testing import CliRunner

from callgate.application import create_app
from callgate.commands import app
from tests.harness import toolshed
from tests.harness.clients import http_client, openai_client, streamed, whole
from tests.harness.configs import make_config
from tests.harness.messages import MessagesClient, calls_of, text_of
from tests.harness.responses import check_events, responded
from tests.harness.server import serve
from tests.scripted_upstream import Cut, Hold, Pace, Reply, Shape, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
FACES = pytest.mark.parametrize("face", ["chat", "responses", "messages"])
CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Go."}]
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}}


def tag_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


STEP = tag_call("step", label="a")
ASK_USER = tag_call("ask_user", what="now?")
ASKS = f"I will.\n{STEP}\nShall I?"
ASKS_OTHERWISE = f"Sure:\n{STEP}\nOK? 🙂"
CALLS = f"Now:\n{STEP}"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def reply(text: str, **fields: Any) -> Reply:
    return Reply(text=text, shape=Shape(piece=3), usage=USAGE, **fields)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client of any API has in the end."""

    paragraphs: Sequence[str]
    """Its text. On Responses the turns are items; elsewhere the same is one text."""
    finish: str
    calls: Sequence[str]
    usage: Mapping[str, Any]
    diagnostics: Mapping[str, Any]

    @property
    def flaws(self) -> list[list[str]]:
        return [[call["flaw"] for call in turn["calls"] if "flaw" in call] for turn in self.diagnostics["turns"]]


ENDED = {
    "chat": {"text": "stop", "calls": "tool_calls"},
    "responses": {"text": "completed", "calls": "completed"},
    "messages": {"text": "end_turn", "calls": "tool_use"},
}


class Client:
    """Asks on one of the three APIs."""

    def __init__(self, face: str, stream: bool, openai: AsyncOpenAI, http: httpx.AsyncClient) -> None:
        self.face, self.stream = face, stream
        self._openai, self._http = openai, http

    async def ask(self, *client_tools: str, choice: str | None = None, parallel: bool = True) -> Answer:
        fields: dict[str, Any] = {}
        if client_tools:
            fields["tools"] = [self._tool(name) for name in client_tools]
        if choice is not None:
            fields["tool_choice"] = self._choice(choice)
        if not parallel:
            if self.face == "messages":
                fields["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
            else:
                fields["parallel_tool_calls"] = False
        answer: Answer = await getattr(self, f"_{self.face}")(**fields)
        return answer

    def _tool(self, name: str) -> dict[str, Any]:
        if self.face == "messages":
            return {"name": name, "input_schema": SCHEMA}
        if self.face == "responses":
            return {"type": "function", "name": name, "parameters": SCHEMA}
        return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}

    def _choice(self, choice: str) -> Any:
        if self.face == "messages":
            return {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}
        if choice == "required":
            return choice
        if self.face == "responses":
            return {"type": "function", "name": choice}
        return {"type": "function", "function": {"name": choice}}

    async def _chat(self, **fields: Any) -> Answer:
        body: dict[str, Any] = {"model": "m", "messages": QUESTION, **fields}
        if not self.stream:
            found = (await self._http.post(CHAT, json=body)).json()
            [choice] = found["choices"]
            message = choice["message"]
            return _of_chat(
                message["content"], choice["finish_reason"], message.get("tool_calls"), found["usage"], found
            )
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = await self._http.post(CHAT, json=body)
        *lines, done = [line for line in answer.text.split("\n\n") if line]
        assert done == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ()) if "id" in call]
        [finish] = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        [usage] = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        [last] = [chunk for chunk in chunks if "turns" in chunk.get("x_callgate", ())]
        return _of_chat(text, finish, calls, usage, last)

    async def _responses(self, **fields: Any) -> Answer:
        answer = await responded(self._openai, stream=self.stream, model="m", input="Go.", **fields)
        items = answer.to_dict()["output"]
        texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
        calls = [item["name"] for item in items if item["type"] == "function_call"]
        found = answer.to_dict()
        usage = {"in": found["usage"]["input_tokens"], "out": found["usage"]["output_tokens"]}
        return Answer("\n\n".join(texts).split("\n\n"), found["status"], calls, usage, found["x_callgate"])

    async def _messages(self, **fields: Any) -> Answer:
        message = await MessagesClient(self._http).ask(stream=self.stream, messages=QUESTION, **fields)
        calls = [block["name"] for block in calls_of(message)]
        used = message["usage"]
        usage = {"in": used["input_tokens"], "out": used["output_tokens"], "turns": len(used["iterations"])}
        return Answer(text_of(message).split("\n\n"), message["stop_reason"], calls, usage, message["x_callgate"])


def _of_chat(text: str | None, finish: str, calls: Any, usage: Mapping[str, int], body: Mapping[str, Any]) -> Answer:
    names = [call["function"]["name"] for call in calls or ()]
    counts = {"in": usage["prompt_tokens"], "out": usage["completion_tokens"]}
    return Answer((text or "").split("\n\n"), finish, names, counts, body["x_callgate"])


@contextlib.asynccontextmanager
async def served_in_hermes(
    upstream: Upstream, *texts: str | Reply, tools: Sequence[str] = ("step",), **options: Any
) -> AsyncIterator[str]:
    toolshed.steps.clear()
    upstream.script("m", [text if isinstance(text, Reply) else reply(text) for text in texts])
    entry = {"tool_calling": "hermes", "usage": "sum", **options.pop("entry", {})}
    async with serve(create_app(make_config(upstream.url, tools=tools, entry=entry, **options))) as url:
        yield url


async def answer_to(
    upstream: Upstream, face: str, stream: bool, *texts: str | Reply, client_tools: Sequence[str] = (), **options: Any
) -> Answer:
    fields = {name: options.pop(name) for name in ("choice", "parallel") if name in options}
    async with (
        served_in_hermes(upstream, *texts, **options) as url,
        openai_client(url) as openai,
        http_client(url) as http,
    ):
        return await Client(face, stream, openai, http).ask(*client_tools, **fields)


# Asked again ----------------------------------------------------------------------------------------------------------


@FACES
@BOTH
async def test_the_model_is_asked_again_and_what_it_then_calls_runs(
    upstream: Upstream, face: str, stream: bool
) -> None:
    answer = await answer_to(upstream, face, stream, ASKS, CALLS, "Done.")
    assert toolshed.steps == ["+a", "-a"]
    assert answer.paragraphs == ["I will.", "Shall I?", "Now:", "Done."]
    assert (answer.finish, answer.calls) == (ENDED[face]["text"], [])
    assert answer.flaws == [["not_alone"], [], []]
    assert (answer.usage["in"], answer.usage["out"]) == (300, 30)
    assert answer.usage.get("turns", 3) == 3
    *_, told = upstream.requests[1].messages
    assert "not_alone" in str(told["content"])


@FACES
@BOTH
async def test_one_that_only_meant_to_show_a_call_is_done(upstream: Upstream, face: str, stream: bool) -> None:
    answer = await answer_to(upstream, face, stream, ASKS, "I only showed it.")
    assert toolshed.steps == []
    assert answer.paragraphs == ["I will.", "Shall I?", "I only showed it."]
    assert answer.finish == ENDED[face]["text"]


@FACES
@BOTH
async def test_the_third_such_answer_running_is_passed_on_as_it_was_written(
    upstream: Upstream, face: str, stream: bool
) -> None:
    answer = await answer_to(upstream, face, stream, ASKS, ASKS_OTHERWISE, ASKS)
    assert toolshed.steps == []
    assert answer.paragraphs == ["I will.", "Shall I?", "Sure:", "OK? 🙂", ASKS]
    assert (answer.finish, answer.calls) == (ENDED[face]["text"], [])
    assert answer.flaws == [["not_alone"], ["not_alone"], []]
    assert answer.diagnostics["turns"][2]["not_run"] == [{"name": "step", "reason": "not_alone"}]
    assert answer.diagnostics["ending"] == "answered"
    assert (answer.usage["in"], answer.usage.get("turns", 3)) == (300, 3)


@FACES
@BOTH
@pytest.mark.parametrize("tools", [("step",), ()], ids=["beside ours", "alone"])
async def test_a_call_of_the_clients_is_handed_out_once_it_stands_alone(
    upstream: Upstream, face: str, stream: bool, tools: Sequence[str]
) -> None:
    texts = [f"May I ask?\n{ASK_USER}\nI wait.", f"So:\n{ASK_USER}"]
    answer = await answer_to(upstream, face, stream, *texts, tools=tools, client_tools=["ask_user"])
    assert answer.paragraphs == ["May I ask?", "I wait.", "So:"]
    assert (answer.finish, answer.calls) == (ENDED[face]["calls"], ["ask_user"])


@FACES
@BOTH
@pytest.mark.parametrize("tools", [("step",), ()], ids=["beside ours", "alone"])
async def test_a_call_of_the_clients_that_never_stands_alone_is_not_handed_out(
    upstream: Upstream, face: str, stream: bool, tools: Sequence[str]
) -> None:
    text = f"May I ask?\n{ASK_USER}\nI wait."
    answer = await answer_to(upstream, face, stream, *[text] * 3, tools=tools, client_tools=["ask_user"])
    assert answer.paragraphs == ["May I ask?", "I wait."] * 2 + [text]
    assert (answer.finish, answer.calls) == (ENDED[face]["text"], [])


@FACES
@BOTH
async def test_with_calls_of_both_sides_neither_runs_nor_is_handed_out(
    upstream: Upstream, face: str, stream: bool
) -> None:
    both = f"{STEP}\n{ASK_USER}"
    answer = await answer_to(upstream, face, stream, f"{both}\nI wait.", both, client_tools=["ask_user"])
    assert answer.flaws == [["not_alone", "not_alone"], []]
    assert toolshed.steps == ["+a", "-a"]
    assert (answer.finish, answer.calls) == (ENDED[face]["calls"], ["ask_user"])


@FACES
@BOTH
@pytest.mark.parametrize("choice", ["required", "step"])
async def test_a_demanded_call_runs_with_prose_behind_it_and_only_in_the_turn_it_is_demanded_of(
    upstream: Upstream, face: str, stream: bool, choice: str
) -> None:
    answer = await answer_to(upstream, face, stream, ASKS, ASKS, "Done.", choice=choice)
    assert toolshed.steps == ["+a", "-a"]
    assert answer.flaws == [[], ["not_alone"], []]


@FACES
@BOTH
async def test_one_call_at_a_time_is_the_first_of_those_that_stand_alone(
    upstream: Upstream, face: str, stream: bool
) -> None:
    two = f"{STEP}\n{tag_call('step', label='b')}"
    answer = await answer_to(upstream, face, stream, f"{two}\nOK?", two, "Done.", parallel=False)
    assert toolshed.steps == ["+a", "-a"]
    assert answer.flaws[0] == ["not_alone", "not_alone"]


# Limits ---------------------------------------------------------------------------------------------------------------


@FACES
async def test_such_turns_are_neither_failed_nor_counted_as_turns_with_tools(upstream: Upstream, face: str) -> None:
    loop = {"max_failed_turns": 1, "max_iterations": 1}
    answer = await answer_to(upstream, face, False, ASKS, ASKS, CALLS, "Done.", loop=loop)
    assert toolshed.steps == ["+a", "-a"]
    assert answer.diagnostics["ending"] == "answered"


@FACES
async def test_their_tokens_count(upstream: Upstream, face: str) -> None:
    answer = await answer_to(upstream, face, False, ASKS, "That is all.", limits={"request_tokens": 100})
    assert answer.diagnostics["ending"] == "turn_limit"
    assert "get_weather" not in json.dumps(upstream.requests[1].body)
    assert answer.paragraphs[-1] == "That is all."


@BOTH
async def test_each_choice_of_an_answer_counts_for_itself(upstream: Upstream, stream: bool) -> None:
    def talk(request: Any) -> Reply:
        # A choice is known by how often it was asked back: all choices get the same answers.
        told = sum("not_alone" in str(message["content"]) for message in request.messages)
        done = any("Now:" in str(message["content"]) for message in request.messages)
        return reply("Done." if done else CALLS if told == 1 else ASKS)

    async with served_in_hermes(upstream) as url, openai_client(url) as client:
        upstream.script("m", talk)
        ask = streamed if stream else whole
        answer = await ask(client, model="m", messages=QUESTION, n=2)
    assert toolshed.steps.count("+a") == 2
    assert [choice.message.content for choice in answer.choices] == ["I will.\n\nShall I?\n\nNow:\n\nDone."] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]


# Streams --------------------------------------------------------------------------------------------------------------

PATHS = {"chat": CHAT, "responses": "/v1/responses", "messages": "/v1/messages"}


@FACES
async def test_prose_before_a_call_is_live_and_nothing_of_the_call_leaks(upstream: Upstream, face: str) -> None:
    gate = asyncio.Event()
    last = Reply(
        text=f"Hello, all of you.\n{STEP}\nShall I?", shape=Shape(piece=3), pace=Pace(hold=Hold(gate, after=9))
    )
    body: dict[str, Any] = {"model": "m", "stream": True}
    body |= {"input": "Go."} if face == "responses" else {"messages": QUESTION, "max_tokens": 99}
    received = ""
    async with (
        served_in_hermes(upstream, last, CALLS, "Done.", entry={"thinking": "none"}) as url,
        http_client(url) as http,
        http.stream("POST", PATHS[face], json=body) as answer,
        asyncio.timeout(30),
    ):
        async for piece in answer.aiter_text():
            received += piece
            if "f y" in received:  # a delta of three characters
                gate.set()
    assert gate.is_set(), "the prose came only with the end of the answer"
    assert toolshed.steps == ["+a", "-a"]
    shown = received.partition('"turns"')[0]  # what the diagnostics list was not shown as text
    assert "tool_call" not in shown.replace("tool_calls", "")


# Runs that are kept ---------------------------------------------------------------------------------------------------


async def test_a_recorded_run_is_asked_again_and_judged_offline(upstream: Upstream, tmp_path: Path) -> None:
    turns = [reply(ASKS), reply(CALLS), reply("Done.")]
    record = {"content": True, "wire": "on"}
    async with (
        served_in_hermes(upstream, *turns, data_dir=str(tmp_path), record=record) as url,
        http_client(url) as http,
    ):
        first = (await http.post(CHAT, json={"model": "m", "messages": QUESTION})).json()
        [row] = (await http.get("/v1/runs")).json()["data"]
        upstream.script("m", turns)
        again = (await http.post(f"/v1/runs/{row['id']}/replay", json={})).json()["answer"]
        upstream.script("m", turns[1:])
        later = (await http.post(f"/v1/runs/{row['id']}/replay", json={"from_turn": 1})).json()["answer"]
        shown = (await http.get(f"/v1/runs/{row['id']}")).json()
        metrics = (await http.get("/metrics")).text
        exported = await http.get(f"/v1/runs/{row['id']}/export", params={"as": "recording"})
    assert toolshed.steps == ["+a", "-a"], "a replay runs nothing"
    texts = [each["choices"][0]["message"]["content"] for each in (first, again, later)]
    assert texts == [*["I will.\n\nShall I?\n\nNow:\n\nDone."] * 2, "Now:\n\nDone."]
    flaws = [call.get("flaw") for event in shown["events"] for call in event.get("facts", {}).get("calls", ())]
    assert flaws == ["not_alone", None]
    assert (row["state"], row["turns"]) == ("answered", 3)
    assert 'callgate_calls_total{tool="step",verdict="not_alone"}' in metrics
    (tmp_path / "it.json").write_text(exported.text)
    offline = CliRunner().invoke(app, ["runs", "replay", "--offline", str(tmp_path / "it.json")])
    assert (offline.exit_code, offline.output) == (0, "2 calls, judged as they were\n")


async def test_a_response_in_the_background_is_asked_again(upstream: Upstream) -> None:
    async with served_in_hermes(upstream, ASKS, CALLS, "Done.") as url, openai_client(url) as client:
        begun = await client.responses.create(model="m", input="go", background=True)
        async with await client.responses.retrieve(begun.id, stream=True) as events:
            seen = [event.to_dict(warnings=False) async for event in events]
        response = await client.responses.retrieve(begun.id)
    check_events(seen)
    assert toolshed.steps == ["+a", "-a"]
    assert (response.status, response.output_text) == ("completed", "I will.\n\nShall I?Now:Done.")


@FACES
async def test_an_answer_of_which_nothing_was_shown_is_asked_for_again_where_it_breaks_off(
    upstream: Upstream, face: str
) -> None:
    broken = Reply(text=f"{STEP}\nShall I go on with it?", shape=Shape(piece=3), fault=Cut(after=26))
    answer = await answer_to(upstream, face, True, broken, CALLS, "Done.", entry={"thinking": "none"})
    assert toolshed.steps == ["+a", "-a"]
    assert answer.paragraphs == ["Now:", "Done."]
    assert len(upstream.requests) == 3


@FACES
@BOTH
async def test_a_broken_call_of_the_clients_with_prose_behind_it_is_not_handed_out(
    upstream: Upstream, face: str, stream: bool
) -> None:
    broken = f"I ask.\n{tag_call('tell_user', what='x')}\nI wait."
    answer = await answer_to(upstream, face, stream, broken, f"So:\n{ASK_USER}", tools=(), client_tools=["ask_user"])
    assert answer.flaws == [["unknown_tool"], []]
    assert (answer.paragraphs, answer.calls) == (["I ask.", "I wait.", "So:"], ["ask_user"])


@BOTH
@pytest.mark.parametrize("text", [f"As before:\n{ASK_USER}", f"As before:\n{ASK_USER}\nNo?", f"As before:\n{STEP}"])
@pytest.mark.parametrize("fields", [{}, {"tools": []}], ids=["no tools", "an empty list"])
async def test_without_tools_a_model_that_imitates_its_history_hands_out_no_call(
    upstream: Upstream, stream: bool, text: str, fields: dict[str, Any]
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "ask_user", "arguments": "{}"}}
    history = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "yes"},
        {"role": "user", "content": "Give this chat a title."},
    ]
    async with served_in_hermes(upstream, text, tools=()) as url, openai_client(url) as client:
        ask = streamed if stream else whole
        answer = await ask(client, model="m", messages=history, **fields)
    [choice] = answer.choices
    assert not choice.message.tool_calls
    assert choice.finish_reason == "stop"
    assert (choice.message.content or "").startswith("As before:")
    assert len(upstream.requests) == 1
