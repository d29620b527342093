"""Keys in the ledger of several machines: made and revoked by the command line, known to every server within a second."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callgate.access import ledger_keys
from callgate.application import create_app
from callgate.commands import app as command
from callgate.config.load import load
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_post
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, needs("postgres", "module:asyncpg")]
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def run_command_here(*words: str) -> str:
    done = CliRunner().invoke(command, list(words))
    assert done.exit_code == 0, done.output
    return done.output


async def ask(url: str, key: str) -> RawAnswer:
    return await raw_post(url, BODY, headers={"authorization": f"Bearer {key}"})


async def until(url: str, key: str, status: int) -> RawAnswer:
    async with asyncio.timeout(30):
        while (answer := await ask(url, key)).status != status:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return answer


async def test_a_key_is_made_rotated_and_revoked_for_all_servers(
    postgres: PostgresServer, schema: str, tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    file = tmp_path / "config.yaml"
    written = config_dict(upstream.url, auth="keys", ledger={"url": postgres.url, "namespace": schema})
    file.write_text(as_yaml(written))
    with_config = ("--config", str(file))
    assert "made" in await asyncio.to_thread(run_command_here, "ledger", "migrate", *with_config)
    made = await asyncio.to_thread(run_command_here, "keys", "create", "alice", *with_config)
    key = made.split("shown this once): ")[1].split()[0]
    taken = await asyncio.to_thread(CliRunner().invoke, command, ["keys", "create", "alice", *with_config])
    assert "is the name of another key" in taken.output
    async with serve(create_app(load(file).config)) as one, serve(create_app(load(file).config)) as other:
        assert [(await ask(url, key)).status for url in (one, other)] == [200, 200]
        assert (await ask(one, "cg-wrong")).status == 401
        rotated = await asyncio.to_thread(run_command_here, "keys", "rotate", "alice", *with_config)
        newer = rotated.split("shown this once): ")[1].split()[0]
        for url in (one, other):
            await until(url, newer, 200)
            assert (await ask(url, key)).status == 200
        await asyncio.to_thread(run_command_here, "keys", "revoke", "alice", *with_config)
        for url in (one, other):
            await until(url, newer, 401)
        monkeypatch.setattr(ledger_keys, "STALE_SECONDS", -1.0)
        stale = await ask(one, newer)
    assert (stale.status, json.loads(stale.body)["error"]["code"]) == (503, "keys_unavailable")
    [listed] = json.loads(await asyncio.to_thread(run_command_here, "keys", "list", "--json", *with_config))
    assert (listed["name"], listed["kept_in"]) == ("alice", "store")
    assert listed["revoked_at"]


@pytest.mark.parametrize(
    ("of", "word", "url"),
    [
        ("serve", "callgate ledger migrate", ""),
        ("keys list", "ledger.url", "postgresql://postgres:very-secret@127.0.0.1:1/x"),
    ],
    ids=["another version", "away"],
)
async def test_a_command_that_cannot_use_the_ledger_says_why_and_ends(
    postgres: PostgresServer, schema: str, tmp_path: Path, of: str, word: str, url: str
) -> None:
    file = tmp_path / "config.yaml"
    ledger = {"url": url or postgres.url, "namespace": schema}
    file.write_text(as_yaml(config_dict("http://127.0.0.1:1", ledger=ledger)))
    done = await asyncio.to_thread(CliRunner().invoke, command, [*of.split(), "--config", str(file)])
    assert done.exit_code == 2
    assert word in done.output
    assert "very-secret" not in done.output
