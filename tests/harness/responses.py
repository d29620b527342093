"""Responses of the official client, whole and streamed, and a check of the stream's events on the way."""

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
from openai.types.responses import Response

KEPT_IN_STREAM = ("id", "object", "created_at", "model", "tools", "metadata", "previous_response_id")


async def responded(client: Any, *, stream: bool, **asked: Any) -> Any:
    """The response of an `AsyncOpenAI`, untyped because its types are unions of thirty; of a stream, what its last event says, once its events have been found in order."""
    if not stream:
        return await client.responses.create(**asked)
    async with await client.responses.create(**asked, stream=True) as events:
        seen = [event.to_dict(warnings=False) async for event in events]
    check_events(seen)
    return Response.construct(**seen[-1]["response"])


def but_lists(response: Any) -> list[Any]:
    """The items of a response, without what its servers were listed with."""
    return [item for item in response.output if item.type != "mcp_list_tools"]


async def raw_events(client: httpx.AsyncClient, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events as they came over the wire, each with a name that is its type."""
    answer = await client.post("/v1/responses", json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return list(map(_event, events))


def _event(text: str) -> dict[str, Any]:
    name, data = text.split("\n", 1)
    read: dict[str, Any] = msgspec.json.decode(data.removeprefix("data: "))
    assert name == f"event: {read['type']}"
    return read


def check_events(events: list[dict[str, Any]], *, cut_off: bool = False) -> None:
    """What clients hold a stream to. `cut_off`: its process died on the way, so that items of a turn that was asked again are
    no part of the response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    first, last = events[0]["response"], events[-1]["response"]
    assert {name: first[name] for name in KEPT_IN_STREAM} == {name: last[name] for name in KEPT_IN_STREAM}
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    assert [event["output_index"] for event in added] == list(range(len(added)))
    assert {event["output_index"]: event["item"]["id"] for event in added} == {at: it["id"] for at, it in done.items()}
    if events[-1]["type"] != "response.failed":
        shown = [done[at] for at in sorted(done)]
        assert last["output"] == [item for item in shown if not cut_off or item in last["output"]]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == added[event["output_index"]]["item"]["id"]
    for kind, whole in (("output_text", "text"), ("function_call_arguments", "arguments"), ("refusal", "refusal")):
        check_deltas(events, f"response.{kind}", whole)


def check_deltas(events: list[dict[str, Any]], kind: str, whole: str) -> None:
    """The pieces of each text are the text."""
    pieces: dict[str, str] = {}
    for event in events:
        if event["type"] == f"{kind}.delta":
            pieces[event["item_id"]] = pieces.get(event["item_id"], "") + event["delta"]
        elif event["type"] == f"{kind}.done":
            assert pieces.get(event["item_id"], "") == event[whole]
