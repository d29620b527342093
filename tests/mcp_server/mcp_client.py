"""A client of `/mcp` that sends exactly what a test says, at either kind of revision."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.server import serve

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
ELICITATION: dict[str, Any] = {"elicitation": {"form": {}}}
NAMED = {"tools/call": "name", "resources/read": "uri"}


@dataclass(slots=True)
class McpClient:
    """The client of one key."""

    http: httpx.AsyncClient
    key: str | None = None
    revision: str = MODERN
    capabilities: Mapping[str, Any] | None = None

    def as_key(self, key: str) -> "McpClient":
        return McpClient(self.http, key, self.revision, self.capabilities)

    def older(self) -> "McpClient":
        return McpClient(self.http, self.key, LEGACY, self.capabilities)

    def that_asks(self, capabilities: Mapping[str, Any] = ELICITATION) -> "McpClient":
        """The same client, which can ask its user."""
        return McpClient(self.http, self.key, self.revision, capabilities)

    def message(
        self, method: str, params: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None, id: Any = 1
    ) -> dict[str, Any]:
        fields = dict(params or {})
        if self.revision == MODERN:
            envelope = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": self.capabilities or {},
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            }
            fields["_meta"] = {**envelope, **(meta or {})}
        elif meta:
            fields["_meta"] = dict(meta)
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": fields}

    def headers(self, message: Mapping[str, Any]) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": self.revision,
        }
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        if self.revision == MODERN:
            headers["mcp-method"] = message["method"]
            if (named := NAMED.get(message["method"])) is not None:
                headers["mcp-name"] = message["params"][named]
        return headers

    async def post(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        **headers: str,
    ) -> httpx.Response:
        """Send a request. `headers`: with underscores for hyphens."""
        message = self.message(method, params, meta)
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("/mcp", content=json.dumps(message), headers={**self.headers(message), **more})

    async def result(
        self, method: str, params: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = last_of(await self.post(method, params, meta))["result"]
        return result

    async def error(
        self, method: str, params: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        error: dict[str, Any] = last_of(await self.post(method, params, meta))["error"]
        return error

    async def call(self, name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
        """Call a tool, and return the result."""
        return await self.result("tools/call", {"name": name, "arguments": arguments or {}, **more})

    async def names(self) -> list[str]:
        return [tool["name"] for tool in (await self.result("tools/list"))["tools"]]

    @contextlib.asynccontextmanager
    async def streamed(
        self, method: str, params: Mapping[str, Any], meta: Mapping[str, Any] | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Send a request, and give the messages of its stream."""
        message = self.message(method, params, meta)
        content = json.dumps(message)
        async with self.http.stream("POST", "/mcp", content=content, headers=self.headers(message)) as response:
            assert response.headers["content-type"].startswith("text/event-stream"), await response.aread()
            yield _messages(response)


async def _messages(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def messages_of(response: httpx.Response) -> list[dict[str, Any]]:
    """All messages of an answer, streamed or not."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return [response.json()]
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def last_of(response: httpx.Response) -> dict[str, Any]:
    return messages_of(response)[-1]


@contextlib.asynccontextmanager
async def served_mcp(config: Config) -> AsyncIterator[McpClient]:
    async with serve(create_app(config)) as url, http_client(url) as http:
        yield McpClient(http)
