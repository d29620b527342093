"""A server answers chats where the subjects around chat cannot be imported. Which module may import them is import-linter's."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError

from callgate.access.key_store import KeyStore
from callgate.access.keys import KeyEntry
from callgate.callers.exposure import KEYS_FILE
from callgate.config.entry_errors import BadEntry
from callgate.runtime.manager import RuntimeManager
from tests.harness.clients import http_client, openai_client, streamed, whole
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.process import READY, child
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio

ABSENT = ("access", "fleet", "recorder", "runs")
QUESTION: list[Any] = [{"role": "user", "content": "What time is it?"}]


@pytest.fixture
async def url(upstream: Upstream, tmp_path: Path) -> AsyncIterator[str]:
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict(upstream.url, tools=["get_time", "send_mail"])))
    async with child([str(config), *ABSENT], module="tests.chat_alone") as started:
        yield (await started.line(READY)).group(0)


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(url) as asking:
        yield asking


@pytest.fixture
async def web(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(url) as asking:
        yield asking


async def asked_with(web: httpx.AsyncClient, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return await web.post("/v1/chat/completions", json={"model": "m", "messages": QUESTION}, headers=named)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_chats_are_answered_without_them(client: AsyncOpenAI, web: httpx.AsyncClient, upstream: Upstream) -> None:
    for ask in (whole, streamed):
        upstream.script("m", [Reply(text="noon")])
        answer = await ask(client, model="m", messages=QUESTION, extra_headers={"X-Callgate-Tools": "none"})
        assert answer.choices[0].message.content == "noon"

    for ask in (whole, streamed):
        upstream.script("m", [Reply(calls=[Call("get_time")]), Reply(text="noon")])
        answer = await ask(client, model="m", messages=QUESTION)
        assert answer.choices[0].message.content == "noon"
        assert upstream.requests[-1].body["messages"][-1]["role"] == "tool"

    upstream.script("m", [Reply(text="noon")])
    body = {"model": "m", "messages": QUESTION, "max_tokens": 9}
    message = await web.post("/v1/messages", json=body, headers={"X-Callgate-Tools": "none"})
    assert [part["text"] for part in message.json()["content"]] == ["noon"]

    called = await web.post("/v1/tools/get_time/call", json={})
    assert called.status_code == 200, called.text

    upstream.script("m", [Reply(text="noon")])
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    assert (await asked_with(web, traceparent=parent)).status_code == 200
    assert upstream.requests[-1].headers["traceparent"] == parent, "the trace of the sender goes on"


async def test_what_they_would_do_is_refused_or_warned_of(
    client: AsyncOpenAI, web: httpx.AsyncClient, upstream: Upstream
) -> None:
    for path in ("/v1/runs", "/v1/usage", "/v1/key", "/admin/keys", "/v1/responses/resp_1"):
        assert (await web.get(path)).status_code == 404, path

    assert refusal(await asked_with(web, Origin="https://evil.example")) == (403, "origin_not_allowed")
    assert refusal(await asked_with(web, Host="evil.example")) == (403, "host_not_allowed")
    assert refusal(await asked_with(web, X_Callgate_Background="on")) == (400, "background_not_available")
    assert refusal(await asked_with(web, Idempotency_Key="k")) == (400, "idempotency_not_durable"), "a tool may write"
    with pytest.raises(BadRequestError, match="records no runs"):
        await streamed(client, model="m", messages=QUESTION, extra_headers={"X-Callgate-Events": "trace"})
    assert not upstream.requests

    upstream.script("m", [Reply(text="noon"), Reply(text="one")])
    for text in ("noon", "one"):
        answer = await asked_with(web, Idempotency_Key="k", X_Callgate_Tools="get_time")
        assert answer.json()["choices"][0]["message"]["content"] == text, "the key is not kept"
        assert "kept in memory alone" in answer.headers["x-callgate-warning"]


# What would be let in, or not be done, without the part that does it ------------------------------------------------

KEY = {"name": "alice", "hash": "sha256:" + 64 * "0"}


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"auth": "keys", "keys": [KEY]}, "keys"),
        ({"auth": "off", "keys": [KEY]}, "keys"),
        ({"auth": "keys", "keys": []}, "server.host"),
        ({"auth": "keys", "server": {"host": "0.0.0.0"}}, "server.host"),
        ({"store": {"redis_url": "redis://127.0.0.1:1"}}, "store.redis_url"),
        ({"traces": {"endpoint": "http://127.0.0.1:1"}}, "traces.endpoint"),
        ({"record": {"runs": "all"}}, "record.runs"),
    ],
    ids=str,
)
async def test_what_only_an_absent_subject_can_do_is_refused(options: dict[str, Any], place: str) -> None:
    with pytest.raises(BadEntry) as refused:
        async with RuntimeManager(make_config("http://127.0.0.1:1", **options)):
            pass
    assert ".".join(map(str, refused.value.path)) == place
    assert "\n" not in str(refused.value)


async def test_a_reload_that_brings_a_key_is_refused() -> None:
    async with RuntimeManager(make_config("http://127.0.0.1:1")) as manager:
        with pytest.raises(BadEntry, match="no part that checks keys"):
            await manager.apply(make_config("http://127.0.0.1:1", auth="keys", keys=[KEY]))
        assert manager.is_keyless


@pytest.mark.parametrize("is_revoked", [False, True])
async def test_a_folder_that_has_keys_is_refused(is_revoked: bool, tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    store.add(KeyEntry("alice", KEY["hash"]))
    if is_revoked:
        store.revoke("alice")
    store.close()
    await check_refused(tmp_path)


async def test_a_folder_whose_config_had_keys_is_refused(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    store.remember_keys()
    store.close()
    await check_refused(tmp_path)


async def test_a_folder_whose_keys_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / KEYS_FILE).write_bytes(b"damaged" * 999)
    await check_refused(tmp_path)


async def check_refused(folder: Path) -> None:
    with pytest.raises(BadEntry, match="no part that checks keys"):
        async with RuntimeManager(make_config("http://127.0.0.1:1", data_dir=str(folder))):
            pass


async def test_a_folder_whose_store_never_had_a_key_is_served(tmp_path: Path) -> None:
    KeyStore(tmp_path).close()
    async with RuntimeManager(make_config("http://127.0.0.1:1", data_dir=str(tmp_path))) as manager:
        assert manager.is_keyless
