"""Fetches a page: by addresses that are allowed alone, within bounds, and as text."""

import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.readable_content import IMAGE_TYPES
from callgate.hosted.calls import NOT_ALLOWED
from callgate.hosted.domains import DomainRules, domains_in
from callgate.parsers.jobs import ParserFailed, Refused
from callgate.parsers.pool import ParserPool
from callgate.tools.executor import CallContext
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import (
    AddressRefused,
    BoundedBody,
    Web,
    failed_request,
    read_bounded,
    shown_address,
)
from callgate.tools.kinds.web_fetch.pages import READ_PAGE, TO_READ, Page, PageQuestion, read_page_answer
from callgate.tools.results import decoded, described
from callgate.untrusted.doors import TooMuch
from callgate.untrusted.messagepack import UntrustedPack
from callgate.untrusted.readers import READ_ERRORS

LONGEST_URL: Final = 2048
EXCERPT_BYTES: Final = 500
"""The limit of an error's text in a message."""
ACCEPTED: Final = "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, */*;q=0.5"
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml", ""})
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")
_TITLE: Final = re.compile(rb"<(?:!doctype html|html|head|body)", re.IGNORECASE)
_SNIFFED: Final = 1024
_DOMAINS: Final = {"type": "array", "items": {"type": "string"}}
PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "description": "The address of the page, with https://."},
        "allowed_domains": {**_DOMAINS, "description": "Domains that redirects may lead to; any if left out."},
        "blocked_domains": {**_DOMAINS, "description": "Domains that they may not lead to."},
    },
    "required": ["url"],
    "additionalProperties": False,
}


class WebFetch:
    """Runs fetches."""

    def __init__(
        self, web: Web, parsers: ParserPool | None, *, rules: AddressRules, max_bytes: int, max_redirects: int
    ) -> None:
        self._web = web
        self._parsers = parsers
        self._rules = rules
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        bounds: list[DomainRules] = []
        for field in ("allowed_domains", "blocked_domains"):
            if call.arguments.get(field):
                listed = domains_in(call.arguments[field])
                if listed is None:
                    return Failed("Not run: a domain is the name of a host, as example.com.", FailureKind.NOT_RUN)
                bounds.append(DomainRules(field=field, listed=listed))
        url = address_in(call.arguments["url"])
        if url is None:
            return Failed("Not run: `url` is no address of a web page, as https://example.com/.", FailureKind.NOT_RUN)
        if self._web.closed:
            return Failed("The tool is being shut down.", FailureKind.UNAVAILABLE)
        try:
            return await self._fetched(url, bounds, context.max_bytes)
        except AddressRefused as error:
            return failed_request(error, error.host, is_safe=True)
        except httpx2.TransportError as error:
            return failed_request(error, url.host, is_safe=True)

    async def _fetched(self, url: httpx2.URL, bounds: Sequence[DomainRules], most: int) -> Outcome:
        """Fetch a page, and what its redirects lead to. `most`: the bytes of what is shown as it is."""
        client = self._web.client(self._rules)
        for _ in range(self._max_redirects + 1):
            if not all(rule.admits(str(url)) for rule in bounds):
                return Failed(NOT_ALLOWED, FailureKind.REFUSED)
            request = client.build_request("GET", url, headers={"Accept": ACCEPTED, "Accept-Encoding": "identity"})
            response = await client.send(request, stream=True)
            async with aclosing(response):
                if not response.is_redirect:
                    return await self._read(response, url, most)
            target = address_in(response.headers.get("location", ""), url)
            if target is None:
                return Failed("The page leads on to what is no address.", FailureKind.RAISED)
            url = target
        return Failed(f"Not followed: more than {self._max_redirects} redirects.", FailureKind.REFUSED)

    async def _read(self, response: httpx2.Response, url: httpx2.URL, most: int) -> Outcome:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            return Failed(f"The page came encoded ({encoding[:40]}), which was not asked for.", FailureKind.RAISED)
        mime_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not response.is_success:
            words = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
            if mime_type == "text/plain":
                excerpt = await read_bounded(response, EXCERPT_BYTES)
                words += f": {(decoded(excerpt.data, None) or '').strip()}"
            return Failed(words, FailureKind.RAISED)
        may_be_page = mime_type in _PAGES
        body = await read_bounded(response, self._max_bytes if may_be_page else min(self._max_bytes, most))
        if mime_type in IMAGE_TYPES and not body.missing:
            return Returned(str(url), images=(Image(body.data, mime_type),))
        charset = response.charset_encoding or ""
        if may_be_page and (mime_type or _TITLE.search(body.data[:_SNIFFED])):
            return await self._as_page(body, charset, url)
        text = decoded(body.data, charset)
        if text is None and mime_type.startswith("text/"):
            text = decoded(body.data, "cp1252")  # the browsers' default for text without a charset
        if text is None:
            return Returned(f"{url}\n{described(mime_type, len(body.data) + body.missing)}")
        return Returned(f"{url}\n\n{text}", cut_bytes=body.missing)

    async def _as_page(self, body: BoundedBody, charset: str, url: httpx2.URL) -> Outcome:
        question = msgspec.msgpack.encode(PageQuestion(body.data, charset, str(url)))
        try:
            page = await self._page_in(UntrustedPack(question, TO_READ), url)
        except (Refused, ParserFailed, TooMuch, *READ_ERRORS) as error:
            return Failed(f"The page cannot be read: {error}.", FailureKind.RAISED)
        head = "\n".join(part for part in (" ".join(page.title.split()), str(url)) if part)
        note = f"\n[The page goes on: {body.missing} bytes of it were not read.]" if body.missing else ""
        return Returned(f"{head}\n\n{page.text}{note}")

    async def _page_in(self, question: UntrustedPack, url: httpx2.URL) -> Page:
        if self._parsers is not None:
            answer = await self._parsers.run(READ_PAGE, question, shown_address(str(url)))
            return read_page_answer(answer.open())
        pool = ParserPool()
        try:
            answer = await pool.run(READ_PAGE, question, shown_address(str(url)))
        finally:
            await pool.close()
        return read_page_answer(answer.open())


def address_in(text: str, base: httpx2.URL | None = None) -> httpx2.URL | None:
    """Return the address of a page; None for what is none, or has credentials in it. `base`: the page that leads to it."""
    if not text or len(text) > LONGEST_URL or _CONTROL.search(text):
        return None
    try:
        url = httpx2.URL(text) if base is None else base.join(text)
        has_credentials = "@" in urlsplit(text).netloc or "@" in urlsplit(str(url)).netloc
    except (httpx2.InvalidURL, ValueError, UnicodeError):
        return None
    if url.scheme not in ("http", "https") or not url.host or has_credentials:
        return None
    return url.copy_with(fragment=None)
