"""A run is cut at every write it makes, before the write and after it, and carried on: nothing runs twice, and it ends alike."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned, encode_outcome
from callgate.calls.states import ReadyCall
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest, begin_at_once
from callgate.runs.durable_run import UNKNOWN, DurableRun
from callgate.state.database import Database, DatabaseAway
from callgate.state.entry import CallState, LedgerEntry, NoLedger, NotRecorded
from callgate.state.journal import LedgerJournal
from callgate.state.ledger import SharedLedger, open_ledger
from callgate.state.runs import DatabaseRunLedger, NewRun, StoredCall, StoredRun
from callgate.tools.executor import CallContext, Policy, Safety, Tool
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.fakes import Listener, ScriptedModel, calls, counter, says, silent
from tests.harness.needs import needs

pytestmark = pytest.mark.anyio

TURNS = [
    calls(("pay", {"n": 1}), ("pay", {"n": 2}), ("look", {"n": 3})),
    calls(("pay", {"n": 4}), ("pay", '{"n": ')),
    says("done"),
]


class Cut(BaseException):
    """The process ends here."""


class CutDatabase:
    """Ends the process at its k-th statement, before it is done or after."""

    def __init__(self, database: Database, at: int, *, done: bool) -> None:
        self._database, self._left, self._done = database, at, done
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True

    async def fetch(self, statement: str, *values: Any) -> Any:
        if self.is_cut:
            raise Cut
        self._left -= 1
        if self._left:
            return await self._database.fetch(statement, *values)
        self.is_cut = True
        if self._done:
            await self._database.fetch(statement, *values)
        raise Cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class AwayOnce:
    """Does not answer its k-th statement, which was done or was not."""

    def __init__(self, database: Database, at: int, *, done: bool) -> None:
        self._database, self._left, self._done = database, at, done
        self.was_away = False

    async def fetch(self, statement: str, *values: Any) -> Any:
        self._left -= 1
        if self._left:
            return await self._database.fetch(statement, *values)
        self.was_away = True
        if self._done:
            await self._database.fetch(statement, *values)
        raise DatabaseAway("it was restarted")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class Counting:
    """Puts down what it ran."""

    def __init__(self, ran: list[int], on_look: Callable[[], None]) -> None:
        self._ran, self._on_look = ran, on_look

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        self._ran.append(call.arguments["n"])
        if call.name == "look":
            self._on_look()
        await asyncio.sleep(0)
        return Returned(f"ran {call.arguments['n']}")


async def play(
    run: DurableRun,
    ran: list[int],
    on_look: Callable[[], None] = lambda: None,
    tools: Collection[str] = ("pay", "look"),
) -> tuple[str, list[Any]]:
    """What it says in the end, and the results that the model was given."""
    registry = Registry()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for name, safety in (("pay", Safety.WRITE), ("look", Safety.READ_ONLY)):
        if name in tools:
            registry.add(Tool(name, "", schema, Counting(ran, on_look), policy=Policy(safety=safety)))
    choice = await run.choice(0)
    journal = LedgerJournal(choice.calls, run_id=run.id, key_name="alice")
    box = RequestToolbox(server_tools=ToolSet(registry.tools()), run_id=run.id, limits=registry.limits, journal=journal)
    scripted = ScriptedModel(*TURNS[len(choice.turns) :])
    model, toolbox = choice.chat(scripted, box)
    listener = Listener()
    asked = ModelRequest(({"role": "user", "content": "go"},))
    await converse(asked, model, toolbox, listener, new_id=counter("made"))
    last = scripted.asked[-1].ask
    assert isinstance(last, ModelRequest)
    results = [
        message["content"] for message in last.messages if isinstance(message, dict) and message["role"] == "tool"
    ]
    return listener.text, results


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs("postgres", "module:asyncpg"))])
async def ledger(request: Any, tmp_path: Path, schema: str) -> AsyncIterator[SharedLedger]:
    where: dict[str, Any] = {"folder": tmp_path}
    if request.param == "postgres":
        from callgate.state.cluster.postgres import migrate

        where = {"url": request.getfixturevalue("postgres").url, "schema": schema}
        await migrate(*where.values())
    opened = await open_ledger(**where, dead_after=5.0, on_lost=lambda _: None)
    yield opened
    await opened.close()


async def begun(database: Database) -> StoredRun:
    return await DatabaseRunLedger(database, "gone").begin(
        NewRun(
            id="run_1",
            caller="key alice",
            key_digest="k",
            request_digest=b"d",
            face="ChatFace",
            request=b"",
            background=False,
        )
    )


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_wherever_it_is_cut_it_is_resumed_to_the_same_end(ledger: SharedLedger, done: bool) -> None:
    heirs = DatabaseRunLedger(ledger.database, ledger.calls.process)
    cuts = 0
    while True:
        cuts += 1
        for table in ("runs", "calls", "run_turns"):
            await ledger.database.fetch(f"DELETE FROM {table}")
        ran: list[int] = []
        left: list[str] = []
        dying = CutDatabase(ledger.database, cuts, done=done)
        first = DurableRun(
            DatabaseRunLedger(dying, "gone"), NoLedger(), await begun(ledger.database), on_lost=left.append
        )
        try:
            said, results = await asyncio.create_task(play(first, ran))  # whoever is cut off has been cancelled
        except* Cut:
            [stored] = await heirs.take_over(5.0)
            said, results = await play(await DurableRun.taken_over(heirs, NoLedger(), stored, on_lost=left.append), ran)
        assert said == "done"
        paid = [n for n in ran if n != 3]
        assert len(paid) == len(set(paid)), (cuts, ran)
        assert len(results) == 5, "every call has one answer"
        unknown = sum("may or may not have happened" in each for each in results)
        assert {n for n in (1, 2, 4) if f"ran {n}" in results} <= set(ran)
        assert unknown <= 2, "only what was under way"
        assert "ran 3" in results, "what only reads is run again"
        states: dict[str, str] = dict(await ledger.database.fetch("SELECT id, state FROM calls"))
        assert set(states.values()) <= {"done", "unknown"}
        assert list(states.values()).count("unknown") == unknown
        if not dying.is_cut:
            break
    assert cuts > 10


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_whenever_the_ledger_is_away_the_model_is_sent_what_the_ledger_has(
    ledger: SharedLedger, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.runs.durable_run.AGAIN_SECONDS", 0.0)
    at, was_away = 0, True
    while was_away:
        at += 1
        for table in ("runs", "calls", "run_turns"):
            await ledger.database.fetch(f"DELETE FROM {table}")
        ran: list[int] = []
        database = AwayOnce(ledger.database, at, done=done)
        stored = await begun(ledger.database)
        said, results = await play(
            DurableRun(DatabaseRunLedger(database, "gone"), NoLedger(), stored, on_lost=print), ran
        )
        was_away = database.was_away
        assert said == "done"
        assert sorted(ran) == sorted(set(ran))
        rows = await ledger.database.fetch("SELECT state, outcome IS NULL FROM calls WHERE tool = 'pay'")
        refused = sum("cannot write down" in each for each in results)
        assert len([n for n in ran if n != 3]) + refused == 3
        assert sorted(rows) == sorted([("done", False)] * (3 - refused) + [("failed", False)] * refused), at
    assert at > 10


async def test_a_call_that_a_worker_may_have_is_not_reported_as_not_run(ledger: SharedLedger) -> None:
    """Whoever takes a run over claims the call again, to wait for it."""
    database = AwayOnce(ledger.database, 1, done=False)
    stored = await begun(ledger.database)
    call = LedgerEntry("run_1", 0, "call_1", "pay", "00", "alice", writes=True, started_at=0.0, id="run_1/0/0/0")
    known = {call.id: StoredCall(CallState.STARTED, writes=True, outcome=None)}
    run = DurableRun(DatabaseRunLedger(database, "gone"), NoLedger(), stored, known_calls=known, on_lost=print)
    await run.claim(call)
    assert database.was_away
    database = AwayOnce(ledger.database, 1, done=False)
    with pytest.raises(NotRecorded):
        await DurableRun(DatabaseRunLedger(database, "gone"), NoLedger(), stored, on_lost=print).claim(call)


async def test_a_call_that_only_reads_is_not_what_ends_one_process_after_the_other(ledger: SharedLedger) -> None:
    heirs = DatabaseRunLedger(ledger.database, ledger.calls.process)
    await begun(ledger.database)
    died = 0
    while True:
        await ledger.database.fetch("UPDATE runs SET owner = 'gone'")
        [stored] = await heirs.take_over(5.0)
        ran: list[int] = []
        dying = CutDatabase(ledger.database, 0, done=False)
        run = await DurableRun.taken_over(DatabaseRunLedger(dying, heirs.process), NoLedger(), stored, on_lost=print)
        try:
            _, results = await asyncio.create_task(play(run, ran, dying.cut))
            break
        except* Cut:
            died += 1
    assert 2 < died < 6
    assert "may or may not have happened" in results[2]


async def test_with_another_config_calls_that_began_stay_begun_and_others_do_not_begin_later(
    ledger: SharedLedger,
) -> None:
    heirs = DatabaseRunLedger(ledger.database, ledger.calls.process)
    run = DurableRun(
        DatabaseRunLedger(ledger.database, "gone"), NoLedger(), await begun(ledger.database), on_lost=print
    )
    ran: list[int] = []
    await play(run, ran, tools=["look"])
    assert ran == [3]
    await ledger.database.fetch("UPDATE calls SET outcome = NULL, state = 'started', ended_at = NULL, writes = 1")
    [stored] = await heirs.take_over(5.0)
    taken = await DurableRun.taken_over(heirs, NoLedger(), stored, on_lost=print)
    said, results = await play(taken, ran, tools=["pay"])
    assert [each[:8] for each in results] == ["Not run:", "Not run:", "The serv", "ran 4", '{"error"']
    assert (said, ran) == ("done", [3, 4]), "after the last turn that is kept it goes on with what there is now"


async def test_of_a_run_that_has_ended_its_answer_is_kept_and_its_request_is_not(ledger: SharedLedger) -> None:
    runs = DatabaseRunLedger(ledger.database, "gone")
    stored = await runs.begin(
        NewRun(
            id="run_1",
            caller="key alice",
            key_digest="k",
            request_digest=b"d",
            face="ChatFace",
            request=b"x" * 1000,
            background=False,
        )
    )
    await runs.finish(stored, "done", b"answer")
    await runs.finish(stored, "done", b"answer")  # whose answer was lost
    found = await runs.find("run_1")
    assert found is not None
    assert (found.state, found.answer, found.request_digest, found.request) == ("done", b"answer", b"d", b"")


class EndedFirst:
    """Ends the call in the ledger just before it is claimed, as the sweep did that meets a takeover."""

    def __init__(self, database: Database, state: str, outcome: bytes | None) -> None:
        self._database, self._end = database, (state, outcome)

    async def fetch(self, statement: str, *values: Any) -> Any:
        if "INSERT INTO calls" in statement:
            await self._database.fetch("UPDATE calls SET state = ?1, outcome = ?2 RETURNING id", *self._end)
        return await self._database.fetch(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.mark.parametrize(
    ("state", "kept", "told"),
    [
        ("done", Returned("paid"), Returned("paid")),
        ("failed", Failed("no money"), Failed("no money")),
        ("unknown", None, Failed(UNKNOWN, FailureKind.UNKNOWN)),
        ("done", None, Failed(UNKNOWN, FailureKind.UNKNOWN)),
        ("started", None, Failed(UNKNOWN, FailureKind.UNKNOWN)),
    ],
)
async def test_of_a_call_that_has_begun_the_model_is_sent_what_the_ledger_says(
    ledger: SharedLedger, state: str, kept: Outcome | None, told: Outcome
) -> None:
    entry = LedgerEntry("run_1", 0, "call_1", "pay", "00", "alice", writes=True, started_at=0.0, id="run_1/0/0/0")
    assert await DatabaseRunLedger(ledger.database, "gone").claim(await begun(ledger.database), entry) is None
    outcome = None if kept is None else encode_outcome(kept)
    heirs = DatabaseRunLedger(EndedFirst(ledger.database, state, outcome), ledger.calls.process)
    [stored] = await heirs.take_over(5.0)
    ran: list[int] = []
    run = DurableRun(heirs, NoLedger(), stored, known_calls=await heirs.calls(stored.id), on_lost=print)
    registry = Registry()
    registry.add(Tool("pay", "", {"type": "object"}, Counting(ran, lambda: None), policy=Policy(safety=Safety.WRITE)))
    choice = await run.choice(0)
    box = RequestToolbox(
        server_tools=ToolSet(registry.tools()), run_id=run.id, journal=LedgerJournal(choice.calls, run.id, "alice")
    )
    _, toolbox = choice.chat(ScriptedModel(), box)
    call = ReadyCall("call_1", "pay", {"n": 1}, "{}")
    toolbox.plan([call])
    assert await toolbox.run(call, silent, begin_at_once) == told
    assert ran == []
    assert await ledger.database.fetch("SELECT state, outcome FROM calls") == [(state, outcome)]
