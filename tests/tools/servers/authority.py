"""An authorization server and a tool server that wants its tokens, on two ports of loopback, as odd as a test wants them."""

import asyncio
import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from callgate.state.sealing import Sealer
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.authorization import Identity
from callgate.tools.kinds.mcp.logins import StateChange
from callgate.tools.kinds.mcp.oauth.building import oauth_rules
from callgate.tools.kinds.mcp.oauth.memory_tokens import MemoryTokens
from callgate.tools.kinds.mcp.oauth.service import OAuthLogins
from callgate.tools.kinds.mcp.oauth.shelf import Shelf
from callgate.tools.kinds.mcp.oauth.source import OAuthAuthorization
from callgate.tools.kinds.mcp.oauth.tokens import Tokens
from callgate.tools.kinds.mcp.settings import McpServer
from tests.harness.server import serve

CALLBACK = "http://127.0.0.1:9/callback"
SECRET = "a secret of thirty-two characters or more"
MISSING = object()
"""In place of a field: leave it out."""


@dataclass(slots=True)
class Authority:
    """An authorization server. `metadata`, `token_fields` and `refusal` change what it says."""

    url: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    token_fields: dict[str, Any] = field(default_factory=dict)
    redirect_fields: dict[str, Any] = field(default_factory=dict)
    registration_fields: dict[str, Any] = field(default_factory=dict)
    refusal: tuple[int, Mapping[str, Any]] | None = None
    """What the token endpoint answers in place of a token."""
    life: float = 3600
    rotates: bool = True
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The path of each request, with its fields."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    """The access tokens that are good."""
    refresh: set[str] = field(default_factory=set)
    spent: set[str] = field(default_factory=set)
    challenges: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The PKCE challenge and the resource of each code."""
    reused: int = 0
    """How often a refresh token came that was spent."""
    hold: asyncio.Event | None = None
    """Set where the token endpoint is to wait for it."""
    at_token: asyncio.Event = field(default_factory=asyncio.Event)

    def asked(self, path: str) -> list[dict[str, Any]]:
        return [fields for where, fields in self.requests if where == path]

    def document(self) -> dict[str, Any]:
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "authorization_response_iss_parameter_supported": True,
            **self.metadata,
        }
        return {name: value for name, value in document.items() if value is not MISSING}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/register", self._register, methods=["POST"]),
                Route("/revoke", self._revoke, methods=["POST"]),
            ]
        )

    async def _metadata(self, request: Request) -> Response:
        self.requests.append((request.url.path, {}))
        return JSONResponse(self.document())

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.requests.append(("/authorize", asked))
        code = secrets.token_urlsafe(8)
        self.challenges[code] = (asked["code_challenge"], asked["resource"])
        back = {"code": code, "state": asked["state"], "iss": self.url, **self.redirect_fields}
        query = urlencode({name: value for name, value in back.items() if value is not MISSING})
        return RedirectResponse(f"{asked['redirect_uri']}?{query}", 302)

    async def _register(self, request: Request) -> Response:
        wish = await request.json()
        self.requests.append(("/register", wish))
        made: dict[str, Any] = {"client_id": f"client-{len(self.asked('/register'))}", **self.registration_fields}
        return JSONResponse({**wish, **made}, 201)

    async def _revoke(self, request: Request) -> Response:
        fields = await self._fields(request)
        self.requests.append(("/revoke", fields))
        self.valid.discard(fields["token"])
        self.refresh.discard(fields["token"])
        return Response(status_code=200)

    async def _token(self, request: Request) -> Response:
        fields = await self._fields(request)
        self.requests.append(("/token", fields))
        self.headers.append(dict(request.headers))
        self.at_token.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.refusal is not None:
            return JSONResponse(self.refusal[1], self.refusal[0])
        match fields["grant_type"]:
            case "authorization_code":
                challenge, resource = self.challenges.pop(fields["code"])
                digest = hashlib.sha256(fields["code_verifier"].encode()).digest()
                if (
                    base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge
                    or fields["resource"] != resource
                ):
                    return JSONResponse({"error": "invalid_grant"}, 400)
            case "refresh_token":
                token = fields["refresh_token"]
                if token in self.spent:
                    self.reused += 1
                    self.refresh.clear()
                    self.valid.clear()
                if token not in self.refresh:
                    return JSONResponse({"error": "invalid_grant"}, 400)
                if self.rotates:
                    self.refresh.discard(token)
                    self.spent.add(token)
        return JSONResponse(self.given())

    def given(self) -> dict[str, Any]:
        access = f"access-{secrets.token_urlsafe(12)}"
        refresh = f"refresh-{secrets.token_urlsafe(12)}"
        self.valid.add(access)
        self.refresh.add(refresh)
        answer = {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.life,
            "refresh_token": refresh,
            **self.token_fields,
        }
        return {name: value for name, value in answer.items() if value is not MISSING}

    async def _fields(self, request: Request) -> dict[str, str]:
        body = (await request.body()).decode()
        return {name: values[0] for name, values in parse_qs(body, keep_blank_values=True).items()}

    def basic(self) -> tuple[str, str]:
        """The client of the last request to the token endpoint, as it came by the scheme Basic."""
        scheme, _, pair = self.headers[-1]["authorization"].partition(" ")
        assert scheme == "Basic"
        name, _, secret = base64.b64decode(pair).decode().partition(":")
        return unquote(name), unquote(secret)


