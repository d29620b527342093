"""Bytes of HTTP, to our server and to uvicorn's on h11: what both accept reaches the application as the same requests.

`python -m tests.fuzz edge` makes inputs until it has the wished number of them and prints how they went. A difference
is a request that one hands to the application and the other does not, without having refused it, or that they hand on
differently. Those that are meant stand in `READ_ALIKE` and `ENDS_EARLIER`, each with its reason.
"""

import asyncio
import logging
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from h11 import LocalProtocolError
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from callgate.server import ProtocolFactory
from tests.fuzz.harness import cut

TURNS_BETWEEN, TURNS_AFTER = 2, 40
"""Turns of the event loop that a server gets after a piece, and after the last: for several requests at once."""


@dataclass(frozen=True)
class Seen:
    """A request as the application sees it."""

    method: str
    version: str
    raw_path: bytes
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass
class Outcome:
    """What became of an input."""

    requests: list[Seen] = field(default_factory=list)
    begun: int = 0
    refused: bool = False
    closed: bool = False


@dataclass(frozen=True)
class Difference:
    data: bytes
    ours: Outcome
    theirs: Outcome

    def __str__(self) -> str:
        return f"{self.data!r}\n  ours:   {self.ours}\n  theirs: {self.theirs}"


def run(data: bytes) -> None:
    found = difference(cut(data))
    assert found is None or reasons_for(found) is not None, f"an unexplained difference\n{found}"


def difference(pieces: list[bytes]) -> Difference | None:
    return compared(b"".join(pieces), sent_to(_ours, pieces), sent_to(_theirs, pieces))


def compared(data: bytes, ours: Outcome, theirs: Outcome) -> Difference | None:
    both = min(len(ours.requests), len(theirs.requests))
    fewer = min(ours, theirs, key=lambda outcome: len(outcome.requests))
    if ours.requests[:both] == theirs.requests[:both] and (len(ours.requests) == len(theirs.requests) or fewer.refused):
        return None
    return Difference(data, ours, theirs)


# What is meant -----------------------------------------------------------------------------------------------------


def _same_target(ours: Seen, theirs: Seen) -> Seen:
    if theirs.raw_path[:1] == b"/" and b"#" not in theirs.raw_path + theirs.query:
        return theirs
    return replace(theirs, raw_path=ours.raw_path, path=ours.path, query=ours.query)


def _same_coding(ours: Seen, theirs: Seen) -> Seen:
    mine = [value for name, value in ours.headers if name == b"transfer-encoding"]
    headers = tuple(
        (name, mine.pop(0) if name == b"transfer-encoding" and mine and mine[0].lower() == value else value)
        for name, value in theirs.headers
    )
    return replace(theirs, headers=headers)


READ_ALIKE: Final[dict[str, Callable[[Seen, Seen], Seen]]] = {
    "a target that is a whole address or has a fragment is taken apart (RFC 9112, 3.2.2); h11's server hands it on": (
        _same_target
    ),
    "h11 writes the value of Transfer-Encoding in lower case": _same_coding,
}
"""What the other server makes of a request and we do not: each turns theirs into ours, where that is all."""


def _after_upgrade(found: Difference) -> bool:
    ours = found.ours.requests
    last = dict(ours[-1].headers) if ours else {}
    return b"upgrade" in last and found.ours.closed and len(ours) < len(found.theirs.requests)


ENDS_EARLIER: Final[dict[str, Callable[[Difference], bool]]] = {
    "a request that asks for another protocol is the last of its connection: what follows may be that protocol's": (
        _after_upgrade
    ),
}
"""Where one of them takes no more requests, without a word, and the other does."""


def reasons_for(found: Difference) -> list[str] | None:
    """Why the servers may differ so; None where that is not known."""
    reasons: list[str] = []
    left: Difference | None = found
    for reason, alike in READ_ALIKE.items():
        assert left is not None
        pairs = list(zip(left.ours.requests, left.theirs.requests, strict=False))
        read = [alike(one, other) for one, other in pairs]
        if read != [other for _, other in pairs]:
            reasons.append(reason)
            theirs = replace(left.theirs, requests=[*read, *left.theirs.requests[len(read) :]])
            left = compared(left.data, left.ours, theirs)
            if left is None:
                return reasons
    assert left is not None
    both = min(len(left.ours.requests), len(left.theirs.requests))
    if left.ours.requests[:both] != left.theirs.requests[:both]:
        return None
    ended = [reason for reason, meant in ENDS_EARLIER.items() if meant(left)]
    return [*reasons, *ended] if ended else None


