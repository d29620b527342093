"""Proxies other requests than chats (embeddings, speech, images, …) to a model's provider.

Only the model's name and the key are replaced; the response is passed through. This works only for providers with OpenAI's
API.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import JudgedFields
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.models import errors, litellm_model, resolve
from callgate.models.catalogue import is_demo
from callgate.models.direct.model import ERROR_BYTES, Endpoint
from callgate.models.multipart import Part, read_form, write_form
from callgate.models.resolve import ModelConfig

CHAT = "/chat/completions"

ANY_BYTES: Final = "application/octet-stream"
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_SHOWN_AS_TEXT: Final = frozenset({"text/plain", "text/vtt", "text/event-stream", "text/csv", "text/srt"})
_NO_PICTURE: Final = "image/svg"
_JSON: Final = re.compile(r"(?:[a-z0-9.-]+\+)?json|x-ndjson|jsonl|json-seq")

FILES: Final = frozenset({"file", "image", "image[]", "mask", "audio"})
"""The fields of forms that are files."""

_encode = msgspec.json.Encoder().encode


def passive_type(content_type: str) -> str:
    """Return a content type under which no browser runs anything of a provider's answer: its own, or that of any bytes.

    Raises `ChatError` for a page, which is no answer of any of these APIs.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _PAGES:
        raise errors.bad_answer(
            "The model's provider sent something that is not an answer.", f"content-type {content_type!r}", again=False
        )
    family, _, name = kind.partition("/")
    if (
        kind in _SHOWN_AS_TEXT
        or family in {"audio", "video"}
        or (family == "image" and not kind.startswith(_NO_PICTURE))
        or (family == "application" and _JSON.fullmatch(name) is not None)
    ):
        return content_type
    return ANY_BYTES


class Answer(msgspec.Struct, frozen=True):
    """The provider's response, not read yet."""

    content_type: str
    """Of no kind that a browser would run."""
    response: Response

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            async for part in self.response.chunks():
                yield part
        except TransportError as error:
            raise errors.from_transport(error) from error
        self.response.settle()


class ProviderProxy(msgspec.Struct, frozen=True):
    """Proxies requests to one model's provider."""

    endpoint: Endpoint
    client: HttpClient
    deadlines: Deadlines

    @asynccontextmanager
    async def json(self, path: str, fields: JudgedFields) -> AsyncIterator[Answer]:
        """`path` is what follows the API's base: `/embeddings`."""
        body = _encode({**fields, "model": self.endpoint.model})
        async with self._post(path, "application/json", body) as answer:
            yield answer

    @asynccontextmanager
    async def form(self, path: str, form: "Form", fields: JudgedFields) -> AsyncIterator[Answer]:
        content_type, body = form.written_for(self.endpoint.model, fields)
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
                    raise errors.from_status(response.status, response.headers(), body, secrets=self.endpoint.secrets)
                yield Answer(passive_type(response.headers().get("content-type", ANY_BYTES)), response)
        except TransportError as error:
            raise errors.from_transport(error) from error


def _is_unread(part: Part) -> bool:
    return part.name == "model" or (part.name in FILES and part.filename is not None)


def _text_of(part: Part) -> str:
    if part.filename is None:
        try:
            return part.value.decode()
        except UnicodeDecodeError:
            pass
    message = f"'{part.name[:64]}' is no text, and a guardrail looks at requests."
    raise ChatError(400, message, param=part.name[:64], code="invalid_type")


async def provider_proxy_for(entry: ModelConfig, client: HttpClient) -> ProviderProxy | None:
    """Return the passage to an entry's model, or None when its provider does not have OpenAI's API."""
    if is_demo(entry):
        return None
    # The lane and NOT_CHAT are about chats only.
    if entry.lane in {"translated", "litellm"}:
        direct_entry = replace(entry, lane="auto")
    else:
        direct_entry = entry
    endpoint = resolve.known_endpoint(direct_entry) or await litellm_model.vouched_endpoint(direct_entry)
    if endpoint is None or not endpoint.url.endswith(CHAT):
        return None
    return ProviderProxy(endpoint, client, entry.deadlines)


class Form(msgspec.Struct, frozen=True):
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

    def fields(self) -> list[tuple[str, str]]:
        """Return what the form says beside its files, each with the name of its field. Raises `ChatError` for what is no text, and for
        a file where words are expected: servers differ on which counts."""
        return [(part.name, _text_of(part)) for part in self.parts if not _is_unread(part)]

    def with_fields(self, texts: Sequence[str]) -> "Form":
        """Return the form with other texts, in the order of `fields`."""
        following = iter(texts)
        parts = [part if _is_unread(part) else replace(part, value=next(following).encode()) for part in self.parts]
        return Form(parts, self.model)

    def written_for(self, model: str, fields: JudgedFields) -> tuple[str, bytes]:
        """Return its content type and body for a provider: with the provider's name for the model, and these of its fields."""
        passed = [part for part in self.parts if part.name in fields]
        return write_form([replace(part, value=model.encode()) if part.name == "model" else part for part in passed])
