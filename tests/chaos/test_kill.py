"""kill -9 under load, again and again: no call runs twice, the ledger is true, and the next process serves at once."""

import asyncio
import contextlib
import itertools
import random
import signal
import sqlite3
import time
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from callgate.state.cluster.postgres import migrate
from callgate.state.local.sqlite import FILE
from tests.chaos import tools
from tests.chaos.load import Shot, chat_body, gone, shoot
from tests.chaos.scale import SEED, counted, report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.postgres import postgres_server
from tests.harness.process import serving_command
from tests.harness.redis import redis_server
from tests.scripted_upstream import Call, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = counted(2, 50)
AT_ONCE = 16
LOADED = scaled((0.1, 0.4), (0.3, 1.0))
"""Seconds of load before a kill."""
BACK_WITHIN = scaled(inf, 5.0)
ORPHANS_GONE_WITHIN = scaled(60.0, 5.0)
DEAD_AFTER = 2.0
"""Seconds after which a process of a cluster is taken for dead, and its runs are taken over."""
SLEEPER = "86399.77"
"""Seconds that no other process on this machine sleeps."""


def answers(record: RequestRecord) -> Reply:
    """Two turns of calls, each call with a label of its own, then an answer."""
    label = next(str(message["content"]) for message in record.messages if message["role"] == "user")
    if record.turn >= 2:
        return Reply(text="done")
    calls = [
        Call(name, {"label": f"{label}/{record.turn}/{name}"}, id=f"call_{label}_{record.turn}_{name}")
        for name in ("count", "count_in_thread")
    ]
    if record.turn == 1 and label.endswith("0"):
        calls.append(Call("sleeper", {}, id=f"call_{label}_{record.turn}_sleeper"))
    return Reply(calls=calls)


def entry(name: str) -> dict[str, Any]:
    return {"kind": "python", "function": f"{tools.__name__}:{name}", "safety": "write"}


async def test_no_call_runs_twice_and_the_ledger_is_true_however_often_it_is_killed(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", answers)
    marks, data = tmp_path / "marks", tmp_path / "data"
    marks.touch()
    sleeper = {
        "kind": "command",
        "name": "sleeper",
        "description": "Sleeps.",
        "argv": ["sleep", SLEEPER],
        "timeout": 600,
    }
    listed = [entry("count"), entry("count_in_thread"), sleeper]
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict(upstream.url, tools=listed, data_dir=str(data))))
    numbers = itertools.count()
    chance = random.Random(SEED)
    back: list[float] = []
    answered = 0
    for _ in range(ROUNDS):
        began = time.monotonic()
        async with serving_command(config, environment={tools.MARKS: str(marks)}) as child:
            assert (await shoot(child.url, path="/health/ready")).status == 200
            back.append(time.monotonic() - began)
            shots: list[Shot] = []
            load = [asyncio.create_task(_keep_asking(child.url, numbers, shots)) for _ in range(AT_ONCE)]
            while not (answered or shots):  # noqa: ASYNC110 - a killed server is of interest once it has done something
                await asyncio.sleep(0.02)
            await asyncio.sleep(chance.uniform(*LOADED))
            child.signal(signal.SIGKILL)
            await child.ended()
            await gone(set(load))
            answered += sum(shot.status == 200 for shot in shots)
        await _no_orphan()
        upstream.requests.clear()
    async with serving_command(config, environment={tools.MARKS: str(marks)}) as child:
        assert (await shoot(child.url, chat_body("last"))).status == 200
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
    ran = Counter(marks.read_text().splitlines())
    states = _ledger(data)
    report(
        "kill -9",
        rounds=ROUNDS,
        answered=answered,
        calls_run=sum(ran.values()),
        twice=sum(times > 1 for times in ran.values()),
        states=dict(Counter(states.values())),
        back_seconds=round(max(back), 2),
    )
    assert [label for label, times in ran.items() if times > 1] == []
    assert answered
    assert sum(ran.values()) > ROUNDS
    recorded = {call.removeprefix("call_").replace("_", "/", 2): state for call, state in states.items()}
    assert ran.keys() <= recorded.keys(), "whatever ran was written down before"
    done = {label for label, state in recorded.items() if state == "done" and "sleeper" not in label}
    assert done <= ran.keys(), "whatever the ledger calls done did run"
    assert set(states.values()) <= {"done", "unknown"}
    assert max(back) <= BACK_WITHIN


