"""Several workers serve as one: on one port, with one drain and one page of metrics, and a dead one is started again."""

import ast
import asyncio
import contextlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callgate.access.keys import hash_key
from callgate.config.schema.whole import Config
from callgate.server.serve import _listen
from callgate.server.workers import STUCK_BEATS, WorkerBeats, bound_to, share_of
from callgate.telemetry.metrics import Metrics, added_up
from tests.chaos.scale import LONG
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict
from tests.harness.needs import needs
from tests.harness.process import ROOT, Child, serving_command
from tests.harness.redis import redis_server

pytestmark = pytest.mark.anyio

WAITING_TOOL = """
import os
from pathlib import Path


def wait() -> str:
    "Waits until it is told to go on."
    Path(os.environ["BEGUN"]).write_text("begun")
    return Path(os.environ["GO_ON"]).read_text()
"""
DRAWS = (
    "token_hex",
    "token_bytes",
    "token_urlsafe",
    "uuid4",
    "urandom",
    "getrandbits",
    "Random",
    "SystemRandom",
    "getpid",
)
ASK = {"model": "demo", "messages": [{"role": "user", "content": "What is 2*21?"}]}


def _config(**sections: Any) -> dict[str, Any]:
    config = config_dict("http://127.0.0.1:1", **sections)
    config["model_list"] = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}]
    config["tools"] = [{"kind": "python", "module": "callgate.tools.builtin"}]
    return config


@contextlib.asynccontextmanager
async def workers(folder: Path, count: int, **sections: Any) -> AsyncIterator[Child]:
    """A server with so many workers, once all of them serve."""
    async with redis_server(folder) as url:
        file = folder / "config.yaml"
        file.write_text(as_yaml(_config(store={"redis_url": url}, server={"workers": count}, **sections)), "utf-8")
        async with serving_command(file, fresh=True) as child:
            yield child


def of(child: Child) -> set[int]:
    """The processes of the workers."""
    with Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").open(encoding="ascii") as file:
        return set(map(int, file.read().split()))


