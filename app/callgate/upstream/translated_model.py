"""The translated lane: litellm's provider classes build the request, our HTTP client sends it, and we read the answer.

Deadlines, errors, stream events and finish reasons are handled here, so that litellm does not retry, log, or change them. A
request that cannot be translated is a client error, an answer that cannot be read a provider's.
"""

import asyncio
import copy
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import structlog
from msgspec.structs import replace

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import Finished, ModelEvent, Usage
from callgate.conversation.ports import ModelAnswer, ModelRequest, Original, Passthrough, as_read
from callgate.conversation.readable_content import with_readable_results
from callgate.conversation.request_checks import check_request
from callgate.conversation.response_items import without_items
from callgate.http.client import HttpClient
from callgate.http.event_stream import BOM
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.upstream import (
    bedrock,
    claude,
    claude_elsewhere,
    cohere,
    errors,
    gemini,
    messages_lane,
    openai_shaped,
    resolve,
)
from callgate.upstream.bounds import check_schemas, is_large
from callgate.upstream.direct_model import ANSWER_BYTES, Body, HttpAnswer, host_in, opened
from callgate.upstream.litellm_model import decoded, from_request, loaded
from callgate.upstream.media import Fetch, put_in
from callgate.upstream.resolve import LiteLLMSettings
from callgate.upstream.translation import Fields, Question

Asking: TypeAlias = Callable[[Any, LiteLLMSettings, ModelRequest, Fields], Awaitable[Question]]
QUESTIONS: Mapping[str, Asking] = {
    "anthropic": claude.question,
    "bedrock": bedrock.question,
    "cohere": cohere.question,
    "cohere_chat": cohere.question,
    "gemini": gemini.question,
    "vertex_ai": gemini.question,
    "vertex_ai_beta": gemini.question,
}
"""The functions that make requests, by provider; all other providers have OpenAI's wire format."""

MOST_PAUSES = 8
"""Pauses of one answer. Each is about ten runs of the provider's own tools."""

log = structlog.get_logger("callgate.models")


