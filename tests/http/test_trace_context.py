"""W3C's Trace Context: what is read, what is ignored, and what goes on."""

import pytest

from callgate.http.request_head import with_headers
from callgate.http.trace_context import Parent, Trace, parent_in

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_parent_is_read_with_its_flag_and_state() -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1,b=2"}
    assert parent_in(headers) == Parent(TRACE, SPAN, 1, "a=1,b=2")
    assert not Parent(TRACE, SPAN, 2).is_sampled


def test_a_later_version_may_say_more() -> None:
    assert parent_in({"traceparent": f"01-{TRACE}-{SPAN}-01-more"}) == Parent(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\r\nx: y",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_cannot_be_read_is_ignored_with_its_state(said: str) -> None:
    assert parent_in({"traceparent": said, "tracestate": "a=1"}) is None


@pytest.mark.parametrize("state", ["a=" + "x" * 600, "a=\r\nx: y", "a=é"])
def test_a_state_that_no_header_can_hold_is_dropped_and_the_parent_kept(state: str) -> None:
    assert parent_in({"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": state}) == Parent(TRACE, SPAN, 1)


def test_what_is_not_exported_goes_on_as_it_came_wherever_it_is_asked_from() -> None:
    trace = Trace(Parent(TRACE, SPAN, 1, "a=1"), "run_1")
    trace.attempt(0, 1)
    assert trace.headers == {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}


def test_what_a_request_says_itself_counts_more() -> None:
    head = b"POST / HTTP/1.1\r\nTraceparent: own\r\nContent-Length: "
    written = with_headers(head, {"traceparent": "ours", "tracestate": "a=1"})
    assert written == b"POST / HTTP/1.1\r\nTraceparent: own\r\ntracestate: a=1\r\nContent-Length: "
