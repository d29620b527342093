"""Counts the tokens of a request: by its provider's counting API, else by a local tokenizer."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from callgate.conversation import raw_json
from callgate.conversation.errors import ChatError
from callgate.conversation.model_requests import as_model_request
from callgate.conversation.ports import ModelRequest
from callgate.conversation.response_items import without_items
from callgate.http.client import HttpClient
from callgate.http.interface import TransportError
from callgate.models import errors, resolve
from callgate.models.direct.model import open_response
from callgate.models.litellm_model import loaded
from callgate.models.resolve import ModelConfig
from callgate.models.translated.translation import field_of
from callgate.untrusted.doors import Door, TooMuch, Untrusted
from callgate.untrusted.readers import json_reader

TOKENIZER = "gpt-4"
"""The model whose tokenizer comes with litellm; others would be fetched from a registry."""
ANSWER_BYTES = 64 * 1024
COUNTED: Final = frozenset({"text", "image_url"})
OTHER_PART: Final = 250
"""The guess for a part that is neither text nor image: litellm's number of tokens for an image."""


class _Count(msgspec.Struct):
    input_tokens: int


COUNT: Final = Door(name="a count of tokens", bytes=ANSWER_BYTES)
_count = json_reader(_Count)


async def count_tokens(entry: ModelConfig, request: ModelRequest, client: HttpClient) -> tuple[int, bool]:
    """Return the number of tokens, and whether it is an estimate."""
    if request.original is not None and resolve.has_messages_wire(entry):
        from callgate.models.translated import messages_lane

        settings = resolve.litellm_settings(entry)
        assert request.original is not None
        provider_request = messages_lane.count_request(await loaded(), settings, request, request.original)
        response = await open_response(
            client,
            client.head_of("POST", provider_request.url, provider_request.headers),
            provider_request.body,
            entry.deadlines,
            provider_request.secrets,
        )
        try:
            body = await response.read(ANSWER_BYTES)
            response.settle()
        except TransportError as error:
            raise errors.from_transport(error) from error
        finally:
            response.leave()
        try:
            by_anthropic = _count(Untrusted(body, COUNT).open()).input_tokens
        except (TooMuch, msgspec.DecodeError):
            raise errors.bad_answer("The model's provider did not say how many tokens there are.") from None
        return by_anthropic, False
    litellm = await loaded()
    return await asyncio.to_thread(_estimated, litellm, as_model_request(request)), True


def _estimated(litellm: Any, request: ModelRequest) -> int:
    messages = [raw_json.read(message) for message in request.messages]
    tools = [raw_json.read(tool) for tool in request.tools] or None
    fitting = [_countable(message) for message in messages]
    others = sum(len(message["content"]) for message in messages if isinstance(message.get("content"), list))
    others -= sum(len(message["content"]) for message in fitting if isinstance(message.get("content"), list))
    try:
        counted = litellm.token_counter(
            model=TOKENIZER, messages=fitting, tools=tools, use_default_image_token_count=True
        )
    except (ValueError, TypeError, KeyError) as error:  # for invalid messages, which a provider would refuse
        raise ChatError(
            400, "The tokens of a message cannot be counted: it is not what a message should be."
        ) from error
    return int(counted) + others * OTHER_PART


def _countable(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove parts that tokenizers do not count: audio and files."""
    message = without_items(message)
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [part for part in content if field_of(part, "type") in COUNTED]}
