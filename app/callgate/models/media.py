"""URLs of images and files in messages. Providers that take URLs are sent them; for others the content is fetched here and
put into the message, bounded in size, time and number. Nothing is cached.

litellm would fetch it on the event loop and without bounds, which `litellm_model` prevents.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import structlog

from callgate.conversation.errors import ChatError
from callgate.conversation.readable_content import left_out_part

log = structlog.get_logger("callgate.content")

Fetch: TypeAlias = Callable[[str, int], Awaitable[tuple[bytes, str]]]
"""Fetches a URL, up to a number of bytes; returns the content and its type. Raises `CannotFetch`."""

MOST = 16
"""Addresses in one request; an image is about a thousand tokens, so that more are a mistake or an attack."""
EACH_BYTES = 20 * 1024 * 1024
ALL_BYTES = 40 * 1024 * 1024
SECONDS = 20.0
_TRAVELLING = (
    "https://generativelanguage.googleapis.com/",
    "https://www.youtube.com/",
    "https://youtu.be/",
)
"""URLs that only Google's models take."""
_SCHEMES = ("http://", "https://")
_TEXT = frozenset(
    {"text", "thinking", "reasoning_content", "refusal", "name", "arguments", "tool_call_id", "cache_control"}
)
"""Fields of text, in which URLs are not fetched."""

Place: TypeAlias = tuple[str, Any, Any]
"""A URL, the dict or list with it, and its key there."""

_NO_CONTENT = _TEXT | {"role", "tool_calls", "function_call"}
"""Fields of a message in which URLs are not fetched."""


class CannotFetch(Exception):
    """Raised where a URL cannot be fetched; the text is for the client."""


class _Address(msgspec.Struct, frozen=True):
    """A URL in a message, and where it stands."""

    url: str
    holder: Any
    """The dict or list with it."""
    key: Any
    parts: list[Any] | None
    """The parts of the message; None where the URL is in none of them."""
    place: int
    """The number of the part with it."""
    is_asked: bool
    """It is in the client's question, and not in what stands before that."""

    @property
    def is_needed(self) -> bool:
        return self.is_asked or self.parts is None


async def put_in(messages: list[Any], fetch: Fetch | None, *, files_only: bool = False) -> list[Any]:
    """Put the content of URLs into the messages; with `files_only` images and sounds stay URLs.

    What leads nowhere is refused in the client's question. In older messages and in results of tools a line says that it was
    left out: refused there, it would end the conversation.
    """
    addresses = [address for address in _addresses(messages) if not files_only or address.key == "file_id"]
    if not addresses:
        return messages
    addresses.sort(key=lambda address: not address.is_needed)
    if sum(address.is_needed for address in addresses) > MOST:
        raise ChatError(400, f"There are more than {MOST} addresses in the messages.", param="messages")
    if fetch is None and addresses[0].is_needed:
        raise ChatError(
            400, "This model's provider takes no addresses: send what is there as a data: URL.", param="messages"
        )
    contents = {} if fetch is None else await _fetched(addresses, fetch)
    left_out = 0
    for address in addresses:
        if address.url in contents:
            _replace(address.holder, address.key, contents[address.url])
        elif address.parts is not None:
            address.parts[address.place] = left_out_part("what an address leads to")
            left_out += 1
    if left_out:
        log.warning("content_left_out", kinds="'address'", count=left_out)
    return messages


async def _fetched(addresses: Sequence[_Address], fetch: Fetch) -> dict[str, str]:
    """Return what the addresses lead to, as `data:` URLs. Those that are needed come first."""
    contents: dict[str, str] = {}
    tried: set[str] = set()
    remaining_bytes = ALL_BYTES
    needed = {address.url for address in addresses if address.is_needed}
    try:
        async with asyncio.timeout(SECONDS):
            for address in addresses:
                if address.url in tried or len(tried) >= MOST:
                    continue
                tried.add(address.url)
                try:
                    data, kind = await fetch(address.url, min(EACH_BYTES, remaining_bytes))
                except CannotFetch as error:
                    if address.is_needed:
                        message = f"What an address in the messages leads to cannot be had: {error}"
                        raise ChatError(400, message, param="messages") from None
                    continue
                remaining_bytes -= len(data)
                contents[address.url] = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    except TimeoutError:
        if not needed <= contents.keys():
            raise ChatError(
                400, f"What the addresses in the messages lead to did not come in {SECONDS:g} s.", param="messages"
            ) from None
    return contents


def _addresses(messages: Sequence[Any]) -> Iterator[_Address]:
    """Yield the URLs of the messages, the newest message first."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if not isinstance(message, dict):
            continue
        is_asked = place == len(messages) - 1 and not _is_of_tools(messages, place)
        for field, value in message.items():
            if field in _NO_CONTENT or isinstance(value, str):
                continue
            if field != "content" or not isinstance(value, list):
                yield from (
                    _Address(*parts_of_address, None, 0, is_asked)
                    for parts_of_address in _places(value, message, field)
                )
                continue
            for number, part in enumerate(value):
                yield from (
                    _Address(*parts_of_address, value, number, is_asked)
                    for parts_of_address in _places(part, value, number)
                )


def _is_of_tools(messages: Sequence[Any], place: int) -> bool:
    """True for a result of a tool, and for what stands directly behind one: its images, which no result can hold."""
    return any(
        isinstance(message, dict) and message.get("role") == "tool"
        for message in messages[max(0, place - 1) : place + 1]
    )


def _replace(holder: Any, key: Any, data: str) -> None:
    if key == "file_id":
        del holder[key]
        holder["file_data"] = data
        holder.setdefault("filename", "file")
    elif isinstance(holder, dict) and key == "url" and holder.get("type") == "url":  # a source in Claude's format
        kind, _, content = data.removeprefix("data:").partition(";base64,")
        holder.clear()
        holder.update({"type": "base64", "media_type": kind, "data": content})
    else:
        holder[key] = data


def _places(value: Any, holder: Any, key: Any) -> Iterator[Place]:
    """Yield every place below `holder[key]` at which a provider class may read a URL."""
    waiting = [(value, holder, key)]
    while waiting:
        value, holder, key = waiting.pop()
        if isinstance(value, str):
            if value[:8].lower().startswith(_SCHEMES) and not value.startswith(_TRAVELLING):
                yield value, holder, key
        elif isinstance(value, dict):
            waiting += [(inner, value, name) for name, inner in value.items() if name not in _TEXT]
        elif isinstance(value, list):
            waiting += [(inner, value, at) for at, inner in enumerate(value)]
