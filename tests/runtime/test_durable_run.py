"""A run is cut at every write it makes, before the write and after it, and carried on: nothing runs twice, and it ends alike."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.calls.outcome import Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest
from callgate.ledger.database import Database
from callgate.ledger.entry import NoLedger
from callgate.ledger.journal import LedgerJournal
from callgate.ledger.runs import RunLedger, StoredRun
from callgate.ledger.shared import SharedLedger, open_ledger
from callgate.runtime.durable_run import DurableRun
from callgate.tools.executor import Policy, RunContext, Safety, Tool
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox
from tests.fakes import Listener, ScriptedModel, calls, counter, says

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


class Counting:
    """Puts down what it ran."""

    def __init__(self, ran: list[int]) -> None:
        self._ran = ran

    async def execute(self, call: ReadyCall, context: RunContext) -> Outcome:
        self._ran.append(call.arguments["n"])
        await asyncio.sleep(0)
        return Returned(f"ran {call.arguments['n']}")


async def play(run: DurableRun, ran: list[int]) -> tuple[str, list[Any]]:
    """What it says in the end, and the results that the model was given."""
    registry = Registry()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for name, safety in (("pay", Safety.WRITE), ("look", Safety.READ_ONLY)):
        registry.add(Tool(name, "", schema, Counting(ran), policy=Policy(safety=safety)))
    choice = run.choice(0)
    journal = LedgerJournal(choice.ledger, run_id=run.id, key_name="alice")
    box = RequestToolbox(registry.tools(), run_id=run.id, limits=registry.limits, journal=journal)
    scripted = ScriptedModel(*TURNS[len(choice.kept) :])
    model, toolbox = choice.chat(scripted, box)
    heard = Listener()
    asked = ModelRequest(({"role": "user", "content": "go"},))
    await converse(asked, model, toolbox, heard, new_id=counter("made"))
    last = scripted.asked[-1].ask
    assert isinstance(last, ModelRequest)
    results = [
        message["content"] for message in last.messages if isinstance(message, dict) and message["role"] == "tool"
    ]
    return heard.text, results


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SharedLedger]:
    opened = await open_ledger(folder=tmp_path, dead_after=5.0, on_lost=lambda _: None)
    yield opened
    await opened.close()


async def begun(database: Database) -> StoredRun:
    return await RunLedger(database, "gone", 5.0).begin(
        "run_1",
        caller="key alice",
        key_digest="k",
        request_digest=b"d",
        face="ChatFace",
        request=b"",
        background=False,
    )


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_wherever_it_is_cut_it_is_carried_on_to_the_same_end(ledger: SharedLedger, done: bool) -> None:
    heirs = RunLedger(ledger.database, ledger.calls.process, 5.0)
    cuts = 0
    while True:
        cuts += 1
        for table in ("runs", "calls", "journal"):
            await ledger.database.fetch(f"DELETE FROM {table}")
        ran: list[int] = []
        dying = CutDatabase(ledger.database, cuts, done=done)
        first = DurableRun(RunLedger(dying, "gone", 5.0), NoLedger(), await begun(ledger.database))
        try:
            said, results = await play(first, ran)
        except* Cut:
            [stored] = await heirs.take_over()
            said, results = await play(await DurableRun.taken_over(heirs, NoLedger(), stored), ran)
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
