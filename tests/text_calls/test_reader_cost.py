"""Reading costs in proportion to the text, whatever the text is and however it is cut."""

import sys

import pytest

from callgate.conversation.events import TextDelta
from callgate.text_calls.reader import FORMATS, TextReader, reader_for
from tests.chaos.scale import LONG, dealt, held_to, scaled
from tests.text_calls.reading import FLOODS, TOOLS, cpu_seconds, flood

FORMAT_NAMES = sorted(FORMATS)
LARGEST_RATIO = 3.0
"""Twice the text may take this many times as long; a reader that starts over would take four times."""
LEAST_SECONDS = 0.02
"""Below this a ratio says more about the machine than about the reader."""
TRIES = scaled(1, 3)
SMALL = scaled(80, 120)
LARGE = 20_000
MOST_HELD = 512
"""Characters: what opens like the head of a call is none when it has become longer."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", FLOODS)
def test_twice_a_hostile_text_takes_about_twice_as_long(kind):
    for format in dealt(FORMAT_NAMES, 4, [*FLOODS].index(kind)):
        twice = cpu_seconds(format, flood(kind, 2 * LARGE), step=2 * LARGE, tries=TRIES)
        if LONG and twice > LEAST_SECONDS:
            once = cpu_seconds(format, flood(kind, LARGE), step=LARGE, tries=TRIES)
            held_to(LARGEST_RATIO * once, f"twice a hostile text of {kind}, {format}, of the processor", twice)


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_a_feed_takes_as_many_steps_at_the_end_of_a_text_as_at_its_beginning(format):
    """Counted in calls and lines of Python, which no busy machine can change."""
    for kind in dealt(FLOODS, 4, FORMAT_NAMES.index(format)):
        text = flood(kind, 2 * SMALL)
        reader = reader_for(format, TOOLS)
        once = steps(reader, text[:SMALL])
        twice = once + steps(reader, text[SMALL:])
        assert twice <= LARGEST_RATIO * once + 200, kind


def test_channels_of_reasoning_that_follow_one_another_take_few_steps():
    """Counted in calls and lines of Python. Each by itself takes 120, and 168 where something is thought."""
    channels = 200
    for thought, most in (("", 50), ("Hm.", 95)):
        text = f"<think>{thought}</think>" * channels
        reader = reader_for("mistral", TOOLS)
        assert steps(reader, [text]) / channels < most
        events = [*reader.feed(""), *reader.finish()]
        assert not any(isinstance(event, TextDelta) for event in events)


def steps(reader, pieces):
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += 1
        return trace if "text_calls" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for piece in pieces:
            reader.feed(piece)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_what_waits_on_the_cursor_stays_small(format):
    """A held call is kept in pieces; the cursor itself, which is copied with every feed, holds only a mark or a head."""
    for kind in dealt(FLOODS, 4, FORMAT_NAMES.index(format)):
        reader = reader_for(format, TOOLS)
        assert isinstance(reader, TextReader)
        for char in flood(kind, MOST_HELD + 200):
            reader.feed(char)
            assert len(reader._cursor.text) - reader._cursor.at <= MOST_HELD, kind
