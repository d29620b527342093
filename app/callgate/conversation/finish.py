"""Compares the finish reason of a turn with the calls that came.

A finish reason does not decide about calls. It is put into one of five classes and compared with the calls that were
found; every disagreement is a finding. Only a turn that the provider did not finish is a failure, and runs nothing.
"""

import re
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from callgate.calls.states import Finding, Flaw
from callgate.conversation.events import StreamEnd


class FinishClass(IntEnum):
    """The meaning of a finish reason. When a turn has several, the highest counts."""

    STOP = 0
    TOOL_CALLS = 1
    LENGTH = 2
    CONTENT_FILTER = 3
    ERROR = 4


_WORDS = {
    FinishClass.STOP: "stop end_turn eos eos_token stop_sequence complete completed end",
    FinishClass.LENGTH: (
        "length max_tokens max_output_tokens max_completion_tokens model_length model_context_window_exceeded"
    ),
    FinishClass.TOOL_CALLS: "tool_calls tool_call tool_use function_call function_calls",
    FinishClass.CONTENT_FILTER: (
        "content_filter content_filtered safety recitation refusal guardrail_intervened blocklist prohibited_content"
        " sensitive"
    ),
    FinishClass.ERROR: (
        "error abort aborted failed network_error malformed_function_call insufficient_system_resource"
    ),
}
_CLASSES = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_SUBJECTS = [
    (
        FinishClass.ERROR,
        re.compile("error|fail|malform|invalid|abort|cancel|timeout|interrupt|insufficient|overload|unavailable"),
    ),
    (
        FinishClass.CONTENT_FILTER,
        re.compile("safety|spii|block|prohibit|filter|recitation|refus|toxic|sensitive|guardrail|policy"),
    ),
    (FinishClass.LENGTH, re.compile("max|length|limit|truncat|context")),
]
"""Parts of unlisted finish reasons that give their class, the most serious first."""
_STANDARD = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


def classify(reason: str) -> FinishClass:
    """Return the class of a finish reason as a provider wrote it. An unknown one is classified by its parts, or as stop."""
    known = _CLASSES.get(reason)
    if known is None:
        word = reason.lower().replace("-", "_")
        known = _CLASSES.get(word)
        if known is None:
            word = re.sub(r"[\W_]+", "", word)
            known = next((kind for kind, subject in _SUBJECTS if subject.search(word)), FinishClass.STOP)
    return known


class Finish(msgspec.Struct, frozen=True, gc=False):
    """How a turn ended, before its calls are checked."""

    reasons: tuple[str, ...]
    winner: FinishClass | None
    failure: Flaw | None
    """The reason why no call of this turn may run, if there is one."""


def judge_finish(reasons: Sequence[str], end: StreamEnd, *, error: bool) -> Finish:
    """Combine the finish reasons of a turn, an error in it and the end of its body into one `Finish`."""
    winner = max(map(classify, reasons), default=None)
    unfinished = winner is None
    if error or winner is FinishClass.ERROR or (unfinished and end is StreamEnd.ERROR):
        failure = Flaw.UPSTREAM_ERROR
    elif unfinished and end is StreamEnd.EOF:
        failure = Flaw.STREAM_ENDED
    elif winner is FinishClass.CONTENT_FILTER:
        failure = Flaw.CONTENT_FILTER
    else:
        failure = None
    return Finish(tuple(reasons), winner, failure)


def finish_findings(finish: Finish, *, calls_found: bool, from_text: bool) -> list[Finding]:
    """Return findings where the finish reason and the calls disagree. For calls in text `stop` means nothing."""
    found: list[Finding] = []
    if not _STANDARD.issuperset(finish.reasons):
        found.append(Finding.NONSTANDARD_FINISH_REASON)
    if finish.failure is Flaw.UPSTREAM_ERROR:
        found.append(Finding.UPSTREAM_ERROR)
    if calls_found and finish.winner is FinishClass.LENGTH:
        found.append(Finding.TOOL_CALLS_WITH_LENGTH)
    if from_text:
        return found
    if len(finish.reasons) > 1 and len({classify(reason) for reason in finish.reasons}) > 1:
        found.append(Finding.CONFLICTING_FINISH_REASONS)
    if not finish.reasons and finish.failure is not Flaw.UPSTREAM_ERROR:
        found.append(Finding.MISSING_FINISH_REASON)
    if calls_found and finish.winner is FinishClass.STOP:
        found.append(Finding.TOOL_CALLS_WITH_STOP)
    if not calls_found and finish.winner is FinishClass.TOOL_CALLS:
        found.append(Finding.FINISH_WITHOUT_TOOL_CALLS)
    return found
