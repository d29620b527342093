"""A secret does not leave, however it is cut or written; and nothing waits that is none."""

import json
from collections.abc import Iterator

import pytest

from callgate.config.redaction import Redactor
from callgate.config.secret_mask import Needles, SecretMask, needles_for

KEY = "sk-proj-a8f3e9/c0ffee"
STARS = "*" * len(KEY)


def chat(text: str, field: str = "content", choice: int = 0) -> str:
    delta = {field: text}
    if field == "arguments":
        delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}  # type: ignore[dict-item]
    body = {"id": "c", "choices": [{"index": choice, "delta": delta, "finish_reason": None}]}
    return f"data: {json.dumps(body)}\n\n"


def message(text: str, field: str = "text") -> str:
    body = {"type": "content_block_delta", "index": 0, "delta": {"type": f"{field}_delta", field: text}}
    return f"event: content_block_delta\ndata: {json.dumps(body, separators=(',', ':'))}\n\n"


def response(text: str) -> str:
    body = {"type": "response.output_text.delta", "sequence_number": 4, "output_index": 0, "delta": text}
    return f"event: response.output_text.delta\ndata: {json.dumps(body)}\n\n"


EVENTS = {
    "chat": chat,
    "reasoning": lambda text: chat(text, "reasoning_content"),
    "arguments": lambda text: chat(text, "arguments"),
    "message": message,
    "thinking": lambda text: message(text, "thinking"),
    "input": lambda text: message(text, "partial_json"),
    "response": response,
}
PING = ": keep-alive\n\n"
END = 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


def cuts(text: str) -> Iterator[list[str]]:
    """A text as the tokens of models are: in letters, in two, in pieces of several."""
    yield list(text)
    for size in (2, 3, 5):
        yield [text[at : at + size] for at in range(0, len(text), size)]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_secret_in_pieces_of_text_is_masked_wherever_it_is_cut(event):
    for pieces in cuts(f"it is {KEY}, {KEY}."):
        written = [*map(event, pieces), END]
        mask = SecretMask(Needles((KEY.encode(),)))
        out = b"".join(mask.feed(part.encode()) for part in written) + mask.finish()
        assert [len(part) for part in out.split(b"\n\n")] == [len(part) for part in "".join(written).split("\n\n")]
        stars = "".join(pieces).replace(KEY, STARS)
        starred = []
        for piece in pieces:
            starred.append(stars[: len(piece)])
            stars = stars[len(piece) :]
        assert out.decode() == "".join([*map(event, starred), END]), pieces


def test_bytes_that_are_cut_anywhere_come_to_the_same():
    stream = "".join([chat("it is sk-pro"), PING, chat("j-a8f3e9/c0ff"), chat("ee"), chat(" sk-"), END])
    expected = "".join([chat("it is ******"), PING, chat("*************"), chat("**"), chat(" sk-"), END])
    for size in (*range(1, 90), len(stream)):
        mask = SecretMask(Needles((KEY.encode(),)))
        mask.is_stream = True
        out = [mask.feed(stream[at : at + size].encode()) for at in range(0, len(stream), size)]
        assert (b"".join(out) + mask.finish()).decode() == expected, size


def test_texts_side_by_side_are_not_taken_for_one():
    mask = SecretMask(Needles((KEY.encode(),)))
    written = [chat("sk-proj-", choice=0), chat("a8f3e9/c0ffee", choice=1), chat("a8f3e9/c0ffee", choice=0), END]
    out = b"".join(mask.feed(part.encode()) for part in written) + mask.finish()
    assert out.decode() == "".join([chat("********"), chat("a8f3e9/c0ffee", choice=1), chat("*" * 13), END])


@pytest.mark.parametrize("text", ["is", "Yes", "tasks", "k", "risk", "s.", "keys sk", " "])
def test_ordinary_text_does_not_wait(text):
    mask = SecretMask(Needles((KEY.encode(),)))
    if text == "keys sk":
        assert mask.feed(chat(text).encode()) == b""  # it could be one
        assert mask.feed(chat(" and").encode()).decode() == chat(text) + chat(" and")
    else:
        assert mask.feed(chat(text).encode()).decode() == chat(text)


def test_what_waits_goes_on_with_the_end_of_its_text():
    mask = SecretMask(Needles((KEY.encode(),)))
    assert mask.feed(chat("sk-proj").encode()) == b""
    assert mask.feed(PING.encode()) == b""
    assert mask.feed(END.encode()).decode() == chat("sk-proj") + PING + END


def test_a_beginning_that_waits_for_too_long_is_masked():
    mask = SecretMask(Needles((KEY.encode(),)))
    out = mask.feed(chat("sk-proj").encode())
    for _ in range(8):
        out += mask.feed(b": " + b"-" * 10_000 + b"\n\n")
    assert out.startswith(chat("*******").encode())


def test_no_secret_costs_one_search():
    """What is not suspicious goes on as the same object."""
    mask = SecretMask(Needles((KEY.encode(),)))
    data = chat("The quick brown fox jumps over the lazy dog's ears").encode()
    assert mask.feed(data) is data


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        KEY.replace("/", "\\/"),
        KEY.replace("/", "\\u002f"),
        "".join(f"\\u{ord(letter):04x}" for letter in KEY),
        "".join(f"\\u{ord(letter):04X}" for letter in KEY),
        "s\\u006B-proj\\u002da8f3e9\\/c0ffe\\u0065",
        KEY.replace("/", "%2F"),
    ],
)
def test_a_secret_is_masked_as_any_encoder_of_json_writes_it(written):
    redactor = Redactor([KEY])
    body = f'{{"error": {{"message": "sent {written}"}}}}'.encode()
    assert redactor.needles is not None
    mask = SecretMask(redactor.needles, is_foreign=True)
    assert mask.feed(body) + mask.finish() == body.replace(written.encode(), b"*" * len(written))


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_after_a_secret_no_token_of_logprobs_is_shown(size):
    token = b'{"token":"%b","logprob":-0.5,"bytes":[%b],"top_logprobs":[{"token":"%b","logprob":-1,"bytes":[%b]}]}'
    event = b'data: {"choices":[{"delta":{"content":"%b"},"logprobs":{"content":[%b]}}]}\n\n'
    before = event % (b"hello ", token % (b"hello ", b"104,101", b"hey", b"104"))
    echo = event % (KEY.encode(), token % (b"sk-", b"115, 107", b's\\"', b"115"))
    after = event % (b"the ", token % (b"proj", b"112,114", b"", b""))
    data = before + echo + after
    mask = SecretMask(Needles((KEY.encode(),)))
    came = b"".join(mask.feed(data[at : at + size]) for at in range(0, len(data), size))
    shown = before if size < 100 else event % (b"hello ", token % (b"*" * 6, b" " * 7, b"***", b"   "))
    shown += event % (b"*" * len(KEY), token % (b"***", b" " * 8, b"***", b"   "))
    shown += event % (b"the ", token % (b"****", b" " * 7, b"", b""))
    assert came + mask.finish() == shown
    assert not mask.finish()


def test_usual_escapes_are_no_odd_ones():
    secret = "a&b<c>d'0123"
    redactor = Redactor([secret])
    for written in (r"a\u0026b\u003cc\u003ed'0123", secret):
        assert redactor.data(f'{{"a": "{written}"}}'.encode()) == b'{"a": "' + b"*" * len(written) + b'"}'


def test_without_secrets_there_is_nothing_to_search():
    assert needles_for(()) is None
    assert Redactor().needles is None
    assert Redactor(["localhost", "https://host/v1", "true", "short"]).needles is None
