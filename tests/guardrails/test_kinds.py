"""Each kind of hook: what it is shown, what it may say, and what becomes of one that fails."""

import ast
import contextlib
import importlib.util
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from callgate.application import create_app
from callgate.guardrails.functions import FunctionCheck
from callgate.guardrails.hook import Guardrail
from callgate.guardrails.verdicts import GuardEvent
from callgate.guardrails.webhook import payload_of
from callgate.guardrails.windows import WindowStretch
from callgate.tools.kinds.python.threads import ThreadPool
from tests.e2e.test_client_servers import asking, client_of, config_for, named, posted
from tests.guardrails import hooks_of_tests
from tests.guardrails.test_three_ways import asked, hook, text_in
from tests.harness import toolshed
from tests.harness.cards import CARD, shows_card
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.served import served
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.servers.asking_mcp import AskingMcp

pytestmark = pytest.mark.anyio

HOOKS = hooks_of_tests.__name__
READ = Call("echo", {"text": "a secret"}, id="call_read")
FAILURES = ["raises", "exits", "hangs", "returns_nothing", "returns_a_text", "masks_too_few", "masks_with_numbers"]
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def function(name: str, at: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"name": "house", "kind": "python", "function": f"{HOOKS}:{name}", "at": list(at), **more}


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    hooks_of_tests.events.clear()
    toolshed.steps.clear()


# Functions ------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("name", ["masks", "masks_in_a_thread"])
async def test_a_function_masks_at_all_points(upstream: Upstream, name: str, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text="The secret is out.")])
    hooks = [function(name, ["request", "answer", "arguments", "result"])]
    async with served(upstream, "echo", guardrails=hooks) as url:
        answer = await asked(url, "chat", stream=stream, text="my secret")
    assert text_in(answer, "chat", stream=stream) == "The ****** is out."
    sent = json.dumps([request.body for request in upstream.requests])
    assert "my ******" in sent
    assert "a ******" in sent
    assert "secret" not in sent


@BOTH
@pytest.mark.parametrize("name", FAILURES)
async def test_a_function_that_gives_no_verdict_counts_as_a_block(upstream: Upstream, name: str, stream: bool) -> None:
    upstream.script("m", [Reply(text="hello")])
    async with served(upstream, guardrails=[function(name, ["answer"], timeout_seconds=0.01)]) as url:
        answer = await asked(url, "chat", stream=stream)
    assert "hello" not in answer.text
    assert "content_filter" in answer.text
    assert "failed_closed" in answer.text


@pytest.mark.parametrize("name", FAILURES)
async def test_a_function_that_gives_no_verdict_lets_pass_where_it_may(upstream: Upstream, name: str) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text="hello")])
    points = ["request", "answer", "arguments", "result"]
    hooks = [function(name, points, timeout_seconds=0.01, on_error="open")]
    async with served(upstream, "echo", guardrails=hooks) as url, http_client(url) as client:
        answer = await asked(url, "chat", stream=False)
        metrics = (await client.get("/metrics")).text
    assert text_in(answer, "chat", stream=False) == "hello"
    for point in points:
        assert f'point="{point}",verdict="failed_open"' in metrics


@pytest.mark.parametrize("name", FAILURES)
async def test_no_call_runs_that_could_not_be_judged(upstream: Upstream, name: str) -> None:
    upstream.script("m", [Reply(calls=[Call("step", {"label": "a"}, id="c")]), Reply(text="done")])
    async with served(upstream, "step", guardrails=[function(name, ["arguments"], timeout_seconds=0.01)]) as url:
        await asked(url, "chat", stream=False)
    assert toolshed.steps == []
    assert "it could not be checked" in json.dumps(upstream.requests[1].body)


async def test_what_a_function_raises_is_logged_without_what_it_saw(upstream: Upstream, capsys: Any) -> None:
    upstream.script("m", [Reply(text="hello")])
    async with served(upstream, guardrails=[function("raises", ["request"])]) as url:
        answer = await asked(url, "chat", stream=False, text="planted words")
    assert answer.status_code == 400
    assert "planted" not in answer.text
    log = capsys.readouterr().out
    assert "guardrail_failed" in log
    assert "planted words" not in log


async def test_a_hook_is_shown_what_it_is_about(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text="hello")])
    points = ["request", "answer", "arguments", "result", "description"]
    async with served(upstream, "echo", guardrails=[function("notes", points)]) as url:
        await asked(url, "chat", stream=False, text="go")
    shown = {event.point: event for event in hooks_of_tests.events}
    assert set(shown) == set(points)
    assert list(shown["request"].texts) == ["go"]
    assert (shown["arguments"].tool, shown["arguments"].arguments) == ("echo", '{"text":"a secret"}')
    assert sorted(shown["arguments"].texts) == ["a secret", "text"]
    assert (shown["result"].tool, list(shown["result"].texts)) == ("echo", ["a secret"])
    assert "Gives the text back." in shown["description"].texts
    assert {event.model for event in shown.values()} == {"m", ""}
    assert shown["answer"].run_id.startswith("run_")


