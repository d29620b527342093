"""Listeners of a chat that write its events to the log and the metrics, one pair for each chat."""

import logging
from collections.abc import Callable, Container, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final

import msgspec

from callgate.calls.outcome import Failed, Outcome, ResultFacts, Returned
from callgate.calls.states import Finding, ReadyCall
from callgate.conversation.events import (
    CANCELLED,
    NO_RESPONDER,
    NOT_RUN_SHOWN,
    AnswerPassed,
    Attempt,
    CallEnded,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatFailed,
    ContextChanged,
    Ending,
    GuardrailJudged,
    Responder,
    TurnAccount,
    TurnEnded,
)
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.prices import NANO, Price
from callgate.conversation.usage import TokenCounts
from callgate.telemetry.logs import Log
from callgate.telemetry.metrics import OTHER, Metrics, OfModel, Spending

CLIENTS: Final = "client"
"""The label of all client tools, whose names clients choose."""


FAILURES: Final = frozenset(
    """
    upstream_auth upstream_error upstream_overloaded upstream_timeout upstream_unreachable upstream_broke_off
    rate_limit_exceeded insufficient_quota model_not_found
    """.split()
)
"""The failures of attempts that are named in metrics."""


UNKNOWN_REASON: Final = "unknown_finish_reason"
MAX_WORDS: Final = 1000
"""Finish reasons that are remembered as logged. Providers choose them, so that there has to be a bound."""
SHOWN: Final = 100
"""Characters of a finish reason in a log line."""
NAME_IT: Final = "if it is a good end, add it to `finish_reasons: {stop: [...]}` of this model's entry"


class LoggedWords:
    """The unknown finish reasons that were logged: each once for an entry."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def is_new(self, entry: str, word: str) -> bool:
        """Note a word; return whether it is to be logged."""
        shown = (entry, word[:SHOWN])
        if shown in self._logged or len(self._logged) >= MAX_WORDS:
            return False
        self._logged.add(shown)
        return True


class LogListener(Listener, msgspec.Struct, eq=False, kw_only=True):
    """Logs unusual events; the end of a chat is in its request's log line. Arguments and results only with `content`."""

    _run_id: str
    content: bool = False
    _logged_words: LoggedWords = msgspec.field(default_factory=LoggedWords)

    handlers: ClassVar[Handlers] = {}

    def _logger(self) -> Log:
        """Make the logger for each line, because most chats log nothing."""
        return Log("callgate.chat", run_id=self._run_id)

    @handles(handlers, Attempt)
    def _attempt(self, event: Attempt) -> None:
        by = event.by
        log = self._logger()
        fields = {"turn": event.turn, "attempt": event.number, "model": by.model, "deployment": by.deployment}
        fields |= {"host": by.host, "seconds": round(event.seconds, 3), "waited": round(event.wait, 3)}
        if event.instead_of:
            fields["instead_of"] = event.instead_of
        if event.anyway and not (event.reason and event.status == HTTPStatus.OK):  # logged when it began to answer
            log.warning("asked_although_left_alone", **fields)
        if not event.reason:
            log.info("upstream_answered", **fields)
            return
        say = log.warning
        if event.is_refusal:
            say = log.info  # a client error is no outage
        say("upstream_attempt_failed", **fields, status=event.status, reason=event.reason, detail=event.detail)

    @handles(handlers, CallStarted)
    def _call_started(self, event: CallStarted) -> None:
        """Log the arguments; all else is logged at the end of the call."""
        call = event.call
        if self.content:
            log = self._logger()
            log.info("call_started", turn=event.turn, call_id=call.id, tool=call.name, arguments=call.arguments)
        elif Log.enabled_for(logging.DEBUG):
            log = self._logger()
            log.debug("call_started", turn=event.turn, call_id=call.id, tool=call.name)

    @handles(handlers, ContextChanged)
    def _context_changed(self, event: ContextChanged) -> None:
        log = self._logger()
        if event.failure:
            log.warning("context_not_summarized", turn=event.turn, reason=event.failure)
        elif event.is_cut:
            log.warning("context_summary_cut", turn=event.turn, count=event.count, tokens=event.tokens)
        else:
            log.info("context_changed", turn=event.turn, kind=event.kind, count=event.count, tokens=event.tokens)

    @handles(handlers, GuardrailJudged)
    def _guardrail_judged(self, event: GuardrailJudged) -> None:
        if event.verdict != "passed":
            log_judged(self._logger(), event)

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        """Log all unusual facts about a turn in one line."""
        answer = event.answer
        for word in answer.unknown_reasons:
            self._unknown_reason(answer, word)
        if not (answer.findings or answer.broken or answer.prompted or answer.not_run):
            return
        log = self._logger()
        turn = event.turn
        if (words := answer.prompted) is not None:
            log.info("tools_in_prompt", turn=turn, format=words.format, extra_tokens=words.extra_tokens)
        if answer.not_run:
            log.warning(
                "quoted_calls_not_run",
                turn=turn,
                calls=[{"tool": call.name, "reason": call.reason} for call in answer.not_run[:NOT_RUN_SHOWN]],
                count=len(answer.not_run),
            )
        findings = _findings(answer)
        if not answer.broken and _ORDINARY.issuperset(findings):
            return
        broken = [{"call_id": call.id, "tool": call.name, "flaw": str(call.flaw)} for call in answer.broken]
        if self.content:
            broken = [facts | {"written": call.text} for facts, call in zip(broken, answer.broken, strict=True)]
        log.warning(
            "turn_findings",
            turn=turn,
            lane=answer.lane,
            findings=[str(finding) for finding in findings],
            finish_reasons=list(answer.reasons),
            broken=broken,
        )

    @handles(handlers, AnswerPassed)
    def answer_passed(self, event: AnswerPassed) -> None:
        for word in event.unknown_reasons:
            self._unknown_reason(event, word)

    def _unknown_reason(self, answer: TurnAccount | AnswerPassed, word: str) -> None:
        """Log an unknown finish reason, once for each entry and word."""
        log = self._logger()
        by = answer.by
        if self._logged_words.is_new(by.counted_model or by.model, word):
            log.warning(
                "unknown_finish_reason",
                model=by.counted_model or by.model,
                deployment=by.deployment,
                lane=answer.lane,
                finish_reason=word[:SHOWN],
                todo=NAME_IT,
            )

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        call = event.call
        outcome = event.outcome
        level = "info"
        more: dict[str, Any] = {}
        if self.content:
            more["result"] = outcome.text
        if type(outcome) is Failed:
            level = "warning"
        else:
            if outcome.cut_bytes:
                more["cut_bytes"] = outcome.cut_bytes
            if outcome.facts is not None:
                more |= outcome.facts.shown()
        verdict = _verdict(outcome)
        log = self._logger()
        log.write(
            level,
            "call_ended",
            {
                "turn": event.turn,
                "call_id": call.id,
                "tool": call.name,
                "seconds": round(event.seconds, 3),
                "outcome": verdict,
                **more,
            },
        )


