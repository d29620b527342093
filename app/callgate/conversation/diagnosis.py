"""Builds the `x_callgate` object: what happened in a chat, turn by turn.

A listener. It keeps previews of the arguments of broken calls only, because those are shown nowhere else.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from callgate.calls.outcome import Failed
from callgate.calls.states import BrokenCall, Call, Finding, ReadyCall
from callgate.conversation.events import (
    BEFORE_ALL_TURNS,
    NOT_RUN_SHOWN,
    POSTPONED,
    AnswerPassed,
    Attempt,
    CallEnded,
    ChatEnded,
    ChatEvent,
    ContextChanged,
    GuardrailJudged,
    Responder,
    ToolsListed,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.prices import NANO, Price
from callgate.conversation.usage import NO_USAGE, Usage, UsageScope

PREVIEW_CHARS = 200
"""Characters of a preview; the arguments may be megabytes."""


class _Seldom(msgspec.Struct, eq=False):
    """What most chats have none of."""

    recovered: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    judged: list[dict[str, Any]] = []
    """What guardrails did, beside letting things pass."""
    verdicts: list[tuple[float, GuardrailJudged]] = []
    """The same, with the time of each."""
    outcomes: dict[tuple[int, str], dict[str, Any]] = {}
    servers: list[dict[str, Any]] = []
    found: set[str] = set()
    """The tools that searches gave."""


_NONE = _Seldom()
"""Of a chat that had nothing of it."""


class TurnReport(msgspec.Struct, omit_defaults=True, gc=False):
    """What a report says of a turn. As JSON it has no fields that say nothing; the first four always."""

    finish_reason: str | None
    findings: Sequence[Finding]
    calls: Sequence[Mapping[str, Any]]
    ms: float
    lane: str = ""
    summary: bool = False
    deployment: str = ""
    host: str = ""
    usage: Mapping[str, Any] | None = None
    cache: Mapping[str, int] | None = None
    cost: float | None = None
    finish_reasons: Sequence[str] = ()
    finish_reason_rewritten: bool = False
    asked_in_words: Mapping[str, Any] | None = None
    not_run: Sequence[Mapping[str, str]] = ()


class ReportedChat(msgspec.Struct, eq=False):
    """What is known of a chat before it begins, and what may be reported of it."""

    run_id: str
    warnings: Sequence[str] = ()
    sees: Callable[[], bool] = lambda: False
    """Whether the client may see runs; called when the report is made."""
    price: Callable[[Responder], Price | None] = lambda by: None
    """Returns the price of a deployment, if it is known."""
    usage_scope: UsageScope = "sum"
    """Which token counts the answer reports."""
    is_usage_only: bool = False
    """The report has only the usage."""
    search: Mapping[str, int] | None = None
    """Where tools are searched for: how many the model is offered, and how many it is shown."""


class Diagnosis(Listener, ReportedChat, eq=False, kw_only=True):
    """Collects the events of a chat, and reports at any time what is known of it."""

    _clock: Callable[[], float] = time.monotonic
    _began: float = msgspec.field(default_factory=time.monotonic)
    _sees: bool = False
    _events: list[TurnEnded | ChatEnded] = []
    _passed: AnswerPassed | None = None
    """Instead of them, where its answer was passed on."""
    failed_attempts: list[tuple[float, Attempt]] = []
    """With the time when each ended. Empty where the first deployment answered at once."""
    _seldom: _Seldom | None = None

    handlers: ClassVar[Handlers] = {}

    def warn(self, warning: str) -> None:
        self.warnings = (*self.warnings, warning)

    def another(self) -> "Diagnosis":
        """Return the diagnosis of one more chat for the same request."""
        return replace(self, _events=[], _passed=None, failed_attempts=[], _seldom=None)

    def _rare(self) -> _Seldom:
        if self._seldom is None:
            self._seldom = _Seldom()
        return self._seldom

    @handles(handlers, TurnEnded, ChatEnded)
    def keep(self, event: TurnEnded | ChatEnded) -> None:
        self._events.append(event)

    @handles(handlers, AnswerPassed)
    def keep_passed(self, event: AnswerPassed) -> None:
        self._passed = event

    def _ends(self) -> Sequence[TurnEnded | ChatEnded]:
        if self._passed is None:
            return self._events
        return (self._passed.turn_ended(), self._passed.chat_ended())

    @property
    def began(self) -> float:
        """The monotonic time at which the chat began."""
        return self._began

    def happened(self) -> list[tuple[float, ChatEvent]]:
        """Return the events of the first turn, with seconds since the chat began, for a recording that starts late."""
        verdicts = (self._seldom or _NONE).verdicts
        ends = self._ends()
        if not (self.failed_attempts or ends or verdicts):
            return []
        now = self._clock() - self._began
        ended = ((now, event) for event in ends)
        if not (self.failed_attempts or ends):
            return [*verdicts]  # no turn began
        return [(0.0, TurnStarted(0)), *verdicts, *self.failed_attempts, *ended]

    @handles(handlers, Attempt)
    def _attempt(self, event: Attempt) -> None:
        self.failed_attempts.append((self._clock() - self._began, event))

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        came = event.outcome
        outcome: dict[str, Any] = {"outcome": "returned", "ms": _milliseconds(event.seconds)}
        if type(came) is Failed:
            outcome["outcome"] = str(came.kind)
        else:
            if came.cut_bytes:
                outcome["cut_bytes"] = came.cut_bytes
            if came.facts is not None:
                self._rare().found.update(came.facts.found_tools)
                outcome |= came.facts.shown()
        if event.turn == BEFORE_ALL_TURNS:
            self._rare().recovered.append({"id": event.call.id, "name": event.call.name, **outcome})
        else:
            self._rare().outcomes[event.turn, event.call.id] = outcome

    @handles(handlers, ContextChanged)
    def _context_changed(self, event: ContextChanged) -> None:
        shown: dict[str, Any] = {"turn": event.turn, "kind": event.kind}
        if event.failure:
            shown["failure"] = event.failure
        else:
            shown |= {"count": event.count, "tokens": event.tokens}
        if event.is_cut:
            shown["cut"] = True
        self._rare().changes.append(shown)

    @handles(handlers, GuardrailJudged)
    def _guardrail_judged(self, event: GuardrailJudged) -> None:
        if event.verdict == "passed":
            return
        self._rare().verdicts.append((self._clock() - self._began, event))
        shown: dict[str, Any] = {"turn": event.turn, "hook": event.hook, "point": event.point, "verdict": event.verdict}
        if event.tool:
            shown["tool"] = event.tool
        if event.kinds:
            shown["kinds"] = list(event.kinds)
        judged = self._rare().judged
        if shown not in judged:
            judged.append(shown)

    @handles(handlers, ToolsListed)
    def _tools_listed(self, event: ToolsListed) -> None:
        self._rare().servers.append(
            {"server": event.server, **({"error": event.error} if event.error else {"tools": len(event.tools)})}
        )

    def has_ended(self) -> bool:
        """Return whether its chat has ended."""
        return self._passed is not None or (bool(self._events) and type(self._events[-1]) is ChatEnded)

    def total_usage(self) -> Usage | None:
        """Return the sum of the usage of all turns, once the chat has ended."""
        if self._passed is not None:
            return self._passed.usage
        if self._events and type(last := self._events[-1]) is ChatEnded:
            return last.usage
        return None

    def usage_facts(self, usage: Usage | None) -> dict[str, Any]:
        """Return the part of a report that says what the answer's usage is, and has the sum."""
        return {"given": self.usage_scope, "sum": (usage or NO_USAGE).whole()}

    def report(self) -> dict[str, Any]:
        if self.is_usage_only:
            return {"usage": self.usage_facts(self.total_usage())}
        self._sees = self.sees()
        turns: list[TurnReport] = []
        report: dict[str, Any] = {"run": self.run_id, "turns": turns}
        if self.warnings:
            report["warnings"] = list(self.warnings)
        for event in self._ends():
            if type(event) is TurnEnded:
                turns.append(self._turn(event.turn, event.answer))
                continue
            report["ending"] = str(event.ending.kind)
            if event.ending.note:
                report["note"] = event.ending.note
            report["usage"] = self.usage_facts(event.usage)
        seldom = self._seldom or _NONE
        if self.search is not None:
            report["tool_search"] = {**self.search, "found": len(seldom.found), "bridged": self._bridged()}
        report["ms"] = _milliseconds(self._clock() - self._began)
        if seldom.changes:
            report["context"] = seldom.changes
        if seldom.judged:
            report["guardrails"] = seldom.judged
        if seldom.servers:
            report["servers"] = seldom.servers
        if seldom.recovered:
            report["recovered"] = seldom.recovered
        if self.failed_attempts:
            report["attempts"] = [self._shown(attempt) for _, attempt in self.failed_attempts]
        return report

    def _bridged(self) -> int:
        """Count the calls that were made through the bridge, whole or not."""
        answers = [event.answer for event in self._ends() if isinstance(event, TurnEnded)]
        return sum(
            call.wrapping is not None for answer in answers for call in (*answer.run, *answer.broken, *answer.postponed)
        )

    def _turn(self, index: int, answer: TurnAccount) -> TurnReport:
        usage = None
        cache = None
        cost = None
        if answer.usage is not None:
            usage = answer.usage.report
            if (counts := answer.counts) is not None:
                if counts.cached or counts.cache_written:
                    cache = {"read": counts.cached, "written": counts.cache_written}
                if (price := self.price(answer.by)) is not None:
                    cost = price.of(counts) / NANO
        turn = TurnReport(
            answer.reasons[-1] if answer.reasons else None,
            answer.findings,
            self._calls(index, answer),
            _milliseconds(answer.seconds),
            answer.lane,
            answer.is_summary,
            answer.by.deployment,
            answer.by.host if self._sees else "",
            usage,
            cache,
            cost,
        )
        if len(answer.reasons) > 1:
            turn.finish_reasons = answer.reasons
        if not answer.reason_is_raw:
            turn.finish_reason_rewritten = True
        if answer.prompted is not None:
            turn.asked_in_words = {"format": answer.prompted.format, "extra_tokens": answer.prompted.extra_tokens}
        if answer.not_run:
            turn.not_run = [{"name": call.name, "reason": call.reason} for call in answer.not_run[:NOT_RUN_SHOWN]]
        return turn

    def _calls(self, index: int, answer: TurnAccount) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        if not (answer.run or answer.handed_back or answer.broken):
            return rows
        owners = {call.id: "house" for call in answer.run}
        for call in answer.handed_back:
            owners[call.id] = "client"
        postponed: Collection[str] = ()
        if answer.postponed:
            postponed = {call.id for call in answer.postponed}
        outcomes = (self._seldom or _NONE).outcomes
        for call in answer.calls or (*answer.run, *answer.handed_back, *answer.broken, *answer.postponed):
            row = self._call(call, owners.get(call.id))
            if (outcome := outcomes.get((index, call.id))) is not None:
                row |= outcome
            elif call.id in postponed:
                row |= {"outcome": "not_run", "reason": POSTPONED}
            rows.append(row)
        return rows

    def _call(self, call: Call, owner: str | None) -> dict[str, Any]:
        row: dict[str, Any] = {"id": call.id, "name": call.name}
        if type(call) is BrokenCall:
            row |= {"verdict": "broken", "flaw": str(call.flaw), "arguments": call.text[:PREVIEW_CHARS]}
        else:
            row["verdict"] = "ready"
            if self._sees:
                row["arguments"] = call.text[:PREVIEW_CHARS]
        if owner:
            row["owner"] = owner
        if call.wrapping is not None:
            row["bridged"] = True
        if isinstance(call, ReadyCall) and call.findings:
            row["repairs"] = [str(finding) for finding in call.findings]
        return row

    def _shown(self, attempt: Attempt) -> dict[str, Any]:
        shown = {"turn": attempt.turn, "attempt": attempt.number, **self._who(attempt.by)}
        shown |= {"status": attempt.status, "ms": _milliseconds(attempt.seconds)}
        if attempt.wait:
            shown["waited_ms"] = _milliseconds(attempt.wait)
        if attempt.reason:
            shown["reason"] = attempt.reason
        if attempt.instead_of:
            shown["instead_of"] = attempt.instead_of
        return shown

    def _who(self, by: Responder) -> dict[str, Any]:
        who = {"deployment": by.deployment} if by.deployment else {}
        if self._sees and by.host:
            who["host"] = by.host
        return who


def _milliseconds(seconds: float) -> float:
    return int(seconds * 10_000 + 0.5) / 10  # `round` costs five times as much
