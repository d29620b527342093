"""A body is the same, and held to the same limits, however the server hands it over."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from callgate.api.bodies import LARGE, read_body
from callgate.conversation.errors import ChatError

pytestmark = pytest.mark.anyio

LIMIT = LARGE + 10


@dataclass
class Request:
    """A request of our own server, of which all has come or some is still to come."""

    messages: list[dict[str, Any]]
    is_taken_at_once: bool
    received: int = 0

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        return self.messages.pop(0)

    def take_body_fast(self) -> bytes | None:
        if not self.is_taken_at_once:
            return None
        body: bytes = self.messages.pop(0)["body"]
        return body


@dataclass
class Read:
    """What became of a body."""

    body: bytes | None = None
    status: int = 0
    holds: list[tuple[int, int]] = field(default_factory=list)


def messages(*parts: bytes) -> list[dict[str, Any]]:
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": place < last} for place, part in enumerate(parts)]


async def read(request: Request) -> Read:
    outcome = Read()
    try:
        outcome.body = await read_body(
            request.receive, LIMIT, lambda size, largest: outcome.holds.append((size, largest))
        )
    except ChatError as error:
        outcome.status = error.status
    return outcome


@pytest.mark.parametrize("size", [0, 1, LARGE, LARGE + 1, LIMIT, LIMIT + 1])
async def test_a_body_that_is_taken_at_once_is_the_one_that_is_received(size: int) -> None:
    body = b"x" * size
    at_once = Request(messages(body), is_taken_at_once=True)
    outcome = await read(at_once)
    assert outcome == await read(Request(messages(body), is_taken_at_once=False))
    assert at_once.received == 0
    assert (outcome.status == 413) == (size > LIMIT)
    assert bool(outcome.holds) == (LARGE < size <= LIMIT)


@pytest.mark.parametrize("parts", [(b"a", b"b"), (b"", b"a", b""), (b"a", b"x" * LARGE, b"b")])
async def test_a_body_that_is_not_whole_is_received_in_parts(parts: Sequence[bytes]) -> None:
    outcome = await read(Request(messages(*parts), is_taken_at_once=False))
    assert outcome.body == b"".join(parts)


async def test_a_request_that_was_not_sent_to_its_end_is_refused() -> None:
    request = Request([*messages(b"a", b"b")[:1], {"type": "http.disconnect"}], is_taken_at_once=False)
    assert (await read(request)).status == 400
