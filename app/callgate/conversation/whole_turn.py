"""The turn of a whole answer in the usual form: the fast twin of `TurnBuilder`, which folds whatever comes in whatever order."""

from collections.abc import Sequence
from typing import Final

import msgspec

from callgate.calls.gate import ready_call_fast
from callgate.calls.json_text import LARGE, sound_text
from callgate.calls.offer import Offer
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallDelta, CallWritten, Finished, ModelEvent, ProviderHead, TextDelta
from callgate.conversation.finish import ENDS_OF_CALLS, ENDS_OF_TEXT, Finish
from callgate.conversation.turn import Turn
from callgate.conversation.usage import Usage

BYTES: Final = 4
"""The most that a character takes."""
NO_OFFER: Final[Offer] = {}
"""With this no turn is read that has calls."""


def whole_turn_fast(events: Sequence[ModelEvent], offer: Offer, argument_bytes: int) -> Turn | None:
    """Return the turn of a whole answer, which equals what `TurnBuilder` makes of its events, where they are a text, calls that are whole as
    they were written, each with an id of its own, then one usual finish reason, and anywhere the head and the usage; None of any
    others, and of arguments that are not to be parsed beside other requests. Calls that came in pieces are whole in an answer that
    came to its end mark."""
    if CallDelta in map(type, events):
        joined = _with_joined_calls(events)
        if joined is None:
            return None
        events = joined
    text = ""
    calls: list[ReadyCall] = []
    finish: Finish | None = None
    usage: Usage | None = None
    head: ProviderHead | None = None
    most = min(LARGE, argument_bytes)
    for event in events:
        if type(event) is TextDelta:
            text += event.text
        elif type(event) is CallWritten and finish is None:
            call = _written_call_fast(event, offer, most)
            if call is None:
                return None
            most -= BYTES * len(event.arguments)
            calls.append(call)
        elif type(event) is Finished and finish is None and event.meaning is None:
            ends = ENDS_OF_CALLS if calls else ENDS_OF_TEXT
            finish = ends.get(event.reason)
            if finish is None:
                return None
        elif type(event) is Usage:
            usage = event
        elif type(event) is ProviderHead:
            head = head or event
        else:
            return None
    if finish is None or (len(calls) > 1 and len({call.id for call in calls}) < len(calls)):
        return None
    return Turn(
        sound_text(text), calls=tuple(calls), reasons=finish.reasons, winner=finish.winner, usage=usage, head=head
    )


def _written_call_fast(written: CallWritten, offer: Offer, most: int) -> ReadyCall | None:
    """Return the call, where nothing is said of it but its id, its name, and arguments of so many bytes at most."""
    id_ = written.id
    name = written.name
    arguments = written.arguments
    if type(id_) is not str or type(arguments) is not str or name is None or BYTES * len(arguments) > most:
        return None
    if not id_.isascii() or not id_.strip() or written != CallWritten(name, arguments, id_):
        return None
    return ready_call_fast(id_, name, arguments, offer)


class _PiecedCall(msgspec.Struct):
    """A call while its pieces are joined."""

    index: int
    id: str | float
    name: str | None
    pieces: list[str]


def _with_joined_calls(events: Sequence[ModelEvent]) -> list[ModelEvent] | None:
    """Return the events with each call in one piece, where its id and its name came with its first piece, and the pieces of the next call, of
    a higher index, behind all of its own; None of any others. A piece that begins as the one before may be a snapshot."""
    joined: list[ModelEvent] = []
    calls: list[_PiecedCall] = []
    has_ended = False
    for event in events:
        if type(event) is not CallDelta:
            joined.append(event)
            has_ended |= type(event) is Finished
            continue
        index = event.index
        piece = event.arguments
        if piece is None:
            piece = ""
        if has_ended or type(piece) is not str or index is None:
            return None
        if event.extras or event.legacy or event.custom or event.at_once:
            return None
        last = calls[-1] if calls else None
        if event.id is not None:
            if last is not None and index <= last.index:
                return None
            calls.append(_PiecedCall(index, event.id, event.name, [piece]))
            continue
        if last is None or index != last.index or event.name is not None:
            return None
        if last.pieces[-1] and piece.startswith(last.pieces[-1]):
            return None
        if piece:
            last.pieces.append(piece)
    joined[:0] = [CallWritten(call.name, "".join(call.pieces), call.id) for call in calls]
    return joined
