"""Ten times as many requests as there are places: those that come in are answered, the rest are turned away at once."""

import asyncio
import itertools
import time
from collections import Counter
from math import inf
from pathlib import Path

import pytest

from tests.chaos.load import Shot, chat_body, gone, percentile, shoot
from tests.chaos.scale import LONG, report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import serving_command
from tests.scripted_upstream import Pace, Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

PLACES = 32
ANSWER_SECONDS = 1.0
"""What the model takes. Long, so that what is measured is who gets a place, and not how fast this machine is."""
CAPACITY = PLACES / ANSWER_SECONDS
TIMES = 10
SECONDS = scaled(3.0, 30.0)
GOODPUT = scaled(0.0, 0.9)
AT_ONCE = scaled(inf, 0.25)
"""Seconds until a request that is turned away, and health, have their answer."""


async def test_at_ten_times_the_capacity_what_fits_is_answered_and_the_rest_refused_at_once(tmp_path: Path) -> None:
    upstream = Upstream()
    await upstream.open()
    upstream.script("m", lambda _: Reply(text="hi", pace=Pace(before=ANSWER_SECONDS)))
    config = tmp_path / "config.yaml"
    config.write_text(
        as_yaml(config_dict(upstream.url, limits={"concurrent_requests": PLACES}, logging={"level": "warning"}))
    )
    shots: list[Shot] = []
    health: list[float] = []
    try:
        async with serving_command(config) as child:
            began = time.monotonic()
            load = asyncio.create_task(_at_rate(child.url, CAPACITY * TIMES, shots))
            looking = asyncio.create_task(_look(child.url, health))
            await asyncio.sleep(SECONDS)
            looking.cancel()
            load.cancel()
            await asyncio.wait([load, looking])
            seconds = time.monotonic() - began
    finally:
        await upstream.close()
    statuses = Counter(shot.status for shot in shots)
    turned_away = [shot.seconds for shot in shots if shot.status == 503]
    accepted = [shot.seconds for shot in shots if shot.status == 200]
    goodput = statuses[200] / (CAPACITY * (seconds - ANSWER_SECONDS))
    report(
        "overload",
        offered=round(len(shots) / seconds),
        capacity=CAPACITY,
        seconds=round(seconds, 1),
        goodput=round(goodput, 3),
        statuses=dict(statuses),
        shed_p99_ms=round(percentile(turned_away, 0.99) * 1000),
        accepted_p99_ms=round(percentile(accepted, 0.99) * 1000),
        health_max_ms=round(max(health) * 1000),
    )
    assert goodput >= GOODPUT
    assert statuses.keys() <= {200, 503}
    assert all(shot.error["code"] == "over_capacity" for shot in shots if shot.status == 503)
    assert percentile(turned_away, 0.99) <= AT_ONCE
    assert max(health) <= AT_ONCE
    assert statuses[200]
    if LONG:
        assert percentile(accepted, 0.99) <= 3 * ANSWER_SECONDS
        assert len(shots) / seconds >= 0.8 * CAPACITY * TIMES, "the load itself fell behind"


async def _at_rate(url: str, rate: float, shots: list[Shot]) -> None:
    """So many requests a second, whether they are answered or not."""
    loop = asyncio.get_running_loop()
    under_way: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        shots.append(await shoot(url, chat_body(str(number))))

    began = loop.time()
    try:
        for number in itertools.count():
            task = loop.create_task(one(number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - loop.time()))
    finally:
        await gone(under_way)


async def _look(url: str, health: list[float]) -> None:
    while True:
        shot = await shoot(url, path="/health/ready")
        assert shot.status == 200
        health.append(shot.seconds)
        await asyncio.sleep(0.05)
