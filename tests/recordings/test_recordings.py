"""The recordings hold together: both modes say the same, and the results they promise are what the tools answer."""

import asyncio
import inspect
import json
from collections.abc import Mapping
from typing import Any

import pytest

from callgate.tools.kinds.python.authoring import ToolError
from tests.harness import toolshed
from tests.harness.wire import raw_post
from tests.recordings import FOLDER, Recording, load_all

RECORDINGS = load_all()
every = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A streamed answer as a message, its calls by id: good enough for recordings, and for nothing else."""
    message: dict[str, Any] = {"content": "", "calls": {}}
    last: dict[Any, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        for field in ("content", "reasoning_content", "refusal"):
            if delta.get(field):
                message[field] = message.get(field, "") + delta[field]
        for fragment in delta.get("tool_calls", []):
            call_id = last[fragment["index"]] = fragment.get("id") or last[fragment["index"]]
            name, text = message["calls"].get(call_id, ("", ""))
            function = fragment["function"]
            message["calls"][call_id] = (name + (function.get("name") or ""), text + function.get("arguments", ""))
        message["finish_reason"] = choice["finish_reason"] or message.get("finish_reason")
    return message


def characters(text: str | None) -> str:
    """Surrogate halves joined, as JSON's reader of the whole text would."""
    return (text or "").encode("utf-16", "surrogatepass").decode("utf-16")


@every
def test_both_modes_of_every_reply_are_equal(recording):
    replies = [*recording.replies, *([recording.toolless] if recording.toolless else [])]
    for reply in replies:
        streamed = joined(reply["chunks"])
        [choice] = reply["whole"]["choices"]
        message = choice["message"]
        calls = {c["id"]: (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])}
        assert characters(streamed["content"]) == (message["content"] or "")
        assert streamed["calls"] == calls
        for field in ("reasoning_content", "refusal"):
            assert streamed.get(field) == message.get(field)
        assert streamed["finish_reason"] == choice["finish_reason"]
        assert reply["chunks"][-1]["usage"] == reply["whole"]["usage"]


@every
def test_call_ids_are_unique_in_a_conversation(recording):
    ids = [call_id for reply in recording.replies for call_id in joined(reply["chunks"])["calls"]]
    assert len(ids) == len(set(ids))
    assert set(recording.expect.results) <= set(ids)
    assert {call["id"] for call in recording.expect.tool_calls} <= set(ids)


@every
def test_the_tools_answer_what_the_recording_expects(recording):
    for call_id, (name, text) in _calls(recording).items():
        expected = recording.expect.results.get(call_id)
        if isinstance(expected, str):
            assert _run(name, json.loads(text or "{}")) == expected
        elif isinstance(expected, Mapping) and "contains" in expected:
            with pytest.raises(ToolError, match=expected["contains"]):
                _run(name, json.loads(text))


@every
def test_the_usage_expected_is_that_of_all_turns(recording):
    replies = [*recording.replies, *([recording.toolless] if recording.toolless else [])]
    counts = [reply["whole"]["usage"] for reply in replies]
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert recording.expect.usage[field] == sum(count[field] for count in counts)


@every
def test_what_runs_was_asked_for_and_is_a_server_side_tool(recording):
    asked = [(name, json.loads(text or "{}")) for name, text in _calls(recording).values() if _is_json(text)]
    for call in recording.expect.ran:
        assert call["name"] in recording.house_tools
        assert (call["name"], call["arguments"]) in asked
    assert len(recording.expect.ran) <= len(asked)
    assert set(recording.house_tools) <= set(toolshed.SAFETY)


@every
def test_the_file_is_named_for_the_recording(recording):
    assert (FOLDER / f"{recording.name}.json").exists()
    assert recording.expect.requests == len(recording.replies) + (recording.toolless is not None)


@pytest.mark.anyio
async def test_a_recording_is_played_turn_by_turn_and_toolless_at_the_end(upstream):
    recording = next(found for found in RECORDINGS if found.name == "loop-with-the-same-result")
    recording.play_on(upstream, "m")
    tool = {"type": "function", "function": {"name": "get_time"}}
    body: dict[str, Any] = {"model": "m", **recording.request}
    first = await raw_post(upstream.url, {**body, "tools": [tool], "stream": True})
    second = await raw_post(upstream.url, {**body, "tools": [tool]})
    last = await raw_post(upstream.url, body)
    assert first.chunks == recording.replies[0]["chunks"]
    assert json.loads(second.body) == recording.replies[1]["whole"]
    assert recording.toolless is not None
    assert json.loads(last.body) == recording.toolless["whole"]


def _calls(recording: Recording) -> dict[str, tuple[str, str]]:
    return {key: call for reply in recording.replies for key, call in joined(reply["chunks"])["calls"].items()}


def _run(name: str, arguments: Mapping[str, Any]) -> str:
    result = getattr(toolshed, name)(**arguments)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    return str(result)


def _is_json(text: str) -> bool:
    try:
        json.loads(text or "{}")
    except ValueError:
        return False
    return True