@dataclass(slots=True)
class Resource:
    """A tool server that takes the tokens of an authority."""

    authority: Authority
    url: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    challenge: str | None = None
    """Its `WWW-Authenticate`; None for the usual one."""
    requests: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    answer: Callable[[Request], Response | None] = lambda request: None

    def document(self) -> dict[str, Any]:
        document = {
            "resource": self.url,
            "authorization_servers": [self.authority.url],
            **self.metadata,
        }
        return {name: value for name, value in document.items() if value is not MISSING}

    def app(self) -> Starlette:
        routes = [
            Route("/.well-known/oauth-protected-resource/mcp", self._metadata),
            Route("/mcp", self._mcp, methods=["POST", "GET"]),
        ]
        return Starlette(routes=routes)

    async def _metadata(self, request: Request) -> Response:
        self.requests.append(request.url.path)
        return JSONResponse(self.document())

    async def _mcp(self, request: Request) -> Response:
        self.requests.append(request.url.path)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token:
            self.tokens.append(token)
        if (other := self.answer(request)) is not None:
            return other
        if token in self.authority.valid:
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": {}})
        challenge = self.challenge
        if challenge is None:
            place = f"{self.url.removesuffix('/mcp')}/.well-known/oauth-protected-resource/mcp"
            challenge = f'Bearer resource_metadata="{place}"'
        return Response(status_code=401, headers={"WWW-Authenticate": challenge})


@dataclass(slots=True)
class Login:
    """Logins to one tool server, as a process has them, and the two servers."""

    authority: Authority
    resource: Resource
    logins: OAuthLogins
    source: OAuthAuthorization
    shelf: Shelf
    said: list[StateChange]

    async def log_in(self, identity: Identity = Identity(), *scopes: str) -> Any:  # noqa: B008 - it cannot be changed
        begun = await self.logins.begin("tools", identity, CALLBACK, scopes)
        parameters = await browse(begun.address)
        return await self.logins.finish(parameters["state"], parameters, browser=begun.browser)

    async def send(self, identity: Identity = Identity(), *, refused: str = "") -> str:  # noqa: B008
        """The token that a request is sent with."""
        return (await self.source.headers(identity))["Authorization"].removeprefix("Bearer ")


async def browse(address: str) -> dict[str, str]:
    """Do what a browser does at the page of the authorization server, up to the address that it is sent back to."""
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(address)
    assert response.status_code == 302, response.text
    return {name: values[0] for name, values in parse_qs(urlsplit(response.headers["location"]).query).items()}


@contextlib.asynccontextmanager
async def authority_and_resource() -> AsyncIterator[tuple[Authority, Resource]]:
    authority = Authority()
    resource = Resource(authority)
    async with serve(authority.app()) as authority.url, serve(resource.app()) as base:
        resource.url = f"{base}/mcp"
        yield authority, resource


@contextlib.asynccontextmanager
async def login_to(
    authority: Authority,
    resource: Resource,
    tokens: Tokens | None = None,
    *,
    public_url: str | None = None,
    secrets_known: tuple[str, ...] = (SECRET,),
    name: str = "tools",
    entry: Mapping[str, Any] | None = None,
    **oauth: Any,
) -> AsyncIterator[Login]:
    """What one process has of the login to a server with these settings of `oauth`."""
    web = Web()
    said: list[StateChange] = []
    shelf = Shelf(
        tokens if tokens is not None else MemoryTokens(),
        Sealer(secrets_known, "environment"),
        lambda: web,
        said.append,
    )
    logins = OAuthLogins(shelf, public_url)
    section = McpServer.model_validate({"url": resource.url, "oauth": oauth, **(entry or {})})
    assert section.oauth is not None
    source = logins.authorization(name, resource.url, section.oauth, oauth_rules(section))
    logins.use([name])
    try:
        yield Login(authority, resource, logins, source, shelf, said)
    finally:
        await logins.close()
        await web.close()
