"""A table of runs with all that may happen in one, and what was recorded of each by the file's format 4.

`recorded_format_4.sql` is a file of that format with all of them, and `recorded_cases.jsonl` what was read from it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from callgate.calls.outcome import Failed, FailureKind, ResultFacts, Returned
from callgate.calls.states import BrokenCall, Finding, Flaw, FlawDetail, ReadyCall, Wrapping
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    ChatFailed,
    ContextChanged,
    Ending,
    EndingKind,
    GuardrailJudged,
    ProviderHead,
    Responder,
    ToolAsListed,
    ToolsListed,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.prices import Price
from callgate.conversation.usage import MOST_TOKENS, Usage
from callgate.recorder.ended_run import EndedRun
from callgate.recorder.hours import HourTotals, Subject, by_hour
from callgate.recorder.recording import RunRecording
from callgate.recorder.routes.run_facts import facts_of
from callgate.recorder.run_filter import RunFilter
from callgate.recorder.store import RunStore
from callgate.recorder.usage_tables import DIMENSIONS, HourSpan, UsageTables
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow

HERE: Final = Path(__file__).parent
OLD_FILE: Final = HERE / "recorded_format_4.sql"
RECORDED: Final = HERE / "recorded_cases.jsonl"

NOON_HOUR: Final = 497_222
NOON: Final = NOON_HOUR * 3600.0
BY: Final = Responder("gpt", "openai/gpt-5", "api.example")
UNPRICED: Final = Responder("odd", "other/model", "")
NOTHING_KEPT: Final = RecordPolicy()
CONTENT: Final = RecordPolicy(content_bytes=4096)
PRIVATE: Final = RecordPolicy(content_bytes=4096, private_to="key:alice")
CALL: Final = ReadyCall("call_1", "clock", {"zone": "planted-secret"}, '{"zone": "planted-secret"}')
REPAIRED: Final = ReadyCall("call_2", "clock", {"n": 5}, '{"n": "5"}', (Finding.ID_REPAIRED,))
WRAPPED: Final = ReadyCall("call_3", "clock", {}, "{}", wrapping=Wrapping("bridge", "{}"))
LONG_NAME: Final = "a_name_" * 40
DETAIL: Final = FlawDetail("/to", "string", "planted-secret", "a note", "/properties/to")
EXPECTED: Final = FlawDetail("/to", "string", "integer", "", "")
BROKEN: Final = BrokenCall("call_4", "send", Flaw.TRUNCATED, '{"to": "bo', DETAIL)
BROKEN_OF_NO_RULE: Final = BrokenCall("call_5", LONG_NAME, Flaw.TRUNCATED, "{", EXPECTED)
NAMELESS: Final = BrokenCall("call_6", None, Flaw.TRUNCATED, "")
THEIRS: Final = ReadyCall("call_7", "theirs", {}, "{}")
HEAD: Final = ProviderHead("chatcmpl-1", "gpt-5-2026")
SMALL: Final = Usage({"prompt_tokens": 7, "completion_tokens": 3})
USUAL: Final = Usage(
    {
        "prompt_tokens": 70,
        "completion_tokens": 30,
        "total_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": None},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
)
ODD: Final = Usage(
    {
        "prompt_tokens": 7.0,
        "completion_tokens": MOST_TOKENS * 10,
        "a text": "planted-secret",
        "a list": [1],
        "yes": True,
        "none": None,
        "negative": -MOST_TOKENS * 10,
        "deep": {"one": {"two": 3}, "number": 4, "x" * 100: 5},
        "y" * 100: 0.5,
        **{f"count_{number}": number for number in range(40)},
    }
)


def account(reason: str = "stop", usage: Usage | None = SMALL, by: Responder = BY, **more: Any) -> TurnAccount:
    """A turn with the counts of its usage, as the conversation makes it."""
    counts = None
    if usage is not None:
        counts = usage.counts()
    lists: dict[str, Any] = {"findings": (), "run": (), "handed_back": (), "broken": (), "seconds": 0.25}
    return TurnAccount((reason,), usage=usage, by=by, counts=counts, **{**lists, **more})


def ended(kind: EndingKind = EndingKind.ANSWERED, note: str = "") -> ChatEnded:
    return ChatEnded(Ending(kind, "stop", note), None)


def attempt(number: int, **more: Any) -> Attempt:
    return Attempt(turn=0, number=number, by=BY, seconds=0.125, **more)


ANSWER: Final = (
    TurnStarted(0),
    TurnEnded(0, account(lane="direct", head=HEAD, first_seconds=0.125)),
    ended(),
)
TOOL_TURN: Final = (
    TurnStarted(0),
    TurnEnded(0, account("tool_calls", USUAL, run=(CALL,), lane="direct", head=HEAD, first_seconds=0.2)),
    CallStarted(0, CALL, writes=False),
    CallEnded(0, CALL, Returned("it is noon, planted-secret"), 0.125),
    TurnStarted(1),
    TurnEnded(1, account()),
    ended(),
)
CASES: Final[Mapping[str, tuple[RecordPolicy, Sequence[ChatEvent], Mapping[str, Any]]]] = {
    "nothing happened": (NOTHING_KEPT, (), {"state": "client_left"}),
    "an answer": (NOTHING_KEPT, ANSWER, {}),
    "a tool turn": (NOTHING_KEPT, TOOL_TURN, {}),
    "a tool turn with texts": (CONTENT, TOOL_TURN, {"stream": True}),
    "a tool turn with private texts": (PRIVATE, TOOL_TURN, {}),
    "all facts of a request": (
        NOTHING_KEPT,
        ANSWER,
        {
            "end_user": "0123",
            "choices": 2,
            "error": "an error",
            "status": 500,
            "trace_id": "ab",
            "parent_span": "cd",
            "replay_of": "run_0",
            "route": "responses",
            "stream": True,
        },
    ),
    "two choices": (NOTHING_KEPT, ANSWER[:2], {"choices": 2}),
    "a call without a model": (
        NOTHING_KEPT,
        (CallStarted(0, CALL), CallEnded(0, CALL, Returned("é" * 10, cut_bytes=7), 3.5), ended()),
        {"route": "tool"},
    ),
    "calls of all kinds": (
        NOTHING_KEPT,
        (
            TurnEnded(
                0,
                account(
                    "tool_calls",
                    findings=(Finding.ID_REPAIRED,),
                    run=(REPAIRED, WRAPPED),
                    handed_back=(THEIRS, NAMELESS),
                    broken=(BROKEN, BROKEN_OF_NO_RULE, NAMELESS),
                    postponed=(CALL, BROKEN),
                ),
            ),
            CallEnded(0, REPAIRED, Failed("no", FailureKind.RAISED), 0.5),
            CallEnded(0, WRAPPED, Failed("no", FailureKind.TIMEOUT, "denied", "bob", "planted-secret"), 0.5),
            CallEnded(0, WRAPPED, Failed("no", FailureKind.RAISED, "expired"), 0.0),
            CallEnded(-1, CALL, Returned("again"), 0.5),
            CallsHandedBack((THEIRS,)),
            ended(EndingKind.HANDED_BACK),
        ),
        {},
    ),
    "broken calls with texts": (CONTENT, (TurnEnded(0, account(broken=(BROKEN, BROKEN_OF_NO_RULE))), ended()), {}),
    "results with facts": (
        NOTHING_KEPT,
        (
            CallEnded(0, CALL, Returned("x", facts=ResultFacts(findings=("odd",), nano=5_000_000, cache="hit")), 0.5),
            CallEnded(0, CALL, Returned("x", facts=ResultFacts(selected_from=99), cut_bytes=3), 200.0),
            CallEnded(0, CALL, Returned("x", facts=ResultFacts()), 0.5),
            TurnEnded(0, account()),
            ended(),
        ),
        {},
    ),
    "progress": (
        NOTHING_KEPT,
        (
            CallProgress(0, CALL, "planted-secret", 0.5),
            CallProgress(0, CALL, "", waits_for="appr_1"),
            CallProgress(0, CALL, "", approved=True, decided_by="bob", reason="planted-secret"),
            CallProgress(0, CALL, "", asks="ask_1"),
            CallProgress(0, CALL, "accept", decided_by="bob", answer="planted-secret"),
            CallProgress(0, CALL, "", answer="for the user"),
        ),
        {"state": "failed"},
    ),
    "progress with texts": (
        CONTENT,
        (
            CallProgress(0, CALL, "planted-secret", 0.5),
            CallProgress(0, CALL, "accept", decided_by="bob", answer="planted-secret"),
            CallProgress(0, CALL, "", answer="for the user"),
        ),
        {"state": "client_left"},
    ),
    "attempts": (
        NOTHING_KEPT,
        (
            TurnStarted(0),
            attempt(1, status=500, reason="upstream_error", detail="planted-secret"),
            attempt(2, wait=0.5, anyway=True, instead_of="openai/gpt-4"),
            TurnEnded(0, account(attempts=3)),
            TurnStarted(1),
            Attempt(turn=1, number=2, by=UNPRICED, seconds=0.125, reason="timeout", detail=""),
            ChatFailed("upstream_error"),
        ),
        {"state": "failed"},
    ),
    "no usage, and of a model without a price": (
        NOTHING_KEPT,
        (
            TurnEnded(0, account(usage=None)),
            TurnEnded(1, account(by=UNPRICED)),
            TurnEnded(2, account(usage=USUAL)),
            ended(),
        ),
        {},
    ),
    "an odd usage": (NOTHING_KEPT, (TurnEnded(0, account(usage=ODD, reason_is_raw=False)), ended()), {}),
    "a usage without tokens": (NOTHING_KEPT, (TurnEnded(0, account(usage=Usage({}), by=UNPRICED)), ended()), {}),
    "a provider without a head's model": (NOTHING_KEPT, (TurnEnded(0, account(head=ProviderHead("id"))), ended()), {}),
    "guardrails, contexts and lists of tools": (
        NOTHING_KEPT,
        (
            GuardrailJudged(
                turn=0, hook="pii", point="request", verdict="masked", kinds=("mail",), reason="planted-secret"
            ),
            GuardrailJudged(turn=0, hook="pii", point="arguments", verdict="passed", tool="clock", call_id="call_1"),
            ContextChanged(0, "clear_results", 3, 4000),
            ContextChanged(1, "compaction", failure="timeout", is_cut=True),
            ToolsListed("far", (ToolAsListed("a", "", {}),)),
            ToolsListed("far", error="planted-secret"),
            ended(EndingKind.GAVE_UP, "failed_turns"),
        ),
        {"state": "failed"},
    ),
    "a turn that ended twice as long as its run": (NOTHING_KEPT, (TurnEnded(0, account(seconds=99.0)), ended()), {}),
}


def price(by: Responder) -> Price | None:
    return Price(1e-6, 2e-6, cached=5e-7) if by is BY else None


def mask(text: str) -> str:
    return text.replace("planted-secret", "***")


def recording_of(
    number: int, policy: RecordPolicy, events: Sequence[ChatEvent], facts: Mapping[str, Any]
) -> RunRecording:
    """Record a case as the recorder does."""
    row = RunRow(f"run_{number:024x}", NOON + number, "gpt", f"req_{number}", "host:1", key="alice", **facts)
    recording = RunRecording(row, policy, mask, price, began=100.0)
    for place, event in enumerate(events):
        recording.note_earlier(0.5 * place, place % facts.get("choices", 1), event)
    if policy.content_bytes is not None:
        recording.keep_text("request", '{"messages": [{"role": "user", "content": "planted-secret?"}]}')
    row.seconds = 0.75 + number
    row.status = facts.get("status", 200)
    return recording


def runs_of_cases(hours: HourTotals) -> list[EndedRun]:
    """Encode all cases, and add them to the totals."""
    runs: list[EndedRun] = []
    for number, (policy, events, facts) in enumerate(CASES.values()):
        run, notes = recording_of(number, policy, events, facts).encode()
        hours.add_runs([(run.begun, notes)])
        runs.append(run)
    return runs


def write_cases(store: RunStore) -> None:
    """Write all cases, and their totals."""
    hours = HourTotals()
    store.add(runs_of_cases(hours))
    store.count((), {}, by_hour(hours.take()))


def printed(store: RunStore) -> list[str]:
    """Return what is printed of all cases: each run, the list of them, and the totals of their hour, in lines of JSON."""
    lines: list[Any] = []
    for number, name in enumerate(CASES):
        run = store.get(f"run_{number:024x}")
        assert run is not None
        lines.append([name, facts_of(run.row), run.events, run.content])
    lines.append([facts_of(row) for row in store.page(RunFilter(), 100)])
    for subject in get_args(Subject):
        span = HourSpan(NOON_HOUR, NOON_HOUR + 2)
        totals = store.read_usage(partial(UsageTables.totals, span=span, by=DIMENSIONS, subjects=[subject]))
        lines += sorted(totals, key=repr)
    return [msgspec.json.encode(line).decode() for line in lines]
