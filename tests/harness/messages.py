"""A client of the Messages API that takes nothing on trust: what a stream may hold, and in which order, is asserted here."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

Json = dict[str, Any]
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
    "compaction_delta": ("compaction", "content"),
}


def events_in(body: str) -> Iterator[Json]:
    """The events of a stream, each named as its data says."""
    assert body.endswith("\n\n")
    for event in body[:-2].split("\n\n"):
        name, data = event.split("\n")
        found = json.loads(data.removeprefix("data: "))
        assert name == f"event: {found['type']}"
        yield found


def put_together(body: str) -> Json:
    """The message that a stream ends with, or the error it broke off with."""
    gathering = _Gathering()
    for event in events_in(body):
        assert not gathering.ended, "nothing comes behind the end"
        if event["type"] == "error":
            return event
        if event["type"] != "ping":
            getattr(gathering, event["type"])(event)
    assert gathering.ended, "the stream broke off"
    return gathering.message


class _Gathering:
    """One message, and what of it is still open. Each method takes the event that it is named after."""

    def __init__(self) -> None:
        self.message: Json = {}
        self.ended = False
        self._open: Json | None = None
        self._json = ""

    def message_start(self, event: Json) -> None:
        assert not self.message
        self.message = message = event["message"]
        assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
        assert message["usage"].keys() >= USAGE

    def content_block_start(self, event: Json) -> None:
        assert self._open is None
        assert event["index"] == len(self.message["content"])
        self._open, self._json = event["content_block"], ""
        self.message["content"].append(self._open)

    def content_block_delta(self, event: Json) -> None:
        assert self._open is not None
        assert event["index"] == len(self.message["content"]) - 1
        delta = event["delta"]
        of, field = DELTAS[delta["type"]]
        assert self._open["type"].endswith(of)
        if field == "partial_json":
            self._json += delta[field]
        elif field == "content":
            assert self._open[field] is None, "a summary comes in one piece"
            self._open[field] = delta[field]
        else:
            self._open[field] += delta[field]

    def content_block_stop(self, event: Json) -> None:
        assert self._open is not None
        assert event["index"] == len(self.message["content"]) - 1
        if self._json:
            self._open["input"] = json.loads(self._json)
        self._open = None

    def message_delta(self, event: Json) -> None:
        assert self._open is None
        assert self.message["stop_reason"] is None, "one message_delta"
        self.message |= event["delta"]
        assert event["usage"].keys() - {"iterations", "server_tool_use"} == USAGE
        self.message["usage"] |= event["usage"]
        for name in ("x_callgate", "context_management"):
            if name in event:
                self.message[name] = event[name]

    def message_stop(self, event: Json) -> None:
        assert self.message["stop_reason"]
        self.ended = True


USAGE = {"input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"}


def text_of(message: Mapping[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def calls_of(message: Mapping[str, Any], kind: str = "tool_use") -> list[Json]:
    return [block for block in message["content"] if block["type"] == kind]


class MessagesClient:
    """Asks one server, whole or streamed, and gives back the message either way."""

    def __init__(self, client: httpx.AsyncClient, **headers: str) -> None:
        self.http = client
        self._headers = {
            "anthropic-version": "2023-06-01",
            **{name.replace("_", "-"): headers[name] for name in headers},
        }

    async def ask(self, *, stream: bool = False, headers: Json | None = None, **fields: Any) -> Json:
        """A message, or the body of an error."""
        answer = await self.post(stream=stream, headers=headers, **fields)
        if answer.headers["content-type"].startswith("text/event-stream"):
            return put_together(answer.text)
        found: Json = answer.json()
        if found["type"] == "error":
            assert found["request_id"] == answer.headers["request-id"]
        return found

    async def post(self, *, stream: bool = False, headers: Json | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}], **fields}
        if stream:
            body["stream"] = True
        answer = await self.http.post("/v1/messages", json=body, headers={**self._headers, **(headers or {})})
        assert answer.headers["request-id"]
        return answer
