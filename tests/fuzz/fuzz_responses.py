"""The body of an answer of the Responses API: bytes into events and a settled turn. However it is cut, it is the same turn, and what
it said goes back."""

import itertools
import json
from collections.abc import Iterable

from callgate.conversation.events import StreamEnd
from callgate.conversation.ports import ModelRequest
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.models.translated.responses_answer import ResponseEvents, ResponseObject
from callgate.models.translated.responses_request import body_of
from tests.fuzz.fuzz_stream import OFFER, content_of
from tests.fuzz.harness import cut

BY = "host model"


def run(data: bytes) -> None:
    pieces = cut(data)
    turn = read(pieces)
    assert content_of(turn) == content_of(read([b"".join(pieces)]))
    asked = body_of(ModelRequest([turn.assistant_message()]), "model", BY, {})
    json.dumps(asked, ensure_ascii=False, allow_nan=False).encode()


def read(pieces: Iterable[bytes]) -> Turn:
    building = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__, argument_bytes=2000)
    body: ResponseEvents | ResponseObject | None = None
    for piece in pieces:
        if body is None and piece:
            body = ResponseObject(BY) if piece.lstrip()[:1] == b"{" else ResponseEvents(BY)
        if body is None:
            continue
        building.feed(body.feed(piece))
        if body.fault is not None:
            return building.finish(StreamEnd.ERROR)
        if body.is_done:
            return building.finish()
    if body is None:
        return building.finish(StreamEnd.EOF)
    building.feed(body.finish())
    return building.finish(StreamEnd.DONE if body.is_done else StreamEnd.EOF)
