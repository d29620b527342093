"""Bodies at the limit of their size, built to be slow to read: others are answered meanwhile."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from math import inf
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from tests.chaos.scale import scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import serving_command
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

MOST = scaled(inf, 0.25)
"""Seconds that health may take, in long runs. A call into the JSON reader holds everything for as long as it takes, a tenth of a second
for ten megabytes on a machine that does nothing else; several of them, one after another, would be too many."""
TRIES = 3
"""A neighbour on the machine may hold us up once; what the reader itself takes is there each time."""
DEEP = b"[" * 90 + b"]" * 90


def chat_bytes(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def bodies() -> dict[str, tuple[int, bytes]]:
    """Made when they are needed: every process of a run reads this module."""
    return {
        "brackets without an end": (400, b"{" * 9_900_000),
        "deep lists beside one another": (400, chat_bytes()[:-1] + b',"zz":[' + b",".join([DEEP] * 50_000) + b"]}"),
        "metadata": (400, chat_bytes(metadata={f"k{number}": "v" for number in range(500_000)})),
        "a text": (200, chat_bytes(messages=[{"role": "user", "content": '\n"' * 2_400_000}])),
    }


async def test_a_body_at_the_limit_does_not_keep_others_waiting(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", lambda _: Reply(text="ok"))
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict(upstream.url, tools=("get_time",), logging={"level": "error"})))
    large, longest = bodies(), dict[str, float]()
    async with serving_command(config) as child:
        await _sent(child.url, chat_bytes())
        with HealthProbe(child.url) as probe:
            for kind, (status, body) in large.items():
                for _ in range(TRIES):
                    probe.longest = 0.0
                    assert await _sent(child.url, body) == status
                    longest[kind] = min(probe.longest, longest.get(kind, 1e9))
                    if longest[kind] < MOST:
                        break
    assert all(each < MOST for each in longest.values()), longest


class HealthProbe:
    """Asks for health again and again, in a thread of its own, and notes the longest wait."""

    def __init__(self, url: str) -> None:
        self._to, self.longest = urlsplit(url), 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_asking)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep_asking(self) -> None:
        with socket.create_connection((self._to.hostname, self._to.port)) as health:
            while not self._over.wait(0.002):
                began = time.perf_counter()
                health.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
                answer = b""
                while b"}" not in answer:
                    answer += health.recv(4096)
                self.longest = max(self.longest, time.perf_counter() - began)


async def _sent(url: str, body: bytes) -> int:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    to = urlsplit(url)
    reader, writer = await asyncio.open_connection(to.hostname, to.port)
    try:
        writer.write(head.encode() + body)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
