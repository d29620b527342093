"""Finds the addresses that a tool's result names, and where an answer refers to them. Nothing is taken for a source that no result named."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.untrusted.doors import Door, TooMuch, open_text
from callgate.untrusted.readers import READ_ERRORS, read_value

MOST_SOURCES: Final = 50
LONGEST_URL: Final = 2048
LONGEST_TITLE: Final = 300
RESULT: Final = Door(name="a tool's result as JSON", bytes=4 * 1024 * 1024, values=20_000)
_URL: Final = re.compile(r"https?://[^\s<>\"'`\\^{}|\[\]]{1,2000}")
_LINK: Final = r"\[([^\[\]\n]{1,300})\]\((https?://[^\s()<>]{1,1500}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500})?)\)"
_REFERENCE: Final = re.compile(f"{_LINK}|({_URL.pattern})")
"""A link in Markdown, with its label and its address, or an address alone."""
_TRAILING: Final = ".,;:!?)]}'\"*_…"
_NUMBERED: Final = re.compile(r"^\s*(?:\d{1,3}[.)]|[-*#]+|title:|Title:)\s*")
_ADDRESSES: Final = ("url", "link", "href", "uri", "source")
_TITLES: Final = ("title", "name", "heading")
_TEXTS: Final = ("snippet", "content", "text", "description", "body", "summary")


class NamedPage(msgspec.Struct, frozen=True, gc=False):
    """A page that a result names."""

    url: str
    title: str = ""


class Citation(msgspec.Struct, frozen=True, gc=False):
    """A part of an answer that refers to a source."""

    start: int
    end: int
    source: NamedPage

    def fields(self) -> dict[str, Any]:
        return {
            "start_index": self.start,
            "end_index": self.end,
            "url": self.source.url,
            "title": self.source.title or self.source.url,
        }


def sources_in(text: str) -> Sequence[NamedPage]:
    """Return the pages that a result names, each once, in their order."""
    named = _in_json(text)
    if named is None:
        named = _in_lines(text)
    sources: dict[str, NamedPage] = {}
    for source in named:
        if source.url not in sources or not sources[source.url].title:
            sources[source.url] = source
        if len(sources) >= MOST_SOURCES:
            break
    return list(sources.values())


def _in_json(text: str) -> Iterable[NamedPage] | None:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return list(_objects_in(read_value(open_text(text, RESULT))))
    except (TooMuch, *READ_ERRORS):
        return None


def _objects_in(value: Any) -> Iterator[NamedPage]:
    if isinstance(value, dict):
        url = next((value[name] for name in _ADDRESSES if _is_url(value.get(name))), None)
        if url is not None:
            title = next((value[name] for name in _TITLES if isinstance(value.get(name), str)), "")
            yield NamedPage(url, title.strip()[:LONGEST_TITLE])
        for name, inner in value.items():
            if isinstance(inner, dict | list):
                yield from _objects_in(inner)
            elif name in _TEXTS and url is None and isinstance(inner, str):
                yield from _in_lines(inner)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, str):
                yield from _in_lines(inner)
            else:
                yield from _objects_in(inner)


def _in_lines(text: str) -> Iterator[NamedPage]:
    before = ""
    for line in text.splitlines():
        for match in _REFERENCE.finditer(line):
            if match[2] is not None:
                url = match[2]
                title = match[1]
            else:
                url = trimmed(match[3])
                title = ""
                if line.strip().lower() in (url.lower(), f"url: {url}".lower(), f"link: {url}".lower()):
                    title = _NUMBERED.sub("", before)
            if _is_url(url):
                yield NamedPage(url, title.strip()[:LONGEST_TITLE])
        before = line.strip()


def trimmed(url: str) -> str:
    """Return an address in a text without what belongs to the sentence around it."""
    while url and url[-1] in _TRAILING:
        if url[-1] == ")" and url.count("(") >= url.count(")"):
            break
        url = url[:-1]
    return url


def _is_url(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_URL and _URL.fullmatch(value) is not None


def citations(text: str, sources: Mapping[str, NamedPage]) -> list[Citation]:
    """Return where a text names one of these sources by its address: a link as a whole, or the address alone."""
    if not sources or "http" not in text:
        return []
    cited: list[Citation] = []
    for match in _REFERENCE.finditer(text):
        url = match[2] or trimmed(match[3])
        if (source := _named(url, sources)) is not None:
            end = match.end()
            if match[2] is None:
                end = match.start() + len(url)
            cited.append(Citation(match.start(), end, source))
    return cited


def _named(url: str, sources: Mapping[str, NamedPage]) -> NamedPage | None:
    for address in (url, url.removesuffix("/"), f"{url}/", url.partition("#")[0]):
        if address in sources:
            return sources[address]
    return None
