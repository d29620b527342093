"""A request with the head of the last one is read without the parser, and as the parser reads it."""

import json
from typing import Any

import pytest

from callgate.api.middleware import CALLER_MEMORY, CONNECTION, TEXT_HEADERS
from callgate.server.heads import RepeatedHead
from tests.harness.wire import RawAnswer, RawConnection, raw_connection
from tests.server.bare import Bare, answer, behind_the_edge, read_body

pytestmark = pytest.mark.anyio

HEAD = (
    b"POST /a?b=1 HTTP/1.1\r\nHost: localhost\r\nX-Twice: 1\r\nX-Twice: 2\r\nContent-Length: %b\r\nAccept: */*\r\n\r\n"
)
REHEARSALS = 2
"""Requests until a connection knows its head."""


class Mirror:
    """Answers with all that it was asked, and counts what was read without the parser."""

    def __init__(self) -> None:
        self.fast = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.fast += CALLER_MEMORY in scope
        unlike = ("client", CONNECTION, CALLER_MEMORY, TEXT_HEADERS)
        said = {name: repr(entry) for name, entry in scope.items() if name not in unlike}
        said["body"] = repr(await read_body(receive))
        said["as text"] = repr([*scope[TEXT_HEADERS].items()])
        scope["headers"].append((b"changed", b"by the application"))
        scope["state"]["changed"] = True
        await answer(send, json.dumps(said, sort_keys=True).encode())


def request(body: bytes, length: bytes | None = None) -> bytes:
    return HEAD % (b"%d" % len(body) if length is None else length) + body


USUAL = request(b"hello")
REPEATED = {
    "the same": USUAL,
    "a longer body": request(b"hello" * 100),
    "no body": request(b""),
    "zeros before the length": request(b"hello", b"0005"),
    "a body that looks like a head": request(USUAL),
}
OTHER = {
    "another method": USUAL.replace(b"POST", b"PUT"),
    "another target": USUAL.replace(b"b=1", b"b=2"),
    "another header": USUAL.replace(b"*/*", b"a/b"),
    "one header more": USUAL.replace(b"Accept", b"X-More: 1\r\nAccept"),
    "one header less": USUAL.replace(b"Accept: */*\r\n", b""),
    "spaces around the length": request(b"hello", b"  5 "),
    "a sign before the length": request(b"hello", b"+5"),
    "a length in other digits": request(b"hello", "٥".encode()),
    "no length": request(b"hello", b""),
    "two lengths in one": request(b"hello", b"5, 5"),
    "a second length": USUAL.replace(b"Accept", b"Content-Length: 5\r\nAccept"),
    "chunks as well": USUAL.replace(b"Accept", b"Transfer-Encoding: chunked\r\nAccept"),
    "chunks": USUAL.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(
        b"hello", b"5\r\nhello\r\n0\r\n\r\n"
    ),
    "a line break in the length": request(b"hello", b"5\r\nX: 1"),
    "a bare line break": request(b"hello", b"5\nX: 1"),
    "a length beyond all limits": request(b"hello", b"9" * 30),
    "the end of the connection": USUAL.replace(b"Accept: */*", b"Connection: close"),
    "an older version": USUAL.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no host": USUAL.replace(b"Host: localhost\r\n", b""),
    "a body of several reads": request(b"x" * 600_000),
}
LARGE = {"a body that is whole in one read, or is not": request(b"x" * 100_000)}


async def primed(connection: RawConnection) -> None:
    for _ in range(REHEARSALS):
        assert (await asked(connection, USUAL)).status == 200


async def asked(connection: RawConnection, *pieces: bytes, between: Any = None) -> RawAnswer:
    connection.received.clear()
    for piece in pieces[:-1]:
        await connection.send(piece)
        await between()
    await connection.send(pieces[-1])
    return await connection.answer()


async def both(bare: Bare, data: bytes) -> tuple[RawAnswer, RawAnswer]:
    """Return the answer to a request on a connection that knows the head, and to the same as the first of its own."""
    async with raw_connection(bare.url) as known, raw_connection(bare.url) as new:
        await primed(known)
        return await asked(known, data), await asked(new, data)