def log_judged(log: Log, event: GuardrailJudged) -> None:
    """Log what a guardrail did, without anything of what it saw: a reason may quote it."""
    say = log.info if event.verdict == "masked" else log.warning
    say(
        "guardrail_judged",
        turn=event.turn,
        hook=event.hook,
        point=event.point,
        verdict=event.verdict,
        tool=event.tool or None,
        kinds=list(event.kinds),
    )


def no_price(by: Responder) -> Price | None:
    """Return no price for any deployment."""
    return None


class MetricsListener(Listener, msgspec.Struct, eq=False, kw_only=True):
    """Counts events in metrics, by the configured name of the model, and the names of our own tools."""

    _metrics: Metrics
    _of_model: OfModel
    _tools: Container[str] = ()
    _price: Callable[[Responder], Price | None] = no_price
    """Returns the price of a deployment, if it is known."""
    _answers: list[TurnAccount] = []

    handlers: ClassVar[Handlers] = {}

    @property
    def _model(self) -> str:
        return self._of_model.name

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        tool = self._label(event.call.name)
        self._metrics.calls.of(tool, _verdict(event.outcome)).inc()
        self._metrics.call_seconds.of(tool).observe(event.seconds)
        self._of_model.calls += 1
        outcome = event.outcome
        if type(outcome) is Returned and outcome.facts is not None:
            self._count_facts(tool, outcome.facts)

    def _count_facts(self, tool: str, facts: ResultFacts) -> None:
        if facts.nano:
            self._metrics.tool_cost.of(tool).inc(facts.nano / NANO)
        if facts.searched:
            self._metrics.tool_searches.of(facts.searched).inc()
        if facts.cache:
            self._metrics.tool_cache.of(facts.cache).inc()
        for finding in facts.findings:
            self._metrics.findings.of(self._model, finding).inc()

    @handles(handlers, CallsHandedBack)
    def _handed_back(self, event: CallsHandedBack) -> None:
        self._metrics.calls.of(CLIENTS, "handed_back").inc(len(event.calls))

    @handles(handlers, Attempt)
    def _attempt(self, event: Attempt) -> None:
        if event.reason:
            # Only codes of a closed list, because providers choose the codes of client errors.
            reason = event.reason if event.reason in FAILURES else OTHER
            result = "refused" if event.is_refusal else reason
            self._metrics.attempts.of(self._model, event.by.counted_as, event.by.host, result).inc()

    @handles(handlers, ContextChanged)
    def _context_changed(self, event: ContextChanged) -> None:
        result = "failed" if event.failure else "done"
        self._metrics.context_changes.of(self._model, event.kind, result).inc()
        self._metrics.context_tokens.of(self._model, event.kind).inc(event.tokens)

    @handles(handlers, GuardrailJudged)
    def _guardrail_judged(self, event: GuardrailJudged) -> None:
        self._metrics.guardrail_verdicts.of(event.hook, event.point, event.verdict).inc()

    @handles(handlers, ChatEnded)
    def _chat_ended(self, event: ChatEnded) -> None:
        self._of_model.ended(event.ending)
        if event.usage is None:
            return
        by = NO_RESPONDER
        counts = None
        if self._answers:
            last = self._answers[-1]
            by = last.by
            if event.usage is last.usage or event.turn_usages == (last.usage,):  # the sum of one turn
                counts = last.counts
        for answer in self._answers:
            if answer.by is not by and answer.by != by:
                self._spend_by_turn()
                return
        if counts is None:
            counts = event.usage.counts()
        if not by.counted_model or by.counted_model == self._of_model.name:
            self._of_model.spent(counts, self._price(by))
        else:
            self._of_model.spent_by_several([self._spending(counts, by)])

    @handles(handlers, AnswerPassed)
    def answer_passed(self, event: AnswerPassed) -> None:
        for _ in event.unknown_reasons:
            self._metrics.findings.of(self._model, UNKNOWN_REASON).inc()
        self.only_turn_ended(event, event.ending)

    def only_turn_ended(self, answer: TurnAccount | AnswerPassed, ending: Ending) -> None:
        """Count a turn without findings, with which its chat has ended."""
        of_model = self._of_model
        by = answer.by
        of_model.only_turn(by, ending, answer.seconds)
        if answer.counts is None:
            return
        if not by.counted_model or by.counted_model == of_model.name:
            of_model.spent(answer.counts, self._price(by))
        else:
            of_model.spent_by_several([self._spending(answer.counts, by)])

    @handles(handlers, ChatFailed)
    def _chat_failed(self, event: ChatFailed) -> None:
        self._spend_by_turn()
        self._metrics.chats.of(self._model, "cancelled" if event.reason == CANCELLED else "failed", "").inc()

    def _spend_by_turn(self) -> None:
        self._of_model.spent_by_several(
            self._spending(answer.counts, answer.by) for answer in self._answers if answer.counts is not None
        )

    def _spending(self, counts: TokenCounts, by: Responder) -> Spending:
        answering = None
        if by.counted_model not in ("", self._model):
            answering = self._metrics.model(by.counted_model, self._of_model.key)
        return Spending(counts, self._price(by), answering)

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        answer = event.answer
        self._of_model.turn(answer.seconds)
        self._answers.append(answer)
        if (by := answer.by) is not NO_RESPONDER:
            self._of_model.answered_by(by)
        for _ in answer.unknown_reasons:
            self._metrics.findings.of(self._model, UNKNOWN_REASON).inc()
        if not (answer.findings or answer.broken or answer.prompted or answer.not_run):
            return
        if (words := answer.prompted) is not None:
            self._metrics.prompt_tokens_added.of(self._model, words.format).inc(words.extra_tokens)
        for finding in _findings(answer):
            self._metrics.findings.of(self._model, str(finding)).inc()
        for quoted in answer.not_run:
            self._metrics.findings.of(self._model, f"call_{quoted.reason}").inc()
        for call in answer.broken:
            self._metrics.calls.of(self._label(call.name), str(call.flaw)).inc()

    def _label(self, tool: str | None) -> str:
        if tool is not None and tool in self._tools:
            return tool
        return OTHER


