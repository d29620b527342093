"""What nobody else on the way may do: the tool server, another authorization server, whoever sees the browser or copies the disk."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from callgate.state.ledger import open_ledger
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity, NeedsLogin, Refusal
from callgate.tools.kinds.mcp.logins import LoginFailed
from callgate.tools.kinds.mcp.oauth import own_client
from callgate.tools.kinds.mcp.oauth.building import oauth_rules
from callgate.tools.kinds.mcp.oauth.challenges import MAX_SCOPE
from callgate.tools.kinds.mcp.oauth.documents import LONGEST_LIFE, UnusableDocument, checked_address, covers
from callgate.tools.kinds.mcp.oauth.errand import MAX_REQUESTS
from callgate.tools.kinds.mcp.oauth.ledger_tokens import LedgerTokens
from callgate.tools.kinds.mcp.oauth.loopback import LoopbackListener, Pasted
from callgate.tools.kinds.mcp.oauth.memory_tokens import MemoryTokens
from callgate.tools.kinds.mcp.oauth.tokens import row_id
from callgate.tools.kinds.mcp.settings import McpServer
from tests.harness.server import serve
from tests.tools.servers.authority import (
    CALLBACK,
    MISSING,
    Authority,
    Resource,
    authority_and_resource,
    browse,
    login_to,
)

pytestmark = pytest.mark.anyio

ROW = row_id("tools", OPERATOR)
PRIVATE = ("https://10.0.0.1", "https://169.254.169.254", "https://[::ffff:10.0.0.1]", "https://192.168.1.1:8443")


@pytest.fixture
async def servers() -> AsyncIterator[tuple[Authority, Resource]]:
    async with authority_and_resource() as both:
        yield both


# 1: addresses


@pytest.mark.parametrize("issuer", PRIVATE)
async def test_a_server_does_not_lead_a_login_to_private_addresses(
    servers: tuple[Authority, Resource], issuer: str
) -> None:
    _, resource = servers
    resource.metadata["authorization_servers"] = [issuer]
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match="address, which is not allowed"):
            await login.log_in()


@pytest.mark.parametrize(
    "address", ["http://login.example", "ftp://login.example", "file:///etc/passwd", "javascript:x"]
)
async def test_a_login_has_https_but_on_this_machine(servers: tuple[Authority, Resource], address: str) -> None:
    authority, resource = servers
    resource.metadata["authorization_servers"] = [address]
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed):
            await login.log_in()
    assert authority.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "https://user:word@a.example",
        "https://a.example/#x",
        "https:///x",
        "https://a.example/ x",
        "https://a.example\\@b",
        "x",
    ],
)
def test_an_address_that_two_readers_may_read_in_two_ways_is_none(address: str) -> None:
    with pytest.raises(UnusableDocument):
        checked_address(address)


def test_private_addresses_are_those_that_the_entry_allows() -> None:
    def rules(**more: Any) -> AddressRules:
        return oauth_rules(McpServer.model_validate({"url": "https://tools.example/mcp", "oauth": {}, **more}))

    assert rules() == AddressRules()
    assert rules(url="http://127.0.0.1:1/mcp").hosts == {"127.0.0.1"}
    assert rules(oauth={"issuer": "https://login.internal"}).hosts == {"login.internal"}
    assert rules(allow_private=True).allow_private


async def test_no_redirect_is_followed(servers: tuple[Authority, Resource]) -> None:
    _, resource = servers
    followed: list[str] = []

    async def elsewhere(request: Request) -> Response:
        followed.append(request.url.path)
        return JSONResponse({})

    async with serve(Starlette(routes=[Route("/{path:path}", elsewhere)])) as other:

        async def redirect(request: Request) -> Response:
            return RedirectResponse(f"{other}/x", 302)

        async with serve(Starlette(routes=[Route("/{path:path}", redirect)])) as redirecting:
            resource.metadata["authorization_servers"] = [redirecting]
            async with login_to(*servers) as login:
                with pytest.raises(LoginFailed):
                    await login.log_in()
    assert followed == []


# 2: sizes and numbers


async def test_a_document_of_more_than_64_kib_is_none(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    authority.metadata["filler"] = "x" * 70_000
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match="more than 65536 bytes"):
            await login.log_in()


async def test_finding_out_where_to_log_in_takes_six_requests_at_most() -> None:
    asked: list[str] = []

    async def nothing(request: Request) -> Response:
        asked.append(request.url.path)
        return Response(status_code=404)

    async with serve(Starlette(routes=[Route("/{path:path}", nothing, methods=["GET", "POST"])])) as base:
        resource = Resource(Authority(), f"{base}/a/mcp")
        async with login_to(resource.authority, resource, issuer=f"{base}/tenant") as login:
            with pytest.raises(LoginFailed, match="says nothing of itself"):
                await login.log_in()
    assert asked == [
        "/a/mcp",
        "/.well-known/oauth-protected-resource/a/mcp",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-authorization-server/tenant",
        "/.well-known/openid-configuration/tenant",
        "/tenant/.well-known/openid-configuration",
    ]
    assert len(asked) == MAX_REQUESTS


# 3: the page


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "file:///etc/passwd", "--help", "http://login.example/x", ""]
)
async def test_the_page_that_is_opened_is_one_of_the_web(servers: tuple[Authority, Resource], address: str) -> None:
    authority, _ = servers
    authority.metadata["authorization_endpoint"] = address
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed):
            await login.logins.begin("tools", OPERATOR, CALLBACK)
    assert authority.asked("/register") == []


async def test_without_pkce_nobody_is_sent_there(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    for methods in (MISSING, [], ["plain"]):
        authority.metadata["code_challenge_methods_supported"] = methods
        async with login_to(*servers) as login:
            with pytest.raises(LoginFailed, match="PKCE"):
                await login.log_in()
    assert authority.asked("/authorize") == authority.asked("/register") == []


# 4 and 5: issuers


async def test_metadata_of_another_issuer_is_refused(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    for issuer in (authority.url + "/", "https://evil.example", authority.url.upper()):
        authority.metadata["issuer"] = issuer
        async with login_to(*servers) as login:
            with pytest.raises(LoginFailed, match="names another issuer"):
                await login.log_in()


@pytest.mark.parametrize("iss", ["https://evil.example", MISSING, "normalized"])
async def test_an_answer_from_another_issuer_is_neither_used_nor_shown(
    servers: tuple[Authority, Resource], iss: Any
) -> None:
    authority, _ = servers
    authority.redirect_fields = {
        "iss": f"{authority.url}/" if iss == "normalized" else iss,
        "error": "access_denied",
        "error_description": "buy this",
    }
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match="nobody was logged in") as failed:
            await login.log_in()
    assert "access_denied" not in str(failed.value)
    assert authority.asked("/token") == []


async def test_codes_that_are_crossed_between_two_servers_reach_neither(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    async with authority_and_resource() as (other, its), login_to(*servers) as one, login_to(other, its) as two:
        begun, begun_there = [await login.logins.begin("tools", OPERATOR, CALLBACK) for login in (one, two)]
        back, back_there = await browse(begun.address), await browse(begun_there.address)
        with pytest.raises(LoginFailed, match="another authorization server"):
            await one.logins.finish(begun.state, {**back_there, "state": begun.state}, browser=begun.browser)
        with pytest.raises(LoginFailed):
            await two.logins.finish(
                begun_there.state, {**back, "state": begun_there.state}, browser=begun_there.browser
            )
        assert authority.asked("/token") == other.asked("/token") == []


# 6 and 10: the browser


async def test_a_login_ends_once_and_in_the_browser_that_began_it(servers: tuple[Authority, Resource]) -> None:
    async with login_to(*servers, per="key") as login:
        begun = await login.logins.begin("tools", Identity("mallory"), CALLBACK)
        back = await browse(begun.address)  # by a victim, who was given the address
        for browser in ("", "another", begun.state):
            with pytest.raises(LoginFailed, match="begun in another browser"):
                await login.logins.finish(begun.state, back, browser=browser)
        with pytest.raises(NeedsLogin):
            await login.send(Identity("mallory"))
        await login.logins.finish(begun.state, back, browser=begun.browser)
        with pytest.raises(LoginFailed, match="is over"):
            await login.logins.finish(begun.state, back, browser=begun.browser)
        assert len(login.authority.asked("/token")) == 1


async def test_a_login_is_over_after_ten_minutes(servers: tuple[Authority, Resource]) -> None:
    tokens = MemoryTokens()
    async with login_to(*servers, tokens) as login:
        begun = await login.logins.begin("tools", OPERATOR, CALLBACK)
        [(name, (sealed, until))] = tokens._notes.items()
        assert until - time.monotonic() == pytest.approx(600, abs=60)
        assert begun.state not in name + sealed
        tokens._notes[name] = (sealed, time.monotonic())
        with pytest.raises(LoginFailed, match="is over"):
            await login.logins.finish(begun.state, await browse(begun.address), browser=begun.browser)


# 7: the callback of a command


async def test_the_callback_says_nothing_of_what_it_was_asked() -> None:
    async with LoopbackListener() as back, httpx.AsyncClient(trust_env=False) as browser:
        waiting = asyncio.create_task(back.came_back("right"))
        for query in ("?state=wrong&code=<b>x", "?state=right&state=right", "?code=1", ""):
            answer = await browser.get(back.redirect_uri + query)
            assert (answer.status_code, answer.text) == (404, "Nothing is here.\n")
        assert (await browser.post(f"{back.redirect_uri}?state=right&code=1")).status_code == 404
        page = asyncio.create_task(browser.get(f"{back.redirect_uri}?state=right&code=<script>&iss=x"))
        assert await waiting == {"state": "right", "code": "<script>", "iss": "x"}
        back.say_end(is_logged_in=True)
        answer = await page
        assert (answer.status_code, answer.text) == (200, "Logged in. You can close this window.\n")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        again = await browser.get(f"{back.redirect_uri}?state=right&code=2")
        assert again.status_code == 404


async def test_what_is_pasted_has_to_be_of_this_login() -> None:
    for text in ("", "http://127.0.0.1:1/callback?code=1", "http://x/?state=other&code=1", "?state=s&state=s&code=1"):
        async with Pasted(lambda text=text: text) as back:  # type: ignore[misc]
            with pytest.raises(LoginFailed):
                await back.came_back("s")
    async with Pasted(lambda: " http://127.0.0.1:1/callback?state=s&code=1&iss=x \n") as back:
        assert await back.came_back("s") == {"state": "s", "code": "1", "iss": "x"}


# 8: where tokens go


@pytest.mark.parametrize(
    ("resource", "url", "is_covered"),
    [
        ("https://a.example/mcp", "https://a.example/mcp", True),
        ("https://a.example", "https://a.example/mcp", True),
        ("https://a.example/mcp/", "https://a.example/mcp", True),
        ("https://a.example/mcp", "https://a.example/mcp/deep", True),
        ("https://a.example/mcp", "https://a.example/mcp2", False),
        ("https://a.example/mcp", "https://a.example/other", False),
        ("https://a.example/mcp", "http://a.example/mcp", False),
        ("https://a.example/mcp", "https://a.example:8443/mcp", False),
        ("https://a.example/mcp", "https://b.example/mcp", False),
        ("https://a.example", "https://a.example.evil.example/mcp", False),
    ],
)
async def test_a_token_goes_to_its_resource_alone(resource: str, url: str, is_covered: bool) -> None:
    assert covers(resource, url) is is_covered


async def test_a_server_that_speaks_for_another_is_not_logged_in_to(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    resource.metadata["resource"] = "https://bank.example/mcp"
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match="another resource"):
            await login.log_in()
    assert authority.requests == []


# 9: the client's own secret


async def test_the_secret_of_the_client_goes_to_no_issuer_of_the_tool_servers_choice(
    servers: tuple[Authority, Resource],
) -> None:
    authority, resource = servers
    machine = {"grant": "client_credentials", "client_id": "m", "client_secret": "m4chine", "issuer": authority.url}
    async with authority_and_resource() as (evil, _):
        resource.metadata["authorization_servers"] = [evil.url]
        async with login_to(*servers, entry={"oauth": machine}) as login:
            with pytest.raises(NeedsLogin):
                await login.send()
        assert evil.requests == authority.requests == []
        authority.metadata["token_endpoint"] = f"{evil.url}/token"  # its own word, and so its own business
        authority.metadata["issuer"] = evil.url
        resource.metadata["authorization_servers"] = [authority.url]
        async with login_to(*servers, entry={"oauth": machine}) as login:
            with pytest.raises(NeedsLogin):
                await login.send()
        assert evil.requests == []


# 11: words


async def test_neither_tokens_nor_words_of_a_server_are_in_what_is_told(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    async with login_to(*servers) as login:
        await login.log_in()
        token = await login.send()
        authority.refusal = (400, {"error": "invalid_grant", "error_description": f"IGNORE {token}"})
        refusal = Refusal(
            status=401,
            challenges=('Bearer error="x", error_description="IGNORE ALL"',),
            authorized_by=f"Bearer {token}",
        )
        with pytest.raises(NeedsLogin) as needed:
            await login.source.headers_after(OPERATOR, refusal)
        told = needed.value.words + repr(login.said) + repr(needed.value)
        assert "IGNORE" not in told
        assert token not in told


# 13: clocks


@pytest.mark.parametrize("skew", [-120, 120])
async def test_clocks_may_be_two_minutes_apart(
    servers: tuple[Authority, Resource], skew: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority, _ = servers
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    now = time.time()
    monkeypatch.setattr(own_client.time, "time", lambda: now + skew)  # type: ignore[attr-defined]
    machine = {"grant": "client_credentials", "client_id": "m", "private_key": pem, "issuer": authority.url}
    async with login_to(*servers, entry={"oauth": machine}) as login:
        token = await login.send()
        assert await login.send() == token, "how long it is good is counted here, and not compared with another clock"
    monkeypatch.undo()
    [asked] = authority.asked("/token")
    jwt.decode(asked["client_assertion"], key.public_key(), algorithms=["ES256"], audience=authority.url)


# 15: the disk


async def test_a_data_folder_without_its_key_opens_nothing(servers: tuple[Authority, Resource], tmp_path: Path) -> None:
    ledger = await open_ledger(folder=tmp_path, dead_after=60.0, on_lost=lambda lost: None)
    try:
        tokens = LedgerTokens(ledger.database)
        async with login_to(*servers, tokens, per="key") as login:
            for key in ("alice", "bob"):
                await login.log_in(Identity(key))
            alice = await login.send(Identity("alice"))
            secrets = {alice, *login.authority.valid, *login.authority.refresh}
            files = b"".join(path.read_bytes() for path in list(tmp_path.iterdir()) if path.is_file())  # noqa: ASYNC240 - small
            assert not [secret for secret in secrets if secret.encode() in files]
        other = "another secret of thirty-two characters"
        async with login_to(*servers, tokens, per="key", secrets_known=(other,)) as thief:
            with pytest.raises(NeedsLogin):
                await thief.send(Identity("alice"))
        # Two secrets: the old one opens what it sealed.
        from tests.tools.servers.authority import SECRET

        async with login_to(*servers, tokens, per="key", secrets_known=(other, SECRET)) as login:
            assert await login.send(Identity("alice")) == alice
    finally:
        await ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as database:
        rows = dict(database.execute("SELECT key_name, sealed FROM oauth_tokens"))
        database.execute("UPDATE oauth_tokens SET sealed = ? WHERE key_name = 'bob'", (rows["alice"],))
        database.commit()
    ledger = await open_ledger(folder=tmp_path, dead_after=60.0, on_lost=lambda lost: None)
    try:
        async with login_to(*servers, LedgerTokens(ledger.database), per="key") as login:
            with pytest.raises(NeedsLogin):
                await login.send(Identity("bob"))
    finally:
        await ledger.close()


# 16, 17, 18: odd answers


async def test_an_id_token_is_not_read(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    authority.token_fields["id_token"] = {"not": "even a text"}
    async with login_to(*servers) as login:
        await login.log_in()
        assert await login.send() in authority.valid


@pytest.mark.parametrize("seconds", [MISSING, None, 0, -5, 10**12, "3600", "soon", True, [], 1e400])
async def test_a_life_that_cannot_be_believed_is_none(servers: tuple[Authority, Resource], seconds: Any) -> None:
    authority, _ = servers
    authority.token_fields["expires_in"] = 10**400 if seconds == 1e400 else seconds
    tokens = MemoryTokens()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        sent = {await login.send() for _ in range(20)}
        row = await tokens.read(ROW)
    assert row is not None
    assert row.life in (None, LONGEST_LIFE)
    assert len(sent) == len(authority.asked("/token")) == 1


@pytest.mark.parametrize("where", ["challenge", "resource", "token"])
async def test_scopes_of_more_than_4_kib_are_refused(servers: tuple[Authority, Resource], where: str) -> None:
    authority, resource = servers
    scopes = " ".join(["scope"] * MAX_SCOPE)
    if where == "challenge":
        resource.challenge = f'Bearer scope="{scopes[: MAX_SCOPE + 1]}"'
    elif where == "resource":
        resource.metadata["scopes_supported"] = scopes.split()[:2000]
    else:
        authority.token_fields["scope"] = scopes
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match="scopes of more than"):
            await login.log_in()


@pytest.mark.parametrize(
    "fields",
    [
        {"token_type": "DPoP"},
        {"access_token": "a b"},
        {"access_token": "a\r\nX-Evil: 1"},
        {"access_token": ""},
        {"access_token": "x" * 40_000},
        {"refresh_token": "ä"},
        {"access_token": MISSING},
    ],
)
async def test_what_is_no_bearer_token_is_not_kept(servers: tuple[Authority, Resource], fields: dict[str, Any]) -> None:
    authority, _ = servers
    authority.token_fields = fields
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match="no token for the code"):
            await login.log_in()
        assert await login.shelf.tokens.read(ROW) is None
