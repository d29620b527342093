"""A scripted model provider for tests. It answers in OpenAI's shapes and in Anthropic's, and fails where its script says so.

    async with Upstream() as upstream:
        upstream.script("m", [Reply(calls=[Call("get_time")]), Reply(text="noon", fault=Cut(after=3))])
        ...                                     # ask upstream.url for the model "m"
        assert await upstream.requests[1].until_closed() == "fault:cut"

`script` says what can be answered, `names` which model names mean something without a script, `records` what can be
asked afterwards, `history` what is refused. `python -m tests.scripted_upstream --port 9100` runs it by hand.
"""

from tests.scripted_upstream.history import Rejection
from tests.scripted_upstream.records import RequestLog, RequestRecord, Stats
from tests.scripted_upstream.replay import case_reply, recorded_reply, whole_body
from tests.scripted_upstream.script import (
    DERIVED,
    Call,
    Chooser,
    Cut,
    Empty,
    End,
    ErrorEvent,
    Fault,
    Hang,
    Hold,
    Html,
    Malformed,
    Misframed,
    Pace,
    Reply,
    Reset,
    Script,
    Shape,
    Verbatim,
    by_turn,
)
from tests.scripted_upstream.server import Upstream, dump

__all__ = [
    "DERIVED",
    "Call",
    "Chooser",
    "Cut",
    "Empty",
    "End",
    "ErrorEvent",
    "Fault",
    "Hang",
    "Hold",
    "Html",
    "Malformed",
    "Misframed",
    "Pace",
    "Rejection",
    "Reply",
    "RequestLog",
    "RequestRecord",
    "Reset",
    "Script",
    "Shape",
    "Stats",
    "Upstream",
    "Verbatim",
    "by_turn",
    "case_reply",
    "dump",
    "recorded_reply",
    "whole_body",
]
