import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Request, Web, shown_address
from callgate.tools.kinds.http.endpoint import BadArgument, BadTemplate, HttpEndpoint, PathValues
from tests.tools.executor_kinds import an_occasion, ready

WEB = Web()
"""Never connects in these tests: the request is looked at before it is sent."""


def endpoint(url: str = "https://api.example.com/weather/{city}", method: str = "GET", **options: Any) -> HttpEndpoint:
    return HttpEndpoint(WEB, method=method, url=url, **options)


def request(tool: HttpEndpoint, **arguments: Any) -> Request:
    return tool._request(arguments, "key_1")


def test_arguments_fill_the_path_and_the_rest_of_a_get_becomes_the_query():
    made = request(endpoint(), city="São Paulo", days=3, hourly=True, skip=None, tags=["a b", "c&d"])
    assert made.method == "GET"
    assert str(made.url) == (
        "https://api.example.com/weather/S%C3%A3o%20Paulo?days=3&hourly=true&tags=a%20b&tags=c%26d"
    )
    assert made.content is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_the_rest_of_what_has_a_body_becomes_json(method):
    made = request(endpoint(method=method), city="Oslo", days=3, nested={"a": [1]})
    assert made.content is not None
    assert json.loads(made.content) == {"days": 3, "nested": {"a": [1]}}
    assert made.headers["Content-Type"] == "application/json"
    assert str(made.url) == "https://api.example.com/weather/Oslo"


def test_the_operators_query_stays_and_is_filled():
    tool = endpoint("https://h.example/s?v=1&q={q}", query={"limit": "{limit}", "lang": "en", "page": "p{page}"})
    assert str(request(tool, q="a&b", limit=5).url) == "https://h.example/s?v=1&q=a%26b&limit=5&lang=en"


def test_a_body_template_keeps_types_and_leaves_out_what_is_missing():
    tool = endpoint(
        method="POST", body={"q": "{city}", "n": "{n}", "text": "in {city}!", "gone": "{gone}", "l": ["{n}"]}
    )
    made = request(tool, city="Oslo", n=3)
    assert made.content is not None
    assert json.loads(made.content) == {"q": "Oslo", "n": 3, "text": "in Oslo!", "l": [3]}


def test_configured_headers_and_the_idempotency_key_are_sent():
    made = request(endpoint(headers={"Authorization": "Bearer t"}), city="Oslo")
    assert made.headers == {"Authorization": "Bearer t", "Idempotency-Key": "key_1"}


@pytest.mark.parametrize(
    "city",
    [
        *("", ".", "..", "../admin", "a/../../admin", "..\\admin", "a\nb", "a\0b", "\ud800", None, ["a"], {"a": 1}),
        *("a/b", "/", "a\\b", "%2e%2e", "a%2fb", "a%2Fb", "a%5cb", "a%252fb", "%25252e%25252e", "//evil.example"),
        "%" + "25" * 20 + "2f",
    ],
)
def test_a_value_that_would_leave_its_place_in_the_path_is_not_sent(city):
    with pytest.raises(BadArgument):
        request(endpoint(), city=city)


@pytest.mark.parametrize("city", ["a?b=c", "a#b", "@evil.example", "a%2e%2e", "100%", "a;b", "{x}"])
def test_a_value_stays_in_its_segment_whatever_it_contains(city):
    made = request(endpoint("https://api.example.com/w/{city}/now"), city=city)
    path = made.url.raw_path.decode()
    assert made.url.host == "api.example.com"
    assert path.startswith("/w/")
    assert path.endswith("/now")
    assert path.count("/") == 3
    assert "?" not in path


def test_a_place_may_hold_several_segments_where_that_is_allowed():
    tool = endpoint("https://api.example.com/files/{path}/raw", path_values=PathValues.SEGMENTS)
    assert request(tool, path="a b/c.txt").url.raw_path == b"/files/a%20b/c.txt/raw"
    for path in ("../a", "a/../b", "a/./b", "/a", "a/", "a//b", "a\\b", "a%2fb", "a/%2e%2e/b", ""):
        with pytest.raises(BadArgument):
            request(tool, path=path)


