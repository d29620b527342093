"""Requests that are no chats (embeddings, speech, images, …), passed on to where an entry's model is.

Only the model's name is replaced and the operator's key put in; what comes back is passed on as it comes. There is such
a way only where the model's provider speaks OpenAI's API.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from callgate.conversation.errors import ChatError
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.upstream import errors, litellm_model, resolve
from callgate.upstream.catalogue import is_demo
from callgate.upstream.direct_model import ERROR_BYTES, Endpoint
from callgate.upstream.params import is_denied
from callgate.upstream.resolve import ModelEntry

CHAT = "/chat/completions"
OF_THE_API = frozenset({"model", "stream", "metadata", "messages", "tools", "tool_choice"})
"""Fields of OpenAI's that are settings of litellm's as well."""
NAME_PART = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;[^\r\n]*)?(?:\r\n|$)', re.IGNORECASE)
BOUNDARY = re.compile(r'boundary="?([^";]{1,70})"?', re.IGNORECASE)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, as it comes."""

    content_type: str
    response: Response

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            async for part in self.response.chunks():
                yield part
        except TransportError as error:
            raise errors.from_transport(error) from error
        self.response.settle()


@dataclass(frozen=True, slots=True)
class Passage:
    """The way to one model's provider."""

    endpoint: Endpoint
    client: HttpClient
    deadlines: Deadlines

    @asynccontextmanager
    async def json(self, path: str, fields: Mapping[str, Any]) -> AsyncIterator[Answer]:
        """`path` is what follows the API's base: `/embeddings`."""
        asked = {name: value for name, value in fields.items() if name in OF_THE_API or not is_denied(name)}
        body = _encode({**asked, "model": self.endpoint.model})
        async with self._post(path, "application/json", body) as answer:
            yield answer

    @asynccontextmanager
    async def form(self, path: str, content_type: str, body: bytes) -> AsyncIterator[Answer]:
        renamed = with_model(body, content_type, self.endpoint.model)
        async with self._post(path, content_type, renamed) as answer:
            yield answer

    @asynccontextmanager
    async def _post(self, path: str, content_type: str, body: bytes) -> AsyncIterator[Answer]:
        url = self.endpoint.url.removesuffix(CHAT) + path
        headers = {"Content-Type": content_type, **self.endpoint.headers}
        try:
            async with self.client.post(url, headers, body, self.deadlines) as response:
                if response.status in {404, 405}:
                    # Not every provider has every route, which for a chat would be a mistake of the operator's.
                    message = f"The model's provider has nothing at {path}, or does not know what was asked for."
                    raise ChatError(404, message, code="unsupported_route")
                if response.status >= 300:
                    raise await self._refusal(response)
                yield Answer(response.headers.get("content-type", "application/octet-stream"), response)
        except TransportError as error:
            raise errors.from_transport(error) from error

    async def _refusal(self, response: Response) -> ChatError:
        try:
            body = await response.read(ERROR_BYTES)
        except TransportError:
            body = b""  # the status alone says enough
        response.settle()
        return errors.from_status(response.status, response.headers, body, secrets=self.endpoint.secrets)


async def passage_for(entry: ModelEntry, client: HttpClient) -> Passage | None:
    """The way to an entry's model, or None when its provider has no API of this shape."""
    if is_demo(entry):
        return None
    # Which lane chats take says nothing of these; and NOT_CHAT is about chats alone.
    asked = replace(entry, lane="auto") if entry.lane in {"translated", "litellm"} else entry
    endpoint = resolve.known_endpoint(asked) or await litellm_model.vouched_endpoint(asked)
    if endpoint is None or not endpoint.url.endswith(CHAT):
        return None
    return Passage(endpoint, client, entry.deadlines)


def model_in(body: bytes, content_type: str) -> str | None:
    """The model that a form asks for."""
    found = _model_span(body, content_type)
    return None if found is None else body[slice(*found)].decode("utf-8", "replace").strip()


def with_model(body: bytes, content_type: str, model: str) -> bytes:
    found = _model_span(body, content_type)
    assert found is not None, "asked for with `model_in` before"
    return body[: found[0]] + model.encode() + body[found[1] :]


def _model_span(body: bytes, content_type: str) -> tuple[int, int] | None:
    """Where the value of the field `model` stands. Files are passed over by their boundary and not looked into."""
    given = BOUNDARY.search(content_type)
    if given is None:
        return None
    mark = b"--" + given.group(1).encode("latin-1")
    place = 0 if body.startswith(mark) else body.find(b"\r\n" + mark)
    while place >= 0:
        head = body.find(b"\r\n\r\n", place)
        end = body.find(b"\r\n" + mark, place + 2)
        if head < 0 or end < 0:
            return None
        if head < end and NAME_PART.search(body, place, head + 2):
            return head + 4, end
        place = end
    return None
