"""`encrypted_content` of the Responses API: read by nobody but this server, and by it only for the key that it was made for."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import hash_key
from callgate.application import create_app
from callgate.config.load import SEALING_VARIABLE
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.responses import responded
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
KEYS = [{"name": name, "hash": hash_key(f"cg-{name}")} for name in ("alice", "bob")]
SEALED: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
DEEP = '{"model":"m","text":"","blocks":[{"a":' + "[" * 5000 + "]" * 5000 + "}]}"


def keyed(upstream: Upstream, **options: Any) -> Any:
    return create_app(make_config(upstream.url, auth="keys", keys=KEYS, **options))


async def thought(client: Any, *, stream: bool = False) -> dict[str, Any]:
    response = await responded(client, stream=stream, model="m", input="one", **SEALED)
    item: dict[str, Any] = response.output[0].to_dict()
    assert item["type"] == "reasoning"
    return item


async def sent_back(client: Any, item: dict[str, Any], *, stream: bool = False) -> Any:
    said = {"role": "assistant", "content": "ok"}
    items = [{"role": "user", "content": "one"}, item, said, {"role": "user", "content": "two"}]
    return await responded(client, stream=stream, model="m", input=items, **SEALED)


def thinking_in(upstream: Upstream) -> list[str]:
    messages = upstream.requests[-1].body["messages"]
    return [message["reasoning_content"] for message in messages if message.get("reasoning_content")]


@BOTH
async def test_nothing_of_it_can_be_read_and_its_own_key_gets_it_back(upstream: Upstream, stream: bool) -> None:
    upstream.script("m", lambda request: Reply(text="ok", reasoning="Deep."))
    async with serve(keyed(upstream)) as url, openai_client(url, api_key="cg-alice") as alice:
        item = await thought(alice, stream=stream)
        response = await sent_back(alice, item, stream=stream)
    sealed = item["encrypted_content"]
    plain = base64.urlsafe_b64decode(sealed.removeprefix("cg2."))
    for text in (b"Deep", b"127.0.0.1", b"model", b"{"):
        assert text not in sealed.encode()
    assert b"Deep" not in plain
    assert b'"model"' not in plain
    assert thinking_in(upstream) == ["Deep."]
    assert "warnings" not in response.x_callgate


def forged(sealed: str, by_bob: str) -> dict[str, str]:
    packed = json.dumps({"model": "m", "text": "FORGED", "blocks": [], "items": []})
    middle = len(sealed) // 2
    other = "A" if sealed[middle] != "A" else "B"
    return {
        "an older item": "cg1." + base64.urlsafe_b64encode(packed.encode()).decode(),
        "an older item that is deep": "cg1." + base64.urlsafe_b64encode(DEEP.encode()).decode(),
        "a packed one under the new mark": "cg2." + base64.urlsafe_b64encode(packed.encode()).decode(),
        "a deep one under the new mark": "cg2." + base64.urlsafe_b64encode(DEEP.encode()).decode(),
        "a changed one": f"{sealed[:middle]}{other}{sealed[middle + 1 :]}",
        "a cut one": sealed[:middle],
        "another key's": by_bob,
        "a provider's": "gAAAAABo",
        "no base64": "cg2.é!",
    }


@BOTH
async def test_what_cannot_be_opened_is_left_out_and_said(
    upstream: Upstream, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.script("m", lambda request: Reply(text="ok", reasoning="Deep."))
    async with (
        serve(keyed(upstream)) as url,
        openai_client(url, api_key="cg-alice") as alice,
        openai_client(url, api_key="cg-bob") as bob,
    ):
        item, bobs = await thought(alice), await thought(bob)
        for name, content in forged(item["encrypted_content"], bobs["encrypted_content"]).items():
            response = await sent_back(alice, {**item, "encrypted_content": content}, stream=stream)
            assert response.status == "completed", name
            assert thinking_in(upstream) == [], name
            [warning] = response.x_callgate["warnings"]
            assert warning.startswith("left out of `input`: the `encrypted_content` of 1 items"), name


async def test_it_is_opened_after_a_restart_on_the_same_folder_and_not_on_another(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", lambda request: Reply(text="ok", reasoning="Deep."))
    here, elsewhere = (keyed(upstream, data_dir=str(tmp_path / name)) for name in ("here", "elsewhere"))
    async with serve(here) as url, openai_client(url, api_key="cg-alice") as alice:
        item = await thought(alice)
    async with serve(elsewhere) as url, openai_client(url, api_key="cg-alice") as alice:
        response = await sent_back(alice, item)
        assert thinking_in(upstream) == []
        assert "sealed with a secret that is not known here" in response.x_callgate["warnings"][0]
    again = keyed(upstream, data_dir=str(tmp_path / "here"))
    async with serve(again) as url, openai_client(url, api_key="cg-alice") as alice:
        await sent_back(alice, item)
        assert thinking_in(upstream) == ["Deep."]


async def test_replicas_with_the_same_variable_open_each_others_and_an_old_secret_still_opens(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script("m", lambda request: Reply(text="ok", reasoning="Deep."))
    monkeypatch.setenv(SEALING_VARIABLE, "first" * 8)
    async with (
        serve(keyed(upstream)) as one,
        serve(keyed(upstream)) as other,
        openai_client(one, api_key="cg-alice") as here,
        openai_client(other, api_key="cg-alice") as there,
    ):
        item = await thought(here)
        await sent_back(there, item)
        assert thinking_in(upstream) == ["Deep."]
    monkeypatch.setenv(SEALING_VARIABLE, f"{'second' * 8},{'first' * 8}")
    async with serve(keyed(upstream)) as url, openai_client(url, api_key="cg-alice") as alice:
        await sent_back(alice, item)
        assert thinking_in(upstream) == ["Deep."]
