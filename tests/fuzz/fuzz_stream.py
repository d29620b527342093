"""The body of a streamed answer: bytes into events, chunks and a settled turn. However it is cut, it is the same turn."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

from callgate.calls.states import ReadyCall
from callgate.conversation.events import StreamEnd
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.models.direct.model import StreamedBody
from tests.corpus.judge import offer_of
from tests.fuzz.harness import cut

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OFFER = offer_of(
    [
        {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
        {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}},
    ]
)


def run(data: bytes) -> None:
    pieces = cut(data)
    turn = read(pieces)
    assert content_of(turn) == content_of(read([b"".join(pieces)]))
    json.dumps(turn.assistant_message(), ensure_ascii=False, allow_nan=False).encode()
    for call in turn.calls:
        if isinstance(call, ReadyCall):
            assert call.name in OFFER
            json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()


def read(pieces: Iterable[bytes]) -> Turn:
    building = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__, argument_bytes=2000)
    body = StreamedBody()
    for piece in pieces:
        building.feed(body.feed(piece))
        if body.fault is not None:
            return building.finish(StreamEnd.ERROR)
        if body.is_done:
            return building.finish()
    building.feed(body.finish())
    return building.finish(StreamEnd.DONE if body.is_done else StreamEnd.EOF)


def content_of(turn: Turn) -> Any:
    """As text, in which a number that is none equals itself."""
    return repr((turn.text, turn.reasoning, turn.calls, turn.findings, turn.failure, turn.assistant_message()))
