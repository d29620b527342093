"""What a client's tool returned never ends a session of the Responses API, and stands where every provider takes it."""

import base64
import json
from typing import Any

import pytest
from openai.types.responses import ResponseFunctionCallOutputItemList

from callgate.application import create_app
from tests.chaos.scale import dealt
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
PDF = base64.b64encode(b"%PDF-1.4 a page").decode()
PNG = "data:image/png;base64,iVBORw0KGgo="
LINE = "left out: this model cannot read it]"
READS: dict[str, Any] = {"entry": {"model_info": {"supports_pdf_input": True}}}
LANES: dict[str, dict[str, Any]] = {
    "direct": {},
    "litellm": {"lane": "litellm"},
    "prompted": {"entry": {"tool_calling": "json"}},
    "anthropic": {"provider": "anthropic", "lane": "translated"},
    "gemini": {"provider": "gemini", "lane": "auto"},
}
UNREADABLE: dict[str, Any] = {
    "a file at an address": {"type": "input_file", "file_url": "https://a.example/x.pdf"},
    "a file by id": {"type": "input_file", "file_id": "file-1"},
    "an image by id": {"type": "input_image", "file_id": "file-1"},
    "an image of a kind that few take": {"type": "input_image", "image_url": "data:image/svg+xml;base64,PHN2Zy8+"},
    "an image that is none": {"type": "input_image", "image_url": "data:image/png;base64,%%%"},
    "an image of the disk": {"type": "input_image", "image_url": "file:///etc/passwd"},
    "an image that is an object": {"type": "input_image", "image_url": {"url": PNG}},
    "an archive": {"type": "input_file", "filename": "a.zip", "file_data": "data:application/zip;base64,aGk="},
    "a pdf": {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
    "no text": {"type": "input_text", "text": None},
    "a sound": {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    "a type of tomorrow": {"type": "of_tomorrow", "x": 1},
    "no type": {"text": "x"},
    "nothing": {},
}


def history_of(*outputs: Any, kind: str = "function_call") -> list[dict[str, Any]]:
    """One turn of the model with a call for each output."""
    text = {"arguments": "{}"} if kind == "function_call" else {"input": "x"}
    ids = [f"call_{place}" for place in range(len(outputs))]
    calls = [{"type": kind, "call_id": id, "name": "read", **text} for id in ids]
    answers = [
        {"type": f"{kind}_output", "call_id": id, "output": output} for id, output in zip(ids, outputs, strict=True)
    ]
    return [{"role": "user", "content": "go"}, *calls, *answers]


async def response_and_content(
    upstream: Upstream, items: list[dict[str, Any]], *, stream: bool = False, **options: Any
) -> tuple[dict[str, Any], list[Any]]:
    """What the model was sent, and the warnings that the client got."""
    upstream.script("m", [Reply(text="ok")], lax=False)
    provider = options.get("provider")
    base = {"anthropic": upstream.root, "gemini": f"{upstream.root}/v1beta"}.get(str(provider), upstream.url)
    tools = [{"type": "function", "name": "read", "parameters": {"type": "object"}}]
    async with serve(create_app(make_config(base, **options))) as url, http_client(url) as http:
        answer = await http.post(
            "/v1/responses", json={"model": "m", "input": items, "tools": tools, "store": False, "stream": stream}
        )
    assert answer.status_code == 200, answer.text
    last = answer.text.split("data: ")[-2] if stream else answer.text
    response = json.loads(last)
    response = response.get("response", response)
    assert response["output"][-1]["content"][0]["text"] == "ok"
    return upstream.requests[-1].body, response["x_callgate"].get("warnings", [])


@pytest.mark.parametrize(
    ("part", "lane", "stream"),
    [
        pytest.param(part, lane, stream, id=f"{part}-{lane}-{'streamed' if stream else 'whole'}")
        for row, part in enumerate(UNREADABLE)
        for place, lane in enumerate(LANES)
        for stream in dealt([True, False], 2, row + place)
    ],
)
async def test_what_no_model_reads_is_a_line(upstream: Upstream, lane: str, part: str, stream: bool) -> None:
    options = {**LANES[lane]}
    if lane in ("anthropic", "gemini"):
        options["entry"] = {"model_info": {"supports_pdf_input": False}}
    before, behind = {"type": "input_text", "text": "before"}, {"type": "input_text", "text": "behind"}
    body, warnings = await response_and_content(
        upstream, history_of([before, UNREADABLE[part], behind]), stream=stream, **options
    )
    text = json.dumps(body)
    assert LINE in text
    assert "before" in text
    assert "behind" in text
    assert not any(each in text for each in ("file-1", "passwd", PDF, "%%%"))
    [warning] = warnings
    assert warning.startswith("left out, because this model cannot read it: ")


@pytest.mark.parametrize("output", [7, None, True, {"a": 1}, [1, "two"], []], ids=json.dumps)
async def test_an_output_that_is_no_list_of_parts_is_text(upstream: Upstream, output: Any) -> None:
    body, warnings = await response_and_content(upstream, history_of(output))
    text = {"null": "", '{"a": 1}': '{"a":1}', '[1, "two"]': "1\ntwo", "[]": ""}.get(json.dumps(output))
    assert body["messages"][-1]["content"] == (json.dumps(output) if text is None else text)
    assert warnings == []


async def test_an_output_that_is_missing_is_refused(upstream: Upstream) -> None:
    items = history_of("x")
    del items[-1]["output"]
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": items})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[2].output")


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
async def test_files_that_a_model_reads_reach_it(upstream: Upstream, kind: str) -> None:
    parts = [
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        {"type": "input_file", "filename": "b.txt", "file_data": "data:text/plain;base64,aGk="},
        {"type": "input_image", "image_url": "data:image/jpg;base64,/9j/", "detail": "low"},
    ]
    body, warnings = await response_and_content(upstream, history_of(parts, kind=kind), **READS)
    result, shown = body["messages"][-2:]
    assert (result["role"], result["content"]) == ("tool", "b.txt\n\nhi")
    assert shown["content"][1:] == [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/", "detail": "low"}},
    ]
    assert warnings == []


@pytest.mark.parametrize("lane", LANES)
async def test_images_of_several_calls_stand_behind_all_their_results(upstream: Upstream, lane: str) -> None:
    image = [{"type": "input_image", "image_url": PNG}]
    body, _ = await response_and_content(upstream, history_of(image, "second", image), **LANES[lane])
    assert json.dumps(body).count("iVBORw0KGgo=") == 2
    if lane == "direct":
        assert [message["role"] for message in body["messages"][2:]] == ["tool", "tool", "tool", "user"]


async def test_images_of_a_continued_response_stand_behind_all_its_results(upstream: Upstream) -> None:
    upstream.script("m", [Reply(calls=[Call("read", {}), Call("read", {})]), Reply(text="ok")])
    tools = [{"type": "function", "name": "read", "parameters": {"type": "object"}}]
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as http:
        first = (await http.post("/v1/responses", json={"model": "m", "input": "go", "tools": tools})).json()
        outputs = [
            {
                "type": "function_call_output",
                "call_id": item["call_id"],
                "output": [{"type": "input_image", "image_url": PNG}],
            }
            for item in first["output"]
        ]
        asked_next = {"model": "m", "input": outputs, "tools": tools, "previous_response_id": first["id"]}
        answer = await http.post("/v1/responses", json=asked_next)
    assert answer.status_code == 200, answer.text
    roles = [message["role"] for message in upstream.requests[-1].body["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user"]


def test_every_part_of_the_sdk_is_tried() -> None:
    parts = ResponseFunctionCallOutputItemList.__args__[0].__origin__.__args__  # type: ignore[attr-defined]
    kinds = {part.model_fields["type"].annotation.__args__[0] for part in parts}
    assert kinds == {"input_text", "input_image", "input_file"}
