"""A credential that was sent does not come back, however the response is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.config.secret_mask import Needles, SecretMask
from callgate.http.client import HttpClient
from callgate.http.credentials import credentials_in
from tests.models.wire import QUICK, raw_provider

KEY = b"sk-aab1-sk-aab12345"
STARS = b"*" * len(KEY)


def masked(pieces: list[bytes], *secrets: bytes) -> bytes:
    mask = SecretMask(Needles(secrets or (KEY,)))
    return b"".join(map(mask.feed, pieces)) + mask.finish()


@pytest.mark.parametrize(
    "text", [KEY, b"a" + KEY + b"b", KEY + KEY, b"sk-aab1-" + KEY, b"no key: sk-aab1-sk-", b"", b"s"]
)
def test_a_credential_is_masked_wherever_it_is_cut_and_nothing_else_is_touched(text):
    whole = text.replace(KEY, STARS)
    assert masked([text]) == whole
    assert masked([bytes([each]) for each in text]) == whole
    for at in range(len(text)):
        assert masked([text[:at], text[at:]]) == whole


@given(st.lists(st.binary(max_size=6) | st.sampled_from([KEY, KEY[:7], KEY[7:], b"sk-aab1-"]), max_size=12))
def test_masking_pieces_is_masking_the_whole(pieces):
    assert masked(pieces) == b"".join(pieces).replace(KEY, STARS)


def test_only_what_could_be_the_beginning_of_a_credential_waits():
    mask = SecretMask(Needles((KEY,)))
    assert mask.feed(b'data: {"a": 1}\n\n') == b'data: {"a": 1}\n\n'
    assert mask.feed(b"data: sk-a") == b"data: "
    assert mask.feed(b" is no key\n") == b"sk-a is no key\n"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([("Authorization", "Bearer sk-0123456789")], [b"sk-0123456789"]),
        ([("x-api-key", "key-0123456789"), ("X-Title", "a-title-0123456789")], [b"key-0123456789"]),
        ([("api-key", "0123456789ab"), ("Authorization", "0123456789cd")], [b"0123456789ab", b"0123456789cd"]),
        ([("Authorization", "Bearer sk-no-key-required"), ("api-key", "ollama"), ("x-api-key", "sk-12345")], []),
    ],
)
def test_keys_are_credentials_and_placeholders_are_not(headers, found):
    assert sorted(credentials_in(headers)) == sorted(found)


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_an_echoed_credential_is_masked_in_the_response(size):
    body = b"you sent " + KEY + b" and " + KEY

    async def serve(request, wire):
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), size):
            piece = body[at : at + size]
            await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await wire.send(b"0\r\n\r\n")

    client = HttpClient()
    headers = {"Authorization": f"Bearer {KEY.decode()}"}
    expected = body.replace(KEY, STARS)
    async with raw_provider(serve) as server:
        async with client.post(server.url, headers, b"{}", QUICK) as response:
            assert b"".join([part async for part in response.chunks()]) == expected
        async with client.post(server.url, headers, b"{}", QUICK) as response:
            assert await response.read(1000) == expected
        async with client.post(server.url, {}, b"{}", QUICK) as response:
            assert await response.read(1000) == body
    await client.close()
