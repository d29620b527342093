"""The engines that can be asked for a search: how each is asked, and how its answer is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import httpx2
import msgspec

from callgate.tools.kinds.http.client import Request
from callgate.untrusted.doors import Door, TooMuch, open_text
from callgate.untrusted.readers import READ_ERRORS, json_reader

ANSWER: Final = Door(name="answer of a search engine", bytes=4 * 1024 * 1024, values=50_000)
MOST_IN_QUERY: Final = 10
"""Domains that are written into a query, where the engine has no other way to be told of them."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for."""

    text: str
    most: int
    """How many pages to return."""
    allowed: Sequence[str] = ()
    blocked: Sequence[str] = ()
    """Domains."""
    country: str = ""
    """Two letters."""

    def with_sites(self) -> str:
        """Return the text with the domains in the words that engines have for them."""
        sites = " OR ".join(f"site:{domain}" for domain in self.allowed[:MOST_IN_QUERY])
        others = " ".join(f"-site:{domain}" for domain in self.blocked[:MOST_IN_QUERY])
        if " OR " in sites:
            sites = f"({sites})"
        return " ".join(part for part in (self.text, sites, others) if part)


class Hit(msgspec.Struct, frozen=True):
    """One page that was found."""

    url: str
    title: str
    text: str
    date: str = ""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine."""

    url: str
    """Of its public API; empty where there is none."""
    words: Callable[[str, str, Query], Request]
    """Makes the request, for an address and a key."""
    hits: Callable[[Any], Sequence[Hit]]
    """Reads what was found."""
    answer: Callable[[Any], Any]
    """Decodes the answer."""
    takes_country: bool = False


class NoAnswer(ValueError):
    """Raised for what is no answer of the engine."""


class _FoundPage(msgspec.Struct):
    """A page in the words of all engines."""

    url: str
    title: str | None = None
    content: str | None = None
    description: str | None = None
    page_age: str | None = None
    published_date: str | None = None
    publishedDate: str | None = None  # noqa: N815 - SearXNG's name

    def hit(self) -> Hit:
        date = self.page_age or self.published_date or self.publishedDate or ""
        return Hit(self.url, self.title or self.url, self.content or self.description or "", date[:10])


class _FoundPages(msgspec.Struct):
    results: list[_FoundPage]


class _BraveAnswer(msgspec.Struct):
    web: _FoundPages | None = None


def _searxng(url: str, key: str, query: Query) -> Request:
    words = {"q": query.with_sites(), "format": "json"}
    return _get(f"{url.rstrip('/')}/search", words, {"Authorization": f"Bearer {key}"} if key else {})


def _brave(url: str, key: str, query: Query) -> Request:
    words = {"q": query.with_sites(), "count": str(query.most), "text_decorations": "false"}
    if query.country:
        words["country"] = query.country.upper()
    return _get(f"{url.rstrip('/')}/res/v1/web/search", words, {"X-Subscription-Token": key})


def _get(address: str, words: Mapping[str, str], headers: Mapping[str, str]) -> Request:
    return Request("GET", httpx2.URL(f"{address}?{urlencode(words)}"), {"Accept": "application/json", **headers})


def _tavily(url: str, key: str, query: Query) -> Request:
    body: dict[str, Any] = {"query": query.text, "max_results": query.most}
    if query.allowed:
        body["include_domains"] = query.allowed
    if query.blocked:
        body["exclude_domains"] = query.blocked
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    return Request("POST", httpx2.URL(f"{url.rstrip('/')}/search"), headers, msgspec.json.encode(body))


def _of_pages(answer: _FoundPages) -> Sequence[Hit]:
    return [page.hit() for page in answer.results]


def _of_brave(answer: _BraveAnswer) -> Sequence[Hit]:
    if answer.web is None:
        return ()
    return _of_pages(answer.web)


_pages = json_reader(_FoundPages)
ENGINES: Final[Mapping[str, Engine]] = {
    "searxng": Engine(url="", words=_searxng, hits=_of_pages, answer=_pages),
    "brave": Engine(
        url="https://api.search.brave.com",
        words=_brave,
        hits=_of_brave,
        answer=json_reader(_BraveAnswer),
        takes_country=True,
    ),
    "tavily": Engine(url="https://api.tavily.com", words=_tavily, hits=_of_pages, answer=_pages),
}


def hits_in(engine: Engine, text: str) -> Sequence[Hit]:
    """Return what was found. Raises `NoAnswer`."""
    try:
        return engine.hits(engine.answer(open_text(text, ANSWER)))
    except (TooMuch, *READ_ERRORS) as error:
        raise NoAnswer(str(error)) from None
