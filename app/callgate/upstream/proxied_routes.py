"""Proxies other requests than chats (embeddings, speech, images, …) to a model's provider.

Only the model's name and the key are replaced; the response is passed through. This works only for providers with OpenAI's
API.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
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
from callgate.upstream.multipart import Part, read_form, write_form
from callgate.upstream.params import is_denied
from callgate.upstream.resolve import ModelConfig

CHAT = "/chat/completions"
OF_THE_API = frozenset({"model", "stream", "metadata", "messages", "tools", "tool_choice"})
"""Fields of OpenAI's API that are also names of litellm settings."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answer:
    """The provider's response, not read yet."""

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
class ProviderProxy:
    """Proxies requests to one model's provider."""

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
    async def form(self, path: str, form: "Form") -> AsyncIterator[Answer]:
        content_type, body = form.written_for(self.endpoint.model)
        async with self._post(path, content_type, body) as answer:
            yield answer

    @asynccontextmanager
    async def _post(self, path: str, content_type: str, body: bytes) -> AsyncIterator[Answer]:
        url = self.endpoint.url.removesuffix(CHAT) + path
        headers = {"Content-Type": content_type, **self.endpoint.headers}
        try:
            async with self.client.post(url, headers, body, self.deadlines) as response:
                if response.status in {404, 405}:
                    # Not every provider has every route; for chats a 404 would be the operator's mistake.
                    message = f"The model's provider has nothing at {path}, or does not know what was asked for."
                    raise ChatError(404, message, code="unsupported_route")
                if response.status >= 300:
                    try:
                        body = await response.read(ERROR_BYTES)
                    except TransportError:
                        body = b""  # the status alone is enough
                    response.settle()
                    raise errors.from_status(response.status, response.headers, body, secrets=self.endpoint.secrets)
                yield Answer(response.headers.get("content-type", "application/octet-stream"), response)
        except TransportError as error:
            raise errors.from_transport(error) from error


async def provider_proxy_for(entry: ModelConfig, client: HttpClient) -> ProviderProxy | None:
    """Return the passage to an entry's model, or None when its provider does not have OpenAI's API."""
    if is_demo(entry):
        return None
    # The lane and NOT_CHAT are about chats only.
    asked = replace(entry, lane="auto") if entry.lane in {"translated", "litellm"} else entry
    endpoint = resolve.known_endpoint(asked) or await litellm_model.vouched_endpoint(asked)
    if endpoint is None or not endpoint.url.endswith(CHAT):
        return None
    return ProviderProxy(endpoint, client, entry.deadlines)


@dataclass(frozen=True, slots=True)
class Form:
    """A parsed form, and the requested model."""

    parts: Sequence[Part]
    model: str | None

    @classmethod
    def read(cls, body: bytes, content_type: str) -> "Form":
        parts = read_form(body, content_type)
        named = [part for part in parts if part.name.strip().lower() == "model"]
        if not named:
            return cls(parts, None)
        if len(named) > 1 or named[0].name != "model" or named[0].filename is not None:
            message = "'model' is given more than once, or as a file."
            raise ChatError(400, message, param="model", code="duplicate_parameter")
        try:
            return cls(parts, named[0].value.decode())
        except UnicodeDecodeError:
            raise ChatError(400, "'model' is not UTF-8.", param="model", code="invalid_type") from None

    def texts(self, name: str) -> list[str]:
        """Return the texts of a field, which may be there more than once: servers differ on which one counts."""
        return [part.value.decode(errors="replace") for part in self.parts if part.name == name]

    def names(self) -> Sequence[str]:
        return [part.name for part in self.parts]

    def written_for(self, model: str) -> tuple[str, bytes]:
        """Return its content type and body for a provider: with the provider's name for the model, and without denied
        fields."""
        passed = [part for part in self.parts if part.name in OF_THE_API or not is_denied(part.name)]
        return write_form([replace(part, value=model.encode()) if part.name == "model" else part for part in passed])
