"""The login of a person: found out, begun, ended."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.responses import Response

from callgate.config.redaction import Redactor
from callgate.state.ledger import open_ledger
from callgate.telemetry import logs
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity, NeedsLogin, Refusal
from callgate.tools.kinds.mcp.http import HttpSpec, rules_for
from callgate.tools.kinds.mcp.logins import LoginFailed, LoginState, client_document, login_facts
from callgate.tools.kinds.mcp.oauth.ledger_tokens import LedgerTokens
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec
from callgate.tools.source_supervisor import CannotOpen
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


@pytest.fixture
async def servers() -> AsyncIterator[tuple[Authority, Resource]]:
    async with authority_and_resource() as both:
        yield both


async def test_an_empty_entry_is_enough(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    async with login_to(*servers) as login:
        with pytest.raises(NeedsLogin, match="callgate mcp login tools"):
            await login.send()
        done = await login.log_in()
        assert (done.server, done.identity, done.issuer) == ("tools", OPERATOR, authority.url)
        assert await login.send() in authority.valid
        [registered] = authority.asked("/register")
        assert registered["redirect_uris"] == [CALLBACK]
        assert registered["application_type"] == "native"
        [asked] = authority.asked("/authorize")
        assert asked["resource"] == resource.url
        assert asked["code_challenge_method"] == "S256"
        assert "scope" not in asked
        [token] = authority.asked("/token")
        assert token["resource"] == resource.url
        assert token["client_id"] == "client-1"
        assert [change.state for change in login.said] == [LoginState.NEEDS_LOGIN, LoginState.OK]


@pytest.mark.parametrize(
    ("challenge", "metadata", "server", "settings", "scope"),
    [
        ('Bearer scope="a b"', ["c"], None, {}, "a b"),
        (None, ["c", "d"], None, {}, "c d"),
        (None, MISSING, ["x"], {}, None),
        ('Bearer scope="a"', MISSING, ["a", "offline_access"], {}, "a offline_access"),
        ('Bearer scope="a"', ["c"], ["offline_access"], {"scopes": ["e"]}, "e"),
    ],
    ids=["challenge", "resource", "none", "offline", "settings"],
)
async def test_the_scopes_are_those_of_the_challenge_else_of_the_resource_else_none(
    servers: tuple[Authority, Resource],
    challenge: str | None,
    metadata: Any,
    server: Any,
    settings: dict[str, Any],
    scope: str | None,
) -> None:
    authority, resource = servers
    resource.challenge = challenge
    resource.metadata["scopes_supported"] = metadata
    authority.metadata["scopes_supported"] = server if server is not None else MISSING
    async with login_to(*servers, **settings) as login:
        await login.log_in()
    assert authority.asked("/authorize")[0].get("scope") == scope


async def test_a_client_that_was_configured_is_used_and_goes_to_its_issuer_alone(
    servers: tuple[Authority, Resource],
) -> None:
    authority, resource = servers
    client: dict[str, Any] = {"client_id": "ours:1", "client_secret": "s/ cret", "issuer": authority.url}
    async with login_to(*servers, **client) as login:
        await login.log_in()
        assert authority.basic() == ("ours:1", "s/ cret")
        assert authority.asked("/register") == []
        assert "client_secret" not in authority.asked("/token")[0]
        resource.metadata["authorization_servers"] = ["http://127.0.0.1:9"]
        with pytest.raises(LoginFailed, match="does not log in at"):
            await login.log_in()
        assert len(authority.asked("/token")) == 1


async def test_the_secret_goes_in_the_body_where_the_server_takes_it_only_there(
    servers: tuple[Authority, Resource],
) -> None:
    authority, _ = servers
    authority.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    async with login_to(*servers, client_id="ours", client_secret="s3cret", issuer=authority.url) as login:
        await login.log_in()
    assert authority.asked("/token")[0]["client_secret"] == "s3cret"
    assert "authorization" not in authority.headers[-1]


@pytest.mark.parametrize(
    ("methods", "answered", "basic"),
    [(["client_secret_basic"], {"client_secret": "r"}, True), (["none"], {"client_secret": "r"}, False)],
)
async def test_a_registration_says_how_the_client_proves_itself(
    servers: tuple[Authority, Resource], methods: list[str], answered: dict[str, str], basic: bool
) -> None:
    authority, _ = servers
    authority.metadata["token_endpoint_auth_methods_supported"] = methods
    authority.registration_fields = answered
    async with login_to(*servers) as login:
        await login.log_in()
    assert authority.asked("/register")[0]["token_endpoint_auth_method"] == methods[0]
    if basic:
        assert authority.basic() == ("client-1", "r")
    else:
        assert "authorization" not in authority.headers[-1]


async def test_the_document_is_the_client_before_any_registration(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    authority.metadata["client_id_metadata_document_supported"] = True
    async with login_to(*servers, public_url="https://gate.example") as login:
        await login.log_in()
    assert authority.asked("/register") == []
    [asked] = authority.asked("/authorize")
    assert asked["client_id"] == "https://gate.example/oauth/client.json"
    document = client_document("https://gate.example/")
    assert document["client_id"] == asked["client_id"]
    assert document["redirect_uris"] == ["https://gate.example/oauth/callback", "http://127.0.0.1/callback"]


async def test_a_registration_for_an_address_that_stays_is_used_again(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    async with login_to(*servers, per="key", public_url="http://gate.example") as login:
        for key in ("alice", "bob"):
            begun = await login.logins.begin("tools", Identity(key), "http://gate.example/oauth/callback")
            back = await browse(begun.address)
            await login.logins.finish(back["state"], back, browser=begun.browser)
    [registered] = authority.asked("/register")
    assert registered["application_type"] == "web"


async def test_where_nothing_takes_an_unknown_client_the_operator_is_told_what_to_do(
    servers: tuple[Authority, Resource],
) -> None:
    authority, _ = servers
    authority.metadata["registration_endpoint"] = MISSING
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match="register one there by hand") as failed:
            await login.log_in()
    assert CALLBACK in str(failed.value)


async def test_a_server_that_says_nothing_of_itself_is_logged_in_to_by_its_issuer(
    servers: tuple[Authority, Resource],
) -> None:
    authority, resource = servers
    resource.metadata["resource"] = 7
    async with login_to(*servers, issuer=authority.url) as login:
        with pytest.raises(LoginFailed, match="cannot be read"):
            await login.log_in()
    resource.challenge = "Bearer"
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed):
            await login.log_in()


async def test_one_of_2025_03_26_is_logged_in_to_at_its_own_host_only_if_the_entry_says_so() -> None:
    authority = Authority()
    old = Resource(authority)
    app = authority.app()
    app.routes.extend(route for route in old.app().routes if route.path == "/mcp")  # type: ignore[attr-defined]
    old.challenge = "Bearer"
    from tests.harness.server import serve

    async with serve(app) as authority.url:
        old.url = f"{authority.url}/mcp"
        async with login_to(authority, old) as login:
            with pytest.raises(LoginFailed, match="legacy: on"):
                await login.log_in()
        assert authority.requests == []
        async with login_to(authority, old, legacy=True) as login:
            await login.log_in()
            assert await login.send() in authority.valid


async def test_what_more_is_asked_for_is_added_to_what_was_asked_before(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    resource.challenge = 'Bearer scope="a"'
    async with login_to(*servers) as login:
        await login.log_in()
        await login.log_in(OPERATOR, "b")
    assert [asked["scope"] for asked in authority.asked("/authorize")] == ["a", "a b"]


async def test_a_logout_revokes_both_tokens_and_forgets_them(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    async with login_to(*servers) as login:
        await login.log_in()
        await login.send()
        assert await login.logins.logout("tools", OPERATOR)
        assert not await login.logins.logout("tools", OPERATOR)
        with pytest.raises(NeedsLogin):
            await login.send()
        assert authority.valid == set()
        assert [asked["token_type_hint"] for asked in authority.asked("/revoke")] == ["refresh_token", "access_token"]


async def test_a_logout_without_revocation_forgets_all_the_same(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    authority.metadata["revocation_endpoint"] = MISSING
    async with login_to(*servers) as login:
        await login.log_in()
        assert await login.logins.logout("tools", OPERATOR)
        with pytest.raises(NeedsLogin):
            await login.send()


async def test_a_status_says_what_there_is_and_what_is_missing(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    authority.token_fields["scope"] = "a b"
    async with login_to(*servers, per="key") as login:
        [missing] = await login.logins.statuses()
        assert (missing.state, missing.per, missing.identity) == (LoginState.NEEDS_LOGIN, "key", OPERATOR)
        await login.log_in(Identity("alice"))
        alice, operator = await login.logins.statuses()
        assert (alice.identity, alice.state, alice.scopes) == (Identity("alice"), LoginState.OK, ("a", "b"))
        assert alice.issuer == authority.url
        assert alice.is_renewable
        assert operator.state is LoginState.NEEDS_LOGIN
        token = await login.send(Identity("alice"))
        assert token not in repr(await login.logins.statuses())


async def test_the_login_of_one_key_is_never_anothers(servers: tuple[Authority, Resource]) -> None:
    async with login_to(*servers, per="key", public_url="https://gate.example") as login:
        await login.log_in(Identity("alice"))
        alice = await login.send(Identity("alice", "somebody"))
        for other in (OPERATOR, Identity("bob"), Identity("", "alice")):
            with pytest.raises(NeedsLogin) as needed:
                await login.send(other)
            assert alice not in needed.value.words
            assert needed.value.address == "https://gate.example/#/tools"
        await login.log_in(Identity("bob"))
        assert await login.send(Identity("alice")) == alice != await login.send(Identity("bob"))
        await login.logins.logout("tools", Identity("bob"))
        assert await login.send(Identity("alice")) == alice


@pytest.mark.parametrize("address", ["/authorize?tenant=1", "/authorize"])
async def test_the_page_keeps_what_stands_in_its_address(servers: tuple[Authority, Resource], address: str) -> None:
    authority, _ = servers
    authority.metadata["authorization_endpoint"] = authority.url + address
    async with login_to(*servers) as login:
        begun = await login.logins.begin("tools", OPERATOR, CALLBACK)
    query = parse_qs(urlsplit(begun.address).query)
    assert query.get("tenant") == (["1"] if "tenant" in address else None)
    assert query["redirect_uri"] == [CALLBACK]


async def test_a_server_that_is_away_is_named(servers: tuple[Authority, Resource]) -> None:
    _, resource = servers
    resource.answer = lambda request: Response(status_code=503)
    resource.metadata["authorization_servers"] = ["http://127.0.0.1:9"]
    async with login_to(*servers) as login:
        with pytest.raises(LoginFailed, match=r"127\.0\.0\.1"):
            await login.log_in()


async def test_an_entry_without_oauth_is_told_what_it_lacks(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    spec = ServerSpec("tools", HttpSpec(resource.url, rules=rules_for(resource.url)), "tools")
    web = Web()
    source = McpSource(spec, web)
    try:
        with pytest.raises(CannotOpen, match=f"it wants OAuth at {authority.url}: add `oauth: {{}}` to its entry"):
            await source.open()
        resource.metadata["authorization_servers"] = []
        with pytest.raises(CannotOpen, match="401") as refused:
            await source.open()
        assert "OAuth" not in str(refused.value)
    finally:
        await source.close()
        await web.close()


@pytest.mark.usefixtures("logging_as_it_was")
async def test_twelve_planted_secrets_are_found_nowhere(
    servers: tuple[Authority, Resource], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client's secret, a registered one, the code, the verifier, the state, the browser's secret, and tokens of two logins."""
    authority, _ = servers
    logs.configure(Redactor(), level="debug", format="json")
    authority.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_basic"]
    authority.registration_fields = {"client_secret": "planted-registered-secret"}
    planted = {"planted-registered-secret", "planted-client-secret"}
    said: list[object] = []
    ledger = await open_ledger(folder=tmp_path, dead_after=60.0, on_lost=lambda lost: None)
    own = {"client_id": "ours", "client_secret": "planted-client-secret", "issuer": authority.url}
    try:
        for number, entry in enumerate(({"per": "key"}, {"per": "key", **own})):
            tokens = LedgerTokens(ledger.database)
            async with login_to(*servers, tokens, entry={"oauth": entry}) as login:
                identity = Identity(f"key-{number}")
                begun = await login.logins.begin("tools", identity, CALLBACK)
                back = await browse(begun.address)
                said.append(await login.logins.finish(begun.state, back, browser=begun.browser))
                planted |= {begun.browser, begun.state, back["code"], authority.asked("/token")[-1]["code_verifier"]}
                token = await login.send(identity)
                refusal = Refusal(status=401, challenges=(), authorized_by=f"Bearer {token}")
                await login.source.headers_after(identity, refusal)
                said += [*await login.logins.statuses(), *map(login_facts, await login.logins.statuses()), login.said]
                authority.refresh.clear()
                token = await login.send(identity)
                refusal = Refusal(status=401, challenges=(f'Bearer realm="{token}"',), authorized_by=f"Bearer {token}")
                for _ in range(2):
                    with pytest.raises(NeedsLogin) as needed:
                        await login.source.headers_after(identity, refusal)
                    said += [needed.value, needed.value.words, repr(needed.value)]
                with pytest.raises(LoginFailed) as failed:
                    await login.logins.finish(begun.state, back, browser=begun.browser)
                said.append(failed.value)
            planted |= authority.valid | authority.spent
    finally:
        await ledger.close()
    files = b"".join(path.read_bytes() for path in list(tmp_path.iterdir()) if path.is_file())  # noqa: ASYNC240 - small
    captured = capsys.readouterr()
    everything = captured.out + captured.err + repr(said) + "".join(map(str, said)) + files.decode("latin-1")
    assert "mcp_logged_in" in captured.out + captured.err
    assert len(planted) >= 12
    assert [secret for secret in planted if secret in everything] == []
