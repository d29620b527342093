"""Thousands of requests of every kind in one process: what they needed is given back."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import tools
from tests.chaos.load import chat_body, shoot
from tests.chaos.scale import report, scaled
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import Child, serving_command
from tests.scripted_upstream import Call, Cut, Reply, Upstream
from tests.scripted_upstream.records import RequestRecord

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(1800)]

REQUESTS = scaled(400, 20_000)
AT_ONCE = tools.MEETING
GROWTH_MIB = scaled(60.0, 5.0)
"""For 10,000 requests in the second half; a short run has to be much wider, because one block of memory is much of it."""
OTHER_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""The pool of the event loop has so many at most, and makes each when it is first needed."""
KINDS = ("talk", "tools", "thread", "broken", "cut", "bad", "nobody")


def answers(record: RequestRecord) -> Reply:
    kind = next(str(message["content"]) for message in record.messages if message["role"] == "user").split("/")[0]
    if kind == "cut":
        return Reply(text="some words", fault=Cut(after=2))
    if kind == "talk" or record.turn >= 1:
        return Reply(text="some words of an answer " * 20)
    if kind == "broken":
        return Reply(calls=[Call("count", '{"label": "x')])
    names = {"thread": ["count_in_thread"], "meet": ["meet"]}.get(kind, ["count", "count"])
    return Reply(calls=[Call(name, {"label": f"{kind} {at} {'x' * 500}"}) for at, name in enumerate(names)])


async def test_memory_files_threads_and_children_are_given_back(tmp_path: Path) -> None:
    upstream = Upstream()
    await upstream.open()
    upstream.script("m", answers)
    listed = [
        {"kind": "python", "function": f"{tools.__name__}:{name}", "safety": "write"}
        for name in ("count", "count_in_thread", "meet")
    ]
    config = tmp_path / "config.yaml"
    written = config_dict(
        upstream.url, tools=listed, data_dir=str(tmp_path / "data"), upstream={"retries": 0}, logging={"level": "error"}
    )
    config.write_text(as_yaml(written))
    statuses: Counter[tuple[str, int]] = Counter()
    try:
        async with serving_command(config, environment={tools.MARKS: os.devnull}, fresh=True) as child:
            await _ask(child, upstream, range(AT_ONCE), statuses, kinds=("meet",))
            await _ask(child, upstream, range(200), statuses)
            idle = used_by(child)
            await _ask(child, upstream, range(REQUESTS // 2), statuses)
            half = used_by(child)
            await _ask(child, upstream, range(REQUESTS // 2, REQUESTS), statuses)
            whole = used_by(child)
            child.signal(signal.SIGTERM)
            assert await child.ended() == 0
    finally:
        await upstream.close()
    growth = (whole["mib"] - half["mib"]) / (REQUESTS / 2) * 10_000
    report("soak", requests=REQUESTS, idle=idle, half=half, whole=whole, growth_mib_per_10000=round(growth, 2))
    expected = {"talk": 200, "tools": 200, "thread": 200, "meet": 200, "broken": 200, "bad": 400, "nobody": 404}
    for (kind, status), count in statuses.items():
        assert kind == "cut" or expected[kind] == status, f"{kind}: {count} times {status}"
    assert growth <= GROWTH_MIB
    for name, slack in (("files", 20), ("threads", OTHER_THREADS), ("children", 0)):
        assert whole[name] <= idle[name] + slack, name


async def _ask(
    child: Child,
    upstream: Upstream,
    numbers: range,
    statuses: "Counter[tuple[str, int]]",
    kinds: tuple[str, ...] = KINDS,
) -> None:
    left = iter(numbers)

    async def ask_on() -> None:
        for number in left:
            kind = kinds[number % len(kinds)]
            fields: dict[str, Any] = {"n": "x"} if kind == "bad" else {"model": "nobody"} if kind == "nobody" else {}
            body = chat_body(f"{kind}/{number}", stream=number % 2 == 0) | fields
            shot = await shoot(child.url, body)
            statuses[kind, shot.status] += 1
            if not number % 500:
                upstream.requests.clear()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(ask_on())


def used_by(child: Child) -> dict[str, float]:
    """What a process has of memory, files, threads and children."""
    folder = Path(f"/proc/{child.process.pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    children = [each for each in Path("/proc").glob("[0-9]*/stat") if _parent(each) == child.process.pid]
    return {
        "mib": int(status["VmRSS"].split()[0]) / 1024,
        "files": len(list((folder / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "children": len(children),
    }


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0
