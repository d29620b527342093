"""A tool server over HTTP that asks a person: in its results as since 2026-07-28, or in requests of its own as before."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.tools.servers.http_mcp import STREAM, Asked, HttpMcp, _error, _message, _result, _send, event, text

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "title": "Title of the issue", "minLength": 2},
        "priority": {
            "type": "string",
            "title": "Priority",
            "enum": ["low", "high"],
            "enumNames": ["Low", "High"],
            "default": "low",
        },
        "count": {"type": "integer", "minimum": 1, "maximum": 5},
        "loud": {"type": "boolean", "title": "Tell everybody", "default": False},
    },
    "required": ["title"],
}
ANY = {"type": "object"}


def elicitation(message: str = "Which issue?", schema: Any = FORM, **more: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema, **more}}


def page(url: str = "https://login.example.com/?code=1") -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "url", "message": "Log in.", "url": url}}


def input_required(*questions: dict[str, Any], state: Any = "s1") -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": "input_required"}
    if questions:
        result["inputRequests"] = {f"q{number}": question for number, question in enumerate(questions)}
    if state is not None:
        result["requestState"] = state
    return result


def answered(*words: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [text(word) for word in words]}


@dataclass(slots=True)
class AskingMcp(HttpMcp):
    """The server. `does` is what its tool `create_issue` does: of the parameters of each request it makes the result."""

    modern: bool = True
    does: Callable[[dict[str, Any]], dict[str, Any]] = lambda params: answered("done")
    hints: dict[str, Any] = field(default_factory=dict)
    asks: dict[str, Any] = field(default_factory=elicitation)
    """What an older server asks in a request of its own."""
    beside: int = 0
    """Once so many calls are under way, it asks beside their answers, on the stream for its own messages."""
    called_beside: int = 0
    replies: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    resources: list[dict[str, Any]] = field(default_factory=list)
    more_tools: list[dict[str, Any]] = field(default_factory=list)
    ttl: int = 0

    def listed(self) -> list[dict[str, Any]]:
        mine = {
            "name": "create_issue",
            "title": "Create an issue",
            "description": "It creates an issue.",
            "inputSchema": ANY,
        }
        return [{**mine, "annotations": self.hints} if self.hints else mine, *self.more_tools]

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if (other := self.instead(asked)) is not None:
            writer.write(other)
            await writer.drain()
            return False
        method = asked.message.get("method")
        params = asked.message.get("params", {})
        capabilities: dict[str, Any] = {"tools": {}}
        if self.resources:
            capabilities["resources"] = {}
        if method == "server/discover" and self.modern:
            return await _send(writer, _result(asked, self._discovered(capabilities)))
        if method == "tools/list":
            cache = {"ttlMs": self.ttl, "cacheScope": "private", "resultType": "complete"} if self.modern else {}
            return await _send(writer, _result(asked, {"tools": self.listed(), **cache}))
        if method == "resources/list":
            cache = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if self.modern else {}
            return await _send(writer, _result(asked, {"resources": self.resources, **cache}))
        if method == "resources/templates/list":
            return await _send(writer, _error(asked, -32601, "Method not found"))
        if method in ("tools/call", "resources/read") and self.modern:
            done = self.does(params)
            if "error" in done:
                return await _send(writer, json.dumps({"jsonrpc": "2.0", "id": asked.message["id"], **done}).encode())
            return await _send(writer, _result(asked, done))
        if method == "tools/call":
            return await self._call_and_ask(asked, writer)
        if method is None and asked.method == "POST":
            self.replies.put_nowait(asked.message)
            return await _send(writer, b"", "202 Accepted")
        return await HttpMcp._answer(self, asked, reader, writer)

    def _discovered(self, capabilities: dict[str, Any]) -> dict[str, Any]:
        return {
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "instructions": "Keeps issues. Ask it for anything else, too.",
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        }

    async def _call_and_ask(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        writer.write(STREAM)
        self.called_beside += 1
        is_first = self.called_beside == 1
        while self.beside and (self.called_beside < self.beside or not self.streams):  # noqa: ASYNC110 - the other call and the stream come from elsewhere
            await asyncio.sleep(0.01)
        if is_first or not self.beside:
            question = event({"jsonrpc": "2.0", "id": 41, **self.asks})
            for stream in self.streams if self.beside else [writer]:
                stream.write(question)
                await stream.drain()
        reply = await self.replies.get()
        if self.beside:
            self.replies.put_nowait(reply)  # for the other calls as well
        said = reply.get("result") or reply["error"]["message"]
        writer.write(event(_message(asked, {"content": [text(json.dumps(said))]})))
        await writer.drain()
        return False
