"""What a chat looked like from inside, turn by turn, for whoever has to explain it: the `x_callgate` object.

A listener like any other. It keeps previews only of what broken calls said, because those are seen nowhere else.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from callgate.calls.outcome import Failed
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.events import (
    CallEnded,
    ChatEnded,
    Ending,
    ModelRetried,
    TurnAccount,
    TurnEnded,
)
from callgate.conversation.listeners import Handlers, Listener

PREVIEW_CHARS = 200
"""Enough to see what was cut; an argument text may be megabytes."""


class Diagnosis(Listener):
    """Hears a chat and can be asked at any time what is known of it."""

    def __init__(self, run_id: str, warnings: Sequence[str] = ()) -> None:
        self.run_id = run_id
        self._warnings = warnings
        self._turns: list[dict[str, Any]] = []
        self._calls: dict[tuple[int, str], dict[str, Any]] = {}
        self._retries: list[dict[str, Any]] = []
        self._ending: Ending | None = None

    def _turn_ended(self, event: TurnEnded) -> None:
        self._turns.append(self._turn(event.turn, event.answer))

    def _call_ended(self, event: CallEnded) -> None:
        row, outcome = self._calls[event.turn, event.call.id], event.outcome
        row["outcome"] = str(outcome.kind) if isinstance(outcome, Failed) else "returned"
        row["ms"] = _milliseconds(event.seconds)

    def _model_retried(self, event: ModelRetried) -> None:
        self._retries.append({"turn": event.turn, "reason": event.reason})

    def _chat_ended(self, event: ChatEnded) -> None:
        self._ending = event.ending

    handlers: ClassVar[Handlers] = {
        TurnEnded: _turn_ended,
        CallEnded: _call_ended,
        ModelRetried: _model_retried,
        ChatEnded: _chat_ended,
    }

    def report(self) -> dict[str, Any]:
        told: dict[str, Any] = {"run": self.run_id, "turns": self._turns}
        if self._warnings:
            told["warnings"] = list(self._warnings)
        if self._retries:
            told["retries"] = self._retries
        if self._ending is not None:
            told["ending"] = str(self._ending.kind)
            if self._ending.note:
                told["note"] = self._ending.note
        return told

    def _turn(self, index: int, answer: TurnAccount) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for owner, calls in (("house", answer.run), ("client", answer.handed_back), (None, answer.broken)):
            for call in calls:
                rows.append(self._call(index, call, owner))
        turn: dict[str, Any] = {
            "finish_reason": answer.reasons[-1] if answer.reasons else None,
            "findings": list(map(str, answer.findings)),
            "calls": rows,
            "ms": _milliseconds(answer.seconds),
        }
        if answer.lane:
            turn["lane"] = answer.lane
        if len(answer.reasons) > 1:
            turn["finish_reasons"] = list(answer.reasons)
        if not answer.reason_is_raw:
            turn["finish_reason_rewritten"] = True
        if answer.prompted is not None:
            turn["asked_in_words"] = {"format": answer.prompted.format, "extra_tokens": answer.prompted.extra_tokens}
        return turn

    def _call(self, turn: int, call: Call, owner: str | None) -> dict[str, Any]:
        row: dict[str, Any] = {"id": call.id, "name": call.name}
        if isinstance(call, BrokenCall):
            row |= {"verdict": "broken", "flaw": str(call.flaw), "arguments": call.text[:PREVIEW_CHARS]}
        else:
            row["verdict"] = "ready"
        if owner:
            row["owner"] = owner
        if isinstance(call, ReadyCall) and call.findings:
            row["repairs"] = [str(finding) for finding in call.findings]
        self._calls[turn, call.id] = row
        return row


def _milliseconds(seconds: float) -> float:
    return int(seconds * 10_000 + 0.5) / 10  # `round` costs five times as much
