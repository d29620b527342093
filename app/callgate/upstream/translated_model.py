"""A model whose requests litellm's provider classes word, and whose answers we carry and read.

The deadlines, the errors, the events of the stream and the finish reason are ours, so that nothing between us and the
provider retries, logs, or puts its own word for the provider's. A request that cannot be worded is the request's error,
an answer that cannot be read is the answer's; neither changes how the next request goes.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import structlog
from msgspec.structs import replace

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, as_read
from callgate.http.client import HttpClient
from callgate.http.event_stream import BOM
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.upstream import bedrock, claude, cohere, errors, gemini, openai_shaped, resolve
from callgate.upstream.bounds import check_schemas, is_large
from callgate.upstream.direct_model import ANSWER_BYTES, Body, HttpAnswer, opened
from callgate.upstream.litellm_model import decoded, from_request, loaded
from callgate.upstream.media import Fetch, put_in
from callgate.upstream.resolve import ThroughLiteLLM
from callgate.upstream.translation import Fields, Question, Report

Asking: TypeAlias = Callable[[Any, ThroughLiteLLM, ModelRequest, Fields], Awaitable[Question]]
QUESTIONS: Mapping[str, Asking] = {
    "anthropic": claude.question,
    "bedrock": bedrock.question,
    "cohere": cohere.question,
    "cohere_chat": cohere.question,
    "gemini": gemini.question,
    "vertex_ai": gemini.question,
    "vertex_ai_beta": gemini.question,
}
"""What words a request, by provider; those that are not here have OpenAI's wire."""

log = structlog.get_logger("callgate.models")


class TranslatedModel:
    def __init__(
        self,
        name: str,
        settings: ThroughLiteLLM,
        client: HttpClient,
        deadlines: Deadlines,
        *,
        answer_bytes: int = ANSWER_BYTES,
        fetch: Fetch | None = None,
    ) -> None:
        """`answer_bytes`: how long one answer may be, as it comes over the wire. `fetch` gets what is at an address, for a
        provider that takes none."""
        self.name = name
        self._settings = settings
        self._client = client
        self._deadlines = deadlines
        self._answer_bytes = answer_bytes
        provider = resolve.provider_of(settings.arguments) or ""
        self._ask = QUESTIONS.get(provider, openai_shaped.question)
        self._fields = Fields(provider, settings)
        self._fetch = fetch
        self._takes_addresses = self._ask is openai_shaped.question

    @asynccontextmanager
    async def ask(self, ask: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        question = await self._question(as_read(ask))
        exchange = self._client.post(question.url, question.headers, question.body, self._deadlines)
        response = await opened(exchange, question.secrets)
        try:
            yield _TranslatedAnswer(response, question, self._answer_bytes, self._report)
        except BaseException as error:
            await exchange.__aexit__(type(error), error, error.__traceback__)
            if isinstance(error, TransportError):
                raise errors.from_transport(error) from error
            raise
        await exchange.__aexit__(None, None, None)

    async def _question(self, ask: ModelRequest) -> Question:
        check_schemas(ask)
        litellm = await loaded()
        try:
            async with asyncio.timeout(self._deadlines.first_byte):  # it may have to sign in first
                messages = [copy.deepcopy(decoded(message)) for message in ask.messages]
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
        except Exception as error:  # litellm raises its own errors and bare KeyErrors over odd messages
            self._log("request", error)
            raise from_request(error, self._settings.secrets) from error

    async def _worded(self, litellm: Any, ask: ModelRequest) -> Question:
        return await self._ask(litellm, self._settings, ask, self._fields)

    def _report(self, error: Exception) -> None:
        """An answer could not be read."""
        self._log("answer", error)

    def _log(self, what: str, error: Exception) -> None:
        # The error's text may hold the messages of a chat; its kind does not.
        log.warning("translation_failed", model=self.name, what=what, error=type(error).__name__)


class _TranslatedAnswer(HttpAnswer):
    def __init__(self, response: Response, question: Question, answer_bytes: int, report: Report) -> None:
        super().__init__(response, question.secrets, answer_bytes)
        self._question = question
        self._report = report
        self.lane = question.lane

    def _recognise(self, start: bytes) -> Body | None:
        mark = start.removeprefix(BOM).lstrip()[:1]
        if not mark:
            return None
        if mark == b"<":
            raise errors.bad_answer("The model's provider sent something that is not an answer.", "a web page")
        return (self._question.as_message if mark in b"{[" else self._question.as_events)(self._report)
