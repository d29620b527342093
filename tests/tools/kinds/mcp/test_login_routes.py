"""Logging in to MCP servers through the routes: who may, for whom, in which browser, and what the callers get before and after."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.page.served import keyring
from tests.scripted_upstream import Call, Reply, Upstream
from tests.tools.approvals.test_routes import tool_result, waiting
from tests.tools.servers.authority import Authority, browse
from tests.tools.servers.guarded_mcp import GuardedMcp

pytestmark = pytest.mark.anyio

PUBLIC = "https://gate.example"
CALL = Call("notes_whoami", {}, id="call_1")
LOGIN = Call("notes_login", {}, id="call_0")
QUESTIONS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "who am I?"}], "user": "eve"},
    "/v1/responses": {"input": "who am I?", "safety_identifier": "eve"},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "who am I?"}],
        "max_tokens": 99,
        "metadata": {"user_id": "eve"},
    },
}
APIS = pytest.mark.parametrize("path", QUESTIONS, ids=["chat", "responses", "messages"])


class Gate:
    """A served Callgate with keys, an MCP server that wants a login, and the authorization server."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        keys: Mapping[str, str],
        server: GuardedMcp,
        authority: Authority,
        model: Upstream,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.keys = keys
        self.server = server
        self.authority = authority
        self.model = model

    def by(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[key]}"} if key else {}

    async def begin(self, key: str, **body: Any) -> httpx.Response:
        body = {"server": "notes", **body}
        return await self.client.post("/v1/logins", json=body, headers=self.by(key))

    async def come_back(self, begun: httpx.Response, subject: str, **changed: str) -> httpx.Response:
        """Go through the login as this person, and come back in the browser that began it."""
        token = f"token of {subject} {len(self.server.subjects)}".replace(" ", "-")
        self.authority.token_fields = {"access_token": self.server.let(token, subject)}
        parameters = {**await browse(begun.json()["address"]), **changed}
        [cookie] = begun.headers.get_list("set-cookie")
        name, _, value = cookie.partition(";")[0].partition("=")
        return await self.client.get("/oauth/callback", params=parameters, headers={"Cookie": f"{name}={value}"})

    async def log_in(self, key: str, subject: str, **body: Any) -> None:
        done = await self.come_back(await self.begin(key, **body), subject)
        assert done.text == "Logged in to notes. This window can be closed."
        await self.listed()

    async def listed(self) -> None:
        """Wait until the tools are there that somebody was listed."""
        while "notes_whoami" not in (await self.client.get("/v1/tools", headers=self.by("boss"))).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the list is all that a client can look at

    async def ask(self, key: str, *calls: Call, path: str = "/v1/chat/completions", **more: Any) -> str:
        """Ask a model that makes these calls; return the result that it was given for the last."""
        self.model.script("m", [*(Reply(calls=[call]) for call in calls), Reply(text="Done.")])
        body = {"model": "m", **QUESTIONS[path], **more}
        answer = await self.client.post(path, json=body, headers=self.by(key))
        assert answer.status_code == 200, answer.text
        return str(tool_result(self.model))


@contextlib.asynccontextmanager
async def gate(
    upstream: Upstream,
    *,
    per: str = "key",
    entry: Mapping[str, Any] | None = None,
    public: str | None = PUBLIC,
    **options: Any,
) -> AsyncIterator[Gate]:
    keys, sections = keyring(ann={}, bob={}, boss={"admin": True, "approve": True}, poor={"tools": ["other"]})
    server = GuardedMcp()
    authority = Authority()
    async with server.running(), serve(authority.app()) as authority.url:
        server.issuer = authority.url
        notes = {"url": server.url, "oauth": {"per": per}, **(entry or {})}
        shared = {"server": {"public_url": public} if public else {}, **sections}
        config = config_dict(
            upstream.url, entry={"tools": ["*"]}, mcp_servers={"notes": notes}, **{**shared, **options}
        )
        async with (
            asyncio.timeout(60),
            serve(create_app(Config.model_validate(config))) as url,
            http_client(url) as client,
        ):
            yield Gate(client, keys, server, authority, upstream, config)


