"""Exports a recorded run: as a curl command, and as a recording that a test plays."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.recorder.replayable import NotReplayable, read_json, request_of, tools_of
from callgate.records.row import RECORDED_TEXT, RecordedRun, RunEvent
from callgate.untrusted.doors import open_text
from callgate.untrusted.readers import read_value

KEY_VARIABLE: Final = "CALLGATE_KEY"
DONE: Final = "[DONE]"
ZERO_USAGE: Final = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def as_facts(recording: RecordedRun) -> dict[str, Any]:
    """Return a whole run as an object for JSON."""
    row = msgspec.structs.asdict(recording.row) | {"odd": recording.row.is_odd}
    events = [msgspec.structs.asdict(event) for event in recording.events]
    return {"object": "run", **row, "events": events, "content": dict(recording.content)}


def as_curl(recording: RecordedRun, base_url: str) -> str:
    """Return a curl command that sends the same request. The key stays a shell variable."""
    body = request_of(recording)
    if recording.row.stream:
        body["stream"] = True
    text = msgspec.json.encode(body).decode()
    buffered = " -N" if recording.row.stream else ""
    return (
        f"curl{buffered} {shlex.quote(base_url.rstrip('/') + '/v1/chat/completions')} \\\n"
        f"  -H \"Authorization: Bearer ${KEY_VARIABLE}\" -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(text)}\n"
    )


def as_recording(recording: RecordedRun) -> dict[str, Any]:
    """Return the conversation with its provider's answers and its results, in the format of `tests/recordings`. It includes the
    definitions of the offered tools, so that `judge` needs no server that has them."""
    request = request_of(recording)
    row = recording.row
    content = recording.content
    model = str(request.pop("model", row.model))
    replies = [_reply(recording, event, model) for event in recording.events if event.kind == "turn_ended"]
    if not replies:
        raise NotReplayable("no turn of it has ended")
    calls = [call for event in recording.events if event.kind == "turn_ended" for call in event.facts["calls"]]
    client = [entry["function"]["name"] for entry in request.get("tools", ()) if "function" in entry]
    offered = [entry["function"]["name"] for entry in tools_of(recording) if "function" in entry]
    ended = {event.facts["id"]: event.facts for event in recording.events if event.kind == "call_ended"}
    usages = [reply["whole"]["usage"] for reply in replies]
    usage = {name: sum(entry.get(name) or 0 for entry in usages) for name in ZERO_USAGE}
    expect = {
        "content": content.get(f"turn.{row.turns - 1}.text"),
        "refusal": None,
        "finish_reason": row.finish_reason,
        "tool_calls": [
            {"id": call["id"], "name": call["name"], "arguments": _arguments(recording, call["id"])}
            for call in calls
            if call["owner"] == "client"
        ],
        "ran": [
            {
                "name": call["name"],
                "arguments": read_value(open_text(_arguments(recording, call["id"]) or "{}", RECORDED_TEXT)),
            }
            for call in calls
            if call["id"] in ended
        ],
        "results": {call["id"]: _result(recording, call) for call in calls if call["owner"] != "client"},
        "reasoning": [text for at in range(row.turns) if (text := content.get(f"turn.{at}.reasoning"))],
        "echo": [],
        "usage": usage,
        "requests": len(replies),
    }
    whole = {
        "name": row.id.replace("_", "-"),
        "about": f"Run {row.id} of {row.model}, {row.state}.",
        "provider": row.deployment or model,
        "request": request,
        "house_tools": [name for name in offered if name not in client],
        "tools": list(tools_of(recording)),
        "replies": replies,
        "expect": expect,
    }
    if row.state == "turn_limit" and len(replies) > 1:
        whole["toolless"] = replies.pop()
    return whole


def _reply(recording: RecordedRun, ended: RunEvent, model: str) -> dict[str, Any]:
    """Return one answer, streamed and whole. In the mode in which it came, the kept body of the provider is used."""
    rebuilt = _made(recording, ended, model)
    bodies = [text for part, text in recording.content.items() if part.startswith(f"wire.{ended.turn}.")]
    if bodies and ended.facts.get("lane") == "direct":
        body = bodies[-1]  # those before it failed
        if (chunks := _chunks_in(body)) is not None:
            return {**rebuilt, "chunks": chunks, "end": "done" if body.rstrip().endswith(DONE) else "eof"}
        if isinstance(whole := read_json(body), dict) and "choices" in whole:
            return {**rebuilt, "whole": whole}
    return rebuilt


def _made(recording: RecordedRun, ended: RunEvent, model: str) -> dict[str, Any]:
    """Rebuild an answer from its events and texts."""
    facts = ended.facts
    content = recording.content
    head = {"id": f"chatcmpl-{recording.row.id}-{ended.turn}", "created": int(recording.row.began), "model": model}
    text = content.get(f"turn.{ended.turn}.text")
    reasoning = content.get(f"turn.{ended.turn}.reasoning")
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"] or "", "arguments": _arguments(recording, call["id"])},
        }
        for call in facts["calls"]
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    reasons: Sequence[str | None] = facts["finish_reasons"] or [None]
    usage = facts["usage"] or ZERO_USAGE
    whole = {**head, "object": "chat.completion", "usage": usage}
    whole["choices"] = [{"index": 0, "message": message, "logprobs": None, "finish_reason": reasons[-1]}]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if reasoning:
        deltas.append({"reasoning_content": reasoning})
    if text:
        deltas.append({"content": text})
    deltas += [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)]
    chunks = [_chunk(head, delta) for delta in deltas] + [_chunk(head, {}, reason) for reason in reasons]
    verdicts = [{"name": call["name"], "verdict": call.get("flaw", call["verdict"])} for call in facts["calls"]]
    reply = {"chunks": [*chunks, {**_chunk(head), "usage": usage}], "end": "done", "whole": whole}
    return {**reply, "verdicts": verdicts}


def _chunk(
    head: Mapping[str, Any], delta: Mapping[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    if delta is None:
        choices = []
    else:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
    return {**head, "object": "chat.completion.chunk", "choices": choices}


def _chunks_in(body: str) -> list[Any] | None:
    """Return the chunks of a stream; None if the body is no stream, or cannot be read completely."""
    payloads = [line[5:].strip() for line in body.splitlines() if line.startswith("data:")]
    chunks = [read_json(payload) for payload in payloads if payload != DONE]
    if chunks and all(isinstance(chunk, dict) and "choices" in chunk for chunk in chunks):
        return chunks
    return None


def _arguments(recording: RecordedRun, id: str) -> str:
    return recording.content.get(f"call.{id}.arguments", "")


def _result(recording: RecordedRun, call: Mapping[str, Any]) -> Any:
    if call["verdict"] == "broken":
        return {"flaw": call["flaw"]}
    result = recording.content.get(f"call.{call['id']}.result")
    if result is None:
        return {"not_run": call.get("reason", "limit")}
    return result
