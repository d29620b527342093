"""Listeners of a chat: what it does becomes log lines and counts. Cheap, synchronous, one pair for each chat."""

import logging
from collections.abc import Container, Mapping
from typing import Any, Final, Protocol

from app.calls.outcome import Failed, Outcome, Returned
from app.calls.states import BrokenCall, Finding, ReadyCall
from app.chat.events import (
    CallEnded,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    Ending,
    Heard,
    ModelRetried,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from app.telemetry.logs import Log
from app.telemetry.metrics import OTHER, Metrics, OfModel

CLIENTS: Final = "client"
"""The label of all tools that clients brought; their names are theirs to choose."""


class Listener(Protocol):
    def hear(self, event: ChatEvent) -> None: ...


class LogListener:
    """Writes down what is worth reading later. Arguments and results only with `content`."""

    __slots__ = ("_content", "_log")

    def __init__(self, run_id: str, *, content: bool = False) -> None:
        self._log = Log("callgate.chat", run_id=run_id)
        self._content = content

    def hear(self, event: ChatEvent) -> None:
        match event:
            case TurnStarted() | Heard():
                return
            case ChatEnded(ending=ending):
                # The line of the request says the same, and there is one of those for every chat.
                if self._log.hears(logging.DEBUG):
                    more = {"note": ending.note} if ending.note else {}
                    self._log.debug("chat ended", ending=str(ending.kind), finish_reason=ending.finish_reason, **more)
            case TurnEnded(turn=turn, answer=answer):
                self._turn_ended(turn, answer)
            case CallStarted(turn=turn, call=call):
                self._call_started(turn, call)
            case CallEnded(turn=turn, call=call, outcome=outcome, seconds=seconds):
                self._call_ended(turn, call, outcome, seconds)
            case ModelRetried(turn=turn, attempt=attempt, reason=reason):
                self._log.warning("model asked again", turn=turn, attempt=attempt, reason=reason)
            case _:
                return

    def _call_started(self, turn: int, call: ReadyCall) -> None:
        """Its end says all of this again, but for the arguments."""
        if self._content:
            self._log.info("call started", turn=turn, call_id=call.id, tool=call.name, arguments=call.arguments)
        elif self._log.hears(logging.DEBUG):
            self._log.debug("call started", turn=turn, call_id=call.id, tool=call.name)

    def _turn_ended(self, turn: int, answer: TurnAccount) -> None:
        """All that was odd about a turn in one line, so that it is found by the run and read at once."""
        if (words := answer.in_words) is not None:
            self._log.info(
                "tools described in the prompt", turn=turn, format=words.format, extra_tokens=words.extra_tokens
            )
        findings = _findings(answer)
        if not findings and not answer.broken:
            return
        self._log.warning(
            "turn with findings",
            turn=turn,
            lane=answer.lane,
            findings=[str(finding) for finding in findings],
            finish_reasons=list(answer.reasons),
            broken=[self._broken(call) for call in answer.broken],
        )

    def _broken(self, call: BrokenCall) -> dict[str, str | None]:
        told = {"call_id": call.id, "tool": call.name, "flaw": str(call.flaw)}
        return {**told, "written": call.text} if self._content else told

    def _call_ended(self, turn: int, call: ReadyCall, outcome: Outcome, seconds: float) -> None:
        log = self._log.bind(turn=turn, call_id=call.id, tool=call.name, seconds=round(seconds, 3))
        if self._content:
            log = log.bind(result=outcome.text)
        match outcome:
            case Returned(cut_bytes=cut):
                log.info("call ended", outcome="returned", **({"cut_bytes": cut} if cut else {}))
            case Failed(kind=kind):
                log.warning("call ended", outcome=str(kind))


class MetricsListener:
    """Counts. `model` is the configured name; of tools only those in `tools`, the house's, are counted by name."""

    __slots__ = ("_metrics", "_model", "_tools")

    def __init__(self, metrics: Metrics, model: str, tools: Container[str] = ()) -> None:
        self._metrics = metrics
        self._model = model
        self._tools = tools

    def hear(self, event: ChatEvent) -> None:
        match event:
            case TurnStarted() | Heard():
                return
            case TurnEnded(answer=answer):
                self._turn_ended(answer)
            case CallEnded(call=call, outcome=outcome, seconds=seconds):
                tool = self._label(call.name)
                self._metrics.calls.of(tool, _verdict(outcome)).inc()
                self._metrics.call_seconds.of(tool).observe(seconds)
            case CallsHandedBack(calls=calls):
                self._metrics.calls.of(CLIENTS, "handed_back").inc(len(calls))
            case ModelRetried():
                self._metrics.retries.of(self._model).inc()
            case ChatEnded(ending=ending, usage=usage):
                self._metrics.model(self._model).ended(str(ending.kind), ending.finish_reason)
                if usage:
                    self._metrics.model(self._model).spent(usage)
            case _:
                return

    def _turn_ended(self, answer: TurnAccount) -> None:
        self._metrics.model(self._model).turn(answer.seconds)
        if (words := answer.in_words) is not None:
            self._metrics.prompt_tokens_added.of(self._model, words.format).inc(words.extra_tokens)
        for finding in _findings(answer):
            self._metrics.findings.of(self._model, str(finding)).inc()
        for call in answer.broken:
            self._metrics.calls.of(self._label(call.name), str(call.flaw)).inc()

    def _label(self, tool: str | None) -> str:
        return tool if tool is not None and tool in self._tools else OTHER


def write_down_passage(
    counted: OfModel, run_id: str, ending: Ending, usage: Mapping[str, Any] | None, seconds: float
) -> None:
    """What both listeners would make of a request that is passed through. It is told at once, when it has ended: while
    its bytes go by nobody listens."""
    counted.turn(seconds)
    counted.ended(str(ending.kind), ending.finish_reason)
    if usage:
        counted.spent(usage)
    if Log.hears(logging.DEBUG):
        LogListener(run_id).hear(ChatEnded(ending, usage))


def _findings(answer: TurnAccount) -> list[Finding]:
    """Those about the turn, and each call's own. The turn names what it noticed about any of its calls once more."""
    if not answer.run and not answer.handed_back:
        return list(answer.findings)
    calls = (call for call in (*answer.run, *answer.handed_back) if isinstance(call, ReadyCall))
    about_calls = [finding for call in calls for finding in call.findings]
    return [*(finding for finding in answer.findings if finding not in about_calls), *about_calls]


def _verdict(outcome: Outcome) -> str:
    return str(outcome.kind) if isinstance(outcome, Failed) else "returned"
