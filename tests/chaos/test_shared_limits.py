"""Four processes and one Redis: what a key may do in a minute is what they grant together."""

import asyncio
import contextlib
import itertools
import time
from pathlib import Path

import pytest

from callgate.auth.keys import mint_key
from callgate.auth.limits import WINDOW
from tests.chaos.load import Shot, asking, shoot
from tests.chaos.scale import LONG, report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.process import serving
from tests.harness.redis import redis_server
from tests.scripted_upstream import Reply, Upstream

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    needs("redis-server", "module:redis"),
]

PROCESSES = 4
LIMIT = 120
SECONDS = scaled(4.0, 135.0)
SECRET, HASH = mint_key()


async def test_the_processes_grant_together_what_is_allowed_and_no_more(tmp_path: Path) -> None:
    upstream = Upstream()
    await upstream.open()
    upstream.script("m", lambda _: Reply(text="hi"))
    granted: list[float] = []
    refused = 0
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(upstream.close)
        redis = await stack.enter_async_context(redis_server(tmp_path))
        config = tmp_path / "config.yaml"
        written = config_dict(
            upstream.url,
            auth="keys",
            keys=[{"name": "alice", "hash": HASH, "requests_per_minute": LIMIT}],
            store={"redis_url": redis},
            logging={"level": "error"},
        )
        config.write_text(as_yaml(written))
        children = [await stack.enter_async_context(serving(config)) for _ in range(PROCESSES)]
        began = time.monotonic()
        for number in itertools.count():
            shots = await asyncio.gather(*(_ask(child.url, number) for child in children for _ in range(2)))
            now = time.monotonic()
            granted += [now for shot in shots if shot.status == 200]
            refused += sum(shot.status == 429 for shot in shots)
            assert {shot.status for shot in shots} <= {200, 429}
            if now - began > SECONDS:
                break
    within = [sum(at <= other < at + WINDOW for other in granted) for at in granted]
    # from the first request on there is always one that waits to be let in
    share = (
        len(granted) / (LIMIT * max(1.0, (time.monotonic() - began) // (WINDOW + 1))) if LONG else len(granted) / LIMIT
    )
    report("shared limits", granted=len(granted), refused=refused, most_in_a_minute=max(within), limit=LIMIT)
    assert max(within) <= LIMIT
    assert max(within) >= 0.95 * LIMIT
    assert refused
    assert share >= 0.95


async def _ask(url: str, number: int) -> Shot:
    return await shoot(url, asking(str(number)), headers={"authorization": f"Bearer {SECRET}"})
