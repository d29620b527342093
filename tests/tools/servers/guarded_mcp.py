"""A tool server over HTTP that wants a token with every request, and the fake of what keeps tokens for it."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity, NeedsLogin, Refusal
from tests.tools.servers.http_mcp import Asked, HttpMcp, _error, _result, _send, text

ANY = {"type": "object"}
CHALLENGE = 'Bearer resource_metadata="http://127.0.0.1/.well-known/oauth-protected-resource"'
TOO_LITTLE = 'Bearer error="insufficient_scope", scope="files:write"'


@dataclass(slots=True)
class GuardedMcp(HttpMcp):
    """The server. `whoami` answers whose token a call had, as JSON with the request's further headers that begin with `X-`."""

    modern: bool = False
    subjects: dict[str, str] = field(default_factory=dict)
    """Who each valid token is of."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests without a valid token, by their method of JSON-RPC or HTTP."""
    listed_for: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The tools that single subjects are listed, where they are not the usual."""
    described: dict[str, str] = field(default_factory=dict)
    """What `whoami` says of itself to single subjects."""
    hints: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The annotations of `whoami` for single subjects."""
    too_little: set[str] = field(default_factory=set)
    """Subjects whose calls are refused for their scope."""
    issuer: str = ""
    """The authorization server that it names."""
    redirects_to: str = ""
    at_once: int = 0
    """Calls of `together` that have to be under way at once before any is answered."""
    together: int = 0
    most_together: int = 0
    all_there: asyncio.Event = field(default_factory=asyncio.Event)

    def let(self, token: str, subject: str) -> str:
        self.subjects[token] = subject
        return token

    def tokens_of(self, method: str) -> set[str]:
        return {asked.headers.get("authorization", "") for asked in self.asked if _kind(asked) == method}

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.redirects_to:
            head = f"Location: {self.redirects_to}\r\n"
            return await _send(writer, b"", "307 Temporary Redirect", more=head)
        if asked.path.startswith("/.well-known/oauth-protected-resource"):
            about = {"resource": self.url, "authorization_servers": [self.issuer]}
            return await _send(writer, json.dumps(about).encode())
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        subject = self.subjects.get(token)
        if subject is None:
            self.refused[_kind(asked)] += 1
            challenge = CHALLENGE
            if self.issuer:
                place = self.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
                challenge = f'Bearer resource_metadata="{place}"'
            return await _send(writer, b"", "401 Unauthorized", more=f"WWW-Authenticate: {challenge}\r\n")
        method = asked.message.get("method")
        if method == "tools/call" and subject in self.too_little:
            return await _send(writer, b"", "403 Forbidden", more=f"WWW-Authenticate: {TOO_LITTLE}\r\n")
        if method == "server/discover" and self.modern:
            discovered = {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
            }
            return await _send(writer, _result(asked, discovered))
        if method == "tools/list":
            cache = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if self.modern else {}
            return await _send(writer, _result(asked, {"tools": self._tools_for(subject), **cache}))
        if method == "tools/call" and asked.message["params"]["name"] in ("whoami", "together", "secret_plans"):
            if not self.modern and asked.headers.get("mcp-session-id") not in self.sessions:
                return await _send(writer, _error(asked, -32600, "Session not found"), "404 Not Found")
            return await self._called(asked, subject, writer)
        return await HttpMcp._answer(self, asked, reader, writer)

    async def _called(self, asked: Asked, subject: str, writer: asyncio.StreamWriter) -> bool:
        if asked.message["params"]["name"] == "together":
            self.together += 1
            self.most_together = max(self.most_together, self.together)
            if self.together == self.at_once:
                self.all_there.set()
            await self.all_there.wait()
            self.together -= 1
        said = {"subject": subject, **{name: value for name, value in asked.headers.items() if name.startswith("x-")}}
        result: dict[str, Any] = {"content": [text(json.dumps(said))]}
        if self.modern:
            result["resultType"] = "complete"
        return await _send(writer, _result(asked, result))

    def _tools_for(self, subject: str) -> list[dict[str, Any]]:
        names = self.listed_for.get(subject, ("whoami", "together", "hangs"))
        tools: list[dict[str, Any]] = [
            {"name": name, "description": self.described.get(subject, f"It says {name}."), "inputSchema": ANY}
            for name in names
        ]
        if subject in self.hints:
            tools[0]["annotations"] = self.hints[subject]
        return tools


def _kind(asked: Asked) -> str:
    return asked.message.get("method") or asked.method


@dataclass(slots=True)
class Tokens:
    """The fake of the port: tokens by identity, and what they are renewed by."""

    now: dict[Identity, str] = field(default_factory=dict)
    renewals: dict[Identity, list[str]] = field(default_factory=dict)
    refusals: list[tuple[Identity, Refusal]] = field(default_factory=list)
    asked: Counter[Identity] = field(default_factory=Counter)
    address: str = ""

    def of_operator(self, token: str) -> "Tokens":
        self.now[OPERATOR] = token
        return self

    async def headers(self, identity: Identity) -> Mapping[str, str]:
        self.asked[identity] += 1
        if identity not in self.now:
            raise self._needs(identity)
        return {"Authorization": f"Bearer {self.now[identity]}"}

    async def headers_after(self, identity: Identity, refusal: Refusal) -> Mapping[str, str]:
        self.refusals.append((identity, refusal))
        if refusal.authorized_by == f"Bearer {self.now.get(identity)}":
            if not self.renewals.get(identity):
                self.now.pop(identity, None)
                raise self._needs(identity)
            self.now[identity] = self.renewals[identity].pop(0)
        return await self.headers(identity)

    def _needs(self, identity: Identity) -> NeedsLogin:
        who = f" as {identity.key}" if identity.key else ""
        return NeedsLogin(f"the server wants a login{who}: `callgate mcp login there`.", address=self.address)
