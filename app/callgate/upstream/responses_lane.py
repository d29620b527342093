"""The lane for models behind OpenAI's Responses API: some models have no other, and it keeps reasoning from turn to turn.

Nothing is stored at the provider: each turn is sent the whole history, with the items of earlier turns as the model made
them, and encrypted reasoning.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, as_read
from callgate.conversation.readable_content import with_readable_results
from callgate.conversation.request_checks import check_request
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, Response
from callgate.upstream.direct_model import (
    ANSWER_BYTES,
    Body,
    Endpoint,
    HttpAnswer,
    HttpModel,
    HttpRequest,
    StreamedBody,
    recognised,
)
from callgate.upstream.responses_answer import ResponseEvents, ResponseObject
from callgate.upstream.responses_question import body_of

LANE: Final = "responses"
CHAT_PATH: Final = "/chat/completions"
PATH: Final = "/responses"

_encode = msgspec.json.Encoder().encode


class ResponsesModel(HttpModel):
    """A model on this lane."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        client: HttpClient,
        deadlines: Deadlines,
        *,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        """`endpoint`: that of Chat Completions. `answer_bytes`: the limit of one answer."""
        super().__init__(name, endpoint, client, deadlines, answer_bytes=answer_bytes)
        base = endpoint.url.removesuffix(CHAT_PATH)
        self._url = base if base.endswith(PATH) else base + PATH
        self._by = f"{self.host} {endpoint.model}"

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        read = with_readable_results(as_read(ask, signed=False))
        check_request(read)
        body = body_of(read, self._endpoint.model, self._by, self._endpoint.defaults)
        try:
            encoded = _encode(body)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        exchange = self._client.post(self._url, self._headers, encoded, self._deadlines)
        return _Request(exchange, self._endpoint, self._answer_bytes, self._by)


class _Request(HttpRequest):
    _by: str

    def _answer(self, response: Response) -> ModelAnswer:
        return _Answer(response, self._endpoint.secrets, self._answer_bytes, self._by)


class _Answer(HttpAnswer):
    lane = LANE

    def __init__(self, response: Response, secrets: Sequence[str], answer_bytes: int, by: str) -> None:
        super().__init__(response, secrets, answer_bytes)
        self._by = by

    def _recognise(self, start: bytes) -> Body | None:
        body = recognised(start, self._response)
        if body is None:
            return None
        return ResponseEvents(self._by) if isinstance(body, StreamedBody) else ResponseObject(self._by)
