"""Nothing that a client declares is dropped in silence: `docs/parameters.md` says what becomes of all of it, and is true."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tests.harness.environment import locked_version
from tests.parameters.places import SDKS, versions
from tests.parameters.table import PAGE, differences, gaps, page
from tests.parameters.walk import outcomes, streamed_differently, walking

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

GAPS = 0
"""Places that are still dropped in silence somewhere, or refused without their names. To be lowered, never raised."""


@pytest.fixture
def quiet() -> Iterator[None]:
    """Thousands of requests say nothing in the log, which would take longer than they do."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("sdk", SDKS)
def test_the_declared_places_are_those_of_the_sdk_that_is_locked(sdk: str) -> None:
    version = f"{sdk} {locked_version(SDKS[sdk], sdk)}"
    assert version in versions().values(), "read it again: `python -m tests.parameters declared`"


@pytest.mark.usefixtures("quiet")
async def test_what_becomes_of_every_declared_place_is_what_the_page_says() -> None:
    async with walking() as walker:
        seen = await outcomes(walker)
        assert not await streamed_differently(walker, seen)
    wrong = differences(PAGE.read_text(), page(seen))
    assert not wrong, "`python -m tests.parameters` writes the page; look at what has changed:\n" + "\n".join(wrong)
    assert PAGE.read_text() == page(seen)
    found = gaps(seen)
    assert len(found) == GAPS, "\n".join(found)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("lane", ["passed", "direct", "text", "responses", "claude"])
async def test_a_tool_choice_that_names_no_tool_is_refused_on_every_api(lane: str) -> None:
    schema = {"type": "object", "properties": {}}
    function = {"type": "function", "function": {"name": "look", "parameters": schema}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [function]}
    response = {"input": "hi", "tools": [{"type": "function", "name": "look", "parameters": schema, "strict": None}]}
    message = {**chat, "tools": [{"name": "look", "input_schema": schema}]}
    async with walking() as walker:
        for name, status in (("look", 200), ("other", 400)):
            choice = {"type": "function", "function": {"name": name}}
            flat = {"type": "function", "name": name}
            of_messages = {"type": "tool", "name": name}
            answers = [
                await walker.ask("chat", lane, {**chat, "tool_choice": choice}),
                await walker.ask("responses", lane, {**response, "tool_choice": flat}),
                await walker.ask("messages", lane, {**message, "tool_choice": of_messages}),
            ]
            assert [answered.status for answered in answers] == [status] * 3
        assert all("tool_choice" in answered.error for answered in answers)
        for names in (["nope"], ["look", "nope"]):
            allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": name}} for name in names]}
            among = {"type": "allowed_tools", "allowed_tools": allowed}
            flat_among = {**among, "mode": "auto", "tools": [{"type": "function", "name": name} for name in names]}
            del flat_among["allowed_tools"]
            for answered in (
                await walker.ask("chat", lane, {**chat, "tool_choice": among}),
                await walker.ask("responses", lane, {**response, "tool_choice": flat_among}),
            ):
                assert (answered.status, "'nope'" in answered.error) == (400, True)
        ours = {"type": "function", "function": {"name": "get_time"}}
        answered = await walker.ask("chat", lane, {**chat, "tool_choice": ours})
        assert answered.status == (400 if lane == "passed" else 200)


@pytest.mark.usefixtures("quiet")
async def test_warnings_stand_in_the_header_and_in_the_body_of_every_api_whole_and_streamed() -> None:
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "hi"}], "user": "me"},
        "responses": {"input": "hi", "user": "me"},
        "messages": {"messages": [{"role": "user", "content": "hi"}], "metadata": {"user_id": "me"}},
    }
    async with walking() as walker:
        for api, body in bodies.items():
            for stream in (False, True):
                answered = await walker.ask(api, "cohere", {**body, "stream": stream})
                [warning] = answered.body["x_callgate"]["warnings"]
                assert warning == answered.headers["x-callgate-warning"]
                assert warning.endswith(": user")


@pytest.mark.usefixtures("quiet")
async def test_fields_of_a_provider_travel_on_every_api() -> None:
    own = {"min_p": 0.5, "chat_template_kwargs": {"enable_thinking": False}, "repetition_penalty": 1.1}
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "hi"}]},
        "responses": {"input": "hi"},
        "messages": {"messages": [{"role": "user", "content": "hi"}]},
    }
    async with walking() as walker:
        for api, body in bodies.items():
            for lane in ("passed", "direct", "text", "mistral"):
                [sent] = (await walker.ask(api, lane, {**body, **own})).upstream
                assert own.items() <= sent.items()
