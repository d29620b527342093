"""The lane for models behind OpenAI's Responses API: some models have no other, and it keeps reasoning from turn to turn.

Nothing is stored at the provider: each turn is sent the whole history, with the items of earlier turns as the model made
them, and encrypted reasoning.
"""

from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec

from callgate.conversation.cache_marks import MARK, has_marks
from callgate.conversation.errors import ChatError
from callgate.conversation.model_requests import as_model_request, with_withheld
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, RecordBody
from callgate.conversation.readable_content import with_readable_results
from callgate.conversation.request_checks import check_request
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, Response
from callgate.models.direct.model import (
    ANSWER_BYTES,
    Body,
    Endpoint,
    HttpAnswer,
    HttpModel,
    HttpRequest,
    format_of,
)
from callgate.models.translated.responses_answer import ResponseEvents, ResponseObject
from callgate.models.translated.responses_request import body_of

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
        self.url = base if base.endswith(PATH) else base + PATH
        self.by = f"{self.host} {endpoint.model}"

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        read = with_readable_results(as_model_request(request, LANE, signed=False))
        if self.endpoint.forbids_calls:
            read = with_withheld(read)
        check_request(read)
        if has_marks(read):
            read.leave_out(MARK)
        body = body_of(read, self.endpoint.model, self.by, self.endpoint.defaults)
        try:
            encoded = _encode(body)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        return _Request(self, encoded, read.record_body)


class _Request(HttpRequest):
    def _answer(self, response: Response) -> ModelAnswer:
        assert isinstance(self.model, ResponsesModel)
        return _Answer(response, self.model, self.record_body)


class _Answer(HttpAnswer):
    lane = LANE

    def __init__(self, response: Response, model: ResponsesModel, record_body: RecordBody | None) -> None:
        super().__init__(response, model.endpoint.secrets, model.answer_bytes, record_body)
        self._by = model.by

    def _recognise(self, start: bytes) -> Body | None:
        form = format_of(start, self._response)
        if form is None:
            return None
        if form == "events":
            return ResponseEvents(self._by)
        return ResponseObject(self._by)
