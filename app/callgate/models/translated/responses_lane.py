"""The lane for models behind OpenAI's Responses API: some models have no other, and it keeps reasoning from turn to turn.

Nothing is stored at the provider: each turn is sent the whole history, with the items of earlier turns as the model made
them, and encrypted reasoning.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

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
from callgate.models.translated.deferred_tools import is_about_deferred, is_demanded
from callgate.models.translated.responses_answer import ResponseEvents, ResponseObject
from callgate.models.translated.responses_request import body_of

LANE: Final = "responses"
CHAT_PATH: Final = "/chat/completions"
PATH: Final = "/responses"

_HAS_SEARCH: Final = re.compile(r"gpt-(?:5\.(?:[4-9]|\d\d)|[6-9]|\d\d)(?!\d)")
"""The models that have `tool_search`: https://developers.openai.com/api/docs/guides/tools-tool-search"""

log = structlog.get_logger("callgate.models")

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
        self._searches = _HAS_SEARCH.search(endpoint.model) is not None
        """Whether its provider has a search of tools, until it says that it has not."""

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        read = with_readable_results(as_model_request(request, LANE, signed=False))
        if self.endpoint.forbids_calls:
            read = with_withheld(read)
        check_request(read)
        if has_marks(read):
            read.leave_out(MARK)
        if read.deferred is None:
            return self._request(read)
        if not (self._searches and read.tools) or is_demanded(read.tool_choice, read.deferred):
            return self._request(replace(read, deferred=None))
        return self._searching(read)

    @asynccontextmanager
    async def _searching(self, read: ModelRequest) -> AsyncIterator[ModelAnswer]:
        """Ask with the provider's own search of tools, and else by the bridge from then on."""
        async with AsyncExitStack() as requests:
            try:
                answer = await requests.enter_async_context(self._request(read))
            except ChatError as refusal:
                if not is_about_deferred(refusal):
                    raise
                self._searches = False
                log.warning("tool_search_by_bridge", model=self.name, error=refusal.detail or refusal.message)
                answer = await requests.enter_async_context(self._request(replace(read, deferred=None)))
            yield answer

    def _request(self, read: ModelRequest) -> "_Request":
        body = body_of(read, self.endpoint.model, self.by, self.endpoint.defaults)
        try:
            encoded = _encode(body)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        find = "" if read.deferred is None else read.deferred.find
        return _Request(self, encoded, read.record_body, find=find)


class _Request(HttpRequest):
    find: str = ""
    """The name of the tool for which the provider's search stands."""

    def _answer(self, response: Response) -> ModelAnswer:
        assert isinstance(self.model, ResponsesModel)
        return _Answer(response, self.model, self.record_body, self.find)


class _Answer(HttpAnswer):
    lane = LANE

    def __init__(self, response: Response, model: ResponsesModel, record_body: RecordBody | None, find: str) -> None:
        super().__init__(response, model.endpoint.secrets, model.answer_bytes, record_body)
        self._by = model.by
        self._find = find

    def _recognise(self, start: bytes) -> Body | None:
        form = format_of(start, self._response)
        if form is None:
            return None
        if form == "events":
            return ResponseEvents(self._by, self._find)
        return ResponseObject(self._by, self._find)