def test_a_slash_may_be_sent_encoded_where_that_is_allowed():
    tool = endpoint("https://api.example.com/projects/{id}", path_values=PathValues.ENCODED)
    assert request(tool, id="group/project").url.raw_path == b"/projects/group%2Fproject"
    for id in ("../a", "a/../b", "a\\b", "a%2fb"):
        with pytest.raises(BadArgument):
            request(tool, id=id)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pa55@api.example.com/v1?key=s3cret&q={q}", "https://api.example.com/v1?key=…&q={q}"),
        ("https://hooks.example.com/T0/AbCd1234efGH5678ijkl", "https://hooks.example.com/T0/…"),
        (
            "https://api.example.com/repositories/{repository_id_1}/x",
            "https://api.example.com/repositories/{repository_id_1}/x",
        ),
        ("https://api.example.com/?s3cret", "https://api.example.com/?…"),
        ("https://[::1", "the address"),
    ],
)
def test_an_address_is_shown_without_what_may_be_a_credential(url, shown):
    assert shown_address(url) == shown


@pytest.mark.parametrize(
    "url",
    ["ftp://u:s3cretpassword@h/", "https://u:s3cretpassword@h/../x?k=s3cret", "https://u:s3cret@h:port/?k=s3cret"],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_credentials(url):
    with pytest.raises(BadTemplate) as refused:
        endpoint(url)
    assert "s3cret" not in str(refused.value)


@given(st.text())
def test_no_value_changes_where_a_request_goes(city):
    tool = endpoint("https://api.example.com:8443/base/{city}/end?k={city}")
    try:
        made = request(tool, city=city)
    except BadArgument:
        return
    assert (made.url.scheme, made.url.host, made.url.port) == ("https", "api.example.com", 8443)
    path = made.url.raw_path.decode().partition("?")[0]
    assert path.split("/")[:2] == ["", "base"]
    assert len(path.split("/")) == 4
    assert httpx2.QueryParams(made.url.query.decode())["k"] == city


@given(st.text(min_size=1, max_size=5).map(lambda text: f"{text}."))
def test_pieces_on_both_sides_of_a_literal_dot_do_not_climb(text):
    tool = endpoint("https://api.example.com/a/{x}.{y}/b")
    try:
        made = request(tool, x=text, y=text)
    except BadArgument:
        return
    assert made.url.raw_path.startswith(b"/a/")
    assert made.url.raw_path.endswith(b"/b")


@pytest.mark.parametrize(
    "url",
    [
        "https://{host}/x",
        "https://api.{region}.example/",
        "ftp://h/x",
        "/relative",
        "https:///x",
        "file:///etc/passwd",
        "https://h.example/a/../b",
        "https://h.example/%2e%2e/{x}",
    ],
)
def test_a_template_whose_host_is_not_fixed_is_refused_at_load(url):
    with pytest.raises(BadTemplate):
        endpoint(url)


@pytest.mark.parametrize(
    "headers", [{"X-Key": "secret\n"}, {"X-Key": "sécret"}, {"X-Key": " secret"}, {"a b": "secret"}]
)
def test_a_header_that_cannot_be_sent_is_refused_at_load_and_not_repeated(headers):
    with pytest.raises(BadTemplate) as raised:
        endpoint(headers=headers)
    assert "cret" not in str(raised.value)


@pytest.mark.anyio
async def test_a_bad_argument_is_reported_to_the_model_and_nothing_is_sent():
    outcome = await endpoint().execute(ready("weather", city=".."), an_occasion())
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.NOT_RUN
    assert "`city`" in outcome.text


@pytest.mark.anyio
async def test_what_arrives_is_what_was_configured():
    async with recording() as (port, heads):
        web = Web()
        tool = HttpEndpoint(
            web,
            method="POST",
            url=f"http://127.0.0.1:{port}/a/{{city}}",
            headers={"X-Key": "secret"},
            rules=AddressRules(allow_private=True),
        )
        outcome: Outcome = await tool.execute(ready("weather", city="a&b", days=2), an_occasion())
        await web.close()
    assert not isinstance(outcome, Failed)
    head, body = heads[0]
    assert head.startswith("POST /a/a%26b HTTP/1.1\r\n")
    lines = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in head.splitlines()[1:]}
    assert lines["x-key"] == "secret"
    assert lines["idempotency-key"] == "key_1"
    assert lines["accept-encoding"] == "identity"
    assert json.loads(body) == {"days": 2}


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[int, list[tuple[str, bytes]]]]:
    heads: list[tuple[str, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:"))
        heads.append((head, await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()
        await server.wait_closed()
