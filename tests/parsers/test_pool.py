"""A child that dies, stalls, eats memory or writes garbage is one failed job, and no child outlives its parent."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from callgate.parsers import pool as pool_module
from callgate.parsers.jobs import (
    HEAD,
    MAX_ANSWER,
    Job,
    JobAnswer,
    JobQuestion,
    ParserFailed,
    Reason,
    Refused,
    answer_in,
    frame,
)
from callgate.parsers.landlock import landlock_abi
from callgate.parsers.pool import ParserLimits, ParserPool
from callgate.tools.kinds.openapi.reading import (
    EVERYTHING,
    ReadingTerms,
    ReadOperation,
    question_for_child,
    reading_of_child,
)
from callgate.tools.kinds.openapi.reading_process import READ_DOCUMENT, TO_READ
from callgate.untrusted.messagepack import PackDoor, UntrustedPack
from tests.harness.process import ROOT, child_environment

ANYTHING = PackDoor(name="anything of a test", bytes=64 * 1024 * 1024)


def job(name: str, kind: str = "test", loading: str = "") -> Job[PackDoor]:
    return Job(kind, f"tests.parsers.odd_jobs:{name}", ANYTHING, loading)


async def run(pool: ParserPool, job: Job[PackDoor], payload: bytes, source: str) -> bytes:
    return (await pool.run(job, UntrustedPack(payload, ANYTHING), source)).data


def run_at_once(pool: ParserPool, job: Job[PackDoor], payload: bytes, source: str) -> bytes:
    return pool.run_at_once(job, UntrustedPack(payload, ANYTHING), source).data


@asynccontextmanager
async def opened(**limits: Any) -> AsyncIterator[tuple[ParserPool, list[tuple[str, str]]]]:
    failures: list[tuple[str, str]] = []
    pool = ParserPool(ParserLimits(**limits), lambda kind, reason: failures.append((kind, reason)))
    try:
        yield pool, failures
    finally:
        await pool.close()
        assert pool.process_ids() == ()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_begun(file: Path) -> bool:
    """True if a child has changed the age of this file."""
    return file.stat().st_mtime == 0


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - processes say nothing of their end
            await asyncio.sleep(0.005)


@pytest.mark.anyio
async def test_one_child_runs_many_jobs_and_none_runs_before_the_first() -> None:
    async with opened() as (pool, _):
        assert pool.process_ids() == ()
        large = bytes(range(256)) * 40_000
        assert await run(pool, job("echo"), large, "a test") == large
        [pid] = pool.process_ids()
        assert await run(pool, job("echo"), b"", "a test") == b""
        with pytest.raises(Refused, match="x is not for us"):
            await run(pool, job("refuse"), b"x", "a test")
        assert pool.process_ids() == (pid,)
        assert pool.jobs == {"test": 3}


@pytest.mark.anyio
async def test_a_child_has_no_secret_no_descriptor_and_no_file_to_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLANTED_KEY", "sk-planted-1234567890")
    with (tmp_path / "held open").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        async with opened() as (pool, _):
            sees = json.loads(await run(pool, job("what_it_sees"), b"", "a test"))
            assert set(sees["environment"]) <= {*pool_module.INHERITED, "LC_CTYPE"}
            assert len(sees["descriptors"]) <= 6, "its streams, its two pipes, and the list itself"
            assert sees["dumpable"] == 0, "nobody of its user looks into it"
            assert "held open" not in str(sees["descriptors"])
            with pytest.raises(ParserFailed):
                await run(pool, job("write_a_file"), str(tmp_path / "new").encode(), "a test")
            assert (tmp_path / "new").read_bytes() == b"" if (tmp_path / "new").exists() else True


@pytest.mark.skipif(landlock_abi() < 6, reason="this kernel's Landlock does not know networks and signals")
@pytest.mark.anyio
async def test_a_child_reaches_no_network_no_process_and_no_file_but_pythons(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("planted")
    with socket.create_server(("127.0.0.1", 0)) as server, structlog.testing.capture_logs() as lines:
        places = {"port": server.getsockname()[1], "file": str(secret), "folder": str(tmp_path)}
        async with opened() as (pool, _):
            ends = json.loads(await run(pool, job("what_it_reaches"), json.dumps(places).encode(), "a test"))
    assert ends.pop("thread") == "runs"
    assert set(ends.values()) <= {"EPERM", "EACCES"}, ends
    assert len(ends) == 14
    assert lines == []


@pytest.mark.parametrize("place", ["give_up_calls", "landlock_abi"])
@pytest.mark.anyio
async def test_what_a_child_cannot_give_up_is_said_once(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    pool_module._log_unconfined.cache_clear()
    boot = pool_module._BOOT.replace(
        "; main(", f"; import callgate.parsers.child as child; child.{place} = lambda: 0; main("
    )
    monkeypatch.setattr(pool_module, "_BOOT", boot)
    with structlog.testing.capture_logs() as lines:
        async with opened() as (pool, _):
            assert await run(pool, job("echo"), b"x", "a test") == b"x"
            assert await asyncio.to_thread(run_at_once, pool, job("echo"), b"x", "a test") == b"x"
    missing = {"give_up_calls": "seccomp", "landlock_abi": "landlock"}[place]
    assert [(line["event"], line["missing"]) for line in lines] == [("parsers_unconfined", missing)]


@pytest.mark.parametrize(
    "rogue",
    [
        b"\xc1",
        b"\x92\xa4done",
        b"\x92\xa2\xff\xfe\xc4\x00",
        b"\x92\xa4done" + b"\x91" * 100_000,
        b"\xdd\x00\x10\x00\x00" + bytes(1 << 20),
    ],
    ids=["no msgpack", "cut", "no text", "too deep", "too many values"],
)
def test_what_is_no_answer_is_a_failed_job(rogue: bytes) -> None:
    with pytest.raises(ParserFailed) as failed:
        answer_in(rogue)
    assert failed.value.reason is Reason.GARBAGE
    assert answer_in(frame(JobAnswer("done", b"x"))[HEAD.size :]).payload == b"x"


@pytest.mark.anyio
async def test_what_a_childs_door_does_not_let_through_is_refused_there_and_the_child_lives_on() -> None:
    async with opened() as (pool, failures):
        with pytest.raises(Refused, match="document to be read: more than 7 values"):
            await pool.run(READ_DOCUMENT, UntrustedPack(b"\x91" * 100_000, TO_READ), "a test")
        [pid] = pool.process_ids()
        question = question_for_child("openapi: 3.1.0\npaths: {/x: {get: {operationId: fine}}}\n", TERMS)
        [read] = reading_of_child(await pool.run(READ_DOCUMENT, question, "a test"))
        assert isinstance(read, ReadOperation)
        assert read.name == "fine"
        assert pool.process_ids() == (pid,)
        assert failures == []


TERMS = ReadingTerms(
    address="http://127.0.0.1:1/x",
    has_base_url=True,
    schemes=(),
    headers=(),
    selection=EVERYTHING,
    prefix="",
    rename={},
)


@pytest.mark.anyio
async def test_the_time_of_a_job_begins_when_its_child_has_loaded_what_it_runs() -> None:
    slow = job("echo", loading="tests.parsers.odd_jobs:load_slowly")
    async with opened(seconds=0.25) as (pool, _):
        for _ in range(20):  # a machine without time may stall the job itself, too
            with contextlib.suppress(ParserFailed):
                assert await run(pool, slow, b"x", "a test") == b"x"
                assert await asyncio.to_thread(run_at_once, pool, slow, b"x", "a test") == b"x"
                break
        else:
            pytest.fail("loading was counted")
    async with opened(start_seconds=0.001) as (pool, failures):
        with pytest.raises(ParserFailed) as failed:
            await run(pool, slow, b"x", "a test")
        assert failed.value.reason is Reason.STALLED
        with pytest.raises(ParserFailed):
            await asyncio.to_thread(run_at_once, pool, slow, b"x", "a test")
        assert failures == [("test", Reason.STALLED)] * 2


BAD_ENDS = {
    "killed": ("end", str(int(signal.SIGKILL)).encode(), Reason.DIED),
    "a segmentation fault": ("end", str(int(signal.SIGSEGV)).encode(), Reason.DIED),
    "recursion in C": ("recurse_in_c", b"", Reason.DIED),
    "an exit": ("exit_at_once", b"0", Reason.DIED),
    "an error": ("fail", b"", Reason.FAILED),
    "memory": ("eat_memory", b"1000", Reason.MEMORY),
    "an answer that is too long": ("write_garbage", HEAD.pack(MAX_ANSWER + 1), Reason.GARBAGE),
    "an answer that is none": ("write_garbage", HEAD.pack(3) + b"\xc1\xc1\xc1", Reason.GARBAGE),
    "more than an answer": ("write_garbage", frame(JobAnswer("done", b"")) + b"more", Reason.GARBAGE),
    "an odd status": ("write_garbage", HEAD.pack(6) + b"\x92\xa2no\xc4\x00", Reason.GARBAGE),
    "no bytes": ("what_is_not_there", b"", Reason.FAILED),
}


@pytest.mark.anyio
async def test_each_bad_end_is_one_failed_job_and_others_are_answered_meanwhile() -> None:
    with structlog.testing.capture_logs() as lines:
        async with opened(processes=2, memory_bytes=300_000_000) as (pool, failures):
            for name, payload, reason in BAD_ENDS.values():
                bad = asyncio.create_task(run(pool, job(name), payload, "bad"))
                assert await run(pool, job("echo"), b"good", "a test") == b"good"
                with pytest.raises(ParserFailed) as failed:
                    await bad
                assert failed.value.reason is reason, name
                assert await run(pool, job("echo"), b"again", "a test") == b"again"
            assert failures == [("test", reason) for _, _, reason in BAD_ENDS.values()]
            assert len(pool.process_ids()) <= 2
    assert [line["reason"] for line in lines if line["event"] == "parser_failed"] == [
        str(end[2]) for end in BAD_ENDS.values()
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["stall", "spin"])
async def test_one_that_takes_too_long_is_killed(tmp_path: Path, name: str) -> None:
    begun = tmp_path / "begun"
    begun.touch()
    async with opened(seconds=1.0) as (pool, _):
        with pytest.raises(ParserFailed) as failed:
            await run(pool, job(name), str(begun).encode(), "a test")
        assert failed.value.reason in (Reason.STALLED, Reason.DIED)  # the clock's end, or the processor's
        assert pool.process_ids() == ()


@pytest.mark.anyio
async def test_cancelling_a_job_kills_its_child_and_frees_its_place(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.touch()
    async with opened(processes=1) as (pool, failures):
        task = asyncio.create_task(run(pool, job("stall_for_ever"), str(begun).encode(), "a test"))
        await until(lambda: has_begun(begun))
        [pid] = pool.process_ids()
        waiting = asyncio.create_task(run(pool, job("echo"), b"x", "a test"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await waiting == b"x"
        await until(lambda: not is_running(pid))
        assert failures == [], "the caller left, nothing failed"


@pytest.mark.anyio
async def test_what_finds_too_many_waiting_is_refused(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.touch()
    async with opened(processes=1) as (pool, failures):
        holding = asyncio.create_task(run(pool, job("stall"), str(begun).encode(), "a test"))
        await until(lambda: has_begun(begun))
        waiting = [asyncio.create_task(run(pool, job("echo"), b"", "a test")) for _ in range(pool_module.WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(ParserFailed) as failed:
            await run(pool, job("echo"), b"", "one more")
        assert failed.value.reason is Reason.BUSY
        assert failures == [("test", Reason.BUSY)]
        waiting[3].cancel()
        holding.cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert results.count(b"") == pool_module.WAITING - 1


@pytest.mark.anyio
async def test_an_idle_child_is_ended_and_one_that_was_killed_is_replaced() -> None:
    async with opened(idle_seconds=0.01) as (pool, failures):
        assert await run(pool, job("echo"), b"x", "a test") == b"x"
        await until(lambda: pool.process_ids() == ())
    async with opened() as (pool, failures):
        await run(pool, job("echo"), b"x", "a test")
        [pid] = pool.process_ids()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pool.process_ids() == ())
        assert await run(pool, job("echo"), b"x", "a test") == b"x"
        assert failures == []


@pytest.mark.anyio
async def test_closing_ends_a_running_job_and_one_that_waits(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.touch()
    pool = ParserPool(ParserLimits(processes=1))
    running = asyncio.create_task(run(pool, job("stall"), str(begun).encode(), "a test"))
    await until(lambda: has_begun(begun))
    [pid] = pool.process_ids()
    waiting = asyncio.create_task(run(pool, job("echo"), b"", "a test"))
    await asyncio.sleep(0)
    await pool.close()
    for task in (running, waiting):
        with pytest.raises((ParserFailed, asyncio.CancelledError)):
            await task
    assert not is_running(pid)


def test_code_that_is_not_on_a_loop_gets_the_same() -> None:
    pool = ParserPool(ParserLimits(seconds=1.0))
    large = b"x" * 3_000_000
    assert run_at_once(pool, job("echo"), large, "a test") == large
    with pytest.raises(Refused):
        run_at_once(pool, job("refuse"), b"x", "a test")
    for name, payload, reasons in (
        ("exit_at_once", b"0", {Reason.DIED}),
        ("fail", b"", {Reason.FAILED}),
        ("spin", b"", {Reason.STALLED, Reason.DIED}),
    ):
        with pytest.raises(ParserFailed) as failed:
            run_at_once(pool, job(name), payload, "a test")
        assert failed.value.reason in reasons


PARENT = """
import asyncio, sys
from pathlib import Path
from callgate.parsers.landlock import landlock_abi
from callgate.parsers.pool import ParserLimits, ParserPool
from tests.parsers.test_pool import job, run

async def main():
    pool = ParserPool(ParserLimits(processes=2))
    await run(pool, job("echo", "idle"), b"", "a test")
    busy = asyncio.create_task(run(pool, job("stall_for_ever", "busy"), sys.argv[1].encode(), "a test"))
    while Path(sys.argv[1]).stat().st_mtime:
        await asyncio.sleep(0.01)
    print(*pool.process_ids(), flush=True)
    await busy

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.anyio
async def test_no_child_stays_when_its_parent_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    begun = tmp_path / "begun"
    begun.touch()
    with subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [sys.executable, "-c", PARENT, str(begun)], cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in (await asyncio.to_thread(parent.stdout.readline)).split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        parent.send_signal(number)
    await until(lambda: not any(map(is_running, pids)))


def test_a_question_that_is_none_ends_the_child() -> None:
    child = subprocess.run(
        pool_module._command(ParserLimits()), input=HEAD.pack(1) + b"\xc1", capture_output=True, check=False, env={}
    )
    assert child.stdout == b""
    assert child.returncode != 0


def test_frames_say_their_length() -> None:
    data = frame(JobQuestion("a:b", "", b"xyz"))
    (length,) = HEAD.unpack_from(data)
    assert len(data) == HEAD.size + length