@APIS
async def test_a_first_call_ends_in_the_address_and_the_next_request_works(upstream: Upstream, path: str) -> None:
    async with gate(upstream) as it:
        first = await it.ask("ann", LOGIN, path=path)
        assert f"{PUBLIC}/#/tools" in first
        await it.log_in("ann", "ann")
        assert json.loads(await it.ask("ann", CALL, path=path)) == {"subject": "ann"}
        assert f"{PUBLIC}/#/tools" in await it.ask("bob", CALL, path=path)


@APIS
async def test_users_of_a_key_are_themselves_in_every_api(upstream: Upstream, path: str) -> None:
    async with gate(upstream, per="user") as it:
        await it.log_in("ann", "eve", user="eve")
        await it.log_in("ann", "kim", user="kim")
        assert json.loads(await it.ask("ann", CALL, path=path)) == {"subject": "eve"}
        field: dict[str, dict[str, Any]] = {
            "/v1/messages": {"metadata": {"user_id": "kim"}},
            "/v1/responses": {"safety_identifier": "kim"},
        }
        assert json.loads(await it.ask("ann", CALL, path=path, **field.get(path, {"user": "kim"}))) == {
            "subject": "kim"
        }
        nobody: dict[str, Any] = (
            {"metadata": None} if path == "/v1/messages" else {"user": None, "safety_identifier": None}
        )
        assert "does not name its user" in await it.ask("ann", CALL, path=path, **nobody)
        assert "wants a login of this user" in await it.ask("bob", CALL, path=path)  # another key's eve


@pytest.mark.parametrize("user", ["e\0ve", "e" * 513])
async def test_nobody_logs_in_as_a_user_whose_calls_are_refused(upstream: Upstream, user: str) -> None:
    async with gate(upstream, per="user") as it:
        assert (await it.begin("ann", user=user)).status_code == 400
        assert "the name of this request's user" in await it.ask("ann", LOGIN, user=user)


async def test_a_call_without_a_model_is_made_as_its_key_and_user(upstream: Upstream) -> None:
    async with gate(upstream, per="user") as it:
        await it.log_in("boss", "eve", user="eve")

        async def call(**body: Any) -> Any:
            answer = await it.client.post("/v1/tools/notes_whoami/call", json=body, headers=it.by("boss"))
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert json.loads((await call(user="eve"))["text"]) == {"subject": "eve"}
        assert "does not name its user" in (await call())["text"]


async def test_a_run_in_the_background_is_made_as_its_key(upstream: Upstream, tmp_path: Any) -> None:
    async with gate(upstream, data_dir=str(tmp_path)) as it:
        await it.log_in("ann", "ann")
        upstream.script("m", [Reply(calls=[CALL]), Reply(text="Done.")])
        body = {"model": "m", "input": "who am I?", "background": True}
        begun = (await it.client.post("/v1/responses", json=body, headers=it.by("ann"))).json()
        state = ""
        while state != "completed":
            state = (await it.client.get(f"/v1/responses/{begun['id']}", headers=it.by("ann"))).json()["status"]
        assert json.loads(str(tool_result(upstream))) == {"subject": "ann"}


async def test_a_call_that_was_approved_is_made_as_who_asked_and_not_as_who_approved(upstream: Upstream) -> None:
    async with gate(upstream, entry={"require_approval": "always"}) as it:
        await it.log_in("ann", "ann")
        await it.log_in("boss", "boss")
        asking = asyncio.create_task(it.ask("ann", CALL))
        it.client.headers.update(it.by("boss"))
        [card] = await waiting(it.client)
        await it.client.post(f"/v1/approvals/{card['id']}", json={"decision": "approve", "hash": card["hash"]})
        assert json.loads(await asking) == {"subject": "ann"}


