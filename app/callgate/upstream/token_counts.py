"""How many tokens a question has: by its provider's word where that counts, else by a tokenizer that is here."""

import asyncio
from typing import Any

import msgspec

from callgate.conversation import raw_json
from callgate.conversation.ports import ModelRequest, as_read
from callgate.http.client import HttpClient
from callgate.http.interface import TransportError
from callgate.upstream import errors, resolve
from callgate.upstream.direct_model import opened
from callgate.upstream.litellm_model import loaded
from callgate.upstream.resolve import ModelEntry

TOKENIZER = "gpt-4"
"""Whose tokenizer comes with litellm; others would be fetched from a registry."""
ANSWER_BYTES = 64 * 1024


class _Count(msgspec.Struct):
    input_tokens: int


_count = msgspec.json.Decoder(_Count)


async def count_tokens(entry: ModelEntry, ask: ModelRequest, client: HttpClient) -> tuple[int, bool]:
    """The tokens, and whether they are only estimated."""
    if ask.original is not None and resolve.provider_of(entry.litellm_params) == "anthropic":
        return await _by_anthropic(entry, ask, client), False
    litellm = await loaded()
    return await asyncio.to_thread(_estimated, litellm, as_read(ask)), True


async def _by_anthropic(entry: ModelEntry, ask: ModelRequest, client: HttpClient) -> int:
    from callgate.upstream import messages_lane

    settings = resolve.litellm_settings(entry)
    assert ask.original is not None
    question = messages_lane.count_question(await loaded(), settings, ask, ask.original)
    exchange = client.post(question.url, question.headers, question.body, entry.deadlines)
    try:
        response = await opened(exchange, question.secrets)
        try:
            body = await response.read(ANSWER_BYTES)
            response.settle()
        finally:
            await exchange.__aexit__(None, None, None)
    except TransportError as error:
        raise errors.from_transport(error) from error
    try:
        return _count.decode(body).input_tokens
    except msgspec.DecodeError:
        raise errors.bad_answer("The model's provider did not say how many tokens there are.") from None


def _estimated(litellm: Any, ask: ModelRequest) -> int:
    messages = [raw_json.read(message) for message in ask.messages]
    tools = [raw_json.read(tool) for tool in ask.tools] or None
    return int(
        litellm.token_counter(model=TOKENIZER, messages=messages, tools=tools, use_default_image_token_count=True)
    )