def lives(process: int) -> bool:
    """Return whether a process runs. One that has ended may not have been waited for yet."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text("ascii")
    except OSError:
        return False


@pytest.mark.slow
async def test_modules_are_started_and_stopped_in_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    (tmp_path / "hooks_of_workers.py").write_text(
        "import os\nfrom callgate import start, stop, tool\n"
        "def note(what):\n    with open(os.environ['JOURNAL'], 'a') as journal:\n"
        "        journal.write(f'{what} {os.getpid()}\\n')\n"
        "@start\ndef connect():\n    note('start')\n"
        "@stop\nasync def disconnect():\n    note('stop')\n"
        "@tool\ndef lookup() -> str:\n    return 'found'\n"
    )
    config = _config(server={"workers": 2}, data_dir=str(tmp_path / "data"))
    config["tools"] = [{"kind": "python", "module": "hooks_of_workers"}]
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config), "utf-8")
    async with serving_command(file, fresh=True) as child:
        processes = of(child)
        child.signal(signal.SIGTERM)
        await child.ended()
    lines = (tmp_path / "journal").read_text().splitlines()
    assert len(processes) == 2
    assert sorted(lines) == sorted(f"{what} {process}" for what in ("start", "stop") for process in processes)


@needs("redis-server")
@pytest.mark.slow
async def test_workers_share_the_requests_and_the_metrics_count_all_of_them(tmp_path: Path):
    async with workers(tmp_path, 2) as child, http_client(child.url) as client:
        assert len(of(child)) == 2

        async def ask() -> str:
            answer = await client.post("/v1/chat/completions", json=ASK, headers={"connection": "close"})
            return str(answer.json()["choices"][0]["message"]["content"])

        answers = Counter(await asyncio.gather(*(ask() for _ in range(40))))
        assert [("42" in text, count) for text, count in answers.items()] == [(True, 40)]
        # Whichever of them is asked says the same.
        for _ in range(6):
            page = (await client.get("/metrics", headers={"connection": "close"})).text
            assert re.findall(
                r'^callgate_requests_total{model="demo",route="chat",status="200"} (\S+)', page, re.MULTILINE
            ) == ["40.0"]
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0


@needs("redis-server")
@pytest.mark.slow
async def test_a_worker_that_is_killed_is_started_again_and_the_others_go_on(tmp_path: Path):
    async with workers(tmp_path, 2) as child, http_client(child.url) as client:
        first = of(child)
        for _ in range(12):
            await client.post("/v1/chat/completions", json=ASK, headers={"connection": "close"})
        assert await requests_counted(client) == 12.0
        os.kill(min(first), signal.SIGKILL)
        await child.line("worker_died")
        assert await requests_counted(client) == 12.0, (
            "a sum that goes down is taken for a new beginning, and all of it for new"
        )
        for _ in range(10):
            assert (await client.get("/health/ready", headers={"connection": "close"})).status_code == 200
        async with asyncio.timeout(30):
            while len(now := of(child)) < 2 or now == first:  # noqa: ASYNC110 - no event of another process' children
                await asyncio.sleep(0.05)
        assert max(first) in of(child)
        for _ in range(3):
            assert await requests_counted(client) == 12.0
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0


@pytest.mark.slow
async def test_workers_whose_parent_is_killed_give_the_port_to_the_next_and_end_what_they_began(tmp_path: Path):
    (tmp_path / "waiting.py").write_text(WAITING_TOOL, "utf-8")
    config = _config(server={"workers": 2}, data_dir=str(tmp_path / "data"))
    config["tools"] = [{"kind": "python", "function": "waiting:wait"}]
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config), "utf-8")
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"
    os.mkfifo(begun)
    os.mkfifo(go_on)
    environment = {"BEGUN": str(begun), "GO_ON": str(go_on)}
    async with serving_command(file, environment=environment, fresh=True) as child, http_client(child.url) as client:
        left = of(child)
        asked = asyncio.create_task(client.post("/v1/tools/wait/call", json={"arguments": {}}))
        assert await asyncio.to_thread(begun.read_text) == "begun"  # one of them has a request under way
        port = child.url.rpartition(":")[2]
        child.signal(signal.SIGKILL)
        while lives(child.process.pid):  # noqa: ASYNC110 - `wait` ends when its workers, too, have closed their log
            await asyncio.sleep(0.005)
        async with serving_command(file, "--port", port, environment=environment, fresh=True) as second:
            assert second.url == child.url
            async with http_client(second.url) as anew:
                assert (await anew.get("/health/ready")).status_code == 200
            assert any(map(lives, left)), "the request under way is to be ended by the worker that began it"
            await asyncio.to_thread(go_on.write_text, "now")
            answer = await asked
            assert (answer.status_code, "now" in answer.text) == (200, True)
            async with asyncio.timeout(30):
                while any(map(lives, left)):  # noqa: ASYNC110 - they are not our children
                    await asyncio.sleep(0.05)


async def requests_counted(client: httpx.AsyncClient) -> float:
    """How many requests were counted, whichever worker is asked."""
    page = (await client.get("/metrics", headers={"connection": "close"})).text
    [count] = re.findall(r'^callgate_requests_total{model="demo",route="chat",status="200"} (\S+)', page, re.MULTILINE)
    return float(count)


@pytest.mark.slow
async def test_no_two_workers_give_a_request_or_a_call_the_same_id(tmp_path: Path):
    """They are forked from a process that has imported what makes ids."""
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(_config(server={"workers": 2}, data_dir=str(tmp_path / "data"))), "utf-8")
    async with serving_command(file, fresh=True) as child, http_client(child.url) as client:
        asking = (client.post("/v1/chat/completions", json=ASK, headers={"connection": "close"}) for _ in range(40))
        answers = await asyncio.gather(*asking)
        child.signal(signal.SIGTERM)
        await child.ended()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "ledger.sqlite3")) as ledger:
        calls = ledger.execute("SELECT process FROM calls").fetchall()
    assert (len(calls), len(set(calls))) == (40, 2)
    assert len({answer.headers["x-request-id"] for answer in answers}) == 40


def test_nothing_is_drawn_by_an_import_but_what_workers_may_share():
    """Workers are forked when all is imported, and so are the processes of the tests."""
    drawing = [
        f"{file.relative_to(ROOT / 'app/callgate')}: {ast.unparse(call)}"
        for file in sorted((ROOT / "app").rglob("*.py"))
        if any(word in (text := file.read_text("utf-8")) for word in DRAWS)
        for call in calls_of_an_import(ast.parse(text))
        if ast.unparse(call.func).rpartition(".")[2] in DRAWS
    ]
    # The first is seeded anew, the second is a secret of the server.
    assert drawing == ["conversation/ids.py: Random()", "state/sealing.py: secrets.token_hex()"]


def calls_of_an_import(node: ast.AST) -> Iterator[ast.Call]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Call):
            yield inner
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from calls_of_an_import(inner)


@pytest.mark.slow
async def test_workers_of_one_folder_share_the_limits_and_the_answers_of_keys(tmp_path: Path):
    keys = [
        {"name": "rated", "hash": hash_key("cg-rated"), "requests_per_minute": 3},
        {"name": "free", "hash": hash_key("cg-free")},
    ]
    file = tmp_path / "config.yaml"
    sections = {"data_dir": str(tmp_path / "data"), "auth": "keys", "keys": keys}
    file.write_text(as_yaml(_config(server={"workers": 2}, **sections)), "utf-8")
    async with serving_command(file, fresh=True) as child, http_client(child.url) as client:

        async def ask(key: str, **more: str) -> Any:
            headers = {"connection": "close", "authorization": f"Bearer cg-{key}", **more}
            return await client.post("/v1/chat/completions", json=ASK, headers=headers)

        rated = await asyncio.gather(*(ask("rated") for _ in range(12)))
        assert sorted(answer.status_code for answer in rated) == [200] * 3 + [429] * 9
        keyed = await asyncio.gather(*(ask("free", **{"idempotency-key": "once"}) for _ in range(8)))
        assert {answer.status_code for answer in keyed} == {200}
        assert len({answer.content for answer in keyed}) == 1


async def test_several_workers_without_a_folder_or_redis_are_refused_with_what_to_do(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(_config(server={"workers": 2})), "utf-8")
    with pytest.raises(AssertionError, match="several need a `data_dir`"):
        async with serving_command(file):
            pass


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="it takes the twenty seconds of a stuck worker: `make chaos`")
async def test_a_worker_that_is_stopped_is_killed_and_replaced(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(_config(server={"workers": 2}, data_dir=str(tmp_path / "data"))), "utf-8")
    async with serving_command(file, fresh=True) as child, http_client(child.url) as client:
        stopped = min(of(child))
        os.kill(stopped, signal.SIGSTOP)
        assert str(stopped) in (await child.line("worker_stuck", within=60)).string
        await child.line('worker_died.*"exit_code":-9')
        async with asyncio.timeout(30):
            while len(of(child)) < 2:  # noqa: ASYNC110 - no event of another process' children
                await asyncio.sleep(0.05)
        for _ in range(8):
            assert (await client.get("/health/live", headers={"connection": "close"})).status_code == 200
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0


def test_a_worker_is_stuck_when_its_loop_has_not_run_for_so_many_looks():
    worker_beats = WorkerBeats(2)
    for look in range(1, STUCK_BEATS):
        assert worker_beats.look(bytes([look, 7])) == []
    assert worker_beats.look(bytes([0, 7])) == []  # the first look saw both change
    assert worker_beats.look(bytes([1, 7])) == [1]
    worker_beats.forget(1)
    assert worker_beats.look(bytes([2, 7])) == []
    assert worker_beats.look(bytes([3, 8])) == []


async def test_a_start_waits_for_workers_to_give_its_port_back_and_for_nobody_else(monkeypatch: pytest.MonkeyPatch):
    waits = []

    def wait(_: float) -> None:
        waits.append(holder.fileno())
        holder.close()  # as orphans do when they notice

    monkeypatch.setattr("callgate.server.serve.time.sleep", wait)
    with bound_to("127.0.0.1", 0, socket.AF_INET) as holder:
        holder.listen()
        port = holder.getsockname()[1]
        listening = _listen("127.0.0.1", port)
    assert listening is not None
    with listening:
        assert len(waits) == 1
        assert _listen("127.0.0.1", port) is None, "one that shares with nobody is another program"
    assert len(waits) == 1


HOLDS_A_PORT = """
import os, socket, sys
holder = socket.socket()
holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
holder.bind(("127.0.0.1", 0))
holder.listen()
print(holder.getsockname()[1], flush=True)
sys.stdin.read()
"""


async def test_a_stopped_worker_that_has_the_port_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("callgate.server.serve.ORPHAN_SECONDS", 0.0)
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", HOLDS_A_PORT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    port = int(await holder.stdout.readline())
    assert _listen("127.0.0.1", port) is None
    says = capsys.readouterr().err
    assert f"process {holder.pid}, `python" in says
    assert "stopped" not in says
    holder.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitpid, holder.pid, os.WUNTRACED)
    assert _listen("127.0.0.1", port) is None
    [line] = capsys.readouterr().err.splitlines()
    assert f"which is stopped: `kill -CONT {holder.pid}` lets it go on" in line
    holder.kill()
    await holder.wait()


def test_what_protects_the_machine_is_divided_and_nothing_of_it_is_lost():
    config = Config.model_validate(
        _config(limits={"concurrent_requests": 10, "tool_threads": 3, "child_processes": 1}, server={"connections": 7})
    )
    parts = [share_of(config, place, 4) for place in range(4)]
    assert [part.limits.concurrent_requests for part in parts] == [3, 3, 2, 2]
    assert [part.limits.tool_threads for part in parts] == [1, 1, 1, 1]
    assert [part.limits.child_processes for part in parts] == [1, 1, 1, 1]
    assert sum(part.server.connections for part in parts) == 7


def test_metrics_of_several_processes_are_added_up_but_for_when_they_began():
    pages = []
    for status in (200, 200, 429):
        metrics = Metrics()
        metrics.request("chat", status, "m", 0.2)
        pages.append(metrics.exposition()[0])
    text = added_up(pages)[0].decode()
    assert 'callgate_requests_total{model="m",route="chat",status="200"} 2.0' in text
    assert 'callgate_requests_total{model="m",route="chat",status="429"} 1.0' in text
    assert 'callgate_request_seconds_count{model="m",route="chat"} 3.0' in text
    assert 'callgate_request_seconds_bucket{le="0.25",model="m",route="chat"} 3.0' in text
    starts = re.findall(r"^process_start_time_seconds (\S+)", text, re.MULTILINE)
    assert starts == re.findall(r"^process_start_time_seconds (\S+)", pages[0].decode(), re.MULTILINE)