class TranslatedModel:
    def __init__(
        self,
        name: str,
        settings: LiteLLMSettings,
        client: HttpClient,
        deadlines: Deadlines,
        *,
        answer_bytes: int = ANSWER_BYTES,
        fetch: Fetch | None = None,
    ) -> None:
        """`answer_bytes`: the limit of one answer, in bytes as received. `fetch` gets the content of URLs, for a provider that
        takes none."""
        self.name = name
        self.host = resolve.host_of(settings.arguments)
        """The host of the last request; before that, the entry's."""
        self._settings = settings
        self._client = client
        self._deadlines = deadlines
        self.answer_bytes = answer_bytes
        provider = resolve.provider_of(settings.arguments) or ""
        self._ask = QUESTIONS.get(provider, openai_shaped.question)
        if resolve.is_claude_elsewhere(settings.arguments):
            self._ask = claude_elsewhere.question
        self._fields = Fields(provider, settings)
        self._fetch = fetch
        self._takes_addresses = self._ask is openai_shaped.question

    @asynccontextmanager
    async def ask(self, ask: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        question = await self._question(ask)
        async with AsyncExitStack() as exchanges:
            try:
                response = await self.asked(question, exchanges)
                if question.continued is None:
                    yield _TranslatedAnswer(response, question, self)
                else:
                    yield _PausingAnswer(response, question, self, exchanges)
            except TransportError as error:
                raise errors.from_transport(error) from error

    async def asked(self, question: Question, exchanges: AsyncExitStack) -> Response:
        self.host = host_in(question.url)
        exchange = self._client.post(question.url, question.headers, question.body, self._deadlines)
        response = await opened(exchange, question.secrets)
        exchanges.push_async_exit(exchange.__aexit__)
        return response

    async def _question(self, question: ModelRequest | Passthrough) -> Question:
        original = question.original if self._ask is claude.question else None
        if original is not None and isinstance(question, Passthrough):
            return await self._from_original(messages_lane.passed, question, original)
        ask = as_read(question, messages_lane.LANE if original is not None else "chat")
        ask = with_readable_results(ask)
        check_request(ask, plain_names=False, as_objects=not self._takes_addresses)
        if original is not None:
            return await self._from_original(messages_lane.question, ask, original)
        check_schemas(ask)
        litellm = await loaded()
        try:
            async with asyncio.timeout(self._deadlines.first_byte):  # it may have to authenticate first
                messages = [copy.deepcopy(without_items(decoded(message))) for message in ask.messages]
                messages = await put_in(messages, self._fetch, files_only=self._takes_addresses)
                ask = replace(ask, messages=messages)
                if is_large(ask):
                    return await asyncio.to_thread(asyncio.run, self._worded(litellm, ask))
                return await self._worded(litellm, ask)
        except ChatError:
            raise
        except TimeoutError:
            raise errors.timed_out("Signing in at the model's provider took too long.", "sign-in", again=True) from None
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        except Exception as error:  # litellm's own errors, and KeyErrors for odd messages
            self._log("request", error)
            raise from_request(error, self._settings.secrets) from error

    async def _from_original(
        self, wording: Callable[..., Awaitable[Question]], ask: Any, original: Original
    ) -> Question:
        """Make the request out of the client's original one."""
        try:
            return await wording(await loaded(), self._settings, ask, original)
        except ChatError:
            raise
        except Exception as error:  # as in `_worded`
            self._log("request", error)
            raise from_request(error, self._settings.secrets) from error

    async def _worded(self, litellm: Any, ask: ModelRequest) -> Question:
        return await self._ask(litellm, self._settings, ask, self._fields)

    def report(self, error: Exception) -> None:
        """Log that an answer could not be read."""
        self._log("answer", error)

    def _log(self, what: str, error: Exception) -> None:
        # The error's text may hold messages of a chat; its type does not.
        log.warning("translation_failed", model=self.name, what=what, error=type(error).__name__)


class _TranslatedAnswer(HttpAnswer):
    def __init__(self, response: Response, question: Question, model: TranslatedModel) -> None:
        super().__init__(response, question.secrets, model.answer_bytes)
        self._question = question
        self._model = model
        self.lane = question.lane

    def _recognise(self, start: bytes) -> Body | None:
        mark = start.removeprefix(BOM).lstrip()[:1]
        if not mark:
            return None
        if mark == b"<":
            raise errors.bad_answer("The model's provider sent something that is not an answer.", "a web page")
        return (self._question.as_message if mark in b"{[" else self._question.as_events)(self._model.report)


class _PausingAnswer(_TranslatedAnswer):
    """One answer of a provider that may pause in it, and continues when it is sent the answer so far."""

    def __init__(
        self, response: Response, question: Question, model: TranslatedModel, exchanges: AsyncExitStack
    ) -> None:
        super().__init__(response, question, model)
        self._exchanges = exchanges
        self._said: list[Any] = []
        self._pauses = 0
        self._before: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        """Tokens of the parts before this one (`_before`), and of this one so far."""

    async def __anext__(self) -> Sequence[ModelEvent]:
        while True:
            try:
                return [self._added_up(event) for event in await super().__anext__() if not _is_pause(event)]
            except StopAsyncIteration:
                paused = getattr(self._body, "paused", None)
                if paused is None:
                    raise
            assert self._question.continued is not None
            self._pauses += 1
            if self._pauses > MOST_PAUSES:
                raise BrokenOff(f"the provider paused more than {MOST_PAUSES} times", transport_error=True)
            self._said += paused
            self._before, self._counts = self._counts, {}
            question = dataclasses.replace(self._question, body=self._question.continued(self._said))
            try:
                self._read_on(await self._model.asked(question, self._exchanges))
            except ChatError as error:
                if not self._begun:
                    raise
                raise BrokenOff(error.detail or error.message, transport_error=True) from error

    def _is_over(self) -> bool:
        return getattr(self._body, "paused", None) is not None or super()._is_over()

    def _added_up(self, event: ModelEvent) -> ModelEvent:
        if not isinstance(event, Usage):
            return event
        now = {name: count for name, count in event.counts.items() if type(count) is int}
        self._counts = {name: self._before.get(name, 0) + now.get(name, 0) for name in {**self._before, **now}}
        return Usage({**event.counts, **self._counts})


def _is_pause(event: ModelEvent) -> bool:
    """True if an event says that the provider paused: the answer is then continued, and its end has another reason."""
    return isinstance(event, Finished) and event.reason == claude.PAUSED
