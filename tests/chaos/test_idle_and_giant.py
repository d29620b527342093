"""Thousands of connections that say nothing, and one that says too much: others do not notice, and memory stays."""

import asyncio
import contextlib
import resource
import signal
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from callgate.access.keys import mint_key
from tests.chaos import tools
from tests.chaos.load import chat_body, percentile, shoot
from tests.chaos.scale import LONG, held_to, report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import Child, serving_command
from tests.scripted_upstream import Call, Reply, Upstream, by_turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

IDLE = scaled(300, 5000)
LIMIT = scaled(200, 2000)
GOOD = 50
GOOD_WITHIN = scaled(inf, 0.5)
FILES = 4096
SILENT = 1500
"""Connections; descriptors above 1023 are beyond `select`."""
GIANT_MIB = scaled(20, 200)
GROWTH_MIB = scaled(60.0, 60.0)
GOOD_IN_CROWD = scaled(5, 32)
CROWDED_WITHIN = 1.0
"""Seconds for a request of a key: a connection without one goes for it after a quarter of a second, where no other is idle."""


async def test_idle_connections_and_giant_headers_cost_others_nothing(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    config = tmp_path / "config.yaml"
    server = {"connections": LIMIT, "header_seconds": 3}
    config.write_text(as_yaml(config_dict(upstream.url, server=server, logging={"level": "error"})))
    async with serving_command(config, fresh=True) as child:
        await shoot(child.url, chat_body("hello"))
        before = _mib(child)
        idle = [asyncio.create_task(_send_nothing(child.url)) for _ in range(IDLE)]
        giant = asyncio.create_task(_send_too_much(child.url))
        held = await giant
        during = _mib(child)
        health = [await shoot(child.url, path="/health/ready") for _ in range(5)]
        async with asyncio.timeout(60):
            await asyncio.gather(*idle)
        shots = [await shoot(child.url, chat_body("hello")) for _ in range(GOOD)]
        p99 = percentile([shot.seconds for shot in shots], 0.99)
        report(
            "idle and giant",
            idle=IDLE,
            limit=LIMIT,
            giant_mib=GIANT_MIB,
            taken_kib=held // 1024,
            growth_mib=round(during - before, 1),
            good_p99_ms=round(p99 * 1000),
            health=[shot.status for shot in health],
        )
        assert {shot.status for shot in (*shots, *health)} == {200}
        assert p99 <= GOOD_WITHIN
        assert during - before <= GROWTH_MIB
        assert held < 8 * 1024 * 1024, (
            "the giant was cut off early; what it got rid of lies in the sockets' own buffers"
        )


CROWD = scaled(60, 600)
CROWDED_PLACES = scaled(40, 400)
CROWD_SENDS = {
    "nothing": b"",
    "half a head": b"POST /v1/chat/completions HTTP/1.1\r\nhost:",
    "a byte of a body": b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000000\r\n\r\n{",
}


@pytest.mark.parametrize("sent", CROWD_SENDS)
async def test_a_crowd_without_keys_takes_no_place_from_those_with_one(
    upstream: Upstream, tmp_path: Path, sent: str
) -> None:
    upstream.script("m", lambda _: Reply(text="hi"))
    key, hashed = mint_key()
    keys: dict[str, Any] = {"auth": "keys", "keys": [{"name": "ann", "hash": hashed}]}
    config = tmp_path / "config.yaml"
    server = {"connections": CROWDED_PLACES, "header_seconds": 600, "body_seconds": 600}
    config.write_text(as_yaml(config_dict(upstream.url, server=server, logging={"level": "error"}, **keys)))
    async with serving_command(config, fresh=True) as child, contextlib.AsyncExitStack() as stack:
        where = urlsplit(child.url)
        by_ann = {"authorization": f"Bearer {key}"}
        shots = []
        for number in range(CROWD):
            _, writer = await asyncio.open_connection(where.hostname, where.port)
            stack.callback(writer.close)
            writer.write(CROWD_SENDS[sent])
            if number % (CROWD // GOOD_IN_CROWD) == 0:
                shots.append(await shoot(child.url, chat_body("hello"), headers=by_ann))
        shots += [await shoot(child.url, chat_body("hello"), headers=by_ann) for _ in range(GOOD_IN_CROWD)]
        health = await shoot(child.url, path="/health/ready")
    slowest = max(shot.seconds for shot in shots)
    statuses = [shot.status for shot in shots]
    report("crowd", sent=sent, crowd=CROWD, places=CROWDED_PLACES, served=statuses.count(200), of=len(statuses))
    held_to(CROWDED_WITHIN, f"served in a crowd that sends {sent}", slowest)
    assert {*statuses, health.status} == {200}


async def test_a_command_runs_while_more_files_are_open_than_select_can_count(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", by_turn([Reply(calls=[Call("hello", {})]), Reply(text="done")]))
    command = {
        "kind": "command",
        "name": "hello",
        "description": "Says hello.",
        "argv": ["echo", "hello from a command"],
    }
    config = tmp_path / "config.yaml"
    server = {"connections": 1800, "header_seconds": 60}
    config.write_text(as_yaml(config_dict(upstream.url, tools=[command], server=server)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        child = await stack.enter_async_context(serving_command(config, fresh=True))
        where = urlsplit(child.url)
        for _ in range(SILENT):
            _, writer = await asyncio.open_connection(where.hostname, where.port)
            stack.callback(writer.close)
        shot = await shoot(child.url, chat_body("hello"))
        assert _open_files(child) > SILENT
    assert shot.status == 200
    assert [message["content"] for message in upstream.requests[1].messages if message["role"] == "tool"] == [
        "hello from a command\n"
    ]


@pytest.mark.skipif(not LONG, reason="waits for the last resort, which comes after fifteen seconds")
async def test_a_tool_that_blocks_everything_does_not_keep_the_process_alive(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", by_turn([Reply(calls=[Call("block", {})]), Reply(text="never")]))
    marks = tmp_path / "marks"
    tool = {"kind": "python", "function": f"{tools.__name__}:block", "safety": "write"}
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict(upstream.url, tools=[tool], server={"drain_seconds": 0.5})))
    async with serving_command(config, environment={tools.MARKS: str(marks)}, fresh=True) as child:
        asking_ = asyncio.create_task(shoot(child.url, chat_body("hello")))
        async with asyncio.timeout(30):
            while not marks.exists():  # noqa: ASYNC110 - a process whose loop is blocked tells nobody
                await asyncio.sleep(0.05)
        child.signal(signal.SIGTERM)
        assert await child.ended(within=25) == 4
        assert (await asking_).status == 0


def _open_files(child: Child) -> int:
    return len(list(Path(f"/proc/{child.process.pid}/fd").iterdir()))


async def _send_nothing(url: str) -> None:
    where = urlsplit(url)
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            await reader.read()
        finally:
            writer.close()


async def _send_too_much(url: str) -> int:
    """How many bytes could be sent before the connection was cut."""
    where = urlsplit(url)
    sent = 0
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
            for _ in range(GIANT_MIB * 16):
                writer.write(b"x: " + b"a" * 65_000 + b"\r\n")
                await writer.drain()
                sent += 65_005
        finally:
            writer.close()
    return sent


def _mib(child: Child) -> float:
    status = Path(f"/proc/{child.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
