"""What others wrote into the ledger or into Redis instead of a run is one refused answer, and the next request is served."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from callgate.application import create_app
from callgate.calls.outcome import Failed, FailureKind, encode_outcome
from callgate.conversation.errors import ChatError
from callgate.runs.durable_run import UNKNOWN, DurableRun
from callgate.runs.durable_runs import DurableRuns, RunAnswer, answer_of, request_of
from callgate.runs.followed_run import FollowedRun
from callgate.runs.publisher import PIECE, AnswerPiece
from callgate.state.entry import CallState, NoLedger
from callgate.state.local.memory_runs import MemoryRunLedger
from callgate.state.runs import StoredCall, StoredRun
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import raw_post
from tests.scripted_upstream import Reply, Upstream

pytestmark = pytest.mark.anyio

_encode = msgspec.msgpack.encode
MANY = [(b"name", b"value")] * 100_000
ROGUE = {
    "no msgpack": b"\xc1",
    "of another type": _encode([]),
    "too deep": b"\x81\xa1x" + b"\x91" * 100_000,
    "too many values": _encode({"x": [0] * 300_000}),
    "no text": b"\x81\xa6status\xa2\xff\xfe",
    "too many headers": _encode(RunAnswer(200, MANY, b"")),
}


def row(**fields: Any) -> StoredRun:
    facts: dict[str, Any] = {
        "id": "run_1",
        "caller": "",
        "request_digest": b"",
        "face": "chat",
        "request": b"",
        "state": "done",
        "background": False,
        "owner": None,
        "epoch": 1,
        "cancel": False,
        "created_at": 0.0,
        "answer": None,
    }
    return StoredRun(**{**facts, **fields})


@pytest.mark.parametrize("rogue", ROGUE.values(), ids=ROGUE)
def test_an_answer_or_a_request_that_cannot_be_read_is_an_error_that_says_so(rogue: bytes) -> None:
    for read_row in (lambda: answer_of(row(answer=rogue)), lambda: request_of(row(request=rogue))):
        with capture_logs() as logs, pytest.raises(ChatError) as refused:
            read_row()
        assert (refused.value.status, refused.value.code) == (500, "run_unreadable")
        assert [line["event"] for line in logs] == ["run_unreadable"]


@pytest.mark.parametrize("rogue", ROGUE.values(), ids=ROGUE)
def test_an_outcome_that_cannot_be_read_is_unknown_and_its_call_is_not_run_again(rogue: bytes) -> None:
    known = {"key": StoredCall(CallState.DONE, True, rogue), "other": StoredCall(CallState.DONE, True, GOOD)}
    run = DurableRun(MemoryRunLedger(10, 10_000), NoLedger(), row(), {}, known, on_lost=lambda _: None)
    assert run.known_outcome("key") == Failed(UNKNOWN, FailureKind.UNKNOWN)
    assert run.known_outcome("other") == Failed("no", FailureKind.RAISED)


async def test_a_turn_that_cannot_be_read_ends_its_run_with_an_error_that_says_so() -> None:
    run = DurableRun(MemoryRunLedger(10, 10_000), NoLedger(), row(), {(0, 0): b"nothing"}, on_lost=lambda _: None)
    with capture_logs() as logs, pytest.raises(ChatError) as refused:
        await run.choice(0)
    assert (refused.value.status, refused.value.code) == (500, "run_unreadable")
    assert [line["event"] for line in logs] == ["run_unreadable"]
    assert (await run.choice(1)).turns == []


GOOD = encode_outcome(Failed("no"))


class RogueStreams:
    """Two pieces of an answer, one that cannot be read, and one more."""

    def __init__(self, rogue: bytes) -> None:
        self._rogue = rogue
        self.reads = 0

    async def read(self, id: str, epoch: int, after: str, wait: float) -> tuple[str, list[bytes]]:
        self.reads += 1
        return "4", [
            _encode(AnswerPiece(b"one")),
            _encode(AnswerPiece(b"two")),
            self._rogue,
            _encode(AnswerPiece(b"4")),
        ]


@pytest.mark.parametrize("rogue", [*ROGUE.values(), bytes(PIECE.bytes + 1)], ids=[*ROGUE, "too long"])
async def test_of_a_stream_with_a_piece_that_cannot_be_read_nothing_more_is_taken(rogue: bytes) -> None:
    streams = RogueStreams(rogue)
    manager: Any = type("Manager", (), {"run_streams": streams})()
    runs = DurableRuns(manager, MemoryRunLedger(10, 10_000))
    run = FollowedRun(b"digest", outlives_server=True)
    run.is_abandoned.set()
    last, pieces = await runs._next_pieces(row(), run, "0")
    assert (last, [piece.body for piece in pieces]) == (None, [b"one", b"two"])
    assert await runs._next_pieces(row(), run, last) == (None, [])
    assert streams.reads == 1


async def test_a_row_that_somebody_else_wrote_is_refused_and_the_server_goes_on(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("m", [Reply(text="hello")] * 3)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    key = {"idempotency-key": "order-7"}
    async with (
        serve(create_app(make_config(upstream.url, data_dir=str(tmp_path)))) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        first = await raw_post(url, body, headers=key)
        assert first.status == 200
        run = first.headers["x-callgate-run"]
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)) as database:
            overwrite = "UPDATE runs SET answer = ? WHERE answer IS NOT NULL"
            async with asyncio.timeout(30):
                while not database.execute(overwrite, (b"\xc1",)).rowcount:  # noqa: ASYNC110 - another connection writes it
                    await asyncio.sleep(0)  # until it is kept
            for rogue in ROGUE.values():
                database.execute(overwrite, (rogue,))
                refused = await client.get(f"/v1/chat/completions/{run}")
                assert (refused.status_code, refused.json()["error"]["code"]) == (500, "run_unreadable")
                again = await raw_post(url, body, headers=key)
                assert again.status == 500
            assert (await raw_post(url, body)).status == 200
            assert (await raw_post(url, body, headers={"idempotency-key": "order-8"})).status == 200