async def test_of_a_stream_a_function_is_shown_windows_and_masks_the_same_wherever_it_is_cut() -> None:
    text = "".join(f"word{number} " for number in range(20)) + "a secret " + "and more " * 10
    guardrail = Guardrail(
        name="h", points=frozenset({"answer"}), check=FunctionCheck(hooks_of_tests.masks, ThreadPool()), hold=30
    )

    async def masked(*cuts: int) -> str:
        stretch = WindowStretch(guardrail, GuardEvent(point="answer", texts=()), is_whole=False)
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        sent = 0
        out = []
        for piece in pieces:
            out.append(await stretch.feed(piece))
            sent += len(piece)
            assert sent - sum(map(len, out)) <= 30
        return "".join([*out, await stretch.finish()])

    expected = text.replace("secret", "******")
    assert {await masked(cut) for cut in range(len(text))} == {expected}
    assert await masked(*range(1, len(text))) == expected


# Sizes ----------------------------------------------------------------------------------------------------------------


@BOTH
async def test_what_is_too_large_is_blocked(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text="x" * 5000)])
    sizes = {"kind": "sizes", "max_tokens": 1000}
    async with served(upstream, "echo", guardrails=[hook(["request", "answer"], sizes)]) as url:
        refused = await asked(url, "chat", stream=stream, text="y" * 4001)
        answer = await asked(url, "chat", stream=stream)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter")
    assert "larger than 4000 bytes" in refused.text
    assert "content_filter" in answer.text
    assert len(text_in(answer, "chat", stream=stream)) <= 4000


# Servers --------------------------------------------------------------------------------------------------------------


