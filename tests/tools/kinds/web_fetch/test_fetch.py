"""Pages are fetched from addresses that are allowed alone, within bounds, and come as text."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from callgate.calls.outcome import Failed, FailureKind, Image, Returned
from callgate.config.schema.whole import Config
from callgate.parsers.pool import ParserPool
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.web_fetch.fetch import WebFetch
from tests.harness.needs import needs
from tests.tools.executor_kinds import an_occasion, ready
from tests.tools.kinds.web_pages import Answer, WebOfTests, leads_to, page, plain, web_of_tests

pytestmark = pytest.mark.anyio

HTML = """<html><head><title>Rust  2.0</title><script>steal()</script></head><body><nav><a href="/">Home</a></nav>
<article><h1>Rust 2.0</h1><p>Rust 2.0 is out today, with a new borrow checker, and it is a large step for everybody who writes it.
See <a href="/notes">the notes</a>.</p><p>It compiles twice as fast as the one before, says its author.</p></article>
<footer>All rights reserved</footer></body></html>"""


@asynccontextmanager
async def fetching(web: WebOfTests, **settings: Any) -> AsyncIterator[Any]:
    rules = AddressRules(allow_private=True)
    options: dict[str, Any] = {"rules": rules, "max_bytes": 100_000, "max_redirects": 3, **settings}
    ours = Web(resolve=web.resolve)
    parsers = ParserPool()
    tool = WebFetch(ours, parsers, **options)

    async def fetch(url: str, **arguments: Any) -> Any:
        async with asyncio.timeout(60):
            return await tool.execute(ready("web_fetch", url=url, **arguments), an_occasion())

    try:
        yield fetch
    finally:
        await parsers.close()
        await ours.close()


@pytest.mark.slow
@needs("module:trafilatura")
async def test_a_page_is_its_title_its_address_and_what_it_says() -> None:
    def answer(method: str, host: str, target: str) -> Answer:
        if target == "/latin":
            return (
                200,
                {"Content-Type": "text/html; charset=latin-1"},
                HTML.replace("its author", "J\xfcrgen").encode("latin-1"),
            )
        return page("<html><body></body></html>" if target == "/empty" else HTML)

    async with web_of_tests(answer) as web, fetching(web) as fetch:
        outcome = await fetch(web.url("a.example", "/rust#part"))
        latin = await fetch(web.url("a.example", "/latin"))
        empty = await fetch(web.url("a.example", "/empty"))
    assert outcome.text.startswith(f"Rust 2.0\n{web.url('a.example', '/rust')}\n\n# Rust 2.0\n")
    assert f"[the notes]({web.url('a.example', '/notes')})" in outcome.text
    assert not [word for word in ("steal", "Home", "All rights") if word in outcome.text]
    assert "says Jürgen" in latin.text
    assert isinstance(empty, Failed)


async def test_text_comes_as_it_is_and_images_as_images() -> None:
    answers = {
        "/text": plain("Just text."),
        "/json": page('{"a": 1}', Content_Type="application/json"),
        "/png": (200, {"Content-Type": "image/png"}, b"\x89PNG"),
        "/zip": (200, {"Content-Type": "application/zip"}, b"PK\0\0"),
        "/gone": (404, {}, b"<html>gone</html>"),
        "/packed": page("x", Content_Encoding="gzip"),
    }
    async with web_of_tests(lambda method, host, target: answers[target]) as web, fetching(web) as fetch:
        said = {path: await fetch(web.url("a.example", path)) for path in answers}
    assert said["/text"].text == f"{web.url('a.example', '/text')}\n\nJust text."
    assert said["/json"].text.endswith('{"a": 1}')
    assert said["/png"].images == (Image(b"\x89PNG", "image/png"),)
    assert said["/zip"].text.endswith("[application/zip, 4 bytes, not shown]")
    assert said["/gone"] == Failed("HTTP 404 Word", FailureKind.RAISED)
    assert isinstance(said["/packed"], Failed)


async def test_no_more_of_a_page_is_read_than_allowed_and_the_model_is_told() -> None:
    async with web_of_tests(lambda *_: plain("x" * 5000)) as web, fetching(web, max_bytes=1024) as fetch:
        outcome = await fetch(web.url("a.example"))
    assert outcome.text.count("x") == 1024 + "a.example".count("x")
    assert outcome.cut_bytes == 5000 - 1024


async def test_redirects_are_followed_as_far_as_allowed() -> None:
    def answer(method: str, host: str, target: str) -> Answer:
        number = int(target.removeprefix("/"))
        return leads_to(f"/{number - 1}") if number else plain("The end.")

    async with web_of_tests(answer) as web, fetching(web) as fetch:
        assert (await fetch(web.url("a.example", "/3"))).text.endswith("The end.")
        refused = await fetch(web.url("a.example", "/4"))
    assert refused == Failed("Not followed: more than 3 redirects.", FailureKind.REFUSED)


@pytest.mark.parametrize(
    "target",
    ["http://169.254.169.254/latest/meta-data/", "http://[::ffff:127.0.0.1]:{port}/", "http://inside.example:{port}/",
     "file:///etc/passwd", "http://user:pw@a.example:{port}/"],
)  # fmt: skip
async def test_a_redirect_is_held_to_what_the_address_itself_is_held_to(target: str) -> None:
    rules = AddressRules(hosts=frozenset({"a.example"}))
    to = ""

    def answer(method: str, host: str, path: str) -> Answer:
        return leads_to(to) if host == "a.example" and path == "/" else plain("SECRET")

    async with web_of_tests(answer) as web, fetching(web, rules=rules) as fetch:
        to = target.format(port=web.port)
        outcome = await fetch(web.url("a.example"))
    assert isinstance(outcome, Failed)
    assert [host for host, _ in web.asked] == ["a.example"]


@pytest.mark.parametrize(
    "url",
    ["", "example.com", "ftp://a.example/", "file:///etc/passwd", "http://", "http://a b/", "https://user:pw@a.example/",
     "http://a.example/\n", "https://" + "a" * 2048, "javascript:alert(1)", "http://@a.example/"],
)  # fmt: skip
async def test_what_is_no_address_of_a_page_is_not_asked(url: str) -> None:
    async with web_of_tests(lambda *_: plain("x")) as web, fetching(web) as fetch:
        outcome = await fetch(url)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.NOT_RUN
    assert web.resolved == []


async def test_private_addresses_are_refused_at_each_connection() -> None:
    async with web_of_tests(lambda *_: plain("SECRET")) as web, fetching(web, rules=AddressRules()) as fetch:
        literal = await fetch(web.url("127.0.0.1"))
        named = await fetch(web.url("named.example"))
    async with web_of_tests(lambda *_: page("", Connection="close")) as web:
        rules = AddressRules(networks=frozenset({ipaddress.ip_network("127.0.0.1")}))
        async with fetching(web, rules=rules) as fetch:
            web.addresses["changes.example"] = [["127.0.0.1"], ["127.0.0.2"]]
            await fetch(web.url("changes.example"))
            later = await fetch(web.url("changes.example"))
    assert {outcome.kind for outcome in (literal, named, later)} == {FailureKind.REFUSED}
    assert len(web.asked) == 1


async def test_domains_bound_the_address_and_all_that_it_leads_to() -> None:
    def answer(method: str, host: str, target: str) -> Answer:
        return leads_to(f"http://other.example:{web.port}/") if target == "/away" else plain("Here.")

    async with web_of_tests(answer) as web, fetching(web) as fetch:
        here = await fetch(web.url("www.a.example"), allowed_domains=["a.example"])
        away = await fetch(web.url("a.example", "/away"), allowed_domains=["a.example"])
        blocked = await fetch(web.url("a.example", "/away"), blocked_domains=["other.example"])
        wrong = await fetch(web.url("a.example"), allowed_domains=["https://a.example"])
    assert isinstance(here, Returned)
    assert {outcome.kind for outcome in (away, blocked)} == {FailureKind.REFUSED}
    assert wrong.kind is FailureKind.NOT_RUN
    assert [host for host, _ in web.asked] == ["www.a.example", "a.example", "a.example"]


def test_without_the_library_that_reads_pages_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from callgate.tools.kinds.web_fetch import building

    monkeypatch.setattr(building, "READER", "no_such_library")
    models = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]
    config = Config.model_validate({"model_list": models, "tools": [{"kind": "web_fetch"}]})
    with pytest.raises(ValueError, match=r"pip install 'callgate\[web\]'"):
        building.web_fetch_tool(config.tools[0], None, Web(), None)  # type: ignore[arg-type]
