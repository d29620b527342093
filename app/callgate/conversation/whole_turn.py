"""The turns of whole answers in the usual form: the fast twins of `TurnBuilder`, which folds whatever comes in whatever order."""

from collections.abc import Sequence
from typing import Final

from callgate.calls.gate import ready_call_fast
from callgate.calls.json_text import LARGE, sound_text
from callgate.calls.offer import Offer
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallWritten, Finished, ModelEvent, ProviderHead, TextDelta
from callgate.conversation.finish import ENDS_OF_CALLS, ENDS_OF_TEXT, Finish
from callgate.conversation.turn import Turn
from callgate.conversation.usage import Usage

BYTES: Final = 4
"""The most that a character takes."""


def text_turn_fast(events: Sequence[ModelEvent]) -> Turn | None:
    """Return the turn of a whole answer, which equals what `TurnBuilder` makes of its events, where they are a text, the head, the usage and
    one usual finish reason; None of any others."""
    text = ""
    finish: Finish | None = None
    usage: Usage | None = None
    head: ProviderHead | None = None
    for event in events:
        if type(event) is TextDelta and not text:
            text = event.text
        elif type(event) is Finished and finish is None and event.meaning is None:
            finish = ENDS_OF_TEXT.get(event.reason)
            if finish is None:
                return None
        elif type(event) is Usage:
            usage = event
        elif type(event) is ProviderHead:
            head = head or event
        else:
            return None
    if finish is None:
        return None
    return Turn(text=sound_text(text), reasons=finish.reasons, winner=finish.winner, usage=usage, head=head)


def calls_turn_fast(events: Sequence[ModelEvent], offer: Offer, argument_bytes: int) -> Turn | None:
    """Return the turn of a whole answer, which equals what `TurnBuilder` makes of its events, where they are calls that are whole as they
    were written, each with an id of its own, then one usual finish reason, and anywhere the head and the usage; None of any
    others, and of arguments that are not to be parsed beside other requests."""
    calls: list[ReadyCall] = []
    finish: Finish | None = None
    usage: Usage | None = None
    head: ProviderHead | None = None
    most = min(LARGE, argument_bytes)
    for event in events:
        if type(event) is CallWritten and finish is None:
            id_ = event.id
            name = event.name
            arguments = event.arguments
            if type(id_) is not str or type(arguments) is not str or name is None:
                return None
            if not id_.isascii() or not id_.strip() or event != CallWritten(name, arguments, id_):
                return None
            most -= BYTES * len(arguments)
            if most < 0:
                return None
            call = ready_call_fast(id_, name, arguments, offer)
            if call is None:
                return None
            calls.append(call)
        elif type(event) is Finished and finish is None and event.meaning is None:
            finish = ENDS_OF_CALLS.get(event.reason)
            if finish is None:
                return None
        elif type(event) is Usage:
            usage = event
        elif type(event) is ProviderHead:
            head = head or event
        else:
            return None
    if finish is None or not calls or (len(calls) > 1 and len({call.id for call in calls}) < len(calls)):
        return None
    return Turn(calls=tuple(calls), reasons=finish.reasons, winner=finish.winner, usage=usage, head=head)
