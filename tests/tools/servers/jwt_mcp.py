"""A tool server that takes the tokens of a real authorization server, checks them itself, and says whose they are."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt

from tests.tools.servers.guarded_mcp import GuardedMcp
from tests.tools.servers.http_mcp import Asked, _send

METADATA = "/.well-known/oauth-protected-resource/mcp"


@dataclass(slots=True)
class JwtMcp(GuardedMcp):
    """The server. Its resource is its own address."""

    issuer: str = ""
    base: str = ""
    """Its address without a path."""
    keys: jwt.PyJWKSet | None = None
    expired: int = 0
    """How often a token came that was over."""
    issued: set[int] = field(default_factory=set)
    """When the tokens were issued that came, in seconds of the authorization server's clock."""

    @property
    def resource(self) -> str:
        return f"{self.base}/mcp"

    async def _answer(self, asked: Asked, reader: Any, writer: Any) -> bool:
        if asked.path.startswith("/.well-known/"):
            document = {
                "resource": self.resource,
                "authorization_servers": [self.issuer],
                "scopes_supported": ["tools:read"],
            }
            status = "200 OK" if asked.path == METADATA else "404 Not Found"
            return await _send(writer, json.dumps(document).encode(), status)
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        self.subjects.pop(token, None)
        subject = await self._subject(token) if token else ""
        if not subject:
            challenge = f'Bearer resource_metadata="{self.base}{METADATA}"'
            return await _send(writer, b"", "401 Unauthorized", more=f"WWW-Authenticate: {challenge}\r\n")
        self.subjects[token] = subject
        return await GuardedMcp._answer(self, asked, reader, writer)

    async def _subject(self, token: str) -> str:
        if self.keys is None:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                self.keys = jwt.PyJWKSet.from_dict((await client.get(f"{self.issuer}/jwks")).json())
        try:
            key = self.keys[jwt.get_unverified_header(token)["kid"]].key
            claims = jwt.decode(
                token,
                key,
                algorithms=["RS256"],
                audience=self.resource,
                issuer=self.issuer,
                options={"verify_exp": False},
            )
        except jwt.PyJWTError:
            return ""
        self.issued.add(claims["iat"])
        if claims["exp"] <= time.time():
            self.expired += 1
            return ""
        return str(claims.get("sub") or claims["client_id"])
