"""The event reader, held against a plain slow one that follows the specification's text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.http.event_stream import (
    Event,
    EventStreamReader,
    EventTooLarge,
    Payload,
    looks_like_keep_alive,
    only_data_fast,
)


def plain_reader(data: bytes) -> list[bytes]:
    """The specification, line by line, on the whole body; a last event without its blank line counts as well."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\n\n"
    events: list[bytes] = []
    gathered: list[bytes] = []
    for line in text.split(b"\n"):
        if not line:
            if b"\n".join(gathered):
                # Empty data lines before the first word are dropped: no payload of ours begins with a newline.
                events.append(b"\n".join(gathered))
            gathered = []
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            if value or gathered:
                gathered.append(value)
    return events


def payloads_of(*pieces: bytes) -> list[bytes]:
    reader = EventStreamReader()
    payloads = [payload for piece in pieces for payload in reader.feed(piece)] + reader.finish()
    return [payload.data for payload in payloads]


LINES = st.sampled_from(
    [
        b'data: {"a":1}', b"data:x", b"data:  two spaces", b"data:", b"data: ", b"data", b": comment", b":",
        b"event: ping", b"id: 7", b"retry: 10", b"data: \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", b"data: [DONE]",
        b"", b"", b"", b"nonsense", b"data: : keepalive", b"datax: y",
    ]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    st.lists(st.tuples(LINES, ENDS), max_size=25),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(min_value=0, max_value=400), max_size=12),
)
def test_however_a_body_is_cut_the_same_events_come_out(lines, bom, ended, cuts):
    body = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line, end in lines)
    body = body if ended else body[:-1]
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    pieces = [body[start:end] for start, end in pairwise(places)]
    assert payloads_of(*pieces) == plain_reader(body)
    assert payloads_of(*(body[i : i + 1] for i in range(len(body)))) == plain_reader(body)
    assert read_whole(*pieces) == plain_reader(body)


def read_whole(*pieces: bytes) -> list[bytes]:
    """What whoever passes a stream through passes on, read again."""
    reader = EventStreamReader()
    passed = [*(reader.whole(piece) for piece in pieces), reader.rest()]
    assert all(not each or each.endswith(b"\n\n") for each in passed)
    return plain_reader(b"".join(passed))


def test_an_event_is_given_out_as_soon_as_its_blank_line_is_there():
    reader = EventStreamReader()
    assert reader.feed(b"data: one\n\n") == [Payload(b"one")]
    assert reader.feed(b"data: two\r\n\r") == [Payload(b"two")]
    assert reader.feed(b"\ndata: three\n\n") == [Payload(b"three")]
    assert reader.feed(b"data: four\n") == []
    assert reader.feed(b"\n") == [Payload(b"four")]


def test_a_character_cut_in_two_comes_out_whole():
    body = "data: é€😀\n\n".encode()
    for cut in range(len(body)):
        assert payloads_of(body[:cut], body[cut:]) == ["é€😀".encode()]


def test_lines_of_one_event_are_joined():
    assert payloads_of(b"data: a\ndata: b\n\n") == [b"a\nb"]


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 50, b"data: xxxx\n" * 10])
def test_an_event_over_the_bound_is_refused(piece):
    reader = EventStreamReader(limit=40)
    with pytest.raises(EventTooLarge):
        reader.feed(piece)


def test_comments_without_end_do_not_add_up():
    reader = EventStreamReader(limit=40)
    for _ in range(100):
        assert reader.feed(b": keep") == []
        assert reader.feed(b"alive\n") == []


SAID = (
    b": hello\n\nid: 1\ndata: a\ndata:b\n\nevent: message\nretry: 20\ndata: c\n\ndata\n\n"
    b"retry: x\nid: a\0b\ndata: d\n\nid: 2\ndata:\n\ndata: unfinished"
)
READ = [Event(b"a\nb", id="1"), Event(b"c", retry=20), Event(b"d"), Event(b"", id="2")]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_ids_and_retry_times_come_out_however_a_stream_is_cut(ending, cuts):
    said = SAID.replace(b"\n", ending)
    reader = EventStreamReader()
    places = sorted({0, len(said), *(cut % (len(said) + 1) for cut in cuts)})
    assert [event for start, end in pairwise(places) for event in reader.events(said[start:end])] == READ


def test_an_event_that_is_too_large_is_known_before_it_ends():
    with pytest.raises(EventTooLarge) as refused:
        EventStreamReader(limit=100).feed(b"data: " + b"x" * 300)
    assert (refused.value.front, refused.value.missing) == (b"x" * 100, 200)


@pytest.mark.parametrize("last", [b"data: " + b"x" * 50, b"data: " + b"x" * 50 + b"\n\ndata: never\n\n"])
def test_the_events_before_one_that_is_too_large_are_given_out(last):
    reader = EventStreamReader(limit=40)
    assert reader.feed(b"data: one\n\ndata: two\n\n" + last) == [Payload(b"one"), Payload(b"two")]
    for read_on in (lambda: reader.feed(b"more\n\n"), reader.finish):
        with pytest.raises(EventTooLarge):
            read_on()


def test_an_event_in_single_bytes_takes_linear_time():
    """A megabyte byte by byte: joining anew for each would be half a terabyte of copying and never end."""
    reader = EventStreamReader()
    body = b"data: " + b"x" * 1_000_000 + b"\n\n"
    events = [event for i in range(len(body)) for event in reader.feed(body[i : i + 1])]
    assert [len(event.data) for event in events] == [1_000_000]


@pytest.mark.parametrize("payload", [b": keepalive", b"ping", b" PING ", b"", b": OPENROUTER PROCESSING"])
def test_keepalive_comments_are_distinguished_from_content(payload):
    assert looks_like_keep_alive(payload)


@pytest.mark.parametrize("payload", [b'{"a":1', b"Hello", b"error: x"])
def test_content_is_not_taken_for_a_keep_alive(payload):
    assert not looks_like_keep_alive(payload)


@given(
    st.lists(LINES, max_size=4),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.sampled_from([b"", b"\n", b"\r\n\r\n", b"\n\n"]),
)
def test_an_only_event_that_is_read_fast_is_the_one_that_a_reader_makes(lines, newline, end):
    for data in (newline.join(lines) + end, newline.join([b"event: message", *lines]) + end):
        fast = only_data_fast(data)
        assert fast is None or EventStreamReader().events(data) == [Event(fast)]


def test_an_answer_as_mcp_servers_send_it_is_read_fast():
    for newline in (b"\n", b"\r\n"):
        assert only_data_fast(newline.join([b"event: message", b'data: {"id":"c1"}', b"", b""])) == b'{"id":"c1"}'
        assert only_data_fast(newline.join([b"event: message", b"id: 7", b'data: {"id":"c1"}', b"", b""])) is None
    assert only_data_fast(b"data: " + b"x" * 64 * 1024 + b"\n\n") is None
