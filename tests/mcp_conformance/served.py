"""What the official suite calls when Callgate is the server under test: its tools in Python, and those of a server behind that asks."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from callgate.application import create_app
from callgate.calls.outcome import Image
from callgate.config.schema.whole import Config
from callgate.tools.kinds.python.authoring import Context, ToolError, tool
from tests.harness.server import serve
from tests.tools.servers.asking_mcp import AskingMcp

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
MODULE = __name__
change: Callable[[], Awaitable[None]] | None = None
"""Changes the list of tools, while a server is served."""


@tool(safety="read_only")
async def test_simple_text() -> str:
    """Says something."""
    return "This is a simple text response for testing."


@tool(safety="read_only")
async def test_image_content() -> Image:
    """Shows something."""
    return Image(PNG, "image/png")


@tool(safety="read_only")
async def test_error_handling() -> str:
    """Fails."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(safety="read_only")
async def test_tool_with_progress(context: Context) -> str:
    """Says how far it is."""
    for part in (0.0, 0.5, 1.0):
        context.progress("working", part)
    return "done"


@tool(safety="read_only")
async def test_logging_tool() -> str:
    """Would log, if that were served."""
    return "nothing logged"


@tool(safety="read_only")
async def test_trigger_tool_change() -> str:
    """Changes the list of tools."""
    assert change is not None, "it is served by `serve_tools`"
    await change()
    return "changed"


@tool(safety="write", require_approval=True)
async def test_streaming_elicitation() -> str:
    """Waits for approval."""
    return "approved"


@tool(safety="read_only")
async def one_more() -> str:
    """Is there every other time."""
    return "here"


FUNCTIONS = (
    test_simple_text,
    test_image_content,
    test_error_handling,
    test_tool_with_progress,
    test_logging_tool,
    test_trigger_tool_change,
    test_streaming_elicitation,
)


def _asks(key: str, field: str, kind: str = "string") -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return {key: {"method": "elicitation/create", "params": {"message": f"Your {field}?", "requestedSchema": schema}}}


QUESTIONS = {
    "test_input_required_result_elicitation": [_asks("user_name", "name")],
    "test_input_required_result_request_state": [_asks("confirm", "ok", "boolean")],
    "test_input_required_result_tampered_state": [_asks("confirm", "ok", "boolean")],
    "test_input_required_result_multi_round": [_asks("step1", "name"), _asks("step2", "color")],
}
"""What these tools ask, round by round."""
RESOURCE = {
    "uri": "test://embedded-resource",
    "mimeType": "text/plain",
    "text": "This is an embedded resource content.",
}
CONTENTS: dict[str, list[dict[str, Any]]] = {
    "test_audio_content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}],
    "test_embedded_resource": [{"type": "resource", "resource": RESOURCE}],
    "test_multiple_content_types": [
        {"type": "text", "text": "Multiple content types test:"},
        {"type": "image", "data": Image(PNG, "image/png").data, "mimeType": "image/png"},
        {"type": "resource", "resource": {**RESOURCE, "uri": "test://mixed-content-resource"}},
    ],
}


def answer(params: dict[str, Any]) -> dict[str, Any]:
    """What the server behind does: by the tool's name, and by the round that its state names."""
    name = params["name"]
    if name in CONTENTS:
        return {"resultType": "complete", "content": CONTENTS[name]}
    rounds = QUESTIONS.get(name, [])
    taken = int(params.get("requestState", "0"))
    if taken < len(rounds):
        return {"resultType": "input_required", "inputRequests": rounds[taken], "requestState": str(taken + 1)}
    return {"resultType": "complete", "content": [{"type": "text", "text": f"state-ok {params.get('inputResponses')}"}]}


def config_of(behind: str, *more: str) -> Config:
    functions = [{"kind": "python", "function": f"{MODULE}:{function.__name__}"} for function in FUNCTIONS]
    functions += [{"kind": "python", "function": f"{MODULE}:{name}"} for name in more]
    entry = {
        "url": behind,
        "prefix": "",
        "allow_private": True,
        "elicitation": "form",
        "pins": "off",
        "safety": "read_only",
    }
    model = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
    return Config.model_validate({"model_list": [model], "tools": functions, "mcp_servers": {"behind": entry}})


@contextlib.asynccontextmanager
async def serve_tools() -> AsyncIterator[str]:
    """Serve the tools; give the address of the endpoint."""
    global change  # noqa: PLW0603 - the tool is found by import path and can be given nothing
    schema = {"type": "object", "properties": {}}
    names = [*QUESTIONS, *CONTENTS]
    behind = AskingMcp(
        does=answer, more_tools=[{"name": name, "description": name, "inputSchema": schema} for name in names]
    )
    async with behind.running():
        app = create_app(config_of(behind.url))
        is_longer = False

        async def toggle() -> None:
            nonlocal is_longer
            is_longer = not is_longer
            await app.state.manager.apply(config_of(behind.url, *(["one_more"] if is_longer else [])))

        change = toggle
        try:
            async with serve(app) as url:
                yield f"{url}/mcp"
        finally:
            change = None
