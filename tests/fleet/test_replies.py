"""Results of workers of other versions that cannot be read."""

import msgspec
import pytest
from structlog.testing import capture_logs

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned, encode_outcome
from callgate.fleet.fleet import Fleet, _outcome_of, _PendingCall
from callgate.fleet.message import FleetReply, encode_reply
from callgate.ledger.fleet_calls import FleetCallState

KEY = b"key of the ledger"
UNREADABLE = {
    "no msgpack": b"\xc1",
    "an unknown kind of failure": msgspec.msgpack.encode({"kind": "new", "text": ""}),
    "another type": msgspec.msgpack.encode([]),
    "a missing field": msgspec.msgpack.encode({"text": "3"}),
}


@pytest.mark.parametrize("encoded", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_outcome_is_logged_and_unknown(encoded: bytes) -> None:
    in_ledger = FleetCallState("call", "done", 1.0, encoded, "")
    for read in (lambda: published(encoded), lambda: _outcome_of(in_ledger)):
        with capture_logs() as logs:
            outcome = read()
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNKNOWN
        assert [line["event"] for line in logs] == ["fleet_message_ignored"]


def test_a_readable_outcome_is_taken() -> None:
    assert published(encode_outcome(Returned("3"))) == Returned("3")


def published(outcome: bytes) -> Outcome | None:
    fleet = Fleet("redis://127.0.0.1:1/0", "callgate:", lambda lost: None)
    fleet._key = KEY
    call = fleet._underway["call"] = _PendingCall("call", "queue", b"", "run", may_be_resumed=False)
    fleet._take(encode_reply(FleetReply("call", ended=True, outcome=outcome), KEY))
    return call.outcome
