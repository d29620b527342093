"""Turns pages into text, in a process with limits: whoever writes a page chooses what its reader works on."""

import contextlib
import importlib
from typing import Any, Final

import msgspec

from callgate.parsers.jobs import MAX_ANSWER, Job, Refused
from callgate.untrusted.doors import Door
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import json_reader, msgpack_reader

READER: Final = "trafilatura"
"""The library that tells what a page says from what stands around it. An extra: `callgate[web]`."""
PAGE: Final = Door(name="text of a web page", bytes=MAX_ANSWER, values=100)
TO_READ: Final = PackDoor(name="web page to be read", bytes=64 * 1024 * 1024, values=7, depth=1)
READ_PAGE: Final = Job("pages", f"{__name__}:read", PAGE, f"{__name__}:load")
"""In processes of their own, which import what no other needs."""


class PageQuestion(msgspec.Struct, frozen=True):
    page: bytes
    charset: str
    """As its server says; empty where it does not."""
    url: str


class Page(msgspec.Struct, frozen=True):
    """What a page says."""

    title: str
    text: str


_read_question = msgpack_reader(PageQuestion)
read_page_answer = json_reader(Page)


def load() -> None:
    """Load the library, with the lists that it reads when it is first used."""
    _extracted("<html><body><article><p>A page of one sentence, to begin with.</p></article></body></html>", "")


def read(payload: bytes) -> bytes:
    question = _read_question(open_pack(payload, TO_READ))
    page: str | bytes = question.page
    if question.charset:
        with contextlib.suppress(LookupError):  # the library finds it out
            page = question.page.decode(question.charset, "replace")
    return msgspec.json.encode(_extracted(page, question.url))


def _extracted(page: str | bytes, url: str) -> Page:
    reader: Any = importlib.import_module(READER)
    options: dict[str, Any] = {"url": url or None, "include_comments": False, "include_links": True}
    document = reader.bare_extraction(
        page, favor_recall=True, include_tables=True, with_metadata=True, output_format="python", **options
    )
    if document is None:
        raise Refused("no text was found in it")
    text = reader.extract(page, favor_recall=True, include_tables=True, output_format="markdown", **options)
    return Page(_sayable(document.title or ""), _sayable(text or document.text or ""))


def _sayable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
