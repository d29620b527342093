"""Tokens of an issuer that others wrote."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.command import run_command
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.issuer import AUDIENCE
from tests.harness.needs import needs
from tests.harness.oidc_provider import oidc_provider, token_of_program
from tests.harness.server import serve
from tests.scripted_upstream import Reply, Upstream

pytestmark = [
    pytest.mark.anyio,
    needs("environment:oidc-provider", "environment:mcp-node"),
]


def auth(issuer: str) -> dict[str, Any]:
    return {"oidc": {"issuer": issuer, "audience": AUDIENCE, "groups": {"staff": {"see": "own"}}}}


async def test_a_program_signs_in_with_a_token_of_its_own(upstream: Upstream) -> None:
    upstream.script("m", [Reply(text="hi")])
    ask = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    async with oidc_provider() as issuer, serve(create_app(make_config(upstream.url, auth=auth(issuer)))) as url:
        token = await token_of_program(issuer)
        async with http_client(url, headers={"authorization": f"Bearer {token}"}) as client:
            answer = await client.post("/v1/chat/completions", json=ask)
            told = (await client.get("/v1/key")).json()
        by_command = await asyncio.to_thread(
            run_command, "runs", "list", "--url", url, "--json", environment={"CALLGATE_KEY": token}
        )
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert told["signed_in"] == {"name": "program", "group": "staff", "issuer": issuer}
    assert by_command.returncode == 0, by_command.stderr


async def test_doctor_looks_at_the_issuer(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    async with oidc_provider() as issuer:
        file.write_text(as_yaml(config_dict("http://127.0.0.1:9", models=[], auth=auth(issuer)) | DEMO))
        there = await asyncio.to_thread(run_command, "doctor", "--config", str(file), "--json")
    away = await asyncio.to_thread(run_command, "doctor", "--config", str(file), "--json")
    [ok] = [check for check in json.loads(there.stdout)["checks"] if check["what"] == "issuer"]
    [failed] = [check for check in json.loads(away.stdout)["checks"] if check["what"] == "issuer"]
    assert (ok["status"], "RS256" in ok["detail"]) == ("ok", True)
    assert failed["status"] == "fail"
    assert "cannot be reached" in failed["detail"]


DEMO = {"model_list": [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}], "server": {"port": 0}}
