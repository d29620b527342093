"""Fetching what a message has the address of."""

import pytest

from callgate.models.media import CannotFetch
from callgate.runtime.media import MOST_REDIRECTS, fetch_media
from callgate.tools.kinds.http.addresses import AddressRules
from tests.models.wire import raw_provider

pytestmark = pytest.mark.anyio

HOME = AddressRules(allow_private=True)


async def picture(request, wire):
    if request.target == "/moved":
        await wire.whole(b"", 302, "Location: /a.png")
    elif request.target == "/round":
        await wire.whole(b"", 302, "Location: /round")
    elif request.target == "/inside":
        await wire.whole(b"", 302, "Location: http://169.254.169.254/latest")
    elif request.target == "/page":
        await wire.whole(b"<html>", kind="application/x-sh")
    elif request.target == "/gone":
        await wire.whole(b"", 404)
    else:
        await wire.whole(b"x" * 100, kind="image/png; q=1")


async def test_a_picture_comes_with_its_kind_and_redirects_are_followed():
    async with raw_provider(picture) as server:
        for path in ("/a.png", "/moved"):
            assert await fetch_media(f"{server.url}{path}", 100, HOME) == (b"x" * 100, "image/png")


@pytest.mark.parametrize(
    ("path", "most", "word"),
    [
        ("/a.png", 99, "longer"),
        ("/round", 100, "too often"),
        ("/inside", 100, "metadata"),
        ("/page", 100, "content type"),
        ("/gone", 100, "404"),
    ],
)
async def test_what_cannot_be_had_says_why(path, most, word):
    async with raw_provider(picture) as server:
        with pytest.raises(CannotFetch, match=word):
            await fetch_media(f"{server.url}{path}", most, HOME)
    assert len(server.requests) <= MOST_REDIRECTS + 1


async def test_addresses_that_are_not_public_are_not_asked():
    async with raw_provider(picture) as server:
        with pytest.raises(CannotFetch, match="loopback"):
            await fetch_media(f"{server.url}/a.png", 100)
    assert server.requests == []
