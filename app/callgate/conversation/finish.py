"""Compares the finish reasons of a turn with the calls that came.

A finish reason does not decide which calls there are; every disagreement is a finding. It decides whether the turn ended in
order: one that did not, or of which we do not know it, runs nothing.
"""

from collections.abc import Mapping, Sequence

import msgspec

from callgate.calls.states import Finding, Flaw
from callgate.conversation.events import Finished, StreamEnd
from callgate.conversation.finish_words import OPEN, FinishClass, FinishWords, Meaning, is_value

_LISTED = OPEN.listed
_STANDARD = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


def classify(reason: str) -> FinishClass:
    """Return the class of a finish reason of an OpenAI-shaped API."""
    return OPEN.judge(reason).kind


def meaning_of(event: Finished) -> Meaning:
    """Return the meaning of a finish reason: by the list of its lane, or else by that of OpenAI-shaped APIs."""
    if event.meaning is None:
        return OPEN.judge(event.reason)
    return event.meaning


def meaning_if_said(event: Finished) -> Meaning | None:
    """Return the meaning of a finish reason; None for one without a word, which says nothing, like a missing one."""
    if event.meaning is None and event.reason in _LISTED:
        return _LISTED[event.reason]  # all that is listed has a word
    if is_value(event.reason):
        return meaning_of(event)
    return None


def finished(reason: str, words: FinishWords) -> Finished:
    """Return the event of a finish reason, with its meaning where that is another than in OpenAI-shaped APIs."""
    meaning = words.judge(reason)
    if meaning == OPEN.judge(reason):
        return Finished(reason)
    return Finished(reason, meaning)


class Finish(msgspec.Struct, frozen=True, gc=False):
    """How a turn ended, before its calls are checked."""

    reasons: tuple[str, ...]
    winner: FinishClass | None
    failure: Flaw | None
    """The reason why no call of this turn may run, if there is one."""
    broke_off: bool = False
    """The provider did not finish the turn, so that it may be asked again."""
    unknown: tuple[str, ...] = ()
    """The reasons of which we do not know whether they are a good end, where none of the others decides."""
    disagree: bool = False
    """The reasons are of different classes."""


def judge_finish(reasons: Mapping[str, Meaning], end: StreamEnd, *, error: bool) -> Finish:
    """Combine the finish reasons of a turn, an error in it and the end of its body into one `Finish`."""
    if len(reasons) == 1 and not error:
        ((reason, meaning),) = reasons.items()
        if reason in _USUAL:
            listed, finish = _USUAL[reason]
            if meaning is listed:
                return finish
    winner: FinishClass | None = None
    says_failed = disagree = False
    not_known: tuple[str, ...] = ()
    for reason, meaning in reasons.items():
        kind = meaning.kind
        if not meaning.is_known:
            not_known += (reason,)
        elif kind is FinishClass.ERROR:
            says_failed = True
        if winner is None:
            winner = kind
        elif kind is not winner:
            disagree = True
            winner = max(kind, winner)
    written = tuple(reasons)
    if error or says_failed or (winner is None and end is StreamEnd.ERROR):
        return Finish(written, winner, Flaw.UPSTREAM_ERROR, broke_off=True, disagree=disagree)
    if winner is None and end is StreamEnd.EOF:
        return Finish(written, winner, Flaw.STREAM_ENDED, broke_off=True)
    if winner is FinishClass.CONTENT_FILTER:
        return Finish(written, winner, Flaw.CONTENT_FILTER, disagree=disagree)
    if not_known:
        return Finish(written, winner, Flaw.UPSTREAM_ERROR, unknown=not_known, disagree=disagree)
    return Finish(written, winner, None, disagree=disagree)


_USUAL: Mapping[str, tuple[Meaning, Finish]] = {
    reason: (meaning, Finish((reason,), meaning.kind, None))
    for reason, meaning in _LISTED.items()
    if meaning.kind <= FinishClass.LENGTH
}

"""The finish of a turn with one of these reasons, that has the meaning of the list, and no error."""

ENDS_OF_TEXT: Mapping[str, Finish] = {
    reason: finish
    for reason, (_, finish) in _USUAL.items()
    if reason in _STANDARD and finish.winner in (FinishClass.STOP, FinishClass.LENGTH)
}
"""The finish of a turn without calls that ended with one of these reasons, about which there is nothing to find."""

ENDS_OF_CALLS: Mapping[str, Finish] = {
    reason: finish
    for reason, (_, finish) in _USUAL.items()
    if reason in _STANDARD and finish.winner is FinishClass.TOOL_CALLS
}
"""The finish of a turn with calls that ended with one of these reasons, about which there is nothing to find."""


def finish_of_whole(reasons: Sequence[Finished]) -> Finish:
    """Return how a whole answer ended that goes on as its provider's bytes."""
    if len(reasons) == 1 and reasons[0].meaning is None and reasons[0].reason in _USUAL:
        _, finish = _USUAL[reasons[0].reason]
        return finish
    meanings = {event.reason: meaning for event in reasons if (meaning := meaning_if_said(event)) is not None}
    return judge_finish(meanings, StreamEnd.DONE, error=False)


def finish_findings(finish: Finish, *, calls_found: bool, from_text: bool) -> list[Finding]:
    """Return findings where the finish reason and the calls disagree. For calls in text `stop` means nothing."""
    findings: list[Finding] = []
    if not _STANDARD.issuperset(finish.reasons):
        findings.append(Finding.NONSTANDARD_FINISH_REASON)
    has_failed = finish.winner is FinishClass.ERROR or (finish.broke_off and finish.failure is Flaw.UPSTREAM_ERROR)
    if has_failed:
        findings.append(Finding.UPSTREAM_ERROR)
    if calls_found and finish.winner is FinishClass.LENGTH:
        findings.append(Finding.TOOL_CALLS_WITH_LENGTH)
    if from_text:
        return findings
    if finish.disagree:
        findings.append(Finding.CONFLICTING_FINISH_REASONS)
    if not finish.reasons and not has_failed:
        findings.append(Finding.MISSING_FINISH_REASON)
    if calls_found and finish.winner is FinishClass.STOP:
        findings.append(Finding.TOOL_CALLS_WITH_STOP)
    if not calls_found and finish.winner is FinishClass.TOOL_CALLS:
        findings.append(Finding.FINISH_WITHOUT_TOOL_CALLS)
    return findings
