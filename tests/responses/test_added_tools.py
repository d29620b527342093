"""Tools that items of the input add are offered as those of the request are."""

from typing import Any

import pytest

from callgate.conversation.errors import ChatError
from callgate.responses.added_tools import with_added
from tests.parameters.walk import walking

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SCHEMA, **fields}


def adding(kind: str, *tools: Any) -> dict[str, Any]:
    more = {"role": "developer"} if kind == "additional_tools" else {"call_id": "s1", "execution": "client"}
    return {"type": kind, "tools": list(tools), **more}


def test_each_is_offered_once_behind_those_of_the_request():
    items = [
        {"role": "user", "content": "hi"},
        adding("additional_tools", function("a"), function("b")),
        adding("tool_search_output", function("b", description="again"), {"type": "web_search"}),
    ]
    listed = with_added([function("a", description="first")], items)
    assert dict(zip(listed.places, listed.tools, strict=True)) == {
        "tools[0]": function("a", description="first"),
        "input[1].tools[1]": function("b"),
        "input[2].tools[1]": {"type": "web_search"},
    }
    assert with_added(None, "hi").tools == []
    assert with_added(None, [{"role": "user", "content": "hi"}, "odd", None]).tools == []


@pytest.mark.parametrize("kind", [[], {}, [{"type": "text"}], 3, None])
async def test_a_type_that_is_no_text_is_refused_and_no_mistake_of_ours(kind: Any) -> None:
    async with walking() as walker:
        for input in ([{"type": kind, "role": "user", "content": "hi"}], [adding("additional_tools", {"type": kind})]):
            answered = await walker.ask("responses", "direct", {"input": input})
            assert answered.status in (200, 400), answered.error
        odd = {"input": [{"type": "message", "role": kind, "content": "hi"}, {"type": "compaction_trigger"}]}
        assert (await walker.ask("responses", "direct", odd)).status in (200, 400)


@pytest.mark.parametrize("tools", [None, "x", {}, 3])
def test_a_list_that_is_none_is_refused_by_its_place(tools: Any):
    with pytest.raises(ChatError) as raised:
        with_added(None, [{"role": "user", "content": "hi"}, {"type": "additional_tools", "tools": tools}])
    assert raised.value.param == "input[1].tools"


async def test_a_model_is_offered_them_on_every_lane_and_nothing_is_said_to_be_left_out() -> None:
    body = {
        "input": [
            adding("additional_tools", function("look")),
            {"role": "user", "content": "hi"},
            adding("tool_search_output", function("find")),
        ]
    }
    async with walking() as walker:
        for lane in ("passed", "direct", "text", "responses", "claude"):
            for stream in (False, True):
                answered = await walker.ask("responses", lane, {**body, "stream": stream})
                assert (answered.status, answered.warnings) == (200, ""), answered.error
                assert "look" in str(answered.upstream)
                assert "find" in str(answered.upstream)


async def test_what_no_request_may_name_is_refused_there_too() -> None:
    files = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    async with walking() as walker:
        for lane in ("direct", "responses"):
            for tool in (files, {"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1/"}):
                body = {"input": [{"role": "user", "content": "hi"}, adding("additional_tools", tool)]}
                answered = await walker.ask("responses", lane, body)
                assert answered.status in (400, 403)
                assert "input[1].tools[0]" in answered.error