class GuardrailServer:
    """Speaks litellm's generic guardrail API."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], Any]) -> None:
        self.questions: list[tuple[str, Mapping[str, str], dict[str, Any]]] = []
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        body = await request.json()
        self.questions.append((request.url.path, dict(request.headers), body))
        answer = self._answer(body)
        if answer == HANGS:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if not isinstance(answer, Response):
            answer = PlainTextResponse(json.dumps(answer), media_type="application/json")
        await answer(scope, receive, send)


@contextlib.asynccontextmanager
async def guarded_by(upstream: Upstream, server: GuardrailServer, at: Sequence[str], **more: Any) -> AsyncIterator[str]:
    async with serve(server) as address:
        entry = {
            "name": "server",
            "kind": "webhook",
            "url": address,
            "api_key": "gk-planted",
            "params": {"team": "a"},
            "allow_private": True,
            "at": list(at),
            **more,
        }
        async with serve(create_app(make_config(upstream.url, tools=["echo"], guardrails=[entry]))) as url:
            yield url


def replaced(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"action": "GUARDRAIL_INTERVENED", "texts": [text.replace("secret", "******") for text in body["texts"]]}


@BOTH
async def test_a_server_is_asked_as_litellm_asks_it(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", [Reply(calls=[READ]), Reply(text="The secret is out.")])
    server = GuardrailServer(replaced)
    async with guarded_by(upstream, server, ["request", "answer", "arguments", "result"]) as url:
        answer = await asked(url, "chat", stream=stream, text="my secret")
    assert text_in(answer, "chat", stream=stream) == "The ****** is out."
    assert "secret" not in json.dumps([request.body for request in upstream.requests])
    paths = {path for path, _, _ in server.questions}
    assert paths == {"/beta/litellm_basic_guardrail_api"}
    assert {headers["x-api-key"] for _, headers, _ in server.questions} == {"gk-planted"}
    bodies = [body for _, _, body in server.questions]
    assert [body["input_type"] for body in bodies] == ["request", "response", "request", "response"]
    first = bodies[0]
    assert (first["texts"], first["model"], first["request_data"]) == (
        ["my secret"],
        "m",
        {"user_api_key_alias": "anonymous"},
    )
    assert first["additional_provider_specific_params"]["team"] == "a"
    assert bodies[1]["tool_calls"] == [
        {"id": "call_read", "type": "function", "function": {"name": "echo", "arguments": '{"text":"a secret"}'}}
    ]
    fields = {"input_type", "litellm_call_id", "litellm_trace_id", "structured_messages", "images", "tools", "texts"}
    fields |= {
        "request_data",
        "request_headers",
        "litellm_version",
        "additional_provider_specific_params",
        "tool_calls",
    }
    assert set(first) == fields | {"model"}


def test_the_question_has_the_fields_that_litellm_sends() -> None:
    litellm = importlib.util.find_spec("litellm")
    assert litellm is not None
    assert litellm.origin is not None
    types = Path(litellm.origin).parent / "types/proxy/guardrails/guardrail_hooks/generic_guardrail_api.py"
    bodies = {node.name: node.body for node in ast.parse(types.read_text()).body if isinstance(node, ast.ClassDef)}
    fields = {
        line.target.id
        for line in bodies["GenericGuardrailAPIRequest"]
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    event = GuardEvent(point="arguments", texts=["a"], tool="echo", call_id="c", arguments="{}", key="k", model="m")
    assert set(payload_of(event, {})) == fields


async def test_a_server_blocks(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hello")])
    server = GuardrailServer(lambda body: {"action": "BLOCKED", "blocked_reason": "not here"})
    async with guarded_by(upstream, server, ["request"]) as url:
        answer = await asked(url, "chat", stream=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")
    assert "blocked by the guardrail `server`: not here" in answer.text


HANGS = "no answer until the client has left"


BAD_ANSWERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "no JSON": lambda body: PlainTextResponse("<html>"),
    "a list": lambda body: [],
    "no action": lambda body: {},
    "an unknown action": lambda body: {"action": "MAYBE"},
    "an action in small letters": lambda body: {"action": "none"},
    "too few texts": lambda body: {"action": "GUARDRAIL_INTERVENED", "texts": ["a", "b", "c"]},
    "no texts": lambda body: {"action": "GUARDRAIL_INTERVENED"},
    "numbers": lambda body: {"action": "NONE", "texts": [1]},
    "an error": lambda body: PlainTextResponse("no", status_code=500),
    "a redirect": lambda body: PlainTextResponse("", status_code=302, headers={"location": "http://example.org/"}),
    "too much": lambda body: PlainTextResponse('{"action": "NONE", "x": "' + "x" * 200_000 + '"}'),
    "nothing in time": lambda body: HANGS,
}


@pytest.mark.parametrize("on_error", ["closed", "open"])
@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_a_server_without_a_verdict_counts_by_on_error(upstream: Upstream, name: str, on_error: str) -> None:
    upstream.script("m", [Reply(text="hello")])
    server = GuardrailServer(BAD_ANSWERS[name])
    more = {"timeout_seconds": 0.2} if name == "nothing in time" else {}
    async with guarded_by(upstream, server, ["request"], on_error=on_error, **more) as url:
        answer = await asked(url, "chat", stream=False)
    assert answer.status_code == (400 if on_error == "closed" else 200), answer.text
    assert len(server.questions) == 1 or name == "nothing in time"  # it may be up before the question is read


async def test_a_private_address_is_refused_unless_it_is_allowed(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hello")])
    server = GuardrailServer(lambda body: {"action": "NONE"})
    async with guarded_by(upstream, server, ["request"], allow_private=False) as url:
        answer = await asked(url, "chat", stream=False)
    assert answer.status_code == 400
    assert server.questions == []


# Descriptions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["mask", "block"])
async def test_a_tool_that_says_what_it_may_not_is_masked_or_held_out(upstream: Upstream, then: str) -> None:
    upstream.script("m", [Reply(text="hello")], repeat_last=True)
    said = {
        "kind": "python",
        "function": "tests.harness.toolshed:echo",
        "name": "mailer",
        "description": f"Pay with {CARD}.",
    }
    hooks = [hook(["description"], {"kind": "patterns", "find": ["cards"], "then": then})]
    async with served(upstream, said, "get_time", guardrails=hooks) as url, http_client(url) as client:
        await asked(url, "chat", stream=False)
        listed = {tool["name"]: tool for tool in (await client.get("/v1/tools")).json()["data"]}
    offered = {tool["function"]["name"]: tool["function"] for tool in upstream.requests[0].body["tools"]}
    assert "get_time" in offered
    assert not shows_card(json.dumps(upstream.requests[0].body))
    if then == "mask":
        assert offered["mailer"]["description"] == "Pay with [CARD]."
    else:
        assert "mailer" not in offered
        assert "blocked by the guardrail `cards`" in json.dumps(listed["mailer"])


@pytest.mark.parametrize("then", ["mask", "block"])
async def test_a_tool_of_a_server_that_a_request_names_is_masked_or_held_out(upstream: Upstream, then: str) -> None:
    upstream.script("m", [Reply(text="hello")])
    hooks = [hook(["description"], {"kind": "patterns", "own": {"words": "creates an"}, "then": then})]
    async with AskingMcp().running() as far:
        config = config_for(upstream, far, guardrails=hooks)
        async with serve(create_app(config)) as url, client_of(url) as client:
            answer = await posted(client, "chat", asking("chat", named(far)))
    assert answer.status_code == 200, answer.text
    tools = [tool["function"] for tool in upstream.requests[0].body.get("tools", ())]
    said = {tool["name"]: tool["description"] for tool in tools}
    assert said.get("far_create_issue") == ("It [WORDS] issue." if then == "mask" else None)
