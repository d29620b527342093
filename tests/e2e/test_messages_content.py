"""What a tool brings never ends a conversation: content that a model of chats cannot read is translated, or said to be left out."""

import base64
import json
from typing import Any

import pytest

from callgate.application import create_app
from callgate.conversation.client_run_tools import as_function, is_client_run
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.environment import Environment
from tests.harness.messages import put_together
from tests.harness.needs import needs
from tests.harness.process import output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
PDF = base64.b64encode(b"%PDF-1.4 a page").decode()
READS = {"entry": {"model_info": {"supports_pdf_input": True}}}
LANES: dict[str, dict[str, Any]] = {
    "direct": {},
    "litellm": {"lane": "litellm"},
    "prompted": {"entry": {"tool_calling": "json"}},
    "messages": {"provider": "anthropic", "lane": "translated"},
}
LINE = "left out: this model cannot read it]"
SOURCE = {"type": "base64", "media_type": "application/pdf", "data": PDF}
SAMPLES: dict[str, dict[str, Any]] = {
    "text": {"text": "words"},
    "image": {"source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
    "document": {"source": SOURCE},
    "search_result": {"source": "https://a.example", "title": "A", "content": [{"type": "text", "text": "words"}]},
    "tool_reference": {"tool_name": "x"},
    "thinking": {"thinking": "hm", "signature": "sig"},
    "redacted_thinking": {"data": "xx"},
    "compaction": {"content": "so far"},
}


def request_with_content(content: list[Any], *, of: str = "result", **more: Any) -> dict[str, Any]:
    """A request whose history has this content in a tool's result, in a message of the user's, or in one of the assistant's."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content if of == "result" else "seen"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    if of == "user":
        messages[2]["content"] += content
    if of == "assistant":
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "on"}]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    return {"model": "m", "max_tokens": 100, "messages": messages, "tools": tools, **more}


async def answered(upstream: Upstream, body: dict[str, Any], *, stream: bool = False, **options: Any) -> dict[str, Any]:
    """The answer, with what the model was asked under `asked`."""
    upstream.script("m", [Reply(text="ok")], lax=True)
    base = upstream.root if options.get("provider") == "anthropic" else upstream.url
    config = make_config(base, **options)
    async with serve(create_app(config)) as url, http_client(url) as http:
        answer = await http.post("/v1/messages", json={**body, "stream": stream})
    assert answer.status_code == 200, answer.text
    message = put_together(answer.text) if stream else answer.json()
    assert "".join(block.get("text", "") for block in message["content"]) == "ok"
    return {**message, "asked": upstream.requests[-1].body}


@BOTH
@pytest.mark.parametrize("of", ["result", "user"])
async def test_a_pdf_is_a_file_where_the_model_takes_it_and_a_line_where_not(
    upstream: Upstream, stream: bool, of: str
) -> None:
    document = {"type": "document", "source": SOURCE, "title": "Report"}
    message = await answered(upstream, request_with_content([document], of=of), stream=stream, **READS)
    [file] = [part for part in message["asked"]["messages"][-1]["content"] if part["type"] == "file"]
    assert file["file"] == {"filename": "Report.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    assert "warnings" not in message.get("x_callgate", {})
    message = await answered(upstream, request_with_content([document], of=of), stream=stream)
    assert f"[document 'Report' {LINE}" in json.dumps(message["asked"]["messages"])
    assert PDF not in json.dumps(message["asked"])
    assert message["x_callgate"]["warnings"] == ["left out, because this model cannot read it: 'document'"]


@pytest.mark.parametrize("of", ["result", "user"])
@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A crane."}}, "A crane."),
        (
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
            "T\n\nx",
        ),
        ({"type": "document", "source": {"type": "content", "content": "A crane."}}, "A crane."),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "A crane."}]}},
            "A crane.",
        ),
        ({"type": "search_result", **SAMPLES["search_result"]}, "A\nhttps://a.example\nwords"),
        ({"type": "document", "source": {"type": "url", "url": "https://a.example/x.pdf"}}, f"[document {LINE}"),
        ({"type": "document", "source": 7}, f"[document {LINE}"),
        ({"type": "document"}, f"[document {LINE}"),
        ({"type": "search_result", "content": 7, "source": []}, f"[content {LINE}"),
        ({"type": "of_tomorrow", "title": {"a": 1}}, f"[of_tomorrow {LINE}"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
async def test_what_is_text_is_text_and_the_rest_is_a_line(
    upstream: Upstream, of: str, block: dict[str, Any], text: str
) -> None:
    message = await answered(upstream, request_with_content([block], of=of))
    last = message["asked"]["messages"][-1]
    assert (last["role"], last["content"]) == ("tool" if of == "result" else "user", text)
    assert ("warnings" in message["x_callgate"]) == (LINE in text)


async def test_an_image_in_a_document_is_seen(upstream: Upstream) -> None:
    block = {"type": "document", "source": {"type": "content", "content": [{"type": "image", **SAMPLES["image"]}]}}
    message = await answered(upstream, request_with_content([block]))
    assert [part["type"] for part in message["asked"]["messages"][-1]["content"]] == ["text", "image_url"]


async def test_a_warning_of_a_strange_type_stays_in_its_header(upstream: Upstream) -> None:
    message = await answered(upstream, request_with_content([{"type": "a\r\nx-evil: 1 é" + "x" * 100}]))
    [warning] = message["x_callgate"]["warnings"]
    assert warning.isascii()
    assert "\n" not in warning
    assert len(warning) < 120


# All that the SDK knows ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def types() -> dict[str, Any]:
    """The types of blocks and tools that the SDK declares."""
    script = "tests/clients/drivers/anthropic_types.py"
    output, log = await output_of(Environment("anthropic").interpreter, script, seconds=60)
    assert output, log
    return dict(json.loads(output))


@pytest.mark.slow
@needs("environment:anthropic")
@pytest.mark.parametrize("lane", LANES)
async def test_no_block_that_the_sdk_knows_ends_a_conversation(
    upstream: Upstream, lane: str, types: dict[str, Any]
) -> None:
    assert len(types["blocks"]) > 20
    assert {"document", "search_result", "tool_reference", "browser_state"} <= set(types["in_results"])
    calls = {"tool_use", "tool_result", "mcp_tool_use", "mcp_tool_result"}
    assistants = {"thinking", "redacted_thinking"}
    upstream.script("m", lambda request: Reply(text="ok"), lax=True)
    base = upstream.root if lane == "messages" else upstream.url
    async with serve(create_app(make_config(base, **LANES[lane]))) as url, http_client(url) as http:
        for kind in sorted({*types["blocks"], *types["in_results"]} - calls):
            block = {
                "type": kind,
                **SAMPLES.get(kind, {"content": [], "tool_use_id": "x", "id": "x", "name": "x", "input": {}}),
            }
            places = ["result"] if kind in types["in_results"] else ["assistant"]
            if kind in types["blocks"] and kind not in assistants and kind != "image":
                places.append("assistant" if kind not in ("document", "search_result", "text") else "user")
            for of in places:
                answer = await http.post("/v1/messages", json=request_with_content([block], of=of))
                assert answer.status_code == 200, (kind, of, answer.text)
        assert len(upstream.requests) > 20


@pytest.mark.slow
@needs("environment:anthropic")
async def test_every_tool_of_the_sdk_is_a_function_or_refused_in_words(
    upstream: Upstream, types: dict[str, Any]
) -> None:
    upstream.script("m", lambda request: Reply(text="ok"), lax=True)
    begins = ("bash_", "text_editor_", "memory_", "computer_2")
    tools = {kind: name for kind, name in types["tools"].items() if kind not in ("custom", "mcp_toolset")}
    assert len([kind for kind in tools if kind.startswith(begins)]) >= 10
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as http:
        for kind, name in tools.items():
            display = {"display_width_px": 800, "display_height_px": 600} if kind.startswith("computer_2") else {}
            tool = {"type": kind, **({"name": name} if name else {}), **display}
            question = [{"role": "user", "content": "go"}]
            body = {"model": "m", "max_tokens": 100, "messages": question, "tools": [tool]}
            answer = await http.post("/v1/messages", json=body)
            assert is_client_run(kind) == kind.startswith(begins), kind
            if is_client_run(kind):
                assert answer.status_code == 200, answer.text
                [sent] = upstream.requests[-1].body["tools"]
                assert sent["function"]["name"] == name
                assert not display or "800 by 600" in sent["function"]["description"]
            else:
                assert answer.status_code == 400, kind
                assert kind[:30] in answer.json()["error"]["message"]


# The client's own tools of Anthropic's ------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("lane", ["direct", "litellm", "messages"])
async def test_a_tool_that_the_client_runs_comes_back_as_its_own(upstream: Upstream, lane: str, stream: bool) -> None:
    kind = "text_editor_20250728"
    function = as_function(kind)
    written = {"command": "view", "path": "/a"}
    upstream.script("m", [Reply(calls=[Call(function["name"], written)]), Reply(text="done")])
    tools = [{"type": kind, "name": function["name"], "max_characters": 10}, {"type": "bash_20250124", "name": "bash"}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    base = upstream.root if lane == "messages" else upstream.url
    async with serve(create_app(make_config(base, tools=["add"], **LANES[lane]))) as url, http_client(url) as http:
        body = {"model": "m", "max_tokens": 100, "messages": messages, "tools": tools, "stream": stream}
        answer = await http.post("/v1/messages", json=body)
        assert answer.status_code == 200, answer.text
        message = put_together(answer.text) if stream else answer.json()
        [block] = message["content"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", function["name"], written)
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": "seen"}
        messages += [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
        again = await http.post("/v1/messages", json=body)
    assert again.status_code == 200, again.text
    sent = upstream.requests[-1].body["tools"]
    if lane == "messages":
        assert [tool for tool in sent if tool.get("type") in (kind, "bash_20250124")] == tools
        assert len(sent) == 4
    else:
        names = {tool.get("name") or tool["function"]["name"] for tool in sent}
        assert names == {function["name"], "bash", "add", "read_more"}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image"},
        {"type": "image", "source": None},
        {"type": "image", "source": "x"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%%"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/svg+xml", "data": "PHN2Zy8+"}},
        {"type": "image", "source": {"type": "url", "url": ""}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}},
    ],
    ids=json.dumps,
)
async def test_an_image_of_a_tool_that_is_none_is_a_line(upstream: Upstream, block: dict[str, Any]) -> None:
    message = await answered(upstream, request_with_content([block, {"type": "text", "text": "behind"}]))
    content = message["asked"]["messages"][-1]["content"]
    assert content == f"[image {LINE}\nbehind"
    assert message["x_callgate"]["warnings"] == ["left out, because this model cannot read it: 'image'"]


@pytest.mark.parametrize("lane", [lane for lane in LANES if lane != "direct"])
@pytest.mark.parametrize(
    ("content", "is_line"),
    [
        (None, False),
        ([], False),
        ([{"type": "of_tomorrow", "x": 1}], True),
        ([{"type": "text"}], True),
        ([{"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zy8+"}}], True),
    ],
    ids=["null", "none", "unknown", "no text", "svg"],
)
async def test_a_tools_message_of_a_chat_is_readable_on_every_lane(
    upstream: Upstream, lane: str, content: Any, is_line: bool
) -> None:
    upstream.script("m", [Reply(text="ok")], lax=True)
    function = {"name": "read", "arguments": "{}"}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": content},
    ]
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    base = upstream.root if LANES[lane].get("provider") == "anthropic" else upstream.url
    async with serve(create_app(make_config(base, **LANES[lane]))) as url, http_client(url) as http:
        body = {"model": "m", "messages": messages, "tools": tools}
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert (LINE in json.dumps(upstream.requests[-1].body)) == is_line
