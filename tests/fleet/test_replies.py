"""Results of workers of other versions, and messages of others, that cannot be read."""

import msgspec
import pytest
from structlog.testing import capture_logs

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned, encode_outcome
from callgate.fleet.fleet import Fleet, _outcome_of, _PendingCall
from callgate.fleet.message import SIGNATURE_BYTES, FleetReply, encode_reply
from callgate.state.fleet_calls import FleetCallState

KEY = b"key of the pool"
UNREADABLE = {
    "no msgpack": b"\xc1",
    "an unknown kind of failure": msgspec.msgpack.encode({"kind": "new", "text": ""}),
    "another type": msgspec.msgpack.encode([]),
    "a missing field": msgspec.msgpack.encode({"text": "3"}),
    "no text": b"\x81\xa4text\xa2\xff\xfe",
    "too deep": b"\x81\xa1x" + b"\x91" * 100_000,
    "too many values": msgspec.msgpack.encode({"x": [0] * 40_000}),
}


@pytest.mark.parametrize("encoded", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_outcome_is_logged_and_unknown(encoded: bytes) -> None:
    in_ledger = FleetCallState("call", "done", 1.0, encoded, 1)
    for read in (lambda: published(encoded), lambda: _outcome_of(in_ledger)):
        with capture_logs() as logs:
            outcome = read()
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNKNOWN
        assert [line["event"] for line in logs] == ["fleet_message_ignored"]


def test_a_readable_outcome_is_taken() -> None:
    assert published(encode_outcome(Returned("3"))) == Returned("3")


@pytest.mark.parametrize("rogue", UNREADABLE.values(), ids=UNREADABLE)
def test_a_reply_that_somebody_else_published_is_logged_and_the_next_is_taken(rogue: bytes) -> None:
    fleet, call = waiting()
    with capture_logs() as logs:
        fleet._take(b"s" * SIGNATURE_BYTES + rogue)
    assert [line["event"] for line in logs] == ["fleet_message_ignored"]
    assert call.outcome is None
    fleet._take(encode_reply(FleetReply("call", ended=True, outcome=encode_outcome(Returned("3"))), KEY))
    assert call.outcome == Returned("3")


def published(outcome: bytes) -> Outcome | None:
    fleet, call = waiting()
    fleet._take(encode_reply(FleetReply("call", ended=True, outcome=outcome), KEY))
    return call.outcome


def waiting() -> tuple[Fleet, _PendingCall]:
    fleet = Fleet("redis://127.0.0.1:1/0", "callgate:", lambda lost: None)
    call = fleet._underway["call"] = _PendingCall(
        "call", "queue", "gpu", "run", may_be_resumed=False, id="call", message=b"call", signing_key=KEY, offer=1
    )
    return fleet, call