async def test_a_call_waits_on_a_card_with_the_address_and_goes_on_by_itself(upstream: Upstream) -> None:
    async with gate(upstream, entry={"elicitation": "url"}) as it:
        await it.log_in("boss", "boss")
        asking = asyncio.create_task(it.ask("ann", CALL))
        it.client.headers.update(it.by("boss"))
        [card] = await waiting(it.client)
        assert (card["mode"], card["url"], card["host"]) == ("url", f"{PUBLIC}/#/tools", "gate.example")
        assert (card["server"], card["owner"]) == ("notes", "key ann")
        await it.log_in("ann", "ann")
        assert json.loads(await asking) == {"subject": "ann"}
        assert (await it.client.get("/v1/approvals")).json()["data"] == []


async def test_without_a_public_address_the_words_are_a_command(upstream: Upstream) -> None:
    async with gate(upstream, public=None) as it:
        said = await it.ask("ann", LOGIN)
        assert "callgate mcp login notes" in said
        assert "http" not in said
        refused = await it.begin("ann")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "login_failed")
        assert "callgate mcp login notes" in refused.json()["error"]["message"]


# Who may --------------------------------------------------------------------------------------------------


async def test_the_operators_own_login_is_begun_by_who_administers(upstream: Upstream) -> None:
    async with gate(upstream, per="server") as it:
        assert (await it.begin("ann")).status_code == 404  # none of its tools is there for anybody yet
        await it.log_in("boss", "robot")
        assert json.loads(await it.ask("ann", CALL)) == {"subject": "robot"}
        assert (await it.begin("ann")).status_code == 403
        [listed] = (await it.client.get("/v1/logins", headers=it.by("boss"))).json()["data"]
        assert (listed["state"], listed["for_all_keys"], listed["may_begin"]) == ("ok", True, True)
        assert (await it.client.get("/v1/logins", headers=it.by("ann"))).json()["data"] == []


