"""A model that litellm can translate for and our own client carries: Claude behind Anthropic's API, and Gemini behind Google's.

litellm's provider class words the request and reads the answer; the deadlines, the errors, the events of the stream and
the finish reason are ours, so that nothing between us and the provider retries, logs, or puts its own word for the
provider's. What litellm cannot translate goes through litellm alone.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import structlog

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelAnswer, ModelRequest
from callgate.http.client import HttpClient
from callgate.http.event_stream import BOM
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.upstream import claude, errors, gemini, resolve
from callgate.upstream.direct_model import ANSWER_BYTES, Body, HttpAnswer, opened
from callgate.upstream.litellm_model import LiteLLMModel, loaded
from callgate.upstream.resolve import ThroughLiteLLM
from callgate.upstream.translation import Fields, Lost, Question

Asking: TypeAlias = Callable[[Any, ThroughLiteLLM, ModelRequest, Fields], Awaitable[Question]]
QUESTIONS: Mapping[str, Asking] = {claude.PROVIDER: claude.question, gemini.PROVIDER: gemini.question}

log = structlog.get_logger("callgate.models")


class TranslatedModel:
    def __init__(
        self,
        name: str,
        way: ThroughLiteLLM,
        client: HttpClient,
        deadlines: Deadlines,
        otherwise: LiteLLMModel,
        *,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        """`answer_bytes`: how long one answer may be, as it comes over the wire."""
        self.name = name
        self._way = way
        self._client = client
        self._deadlines = deadlines
        self._otherwise = otherwise
        self._answer_bytes = answer_bytes
        self._provider = resolve.provider_of(way.arguments) or ""
        self._fields = Fields(self._provider, way)
        self._lost = False
        self._told: set[str] = set()

    @asynccontextmanager
    async def ask(self, ask: ModelRequest) -> AsyncIterator[ModelAnswer]:
        question = None if self._lost else await self._translated(ask)
        if question is None:
            async with self._otherwise.ask(ask) as answer:
                yield answer
            return
        exchange = self._client.post(question.url, question.headers, question.body, self._deadlines)
        response = await opened(exchange, question.secrets)
        try:
            yield _TranslatedAnswer(response, question, self._answer_bytes, self._lose)
        except BaseException as error:
            await exchange.__aexit__(type(error), error, error.__traceback__)
            if isinstance(error, TransportError):
                raise errors.from_transport(error) from error
            raise
        await exchange.__aexit__(None, None, None)

    async def _translated(self, ask: ModelRequest) -> Question | None:
        """The question in the provider's words; None where litellm has to find out by itself what is wrong with it."""
        litellm = await loaded()
        try:
            async with asyncio.timeout(self._deadlines.first_byte):  # it fetches images that only have an address
                return await QUESTIONS[self._provider](litellm, self._way, ask, self._fields)
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        except Exception as error:  # noqa: BLE001 -- litellm raises its own errors and bare KeyErrors over odd messages
            # The request may be to blame, so that this says nothing of the next one.
            self._tell("request", error)
            return None

    def _lose(self, error: Exception) -> None:
        """An answer could not be read; from here on litellm both asks and reads."""
        self._lost = True
        self._tell("answer", error)

    def _tell(self, what: str, error: Exception) -> None:
        if what in self._told:
            return
        self._told.add(what)
        # The error's text may hold the messages of a chat; its kind does not.
        log.warning("translation_failed", model=self.name, what=what, error=type(error).__name__)


class _TranslatedAnswer(HttpAnswer):
    lane = "translated"

    def __init__(self, response: Response, question: Question, answer_bytes: int, lost: Lost) -> None:
        super().__init__(response, question.secrets, answer_bytes)
        self._question = question
        self._lost = lost

    def _recognise(self, start: bytes) -> Body | None:
        mark = start.removeprefix(BOM).lstrip()[:1]
        if not mark:
            return None
        if mark == b"<":
            raise errors.bad_answer("The model's provider sent something that is not an answer.", "a web page")
        return (self._question.as_message if mark in b"{[" else self._question.as_events)(self._lost)