CLUSTER = needs("postgres", "module:asyncpg", "redis-server", "module:redis")


@pytest.mark.parametrize("kept_in", ["disk", pytest.param("cluster", marks=CLUSTER)])
async def test_no_call_of_a_request_with_a_key_runs_twice_however_often_it_is_repeated(
    upstream: Upstream, tmp_path: Path, schema: str, kept_in: str
) -> None:
    upstream.script("m", answers_without_sleeper)
    marks = tmp_path / "marks"
    marks.touch()
    config = tmp_path / "config.yaml"
    listed = [entry("count"), entry("count_in_thread")]
    async with contextlib.AsyncExitStack() as kept:
        options: dict[str, Any] = {"data_dir": str(tmp_path / "data")}
        if kept_in == "cluster":
            postgres = kept.enter_context(postgres_server())
            await migrate(postgres.url, schema)
            options = {
                "ledger": {"url": postgres.url, "namespace": schema},
                "store": {"redis_url": await kept.enter_async_context(redis_server(tmp_path))},
                "runs": {"dead_after_seconds": DEAD_AFTER},
            }
        config.write_text(as_yaml(config_dict(upstream.url, tools=listed, **options)))
        again, odd = await _killed_and_repeated(upstream, config, marks)
    ran = Counter(marks.read_text().splitlines())
    report("kill -9 with keys", kept_in=kept_in, rounds=ROUNDS, calls_run=sum(ran.values()), repeated=dict(again))
    assert [label for label, times in ran.items() if times > 1] == []
    assert again.total(), "requests were cut off, and came again"
    assert not odd


async def _killed_and_repeated(upstream: Upstream, config: Path, marks: Path) -> tuple[Counter[int], list[Shot]]:
    """What repeated requests were answered with, and the answers of another kind."""
    numbers = itertools.count()
    chance = random.Random(SEED + 4)
    open_: list[str] = []
    again: Counter[int] = Counter()
    odd: list[Shot] = []
    for _ in range(ROUNDS):
        async with serving_command(config, environment={tools.MARKS: str(marks)}) as child:
            cut, open_ = open_, []
            shots = await asyncio.gather(*(_ask_once(child.url, label, open_) for label in cut))
            again.update(shot.status for shot in shots)
            odd += [shot for shot in shots if shot.status not in (200, 409)]
            load = [asyncio.create_task(_keep_asking_once(child.url, numbers, open_)) for _ in range(AT_ONCE)]
            while not upstream.requests:  # noqa: ASYNC110 - a killed server is of interest once it has done something
                await asyncio.sleep(0.02)
            await asyncio.sleep(chance.uniform(*LOADED))
            child.signal(signal.SIGKILL)
            await child.ended()
            await asyncio.gather(*load)
        upstream.requests.clear()
    return again, odd


def answers_without_sleeper(record: RequestRecord) -> Reply:
    reply = answers(record)
    return replace(reply, calls=[call for call in reply.calls if call.name != "sleeper"])


async def _keep_asking_once(url: str, numbers: "itertools.count[int]", cut: list[str]) -> None:
    while (await _ask_once(url, str(next(numbers)), cut)).status:
        pass


async def _ask_once(url: str, label: str, cut: list[str]) -> Shot:
    """Ask under a key of the label's own; one that was not answered is put down, to be asked again."""
    shot = await shoot(url, chat_body(label), headers={"idempotency-key": f"key-{label}"})
    if not shot.status or not shot.body.endswith((b"}", b"\r\n0\r\n\r\n")):
        cut.append(label)
        return replace(shot, status=0)
    return shot


async def _keep_asking(url: str, numbers: "itertools.count[int]", shots: list[Shot]) -> None:
    while True:
        shot = await shoot(url, chat_body(str(next(numbers))))
        shots.append(shot)
        if not shot.status:
            return


def _ledger(folder: Path) -> dict[str, str]:
    """The state of each call. That a call stands in it once is what its primary key and this dict's size say."""
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = database.execute("SELECT call_id, state FROM calls").fetchall()
    assert len({call for call, _ in rows}) == len(rows), "no call was started twice"
    return dict(rows)


async def _no_orphan() -> None:
    async with asyncio.timeout(ORPHANS_GONE_WITHIN):
        while _sleepers():  # noqa: ASYNC110 - processes of a process that is gone tell nobody of their end
            await asyncio.sleep(0.05)


def _sleepers() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if SLEEPER.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
    return found