async def test_each_key_logs_in_for_itself_alone(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        assert (await it.begin("")).status_code == 401
        assert (await it.begin("poor")).status_code == 404
        assert (await it.begin("ann", server="other")).status_code == 404
        await it.log_in("ann", "ann")
        states = {
            key: [
                (one["key"], one["state"])
                for one in (await it.client.get("/v1/logins", headers=it.by(key))).json()["data"]
            ]
            for key in it.keys
        }
        assert states == {
            "ann": [("ann", "ok")],
            "bob": [("bob", "needs_login")],
            "boss": [("boss", "needs_login"), ("ann", "ok")],
            "poor": [],
        }


async def test_who_logs_out_is_asked_again_and_nobody_else(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        await it.log_in("ann", "ann")
        await it.log_in("bob", "bob")
        out = await it.client.delete("/v1/logins/notes", headers=it.by("ann"))
        assert out.json() == {"object": "login", "server": "notes", "logged_out": True}
        assert f"{PUBLIC}/#/tools" in await it.ask("ann", CALL)
        assert json.loads(await it.ask("bob", CALL)) == {"subject": "bob"}


# The way back ---------------------------------------------------------------------------------------------


async def test_a_login_ends_once_and_in_the_browser_that_began_it(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        begun = await it.begin("ann")
        [cookie] = begun.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-callgate-login-")
        assert {part.strip().lower() for part in cookie.split(";")[1:]} == {
            "httponly",
            "max-age=600",
            "path=/",
            "samesite=lax",
            "secure",
        }
        assert begun.headers["cache-control"] == "no-store"
        back = await browse(begun.json()["address"])
        for headers in ({}, {"Cookie": "__Host-callgate-login-0123456789abcdef=x"}):
            stranger = await it.client.get("/oauth/callback", params=back, headers=headers)
            assert (stranger.status_code, stranger.text[:14]) == (200, "Not logged in:")
        done = await it.come_back(begun, "ann")
        assert done.text == "Logged in to notes. This window can be closed."
        again = await it.come_back(begun, "ann")
        assert again.text.startswith("Not logged in:")


async def test_the_way_back_is_plain_text_that_repeats_nothing_and_is_kept_by_nobody(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        mark = "<script>alert(1)</script>"
        for query in (
            {"state": mark, "code": mark},
            {"error": mark, "error_description": mark, "state": "x"},
            {mark: mark},
            {},
        ):
            back = await it.client.get("/oauth/callback", params=query)
            assert back.status_code == 200
            assert back.headers["content-type"].startswith("text/plain")
            assert back.headers["cache-control"] == "no-store"
            assert back.headers["referrer-policy"] == "no-referrer"
            assert back.headers["x-content-type-options"] == "nosniff"
            assert "script" not in back.text
        begun = await it.begin("ann")
        doubled = await it.client.get(f"/oauth/callback?state={begun.json()['address']}&state=b&code=c")
        assert doubled.text.startswith("Not logged in: this is no answer")


async def test_codes_of_two_logins_do_not_cross(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        first, second = await it.begin("ann"), await it.begin("bob")
        state = parse_qs(urlsplit(second.json()["address"]).query)["state"][0]
        crossed = await it.come_back(first, "ann", state=state)
        assert crossed.text.startswith("Not logged in:")
        assert f"{PUBLIC}/#/tools" in await it.ask("bob", LOGIN)


async def test_a_key_that_is_revoked_meanwhile_is_not_logged_in(upstream: Upstream, tmp_path: Any) -> None:
    async with gate(upstream, data_dir=str(tmp_path)) as it:
        made = await it.client.post("/admin/keys", json={"name": "late"}, headers=it.by("boss"))
        it.keys = {**it.keys, "late": made.json()["key"]}
        begun = await it.begin("late")
        assert begun.status_code == 200, begun.text
        gone = await it.client.delete("/admin/keys/late", headers=it.by("boss"))
        assert gone.status_code == 204, gone.text
        back = await it.come_back(begun, "late")
        assert back.text == "Not logged in: the key that it was begun with is none any more."
        listed = (await it.client.get("/v1/logins", headers=it.by("boss"))).json()["data"]
        assert [one["key"] for one in listed] == ["boss"]


# Users without a key --------------------------------------------------------------------------------------


USED_UP = "The address that it was begun by cannot be used again."


def state_of(begun: httpx.Response) -> str:
    return str(parse_qs(urlsplit(begun.json()["address"]).query)["state"][0])


def ticket_in(text: str) -> str:
    [address] = [word for word in text.split() if word.startswith(f"{PUBLIC}/#/login/")]
    return address.removeprefix(f"{PUBLIC}/#/login/").rstrip(".")


async def test_a_user_without_a_key_logs_in_by_the_address_that_he_is_given(upstream: Upstream) -> None:
    async with gate(upstream, per="user") as it:
        ticket = ticket_in(await it.ask("ann", LOGIN))
        begun = await it.client.post("/oauth/login", json={"ticket": ticket})
        assert begun.status_code == 200, begun.text
        assert (begun.json()["server"], begun.json()["key"], begun.json()["user"]) == ("notes", "ann", "eve")
        done = await it.come_back(begun, "eve")
        assert done.text == f"Logged in to notes. This window can be closed. {USED_UP}"
        await it.listed()
        assert json.loads(await it.ask("ann", CALL)) == {"subject": "eve"}
        assert "wants a login of this user" in await it.ask("ann", CALL, user="kim")


async def test_an_address_is_for_one_login_and_so_are_those_before_it(upstream: Upstream) -> None:
    async with gate(upstream, per="user") as it:
        earlier, ticket = [ticket_in(await it.ask("ann", LOGIN)) for _ in range(2)]
        of_kim = ticket_in(await it.ask("ann", LOGIN, user="kim"))
        left = await it.client.post("/oauth/login", json={"ticket": ticket})
        refused = await it.client.get("/oauth/callback", params={"state": state_of(left), "error": "access_denied"})
        assert refused.text.startswith("Not logged in"), "and nothing is used up"
        begun = await it.client.post("/oauth/login", json={"ticket": ticket})
        assert (await it.come_back(begun, "eve")).text.endswith(USED_UP)
        for used in (ticket, earlier):
            again = await it.client.post("/oauth/login", json={"ticket": used})
            assert again.status_code == 409, again.text
            assert "has been used" in again.json()["error"]["message"]
        assert (await it.client.post("/oauth/login", json={"ticket": of_kim})).status_code == 200
        await it.listed()
        gone = await it.client.delete("/v1/logins/notes", params={"user": "eve"}, headers=it.by("ann"))
        assert gone.status_code == 200, gone.text
        later = ticket_in(await it.ask("ann", CALL))
        assert (await it.client.post("/oauth/login", json={"ticket": later})).status_code == 200


async def test_of_two_who_come_back_by_one_address_the_first_counts_in_whichever_process(
    upstream: Upstream, tmp_path: Any
) -> None:
    async with gate(upstream, per="user", data_dir=str(tmp_path)) as it:
        ticket = ticket_in(await it.ask("ann", LOGIN))
        async with (
            serve(create_app(Config.model_validate(it.config))) as other,
            http_client(other) as client,
        ):
            elsewhere = Gate(client, it.keys, it.server, it.authority, upstream)
            mine = await it.client.post("/oauth/login", json={"ticket": ticket})
            earlier = await elsewhere.client.post("/oauth/login", json={"ticket": ticket})
            assert (mine.status_code, earlier.status_code) == (200, 200)
            assert (await it.come_back(mine, "eve")).text.endswith(USED_UP)
            late = await elsewhere.come_back(earlier, "mallory")
            assert late.text.startswith("Not logged in: this address has been used"), late.text
            assert it.authority.asked("/revoke"), "what he was given is given back"
            refused = await elsewhere.client.post("/oauth/login", json={"ticket": ticket})
            assert refused.status_code == 409
        await it.listed()
        assert json.loads(await it.ask("ann", CALL)) == {"subject": "eve"}


@pytest.mark.parametrize(
    "ticket", ["", "cg2.AAAA", "x" * 5000, "cg2." + "A" * 200], ids=["none", "short", "long", "made up"]
)
async def test_a_ticket_that_was_not_made_here_begins_nothing(upstream: Upstream, ticket: str) -> None:
    async with gate(upstream, per="user") as it:
        refused = await it.client.post("/oauth/login", json={"ticket": ticket})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "login_failed")
        assert not refused.headers.get_list("set-cookie")


async def test_a_ticket_is_over_after_an_hour_and_with_its_key(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(upstream, per="user") as it:
        monkeypatch.setattr("callgate.tools.kinds.mcp.login_tickets.TICKET_SECONDS", -1)
        over = ticket_in(await it.ask("ann", LOGIN))
        refused = await it.client.post("/oauth/login", json={"ticket": over})
        assert refused.status_code == 409
        assert "over" in refused.json()["error"]["message"]


# What Callgate says of itself -----------------------------------------------------------------------------


async def test_the_document_of_the_client_is_there_for_everybody(upstream: Upstream) -> None:
    async with gate(upstream) as it:
        document = (await it.client.get("/oauth/client.json")).json()
        assert document["client_id"] == f"{PUBLIC}/oauth/client.json"
        assert f"{PUBLIC}/oauth/callback" in document["redirect_uris"]
        assert document["token_endpoint_auth_method"] == "none"
    async with gate(upstream, public=None) as it:
        assert (await it.client.get("/oauth/client.json")).status_code == 404


async def test_no_secret_of_a_login_stands_in_an_answer_a_log_line_or_a_run(upstream: Upstream, tmp_path: Any) -> None:
    with capture_logs() as lines:
        async with gate(upstream, data_dir=str(tmp_path), record={"content": True}) as it:
            await it.log_in("ann", "ann")
            await it.ask("ann", CALL)
            it.server.subjects.clear()
            await it.ask("ann", CALL)
            seen = [
                (await it.client.get(path, headers=it.by("boss"))).text
                for path in ("/v1/logins", "/v1/tools?servers=1", "/v1/runs", "/metrics")
            ]
            secrets = [*it.authority.valid, *it.authority.refresh, *it.authority.spent]
            secrets += [fields["code"] for fields in it.authority.asked("/token") if "code" in fields]
            secrets += [fields["code_verifier"] for fields in it.authority.asked("/token") if "code_verifier" in fields]
            secrets.append("token-of-ann")
    assert len(secrets) >= 5
    told = "\n".join([*seen, repr(lines)]).encode() + b"".join(
        file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    )
    assert [secret for secret in secrets if secret.encode() in told] == []
