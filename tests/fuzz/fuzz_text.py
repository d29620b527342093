"""Calls that a model wrote as text, in any format. However the text is cut, the same is read; no reader ever fails.

The first line names the format. A name that is none stands for one all the same, so that every input reads something.
"""

import itertools
import json

from callgate.calls.states import ReadyCall
from callgate.conversation.events import PromptedCalling
from callgate.conversation.turn import TurnBuilder
from callgate.text_calls.reader import FORMATS
from tests.corpus.judge import offer_of
from tests.fuzz.harness import as_text, cut
from tests.text_calls.reading import TOOLS, read

KNOWN = sorted(FORMATS)
OFFER = offer_of([{"function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS])


def run(data: bytes) -> None:
    name, _, rest = data.partition(b"\n")
    format = name.decode("ascii", "replace")
    if format not in FORMATS:
        format = KNOWN[sum(name) % len(KNOWN)]
    pieces = cut(rest, as_text)
    events = read(format, pieces)
    assert repr(events) == repr(read(format, ["".join(pieces)]))
    building = TurnBuilder(OFFER, map("made_{}".format, itertools.count()).__next__)
    building.feed([PromptedCalling(format), *events])
    turn = building.finish()
    json.dumps(turn.assistant_message(), ensure_ascii=False, allow_nan=False).encode()
    assert all(call.name in OFFER for call in turn.calls if isinstance(call, ReadyCall))
