"""Calls that a model wrote as text, in any format. However the text is cut, the same is read; no reader ever fails. What stands
in a fence with a remark, or before a lone end of thinking, never runs.

The first line names the format. A name that is none stands for one all the same, so that every input reads something.
"""

import itertools
import json
import re

from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallWritten, PromptedCalling
from callgate.conversation.turn import TurnBuilder
from callgate.text_calls.event_sink import THINK_TAGS
from callgate.text_calls.formats import GRAMMARS
from callgate.text_calls.reader import FORMATS
from tests.corpus.judge import offer_of
from tests.fuzz.harness import as_text, cut
from tests.text_calls.reading import TOOLS, events_of_text

KNOWN = sorted(FORMATS)
OFFER = offer_of([{"function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS])

OWN_CHANNELS = ("analysis", "<|content_thinking|>", "to=self", "<|channel>")
"""Reasoning that grammars read by themselves."""


def run(data: bytes) -> None:
    name, _, rest = data.partition(b"\n")
    format = name.decode("ascii", "replace")
    if format not in FORMATS:
        format = KNOWN[sum(name) % len(KNOWN)]
    pieces = cut(rest, as_text)
    events = events_of_text(format, pieces)
    assert repr(events) == repr(events_of_text(format, ["".join(pieces)]))
    check_quoted("".join(pieces), format)
    building = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__)
    building.feed([PromptedCalling(format), *events])
    turn = building.finish()
    json.dumps(turn.assistant_message(), ensure_ascii=False, allow_nan=False).encode()
    assert all(call.name in OFFER for call in turn.calls if isinstance(call, ReadyCall))


def check_quoted(text: str, format: str) -> None:
    channels = {**THINK_TAGS, **GRAMMARS[format].channels}
    if any(mark in text for mark in (*channels, *channels.values(), *OWN_CHANNELS, "<think", "</think")):
        return  # what is thinking, and what is quoted in an answer behind it, is another matter
    longest = max((len(run) for run in re.findall(r"`+|~+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    for around in (f"Like this:\n\n{fence}\n# so:\n{text}\n{fence}\n\nDone.", f"{text}\n</think>\n\nDone."):
        events = events_of_text(format, [around], whole=True)
        assert not [call for call in events if isinstance(call, CallWritten) and call.flaw is None and call.is_alone], (
            around
        )