class OnlyAnswers:
    """Tells the usual listeners of answers with which a chat ends at once. For the metrics one listener serves all answers of a model to a key,
    because it remembers nothing of them."""

    def __init__(
        self,
        log_listener: Callable[..., LogListener],
        metrics_listener: Callable[..., MetricsListener],
        of_model: Callable[[str, str], OfModel],
    ) -> None:
        self._log_listener = log_listener
        self._metrics_listener = metrics_listener
        self._of_model = of_model
        self._counting: dict[tuple[str, str], MetricsListener] = {}

    def tell_passed(self, event: AnswerPassed, model_name: str, account: str, run_id: str) -> None:
        """Tell of an answer that is passed on."""
        counting = self._counting.get((model_name, account)) or self._new_counting(model_name, account)
        if event.unknown_reasons:
            counting.answer_passed(event)
            self._log_listener(_run_id=run_id).answer_passed(event)
        else:
            counting.only_turn_ended(event, event.ending)

    def tell_read(self, answer: TurnAccount, ending: Ending, model_name: str, account: str) -> None:
        """Tell of an answer about which there is nothing to log."""
        counting = self._counting.get((model_name, account)) or self._new_counting(model_name, account)
        counting.only_turn_ended(answer, ending)

    def _new_counting(self, model_name: str, account: str) -> MetricsListener:
        counting = self._metrics_listener(_of_model=self._of_model(model_name, account))
        self._counting[model_name, account] = counting
        return counting


_ORDINARY = frozenset({Finding.NONSTANDARD_FINISH_REASON})
"""Findings that each answer of some vendors has, such as `end_turn` of Claude: counted, and alone not worth a warning."""


def _findings(answer: TurnAccount) -> Sequence[Finding]:
    """Return the findings of a turn and of its calls, without those of calls that the turn repeats."""
    if not answer.findings:
        return ()
    calls = (call for call in (*answer.run, *answer.handed_back) if isinstance(call, ReadyCall))
    about_calls = [finding for call in calls for finding in call.findings]
    return [*(finding for finding in answer.findings if finding not in about_calls), *about_calls]


def _verdict(outcome: Outcome) -> str:
    if type(outcome) is Failed:
        return str(outcome.kind)
    return "returned"
