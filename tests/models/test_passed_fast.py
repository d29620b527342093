"""The fast twin of searching passed-through reads says of none that it holds nothing but text where the search finds more."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.models.direct.passthrough import MOST_TEMPLATES, PAYS_AFTER, PassedEvents, TextTemplate
from tests.chaos.scale import examples
from tests.models.wire import chunk


class NoTemplate(TextTemplate):
    def fits(self, data):
        return False


def event(delta, finish=None, **more):
    return f"data: {json.dumps({**chunk(delta, finish), **more})}\n\n".encode()


def word(text):
    return event({"content": text})


def template_of(data):
    template = TextTemplate()
    template.learn(data)
    return template


@pytest.mark.parametrize(
    "text", ["", "b", "two words", "{}", "[DONE]", "data: x", "event: error", "\x7f", "line\n", "\u4f60"]
)
def test_another_text_fits(text):
    assert template_of(word("a")).fits(word(text))


@pytest.mark.parametrize(
    "data",
    [
        word('say "hi"'),
        word("\\"),
        word("a\\").replace(b"\\\\", b"\\"),
        word("a") + word("b"),
        word("a").replace(b"\n\n", b"\r\n\r\n"),
        word("a")[:-1],
        word("a")[1:],
        word("a\x00").replace(b"\\u0000", b"\r"),
        word("a\x00").replace(b"\\u0000", b"\n\n"),
        word("a").replace(b'"a"', b'"'),
        word("a").replace(b'"a"', b""),
        event({"content": "a"}, "stop"),
        event({"content": "a"}, usage={"total_tokens": 1}),
        event({"reasoning": "a"}),
        b"",
    ],
)
def test_nothing_else_fits(data):
    template = template_of(word("a"))
    assert not template.fits(data)
    assert template.fits(word("b"))


@pytest.mark.parametrize(
    "data", [word("a") + word("b"), event({"role": "assistant"}), b": ping\n\n", b"event: x\n" + word("a")]
)
def test_no_template_is_made_of_what_is_not_one_event_with_a_text(data):
    template = template_of(data)
    assert not template.fits(data)


def test_nothing_fits_what_was_forgotten():
    template = template_of(word("a"))
    template.forget()
    assert not template.fits(word("a"))


def test_events_that_always_change_do_not_make_templates_for_ever():
    template = TextTemplate()
    for number in range(MOST_TEMPLATES + 1):
        template.learn(event({"content": "a"}, obfuscation="x" * number))
    assert not template.fits(event({"content": "a"}, obfuscation="x" * MOST_TEMPLATES))
    assert template.fits(event({"content": "a"}, obfuscation="x" * (MOST_TEMPLATES - 1)))


def test_templates_that_pay_for_themselves_are_made_again():
    template = TextTemplate()
    for number in range(MOST_TEMPLATES + 2):
        data = event({"content": "a"}, obfuscation="x" * number)
        template.learn(data)
        assert all(template.fits(data) for _ in range(PAYS_AFTER))


def read_by(reader, pieces):
    """What becomes of each piece, and of the end."""
    batches: list[Any] = []
    for piece in pieces:
        if not reader.is_done:
            batches.append(reader.feed(piece))
    if not reader.is_done:
        batches.append(reader.finish())
    return [*map(tuple, batches), reader.is_done, reader.fault]


texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ['"', "\\", "\n", "\r", "[DONE]", '"error"', '","usage":{', '"finish_reason":"stop', "data: x", "event:"]
    ),
)
events = st.one_of(
    st.builds(word, texts),
    st.builds(word, texts),
    st.builds(word, texts),
    st.builds(lambda text: event({"reasoning_content": text}), texts),
    st.builds(lambda text: event({"content": text}, usage={"total_tokens": 3}), texts),
    st.builds(lambda text: event({"content": text}, "stop"), texts),
    st.builds(lambda text: event({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": text}}]}), texts),
    st.builds(lambda text: b"data: " + json.dumps({"error": {"message": text}}).encode() + b"\n\n", texts),
    st.sampled_from([b": ping\n\n", b"event: error\ndata: x\n\n", b"\n", b"data: [DONE]\n\n", b"data: {\r\n\r\n"]),
)


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(events, max_size=16), st.booleans(), st.booleans(), st.data())
def test_a_stream_is_passed_on_the_same_as_by_searching(found, hide_usage, takes_calls, data):
    lines = [word("first"), *found]
    cuts = sorted(data.draw(st.lists(st.integers(0, sum(map(len, lines))), max_size=4)))
    ends = [sum(map(len, lines[: at + 1])) for at in range(len(lines))]
    body = b"".join(lines)
    places = sorted({0, *ends, *cuts})
    pieces = [body[a:b] for a, b in itertools.pairwise(places)]
    fast = PassedEvents(hide_usage=hide_usage, takes_calls=takes_calls)
    plain = PassedEvents(hide_usage=hide_usage, takes_calls=takes_calls)
    plain._template = NoTemplate()
    assert read_by(fast, pieces) == read_by(plain, pieces)


class ReadsAll(PassedEvents):
    """Reads every event."""

    def _says_more(self, data):
        return True


WRITTEN = {
    "with nothing around colons": lambda text: text.replace(": ", ":"),
    "with a space behind colons": lambda text: text,
    "with a space before colons": lambda text: text.replace(": ", " :"),
    "with spaces around colons": lambda text: text.replace(": ", " : "),
    "with two spaces": lambda text: text.replace(": ", ":  "),
    "with a tab behind colons": lambda text: text.replace(": ", ":\t"),
    "with a tab before colons": lambda text: text.replace(": ", "\t:"),
    "in lines that end with colons": lambda text: text.replace(": ", ":\ndata: "),
    "in lines that begin with colons": lambda text: text.replace(": ", "\ndata: :"),
    "with escaped letters": lambda text: (
        text.replace("usage", "us\\u0061ge").replace("_reason", "\\u005freason").replace("err", "e\\u0072r")
    ),
}
SAYS_MORE = {
    "its end": chunk(finish="stop"),
    "its usage": {"choices": [], "usage": {"prompt_tokens": 3}},
    "usage beside text": {**chunk({"content": "a"}), "usage": {"prompt_tokens": 3}},
    "an error": {"error": {"message": "no"}},
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("more", SAYS_MORE.values(), ids=SAYS_MORE)
def test_what_an_event_says_is_found_however_its_names_are_written(more, written):
    pieces = [word("first"), word("second"), b"data: %b\n\n" % written(json.dumps(more)).encode(), b"data: [DONE]\n\n"]
    searched, read = PassedEvents(hide_usage=True, takes_calls=True), ReadsAll(hide_usage=True, takes_calls=True)
    assert read_by(searched, pieces) == read_by(read, pieces)
