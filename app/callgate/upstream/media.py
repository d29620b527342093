"""URLs of images and files in messages. Providers that take URLs are sent them; for others the content is fetched here and
put into the message, bounded in size, time and number. Nothing is cached.

litellm would fetch it on the event loop and without bounds, which `litellm_model` prevents.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from callgate.conversation.errors import ChatError

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

_NO_CONTENT = frozenset({"role", "tool_calls", "function_call"})


class CannotFetch(Exception):
    """Raised where a URL cannot be fetched; the text is for the client."""


Place: TypeAlias = tuple[Any, Any, str]
"""A dict or list, a key of it, and the URL there."""


async def put_in(messages: list[Any], fetch: Fetch | None, *, files_only: bool = False) -> list[Any]:
    """Put the content of URLs into the messages; with `files_only` images and sounds stay URLs."""
    places = [place for message in messages for place in _places(message) if not files_only or place[1] == "file_id"]
    if not places:
        return messages
    if len(places) > MOST:
        raise ChatError(400, f"There are more than {MOST} addresses in the messages.", param="messages")
    if fetch is None:
        raise ChatError(
            400, "This model's provider takes no addresses: send what is there as a data: URL.", param="messages"
        )
    left, known = ALL_BYTES, dict[str, str]()
    try:
        async with asyncio.timeout(SECONDS):
            for holder, key, url in places:
                if url not in known:
                    data, kind = await fetch(url, min(EACH_BYTES, left))
                    left -= len(data)
                    known[url] = f"data:{kind};base64,{base64.b64encode(data).decode()}"
                _replace(holder, key, known[url])
    except CannotFetch as error:
        raise ChatError(
            400, f"What an address in the messages leads to cannot be had: {error}", param="messages"
        ) from None
    except TimeoutError:
        raise ChatError(
            400, f"What the addresses in the messages lead to did not come in {SECONDS:g} s.", param="messages"
        ) from None
    return messages


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


def _places(message: Any) -> Iterator[Place]:
    """Yield every place of a message at which a provider class may read a URL."""
    waiting = [
        (value, message, key)
        for key, value in (message.items() if isinstance(message, dict) else ())
        if key not in _TEXT | _NO_CONTENT and not isinstance(value, str)
    ]
    while waiting:
        value, holder, key = waiting.pop()
        if isinstance(value, str):
            if value[:8].lower().startswith(_SCHEMES) and not value.startswith(_TRAVELLING):
                yield holder, key, value
        elif isinstance(value, dict):
            waiting += [(inner, value, name) for name, inner in value.items() if name not in _TEXT]
        elif isinstance(value, list):
            waiting += [(inner, value, at) for at, inner in enumerate(value)]
