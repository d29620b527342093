"""A month of recorded runs, as a small company might have them, for pictures of the page."""

import json
import random
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import BrokenCall, Flaw, ReadyCall
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallStarted,
    ChatEnded,
    Ending,
    EndingKind,
    Responder,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.prices import Price
from callgate.conversation.usage import Usage
from callgate.recorder.ended_run import EndedRun
from callgate.recorder.hours import HourTotals, by_hour
from callgate.recorder.recording import RunRecording
from callgate.recorder.store import RunStore
from callgate.recorder.usage import KeyUsage, day_of
from callgate.recorder.usage_tables import HourUsage
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow

QUESTIONS: Final = (
    "How warm is it in Oslo tomorrow?",
    "Book the small room for 14:00",
    "What has become of order 1234567?",
    "Which of the open tickets has waited longest, and for whom?",
    "How much is 2 + 3?",
    "Send Bob the minutes of this morning",
)
KEYS: Final = {"web": 5, "support": 4, "alice": 2, "nightly": 1}
TOOLS: Final = {"get_weather": 0.15, "lookup_order": 0.04, "send_mail": 0.6, "search_tickets": 0.9, "add": 0.001}
"""How long each takes, in seconds."""


class Played(NamedTuple):
    """A model of the month."""

    name: str
    deployment: str
    price: Price | None
    breaks: float
    """How many of its calls are broken."""
    share: int


MODELS: Final = (
    Played("gpt", "openai/gpt-5", Price(1.25e-6, 1e-5), 0.02, 5),
    Played("claude", "anthropic/claude-sonnet-4-5", Price(3e-6, 1.5e-5), 0.01, 3),
    Played("local", "ollama/qwen3", None, 0.2, 2),
)


def fill_with_history(folder: Path, runs: int, days: float, seed: int = 5) -> None:
    """Write so many runs of the last days, more of them today than before."""
    chance = random.Random(seed)
    now = time.time()
    hours = HourTotals()
    of_days: dict[tuple[str, str, str], KeyUsage] = {}
    of_hours: dict[HourUsage, KeyUsage] = {}
    ended: list[EndedRun] = []
    for number in range(runs):
        began = now - days * 86_400 * chance.random() ** 1.6
        model = chance.choices(MODELS, [model.share for model in MODELS])[0]
        [key] = chance.choices(list(KEYS), list(KEYS.values()))
        row = RunRow(f"run_{number:024x}", began, model.name, f"req_{number}", "history:1", key=key, status=200)
        run = _ended(row, model, chance, hours)
        ended.append(run)
        is_unpriced = model.price is None and run.begun.tokens_in > 0
        used = KeyUsage(day_of(began), key, model.name, requests=1, calls=run.begun.calls, unpriced=int(is_unpriced))
        used.failed = int(run.begun.state == "failed")
        used.tokens_in = run.begun.tokens_in
        used.tokens_out = run.begun.tokens_out
        used.nano = int((run.begun.cost or 0) * 1e9)
        if not is_unpriced:
            used.priced_in = used.tokens_in
            used.priced_out = used.tokens_out
        of_days.setdefault(used.place(), KeyUsage(*used.place())).add(used)
        of_hours.setdefault((int(began // 3600), key, model.name), KeyUsage(*used.place())).add(used)
    store = RunStore(folder)
    store.add(ended)
    store.count(of_days.values(), of_hours, by_hour(hours.take()))
    store.close()


def _ended(row: RunRow, model: Played, chance: random.Random, hours: HourTotals) -> EndedRun:
    recording = RunRecording(row, RecordPolicy(content_bytes=65_536), str, lambda by: model.price)
    recording.keep_text("request", json.dumps({"messages": [{"role": "user", "content": chance.choice(QUESTIONS)}]}))
    by = Responder(model.name, model.deployment, "api.example.com")
    pace = chance.lognormvariate(0, 0.7)
    at = pace * 0.4
    is_failed = chance.random() < 0.03
    if is_failed:
        recording.note_earlier(0, 0, TurnStarted(0))
        recording.note_earlier(at, 0, Attempt(0, 1, by, at, status=503, reason="overloaded", detail="overloaded"))
    else:
        at = _talk(recording, model, by, pace, chance)
    run, notes = recording.encode()
    run.begun.seconds = at
    if is_failed:
        run.begun.state = "failed"
        run.begun.status = 502
        run.begun.error = "upstream_error"
    hours.add_runs([(run.begun, notes)])
    return run


def _talk(recording: RunRecording, model: Played, by: Responder, pace: float, chance: random.Random) -> float:
    """Record the turns of a run that ends in order; return how long it took."""
    [tool] = chance.choices(list(TOOLS), [4, 5, 1, 3, 2])
    turns = chance.choice((1, 2, 2, 2, 3))
    is_cut = chance.random() < 0.03
    at = 0.0
    for turn in range(turns):
        recording.note_earlier(at, 0, TurnStarted(turn))
        seconds = pace * (0.4 + chance.random())
        at += seconds
        call = ReadyCall(f"call_{turn}", tool, {}, "{}")
        is_last = turn == turns - 1
        is_broken = not is_last and chance.random() < model.breaks
        end = "length" if is_cut else "stop"
        fields: dict[str, Any] = {"lane": "direct", "by": by, "first_seconds": seconds * 0.3}
        usage = Usage({"prompt_tokens": chance.randrange(300, 1200), "completion_tokens": chance.randrange(20, 300)})
        flaw = chance.choices((Flaw.TRUNCATED, Flaw.SCHEMA_MISMATCH, Flaw.INVALID_JSON), (4, 3, 2))[0]
        account = TurnAccount(
            (end if is_last else "tool_calls",),
            (),
            () if is_last or is_broken else (call,),
            (),
            (BrokenCall(call.id, tool, flaw, "{"),) if is_broken else (),
            usage,
            seconds,
            counts=usage.counts(),
            **fields,
        )
        recording.note_earlier(at, 0, TurnEnded(turn, account))
        if account.run:
            recording.note_earlier(at, 0, CallStarted(turn, call, writes=False))
            seconds = TOOLS[tool] * chance.lognormvariate(0, 0.5)
            at += seconds
            recording.note_earlier(at, 0, CallEnded(turn, call, _outcome(tool, chance), seconds))
    recording.note_earlier(at, 0, ChatEnded(Ending(EndingKind.ANSWERED, "length" if is_cut else "stop"), None))
    return at


def _outcome(tool: str, chance: random.Random) -> Outcome:
    if tool == "send_mail" and chance.random() < 0.2:
        return Failed("Not run", FailureKind.REFUSED, "denied", "alice", "not on a Sunday")
    if chance.random() < 0.04:
        return Failed("no", chance.choice((FailureKind.RAISED, FailureKind.TIMEOUT)))
    return Returned("ok")