# Serving without sockets -------------------------------------------------------------------------------------------


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, lines: Any) -> None:
        self.written += b"".join(lines)

    def write_eof(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


_loop = asyncio.new_event_loop()
_loop.set_exception_handler(lambda loop, context: None)  # tasks of h11's server end in errors while it refuses


def _app(outcome: Outcome) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        outcome.begun += 1
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
        outcome.requests.append(
            Seen(
                scope["method"], scope["http_version"], scope["raw_path"], scope["path"], scope["query_string"],
                headers, body,
            )
        )  # fmt: skip
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    return app


def _config(outcome: Outcome) -> Config:
    config = Config(_app(outcome), ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False)
    config.load()
    return config


def _ours(outcome: Outcome) -> Any:
    return ProtocolFactory().protocol(_config(outcome), ServerState(), {}, _loop)


def _theirs(outcome: Outcome) -> Any:
    return H11Protocol(_config(outcome), ServerState(), {}, _loop)


_REFUSAL: Final = re.compile(rb"HTTP/1\.1 [45]\d\d ")


def sent_to(make: Callable[[Outcome], Any], pieces: list[bytes]) -> Outcome:
    log = logging.getLogger("uvicorn.error")
    log.disabled = True  # h11's server warns of each input that is no HTTP
    try:
        return _loop.run_until_complete(_sent_to(make, pieces))
    finally:
        log.disabled = False


async def _sent_to(make: Callable[[Outcome], Any], pieces: list[bytes]) -> Outcome:
    outcome, transport = Outcome(), _Transport()
    protocol = make(outcome)
    protocol.connection_made(transport)
    for piece in filter(None, pieces):
        for _ in range(TURNS_AFTER):
            if not transport.paused:
                break
            await asyncio.sleep(0)
        if transport.closed:
            break
        try:
            protocol.data_received(piece)
        except LocalProtocolError:  # h11's server fails while it refuses a body whose answer it has begun
            outcome.refused = True
            break
        for _ in range(TURNS_BETWEEN):
            await asyncio.sleep(0)
    settled = -1
    while settled != outcome.begun + len(outcome.requests):
        settled = outcome.begun + len(outcome.requests)
        for _ in range(TURNS_AFTER):
            await asyncio.sleep(0)
    outcome.refused = outcome.refused or _REFUSAL.search(transport.written) is not None
    outcome.closed = transport.closed
    protocol.connection_lost(None)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return outcome


# Inputs ------------------------------------------------------------------------------------------------------------

METHODS = [
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"HEAD",
    b"OPTIONS",
    b"PATCH",
    b"get",
    b"BREW",
    b"CONNECT",
    b"TRACE",
    b"G-T",
]
TARGETS = [
    b"/", b"/a", b"/a?b=c", b"/%41%2f", b"//a", b"/a//b/../c", b"/?", b"/a?b?c", b"/a#f", b"*", b"http://h/a?b", b"h:80", b"",
    b"/\xc3\xa9", b"/a b", b"/%", b"/\x7f", b"/a;b=c", b"/a\\b", b"http://h", b"?a", b"a",
]  # fmt: skip
VERSIONS = [b"HTTP/1.1"] * 8 + [
    b"HTTP/1.0",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/1.2",
    b"HTTP/0.9",
    b"http/1.1",
    b"",
    b"HTTP/1.10",
]
HEADERS = [
    b"host: h", b"Host: other", b"content-length: 0", b"content-length: 5", b"content-length: +5", b"content-length: 5, 5",
    b"content-length: 05", b"content-length: 5 ", b"content-length: 0x5", b"Content-Length : 5", b"transfer-encoding: chunked",
    b"Transfer-Encoding: Chunked", b"transfer-encoding: gzip, chunked", b"transfer-encoding: identity",
    b"transfer-encoding: chunked, identity", b"transfer-encoding:\tchunked", b"transfer-encoding: xchunked",
    b"transfer-encoding: chunked ", b"connection: close", b"connection: keep-alive", b"connection: Close, x",
    b"connection: upgrade", b"upgrade: h2c", b"expect: 100-continue", b"x: y", b"x:y", b"x:", b"x:  y  ", b" folded: y",
    b"\tfolded", b"x y: z", b"x\x00: y", b"x: a\x00b", b"x: a\rb", b"x: \xff\xfe", b"x: a\x7fb", b"x: a\x01b", b": y", b"no colon",
    b"authorization: a", b"Authorization: b", b"x_y: z", b"x.y: z", b"x(y): z", b"cookie: a=b; c=d", b"trailer: x",
]  # fmt: skip
BODIES = [
    b"", b"hello", b"hell", b"hello!", b"5\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n",
    b"5\nhello\n0\n\n", b"05\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhelloXX0\r\n\r\n", b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nhello\r\n0\r\nhost: z\r\n\r\n",
    b'5;a="b\r\nc"\r\nhello\r\n0\r\n\r\n', b"5\r\n\r\nhel\r\n0\r\n\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"a\r\n0123456789\r\n00\r\n\r\n",
]  # fmt: skip
ENDS = [b"\r\n"] * 12 + [b"\n", b"\r", b"\r\n ", b"\n\r"]


def inputs(count: int, seed: int) -> Iterator[bytes]:
    """So many inputs, the same ones for the same seed: requests made of odd parts, and bytes of them changed."""
    chance = random.Random(seed)
    for _ in range(count):
        data = b"".join(_request(chance) for _ in range(chance.choice((1, 1, 2, 2, 3))))
        for _ in range(chance.choice((0, 0, 0, 0, 0, 1, 2))):
            at = chance.randrange(len(data) + 1)
            match chance.randrange(4):
                case 0:
                    data = data[:at] + bytes([chance.choice(b"\r\n\t :;,\x00\x7f\xff0159afAZ%?#/")]) + data[at:]
                case 1:
                    data = data[:at] + data[at + 1 :]
                case 2:
                    data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
                case _:
                    data = data[:at]
        yield bytes(chance.randrange(256) for _ in range(2)) + data


def _request(chance: random.Random) -> bytes:
    end = b"\r\n" if chance.random() < 0.95 else chance.choice(ENDS)
    method = chance.choice(METHODS[:3]) if chance.random() < 0.9 else chance.choice(METHODS)
    target = chance.choice(TARGETS[:4]) if chance.random() < 0.9 else chance.choice(TARGETS)
    version = VERSIONS[0] if chance.random() < 0.95 else chance.choice(VERSIONS)
    headers = [b"host: h"] if chance.random() < 0.98 else []
    headers += chance.choices(HEADERS, k=chance.choice((0, 0, 0, 0, 1, 1, 2, 3)))
    body = chance.choice(BODIES) if chance.random() < 0.5 else b""
    if chance.random() < 0.85:  # framed as it is meant, mostly
        if body.endswith(b"0\r\n\r\n"):
            headers.append(b"transfer-encoding: chunked")
        elif body:
            headers.append(b"content-length: %d" % len(body))
    chance.shuffle(headers)
    return end.join([b" ".join((method, target, version)), *headers, b"", body])


def search(count: int, seed: int) -> int:
    """Try so many inputs, print what came of them, and give the number of unexplained differences."""
    tally: Counter[str] = Counter()
    unexplained: list[Difference] = []
    explained = handed_on = 0
    for data in inputs(count, seed):
        pieces = cut(data)
        ours, theirs = sent_to(_ours, pieces), sent_to(_theirs, pieces)
        handed_on += min(len(ours.requests), len(theirs.requests))
        found = compared(b"".join(pieces), ours, theirs)
        if found is None:
            continue
        reasons = reasons_for(found)
        if reasons is None:
            unexplained.append(found)
        else:
            explained += 1
            tally.update(reasons)
    for found in unexplained[:20]:
        sys.stdout.write(f"{found}\n")
    for reason, times in tally.most_common():
        sys.stdout.write(f"{times:>8}  {reason}\n")
    sys.stdout.write(
        f"edge: {count} inputs (seed {seed}), {handed_on} requests handed on by both, "
        f"{len(unexplained)} unexplained differences, {explained} expected ones\n"
    )
    return len(unexplained)
