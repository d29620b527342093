"""Two servers of several workers each and one Redis: what a key, a model and a tool may do is what they do together."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from callgate.access.keys import mint_key
from callgate.access.leased_places import LEASE_SECONDS
from callgate.access.limits import WINDOW
from tests.chaos import tools
from tests.chaos.load import chat_body, gone, shoot
from tests.chaos.scale import LONG, report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.process import Child, serving_command
from tests.harness.redis import redis_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs("redis-server", "module:redis"),
]

REPLICAS = 2
WORKERS = scaled(2, 4)
LIMIT = 120
SECONDS = scaled(1.5, 135.0)
PLACES = 16
HELD = scaled(0.8, 3.0)
"""Seconds that each request holds a place: long beside the moment until a place that came free is found."""
WATCHED = scaled(1.2, 60.0)
KEYS = {name: mint_key() for name in ("alice", "bob", "carol")}


@dataclass
class Meter:
    """A model that takes its time, and counts how many it answers at once."""

    held: float = 0.0
    url: str = ""
    running: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)
    _answering: "set[asyncio.Task[Any]]" = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Meter"]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server:
            yield self
        if self._answering:
            await asyncio.wait(self._answering)  # whoever asked is gone

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in one"
        self._answering.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                )
                asked = json.loads(await reader.readexactly(length))
                has_result = asked["messages"][-1]["role"] == "tool"
                if asked["model"] == "calling" and not has_result:
                    call = {"name": "nap", "arguments": json.dumps({"seconds": self.held})}
                    said: dict[str, Any] = {"tool_calls": [{"id": "c", "type": "function", "function": call}]}
                    await self._send(writer, said, "tool_calls")
                    continue
                self._count(1)
                try:
                    async with asyncio.timeout(0 if has_result else self.held):
                        await reader.read(1)
                    return  # whoever asked has left
                except TimeoutError:
                    pass  # the time that it takes is over
                finally:
                    self._count(-1)
                await self._send(writer, {"content": "hi"}, "stop")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._answering.discard(task)
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, said: dict[str, Any], reason: str) -> None:
        message = {"role": "assistant", "content": None, **said}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        body = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body.encode())
        )
        await writer.drain()

    def _count(self, by: int) -> None:
        self.running += by
        self.changes.append((time.monotonic(), self.running))


def within(changes: list[tuple[float, int]], start: float, end: float) -> tuple[float, int]:
    """How many there were at once between two moments, on average, and at most."""
    spans = [
        (max(at, start), min(after, end), count) for (at, count), (after, _) in itertools.pairwise([*changes, (end, 0)])
    ]
    seconds = [(until - at, count) for at, until, count in spans if until > at]
    return sum(span * count for span, count in seconds) / (end - start), max(count for _, count in seconds)


@pytest.fixture
async def meter() -> AsyncIterator[Meter]:
    async with Meter().open() as opened:
        yield opened


@contextlib.asynccontextmanager
async def replicas(folder: Path, meter: Meter) -> AsyncIterator[list[Child]]:
    """Servers that share one Redis."""
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(folder))
        config = config_dict(
            meter.url,
            models=["m", "narrow", "calling"],
            tools=[{"kind": "python", "function": f"{tools.__name__}:nap", "concurrency": PLACES, "timeout": 300}],
            auth="keys",
            keys=[
                {"name": "alice", "hash": KEYS["alice"][1], "requests_per_minute": LIMIT},
                {"name": "bob", "hash": KEYS["bob"][1], "parallel": PLACES},
                {"name": "carol", "hash": KEYS["carol"][1]},
            ],
            store={"redis_url": redis},
            server={"workers": WORKERS},
            logging={"level": "error"},
        )
        next(each for each in config["model_list"] if each["model_name"] == "narrow")["concurrency"] = PLACES
        file = folder / "config.yaml"
        file.write_text(as_yaml(config))
        marks = {tools.MARKS: str(folder / "marks")}
        opening = (stack.enter_async_context(serving_command(file, environment=marks)) for _ in range(REPLICAS))
        yield list(await asyncio.gather(*opening))


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name][0]}"}


async def test_requests_a_minute_are_those_of_all_processes(tmp_path: Path, meter: Meter) -> None:
    granted: list[tuple[float, float]] = []
    """When each was sent, and when its answer had come: it was let in somewhere between."""
    refused = 0
    async with replicas(tmp_path, meter) as children:
        began = time.monotonic()
        for number in itertools.count():
            asked = [(child.url, f"{number}/{place}") for child in children for place in range(4)]
            sent = time.monotonic()
            shots = await asyncio.gather(*(shoot(url, chat_body(text), headers=bearer("alice")) for url, text in asked))
            now = time.monotonic()
            granted += [(sent, now) for shot in shots if shot.status == 200]
            refused += sum(shot.status == 429 for shot in shots)
            assert {shot.status for shot in shots} <= {200, 429}
            if now - began > SECONDS and refused:
                break
    together = [
        sum(start <= sent and answered < start + WINDOW for sent, answered in granted)
        for start in sorted({sent for sent, _ in granted})
    ]
    # from the first request on there is always one that waits to be let in
    minutes = max(1.0, (time.monotonic() - began) // (WINDOW + 1)) if LONG else 1.0
    report(
        "requests a minute",
        processes=REPLICAS * WORKERS,
        granted=len(granted),
        refused=refused,
        most_in_a_minute=max(together),
        limit=LIMIT,
    )
    assert 0.95 * LIMIT <= max(together) <= LIMIT
    assert refused
    assert len(granted) / (LIMIT * minutes) >= 0.95


@pytest.mark.parametrize(
    ("what", "key", "model"),
    [("parallel", "bob", "m"), ("model", "carol", "narrow"), ("tool", "carol", "calling")],
)
async def test_what_runs_at_once_is_what_all_processes_may_run_together(
    tmp_path: Path, meter: Meter, what: str, key: str, model: str
) -> None:
    meter.held = HELD
    marks = tmp_path / "marks"
    marks.touch()

    def changes() -> list[tuple[float, int]]:
        return tools.naps(marks) if what == "tool" else meter.changes

    async with replicas(tmp_path, meter) as children, load(children, key, model) as began:
        async with asyncio.timeout(120):
            while max((count for _, count in changes()), default=0) < PLACES:  # noqa: ASYNC110 - counted by a server
                await asyncio.sleep(0.05)
        start = time.monotonic()
        await asyncio.sleep(WATCHED)
        end = time.monotonic()
    mean, _ = within(changes(), start, end)
    _, most = within(changes(), began, end)
    away = sum("redis_unavailable" in line for child in children for line in child.lines)
    report(
        f"at once: {what}", processes=REPLICAS * WORKERS, mean=round(mean, 2), most=most, limit=PLACES, redis_away=away
    )
    assert most == PLACES
    assert mean >= scaled(0.0, 0.95) * PLACES


@pytest.mark.skipif(not LONG, reason="slots are leased for half a minute")
async def test_slots_of_a_server_that_was_killed_are_free_within_half_a_minute_and_others_are_kept(
    tmp_path: Path, meter: Meter
) -> None:
    meter.held = LEASE_SECONDS + 10  # longer than a slot is leased without being renewed
    async with replicas(tmp_path, meter) as children, load(children, "bob", "m"):
        async with asyncio.timeout(30):
            while meter.running < PLACES:  # noqa: ASYNC110 - counted by a server
                await asyncio.sleep(0.05)
        victim = children[0].process.pid
        os.killpg(victim, signal.SIGKILL)
        for worker in _forked(victim):
            os.kill(worker, signal.SIGKILL)
        killed = time.monotonic()
        async with asyncio.timeout(30):
            while (left := meter.running) == PLACES:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        async with asyncio.timeout(LEASE_SECONDS + 5):
            while meter.running < PLACES:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        free = time.monotonic() - killed
    report("slots of a killed server", left=left, free_after_seconds=round(free, 1))
    assert max(count for _, count in meter.changes) == PLACES
    assert free <= LEASE_SECONDS + 1


def _forked(parent: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [*map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split())]
    return []


@contextlib.asynccontextmanager
async def load(children: list[Child], key: str, model: str) -> AsyncIterator[float]:
    """More requests than there are places, at all processes, from the moment that is given."""

    async def keep_asking(url: str) -> None:
        while True:
            shot = await shoot(url, chat_body("go", model=model), headers=bearer(key))
            assert shot.status in (200, 429, 503, 0), shot.body
            if shot.status != 200:
                await asyncio.sleep(0.05)

    tasks = {asyncio.create_task(keep_asking(child.url)) for child in children for _ in range(3 * PLACES // 2)}
    try:
        yield time.monotonic()
    finally:
        await gone(tasks)