@pytest.mark.parametrize("name", [*REPEATED, *OTHER, *LARGE])
async def test_a_request_is_read_as_if_it_were_the_first(name: str) -> None:
    app = Mirror()
    data = {**REPEATED, **OTHER, **LARGE}[name]
    async with behind_the_edge(app) as bare:
        known, new = await both(bare, data)
    assert (known.status, known.body, known.ended) == (new.status, new.body, new.ended)
    if name not in LARGE:
        assert app.fast == (name in REPEATED)


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_request_of_any_size_is_known_if_it_is_all_that_was_read(size: int) -> None:
    head = RepeatedHead()
    headers = [(b"host", b"localhost"), (b"content-length", b"5")]
    usual = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
    learnt = usual % (5, b"hello")
    head.learn(learnt, {"headers": headers, TEXT_HEADERS: {"host": "localhost", "content-length": "5"}}, b"/", 5)
    body = b"x" * size

    request = head.request_fast(usual % (size, body))

    assert request is not None
    scope, body_read = request
    assert body_read == body
    assert scope["headers"] == [(b"host", b"localhost"), (b"content-length", b"%d" % size)]
    assert scope[TEXT_HEADERS] == {"host": "localhost", "content-length": str(size)}
    assert head.request_fast(usual % (size + 1, body)) is None
    assert head.request_fast(usual % (size, body + b"G")) is None


async def test_a_connection_goes_on_after_requests_that_the_parser_did_not_read() -> None:
    app = Mirror()
    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        await primed(connection)
        bodies = []
        for data in (USUAL, OTHER["another header"], request(b"again"), OTHER["chunks"], USUAL):
            bodies.append(json.loads((await asked(connection, data)).body)["body"])
    assert bodies == [repr(b"hello"), repr(b"hello"), repr(b"again"), repr(b"hello"), repr(b"hello")]
    assert app.fast >= 1


async def test_a_request_that_comes_in_pieces_is_whole_wherever_it_is_cut() -> None:
    app = Mirror()
    async with behind_the_edge(app) as bare, raw_connection(bare.url) as known, raw_connection(bare.url) as other:
        await primed(known)

        async def read() -> None:
            """Return when the server has read what was sent before."""
            await asked(other, USUAL)

        for data in (USUAL, request(b"")):
            expected = (await asked(known, data)).body
            for cut in (*range(1, len(data) - 8, 7), *range(len(data) - 8, len(data))):
                assert (await asked(known, data[:cut], data[cut:], between=read)).body == expected


async def test_two_requests_in_one_read_are_two_requests() -> None:
    async with behind_the_edge(Mirror()) as bare, raw_connection(bare.url) as known:
        await primed(known)
        usual = await asked(known, USUAL)
        known.received.clear()
        await known.send(USUAL + USUAL)
        twice = await known.until(usual.body, times=2)
    assert twice.count(b"HTTP/1.1 200") == 2


async def test_a_connection_that_has_another_head_each_time_is_served_by_the_parser() -> None:
    app = Mirror()
    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        for number in range(8):
            data = USUAL.replace(b"*/*", b"%d" % number)
            assert (await asked(connection, data)).status == 200
    assert app.fast == 0


async def test_a_request_without_the_parser_is_refused_in_the_form_of_its_own_api() -> None:
    fast: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        fast.append(CALLER_MEMORY in scope)
        if await read_body(receive) == b"fail":
            raise RuntimeError("on purpose")
        await answer(send)

    def asked_at(path: bytes, body: bytes) -> bytes:
        return b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body)

    async with behind_the_edge(app) as bare, raw_connection(bare.url) as connection:
        messages, chat = b"/v1/messages", b"/v1/chat/completions"
        # No more heads are learned then, and another one was read last.
        for path in (messages, messages, chat, messages, chat):
            assert (await asked(connection, asked_at(path, b""))).status == 200
        refused = await asked(connection, asked_at(messages, b"fail"))
    assert fast == [False] * 5 + [True]
    assert json.loads(refused.body)["type"] == "error"
