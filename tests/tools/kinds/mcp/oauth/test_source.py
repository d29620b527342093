"""The headers of requests: valid ones at once, expired ones renewed once, and no login in a request."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from callgate.state.database import DatabaseAway
from callgate.state.ledger import open_ledger
from callgate.tools.kinds.mcp.authorization import OPERATOR, Identity, NeedsLogin, Refusal
from callgate.tools.kinds.mcp.logins import LoginState
from callgate.tools.kinds.mcp.oauth import source as source_module
from callgate.tools.kinds.mcp.oauth.challenges import MAX_SCOPE
from callgate.tools.kinds.mcp.oauth.ledger_tokens import LedgerTokens
from callgate.tools.kinds.mcp.oauth.memory_tokens import MemoryTokens
from callgate.tools.kinds.mcp.oauth.tokens import TokenRow, Tokens, row_id
from tests.harness.needs import needs
from tests.tools.servers.authority import MISSING, Authority, Resource, authority_and_resource, login_to

pytestmark = pytest.mark.anyio

ROW = row_id("tools", OPERATOR)


@pytest.fixture
async def servers() -> AsyncIterator[tuple[Authority, Resource]]:
    async with authority_and_resource() as both:
        yield both


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=needs("postgres", "module:asyncpg"))])
async def tokens(request: Any, tmp_path: Path, schema: str) -> AsyncIterator[Tokens]:
    if request.param == "memory":
        yield MemoryTokens()
        return
    where: dict[str, Any] = {"folder": tmp_path}
    if request.param == "postgres":
        from callgate.state.cluster.postgres import migrate

        where = {"url": request.getfixturevalue("postgres").url, "schema": schema}
        await migrate(where["url"], schema)
    ledger = await open_ledger(**where, dead_after=60.0, on_lost=lambda lost: None)
    try:
        yield LedgerTokens(ledger.database)
    finally:
        await ledger.close()


def refused(token: str, status: int = 401, *challenges: str) -> Refusal:
    return Refusal(status=status, challenges=challenges, authorized_by=f"Bearer {token}")


async def expire(tokens: Tokens) -> None:
    """Have the token at its end, as if its time had passed."""
    if isinstance(tokens, MemoryTokens):
        tokens._ends[ROW] = 0.0
    else:
        assert isinstance(tokens, LedgerTokens)
        await tokens._database.fetch("UPDATE oauth_tokens SET expires_at = 1")


async def test_a_valid_token_is_read_once(servers: tuple[Authority, Resource]) -> None:
    class Counting(MemoryTokens):
        reads = 0

        async def read(self, id: str) -> TokenRow | None:
            self.reads += 1
            return await super().read(id)

    tokens = Counting()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        tokens.reads = 0
        assert len({await login.send() for _ in range(100)}) == 1
    assert tokens.reads == 1


async def test_500_calls_at_an_expiry_are_one_renewal(servers: tuple[Authority, Resource], tokens: Tokens) -> None:
    authority, _ = servers
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        await expire(tokens)
        sent = await asyncio.gather(*(login.send() for _ in range(500)))
    assert len(set(sent)) == 1
    assert set(sent) <= authority.valid
    assert [asked["grant_type"] for asked in authority.asked("/token")] == ["authorization_code", "refresh_token"]
    assert authority.reused == 0


async def test_two_processes_renew_once(servers: tuple[Authority, Resource], tokens: Tokens) -> None:
    authority, resource = servers
    async with login_to(*servers, tokens) as one, login_to(*servers, tokens) as other:
        await one.log_in()
        await expire(tokens)
        sent = await asyncio.gather(*(process.send() for process in (one, other) for _ in range(20)))
        assert len(set(sent)) == 1
        assert await other.send() == await one.send()
    assert len(authority.asked("/token")) == 2
    assert authority.reused == 0
    assert all(asked["resource"] == resource.url for asked in authority.asked("/token"))


async def test_a_renewal_keeps_the_old_refresh_token_where_none_comes(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    authority.rotates = False
    tokens = MemoryTokens()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        authority.token_fields["refresh_token"] = MISSING
        for _ in range(2):
            await expire(tokens)
            login.source.forget(OPERATOR)
            assert await login.send() in authority.valid
    refreshes = [asked["refresh_token"] for asked in authority.asked("/token")[1:]]
    assert len(refreshes) == 2
    assert len(set(refreshes)) == 1


async def test_a_refused_token_is_renewed_once_and_for_all_that_were_refused_with_it(
    servers: tuple[Authority, Resource],
) -> None:
    authority, _ = servers
    async with login_to(*servers) as login:
        await login.log_in()
        token = await login.send()
        headers = await asyncio.gather(*(login.source.headers_after(OPERATOR, refused(token)) for _ in range(50)))
        assert len({header["Authorization"] for header in headers}) == 1
        assert headers[0]["Authorization"] != f"Bearer {token}"
        # One that comes late, with the token of before.
        assert await login.source.headers_after(OPERATOR, refused(token)) == headers[0]
    assert len(authority.asked("/token")) == 2


async def test_what_was_given_after_a_refusal_and_is_refused_too_is_not_renewed_again(
    servers: tuple[Authority, Resource],
) -> None:
    authority, _ = servers
    async with login_to(*servers) as login:
        await login.log_in()
        token = await login.send()
        fresh = (await login.source.headers_after(OPERATOR, refused(token)))["Authorization"].removeprefix("Bearer ")
        for _ in range(3):
            with pytest.raises(NeedsLogin):
                await login.source.headers_after(OPERATOR, refused(fresh))
        assert login.said[-1].state is LoginState.NEEDS_LOGIN
    assert len(authority.asked("/token")) == 2


async def test_revoked_is_dropped_once_and_no_loop(servers: tuple[Authority, Resource], tokens: Tokens) -> None:
    authority, _ = servers
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        authority.refresh.clear()
        await expire(tokens)
        for _ in range(5):
            with pytest.raises(NeedsLogin, match="wants a login"):
                await login.send()
        assert await tokens.read(ROW) is None
        assert [change.state for change in login.said] == [LoginState.OK, LoginState.NEEDS_LOGIN]
    assert len(authority.asked("/token")) == 2


@pytest.mark.parametrize("status", [500, 429, 403])
async def test_a_server_that_fails_to_renew_is_asked_again_later_and_the_login_stays(
    servers: tuple[Authority, Resource], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, _ = servers
    tokens = MemoryTokens()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        authority.refusal = (status, {"error": "we are busy"})
        await expire(tokens)
        for _ in range(5):
            with pytest.raises(NeedsLogin, match="at the moment"):
                await login.send()
        assert len(authority.asked("/token")) == 2
        authority.refusal = None
        monkeypatch.setattr(source_module, "PAUSE_SECONDS", 0.0)
        login.source._pauses.clear()
        assert await login.send() in authority.valid
    assert authority.reused == 0


async def test_a_token_that_is_still_good_is_used_while_it_cannot_be_renewed(
    servers: tuple[Authority, Resource],
) -> None:
    authority, _ = servers
    tokens = MemoryTokens()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        token = await login.send()
        login.source.forget(OPERATOR)
        tokens._ends[ROW] = time.monotonic() + 30
        authority.refusal = (503, {})
        assert [await login.send() for _ in range(5)] == [token] * 5
    assert len(authority.asked("/token")) == 2


async def test_a_claim_whose_holder_died_ends(servers: tuple[Authority, Resource], tokens: Tokens) -> None:
    authority, _ = servers
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        row = await tokens.read(ROW)
        assert row is not None
        assert await tokens.claim(ROW, row.generation, "a process that was killed", 0.05)
        assert not await tokens.claim(ROW, row.generation, "another", 15)
        await expire(tokens)
        assert await login.send() in authority.valid
    assert len(authority.asked("/token")) == 2


async def test_killed_between_the_answer_and_the_write_needs_a_login_at_worst(
    servers: tuple[Authority, Resource], tokens: Tokens
) -> None:
    authority, _ = servers
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        row = await tokens.read(ROW)
        assert row is not None
        assert await tokens.claim(ROW, row.generation, "a process that was killed", 0.0)
        authority.spent |= authority.refresh  # it had the answer, and wrote nothing
        authority.refresh.clear()
        await expire(tokens)
        for _ in range(3):
            with pytest.raises(NeedsLogin):
                await login.send()
    assert len(authority.asked("/token")) == 2


async def test_what_cannot_be_written_is_used_and_written_later(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers

    class Away(MemoryTokens):
        times = 2
        written = asyncio.Event()

        async def renew(self, row: TokenRow, holder: str) -> bool:
            if self.times:
                self.times -= 1
                raise DatabaseAway("away")
            is_written = await super().renew(row, holder)
            self.written.set()
            return is_written

    tokens = Away()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        await expire(tokens)
        token = await login.send()
        async with asyncio.timeout(30):
            await tokens.written.wait()
        login.source.forget(OPERATOR)
        assert await login.send() == token
    assert authority.reused == 0


async def test_a_waiter_that_is_cancelled_does_not_end_the_renewal(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    tokens = MemoryTokens()
    authority.hold = asyncio.Event()
    authority.hold.set()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        await expire(tokens)
        authority.hold.clear()
        authority.at_token.clear()
        first = asyncio.create_task(login.send())
        await authority.at_token.wait()
        second = asyncio.create_task(login.send())
        await asyncio.sleep(0)
        first.cancel()
        authority.hold.set()
        assert await second in authority.valid
        with pytest.raises(asyncio.CancelledError):
            await first
    assert len(authority.asked("/token")) == 2


async def test_a_login_elsewhere_is_taken_up_at_once_and_a_logout_soon(
    servers: tuple[Authority, Resource], tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callgate.tools.kinds.mcp.oauth import service

    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.01)
    async with login_to(*servers, tokens) as here, login_to(*servers, tokens) as elsewhere:
        logged_in = asyncio.Event()
        here.logins.on_login = lambda server: logged_in.set()
        with pytest.raises(NeedsLogin):
            await here.send()
        here.logins.follow()
        await elsewhere.log_in()
        async with asyncio.timeout(30):
            await logged_in.wait()
        token = await here.send()
        assert token == await elsewhere.send()
        await elsewhere.logins.logout("tools", OPERATOR)
        async with asyncio.timeout(30):
            while await is_logged_in(here.send):  # noqa: ASYNC110 - it looks by itself
                await asyncio.sleep(0.01)


async def is_logged_in(send: Callable[[], Awaitable[str]]) -> bool:
    try:
        await send()
    except NeedsLogin:
        return False
    return True


async def test_a_server_that_logs_in_elsewhere_by_now_gets_neither_tokens_nor_client(
    servers: tuple[Authority, Resource],
) -> None:
    _, resource = servers
    async with authority_and_resource() as (other, _), login_to(*servers) as login:
        await login.log_in()
        token = await login.send()
        resource.metadata["authorization_servers"] = [other.url]
        with pytest.raises(NeedsLogin):
            await login.source.headers_after(OPERATOR, refused(token))
        assert await login.shelf.tokens.read(ROW) is None
        assert "any more" in login.said[-1].reason
        assert other.requests == []
        await login.log_in()
        assert await login.send() in other.valid
        assert len(other.asked("/register")) == 1
        assert login.authority.refresh & set(str(other.requests)) == set()


# -- scopes


async def test_missing_scopes_are_told_and_asked_for_at_the_next_login(
    servers: tuple[Authority, Resource], tokens: Tokens
) -> None:
    authority, resource = servers
    resource.challenge = 'Bearer scope="a"'
    challenge = 'Bearer error="insufficient_scope", scope="b"'
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        token = await login.send()
        with pytest.raises(NeedsLogin, match=r'wants more rights.*`b`.*--scopes "b"'):
            await login.source.headers_after(OPERATOR, refused(token, 403, challenge))
        [status] = await login.logins.statuses()
        assert (status.state, status.missing_scopes) == (LoginState.NEEDS_SCOPES, ("b",))
        assert await login.send() == token, "what it reaches it still reaches"
        await login.log_in()
        [status] = await login.logins.statuses()
        assert (status.state, status.scopes) == (LoginState.OK, ("a", "b"))
        # Refused although it was asked for: no further login changes that.
        with pytest.raises(NeedsLogin, match="no other login changes that"):
            await login.source.headers_after(OPERATOR, refused(await login.send(), 403, challenge))
        [status] = await login.logins.statuses()
        assert status.state is LoginState.OK
    assert [asked["scope"] for asked in authority.asked("/authorize")] == ["a", "a b"]


async def test_scopes_that_are_missing_are_kept_up_to_a_bound(
    servers: tuple[Authority, Resource], tokens: Tokens
) -> None:
    async with login_to(*servers, tokens) as login:
        await login.log_in()
        token = await login.send()
        for number in range(20):
            challenge = f'Bearer error="insufficient_scope", scope="{number}-{"s" * 1000}"'
            with pytest.raises(NeedsLogin):
                await login.source.headers_after(OPERATOR, refused(token, 403, challenge))
        [status] = await login.logins.statuses()
        assert 0 < len(" ".join(status.missing_scopes)) <= MAX_SCOPE


# -- Callgate's own login

MACHINE: dict[str, Any] = {"grant": "client_credentials", "client_id": "machine", "client_secret": "m4chine"}


async def test_callgate_logs_in_by_itself_and_again_when_that_is_over(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    authority.token_fields["refresh_token"] = MISSING
    async with login_to(*servers, issuer=authority.url, **MACHINE) as login:
        sent = await asyncio.gather(*(login.send() for _ in range(50)))
        assert len(set(sent)) == 1
        assert authority.basic() == ("machine", "m4chine")
        [asked] = authority.asked("/token")
        assert (asked["grant_type"], asked["resource"]) == ("client_credentials", resource.url)
        fresh = await login.source.headers_after(OPERATOR, refused(sent[0]))
        assert fresh["Authorization"].removeprefix("Bearer ") in authority.valid
        [status] = await login.logins.statuses()
        assert (status.state, status.issuer) == (LoginState.OK, authority.url)
    assert len(authority.asked("/token")) == 2


async def test_its_own_rights_grow_by_themselves_but_not_for_ever(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    resource.challenge = 'Bearer scope="a"'
    async with login_to(*servers, issuer=authority.url, **MACHINE) as login:
        token = await login.send()
        challenge = 'Bearer error="insufficient_scope", scope="b"'
        header = await login.source.headers_after(OPERATOR, refused(token, 403, challenge))
        assert [asked["scope"] for asked in authority.asked("/token")] == ["a", "a b"]
        for _ in range(3):
            with pytest.raises(NeedsLogin):
                await login.source.headers_after(
                    OPERATOR, refused(header["Authorization"].removeprefix("Bearer "), 403, challenge)
                )
    assert len(authority.asked("/token")) == 2


async def test_its_own_rights_grow_up_to_a_bound(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    resource.challenge = 'Bearer scope="a"'
    async with login_to(*servers, issuer=authority.url, **MACHINE) as login:
        token = await login.send()
        for number in range(20):
            challenge = f'Bearer error="insufficient_scope", scope="{number}-{"s" * 1000}"'
            with contextlib.suppress(NeedsLogin):
                header = await login.source.headers_after(OPERATOR, refused(token, 403, challenge))
                token = header["Authorization"].removeprefix("Bearer ")
    assert 0 < max(len(asked["scope"]) for asked in authority.asked("/token")) <= MAX_SCOPE + 2


async def test_a_scope_that_nobody_knows_is_asked_for_once(
    servers: tuple[Authority, Resource], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, resource = servers
    resource.challenge = 'Bearer scope="a"'
    monkeypatch.setattr(source_module, "PAUSE_SECONDS", 0.0)
    async with login_to(*servers, issuer=authority.url, **MACHINE) as login:
        token = await login.send()
        authority.refusal = (400, {"error": "invalid_scope"})
        with pytest.raises(NeedsLogin):
            await login.source.headers_after(
                OPERATOR, refused(token, 403, 'Bearer error="insufficient_scope", scope="b"')
            )
        authority.refusal = None
        login.source.forget(OPERATOR)
        assert await login.send()
    assert [asked["scope"] for asked in authority.asked("/token")] == ["a", "a b", "a"]


async def test_its_own_rights_grow_no_further_than_the_entry_says(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    async with login_to(*servers, issuer=authority.url, scopes=["a"], **MACHINE) as login:
        token = await login.send()
        with pytest.raises(NeedsLogin):
            await login.source.headers_after(OPERATOR, refused(token, 403, 'Bearer scope="a b"'))
    assert [asked["scope"] for asked in authority.asked("/token")] == ["a"]


async def test_a_wrong_secret_is_tried_once_for_a_while(servers: tuple[Authority, Resource]) -> None:
    authority, _ = servers
    authority.refusal = (401, {"error": "invalid_client"})
    async with login_to(*servers, issuer=authority.url, **MACHINE) as login:
        for _ in range(5):
            with pytest.raises(NeedsLogin):
                await login.send()
        assert "invalid_client" in login.said[-1].reason
    assert len(authority.asked("/token")) == 1


@pytest.mark.parametrize("kind", ["rsa", "p-256"])
async def test_a_private_key_proves_the_client_without_leaving(servers: tuple[Authority, Resource], kind: str) -> None:
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority, _ = servers
    key: Any = ec.generate_private_key(ec.SECP256R1())
    if kind == "rsa":
        key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    settings: dict[str, Any] = {
        "grant": "client_credentials",
        "client_id": "machine",
        "private_key": pem,
        "issuer": authority.url,
    }
    async with login_to(*servers, **settings) as login:
        assert await login.send() in authority.valid
    [asked] = authority.asked("/token")
    claims = jwt.decode(
        asked["client_assertion"], key.public_key(), algorithms=["RS256", "ES256"], audience=authority.url
    )
    assert (claims["iss"], claims["sub"]) == ("machine", "machine")
    assert asked["client_assertion_type"].endswith("jwt-bearer")
    assert "PRIVATE" not in str(authority.requests)


async def test_tokens_are_for_the_address_and_client_they_were_given_to(servers: tuple[Authority, Resource]) -> None:
    authority, resource = servers
    tokens = MemoryTokens()
    async with login_to(*servers, tokens) as login:
        await login.log_in()
    moved = dataclasses.replace(resource, url=resource.url.replace("/mcp", "/other"))
    async with login_to(authority, moved, tokens) as login:
        with pytest.raises(NeedsLogin):
            await login.send()
    async with login_to(*servers, tokens, issuer="https://another.example") as login:
        with pytest.raises(NeedsLogin):
            await login.send()
    async with login_to(*servers, tokens, per="key") as login:
        with pytest.raises(NeedsLogin):
            await login.send(Identity("alice"))


async def test_what_is_refused_in_another_way_is_no_reason_to_log_in(servers: tuple[Authority, Resource]) -> None:
    def other(request: Request) -> Response | None:
        return Response(status_code=403)

    _, resource = servers
    async with login_to(*servers) as login:
        await login.log_in()
        resource.answer = other
        with pytest.raises(NeedsLogin, match="no other login"):
            await login.source.headers_after(OPERATOR, refused(await login.send(), 403))
        assert login.said[-1].state is LoginState.OK


async def test_a_note_of_a_name_is_added_by_one_of_those_who_try(tokens: Tokens) -> None:
    added = await asyncio.gather(*(tokens.add_note("ticket:1", 3600.0) for _ in range(20)))
    assert sorted(added) == [False] * 19 + [True]
    assert await tokens.read_note("ticket:1") == ""
    assert await tokens.add_note("ticket:2", 3600.0)
    assert await tokens.add_note("ticket:3", -1.0)
    assert await tokens.add_note("ticket:3", 3600.0), "one that is over is forgotten"
