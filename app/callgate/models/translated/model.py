"""The translated lane: litellm's provider classes build the request, our HTTP client sends it, and we read the answer.

Deadlines, errors, stream events and finish reasons are handled here, so that litellm does not retry, log, or change them. A
request that cannot be translated is a client error, an answer that cannot be read a provider's.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import structlog
from msgspec.structs import replace

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import Finished, ModelEvent
from callgate.conversation.ports import (
    ModelAnswer,
    ModelRequest,
    Original,
    Passthrough,
    RecordBody,
    hand_nothing,
)
from callgate.conversation.request_checks import check_request
from callgate.conversation.usage import Usage
from callgate.http.client import HttpClient
from callgate.http.event_stream import BOM
from callgate.http.interface import Deadlines, Response, TransportError
from callgate.models import errors, resolve
from callgate.models.direct.model import ANSWER_BYTES, LITELLMS_PIECE, Body, HttpAnswer, host_in, open_response
from callgate.models.litellm_model import from_request, loaded
from callgate.models.media import Fetch, put_in
from callgate.models.resolve import LiteLLMSettings
from callgate.models.translated import bedrock, claude, claude_elsewhere, cohere, gemini, messages_lane, openai_shaped
from callgate.models.translated.bounds import check_schemas, is_large
from callgate.models.translated.deferred_tools import is_about_deferred, with_deferred
from callgate.models.translated.fitting import (
    check_fits,
    fitted,
    note_lost_marks,
    own_wire_of,
    readable,
    without_hints,
)
from callgate.models.translated.translation import Fields, ProviderRequest
from callgate.models.translated.wording import Elsewhere
from callgate.parsers.pool import ParserPool

Translate: TypeAlias = Callable[
    [Any, LiteLLMSettings, ModelRequest, Fields, Elsewhere | None], Awaitable[ProviderRequest]
]
TRANSLATIONS: Mapping[str, Translate] = {
    "anthropic": claude.translate,
    "bedrock": bedrock.translate,
    "cohere": cohere.translate,
    "gemini": gemini.translate,
}
"""The functions that make requests, by wire; all other providers have OpenAI's."""

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
        parsers: ParserPool | None = None,
    ) -> None:
        """`answer_bytes`: the limit of one answer, in bytes as received. `fetch` gets the content of URLs, for a provider that
        takes none. `parsers` words long requests."""
        self.name = name
        self.host = resolve.host_of(settings.arguments)
        """The host of the last request; before that, the entry's."""
        self._settings = settings
        self._client = client
        self._deadlines = deadlines
        self.answer_bytes = answer_bytes
        provider = resolve.provider_of(settings.arguments) or ""
        self._provider = provider
        self._wire = own_wire_of(settings.arguments)
        self._translate = TRANSLATIONS.get(self._wire, openai_shaped.translate)
        if resolve.is_claude_elsewhere(settings.arguments):
            self._translate = claude_elsewhere.translate
        self._fields = Fields(provider, settings)
        self._elsewhere = Elsewhere(parsers or ParserPool(), name, provider, settings)
        self._fetch = fetch
        self._takes_addresses = self._translate is openai_shaped.translate
        self._defers = self._translate is claude.translate
        """Whether its provider loads the tools that a model searched for, until it says that it does not."""

    @asynccontextmanager
    async def send(self, request: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        provider_request = await self._translated(request)
        async with AsyncExitStack() as exchanges:
            try:
                try:
                    response = await self.send_to_provider(provider_request, exchanges, request.record_body)
                except ChatError as refusal:
                    if not (self._defers and is_about_deferred(refusal)):
                        raise
                    self._defers = False
                    log.warning("tool_search_by_bridge", model=self.name, error=refusal.detail or refusal.message)
                    provider_request = await self._translated(request)
                    response = await self.send_to_provider(provider_request, exchanges, request.record_body)
                if provider_request.continued is None:
                    yield _TranslatedAnswer(response, provider_request, self, request.record_body)
                else:
                    yield _PausingAnswer(response, provider_request, self, request.record_body, exchanges)
            except TransportError as error:
                raise errors.from_transport(error) from error

    async def send_to_provider(
        self, provider_request: ProviderRequest, exchanges: AsyncExitStack, record_body: RecordBody | None
    ) -> Response:
        self.host = host_in(provider_request.url)
        response = await open_response(
            self._client,
            self._client.head_of("POST", provider_request.url, provider_request.headers),
            provider_request.body,
            self._deadlines,
            provider_request.secrets,
            record_body,
        )
        exchanges.callback(response.leave)
        return response

    async def _translated(self, request: ModelRequest | Passthrough) -> ProviderRequest:
        original = None
        if (
            self._translate is claude.translate
            and request.original is not None
            and request.original.api == messages_lane.LANE
        ):
            original = request.original
        if original is not None and isinstance(request, Passthrough):
            return await self._from_original(messages_lane.passed, request, original)
        api = messages_lane.LANE if original is not None else "chat"
        request = readable(request, api, self._wire, self._settings.arguments)
        if request.deferred is not None:
            request = with_deferred(request) if self._defers else replace(request, deferred=None)
        check_request(request, plain_names=False, as_objects=not self._takes_addresses)
        if original is not None:
            return await self._from_original(messages_lane.translate, request, original)
        marked = request
        check_schemas(request)
        check_fits(request, self._wire)
        litellm = await loaded()
        try:
            async with asyncio.timeout(self._deadlines.first_byte):  # it may have to authenticate first
                request = without_hints(litellm, request, self._settings.arguments)
                messages = fitted(litellm, request, self._provider, self._wire, self._settings.arguments)
                messages = await put_in(messages, self._fetch, files_only=self._takes_addresses)
                request = replace(request, messages=messages)
                elsewhere = self._elsewhere if is_large(request) else None
                worded = await self._translate(litellm, self._settings, request, self._fields, elsewhere)
        except ChatError:
            raise
        except TimeoutError:
            raise errors.timed_out("Signing in at the model's provider took too long.", "sign-in", again=True) from None
        except UnicodeEncodeError:
            raise ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.") from None
        except Exception as error:  # litellm's own errors, and KeyErrors for odd messages
            self._log("request", error)
            raise from_request(error, self._settings.secrets) from error
        note_lost_marks(marked, worded.body)
        return worded

    async def _from_original(
        self, wording: Callable[..., Awaitable[ProviderRequest]], request: Any, original: Original
    ) -> ProviderRequest:
        """Make the request out of the client's original one."""
        try:
            return await wording(await loaded(), self._settings, request, original)
        except ChatError:
            raise
        except Exception as error:  # as in `_translated`
            self._log("request", error)
            raise from_request(error, self._settings.secrets) from error

    def report(self, error: Exception) -> None:
        """Log that an answer could not be read."""
        self._log("answer", error)

    def _log(self, what: str, error: Exception) -> None:
        # The error's text may hold messages of a chat; its type does not.
        log.warning("translation_failed", model=self.name, what=what, error=type(error).__name__)


class _TranslatedAnswer(HttpAnswer):
    piece = LITELLMS_PIECE

    def __init__(
        self,
        response: Response,
        provider_request: ProviderRequest,
        model: TranslatedModel,
        record_body: RecordBody | None,
    ) -> None:
        super().__init__(response, provider_request.secrets, model.answer_bytes, record_body)
        self._provider_request = provider_request
        self._model = model
        self.lane = provider_request.lane

    def _recognise(self, start: bytes) -> Body | None:
        mark = start.removeprefix(BOM).lstrip()[:1]
        if not mark:
            return None
        if mark == b"<":
            raise errors.bad_answer("The model's provider sent something that is not an answer.", "a web page")
        return (self._provider_request.as_message if mark in b"{[" else self._provider_request.as_events)(
            self._model.report
        )


class _PausingAnswer(_TranslatedAnswer):
    """One answer of a provider that may pause in it, and continues when it is sent the answer so far."""

    def __init__(
        self,
        response: Response,
        provider_request: ProviderRequest,
        model: TranslatedModel,
        record_body: RecordBody | None,
        exchanges: AsyncExitStack,
    ) -> None:
        super().__init__(response, provider_request, model, record_body)
        self._exchanges = exchanges
        self._said: list[Any] = []
        self._pauses = 0
        self._before: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        """Tokens of the parts before this one (`_before`), and of this one so far."""

    hand_to = hand_nothing

    async def __anext__(self) -> Sequence[ModelEvent]:
        while True:
            try:
                return [self._added_up(event) for event in await super().__anext__() if not _is_pause(event)]
            except StopAsyncIteration:
                paused = getattr(self._body, "paused", None)
                if paused is None:
                    raise
            assert self._provider_request.continued is not None
            self._pauses += 1
            if self._pauses > MOST_PAUSES:
                raise BrokenOff(f"the provider paused more than {MOST_PAUSES} times", transport_error=True)
            self._said += paused
            self._before = self._counts
            self._counts = {}
            provider_request = replace(self._provider_request, body=self._provider_request.continued(self._said))
            try:
                self._read_on(await self._model.send_to_provider(provider_request, self._exchanges, self._record_body))
            except ChatError as error:
                if not self._begun:
                    raise
                raise BrokenOff(error.detail or error.message, transport_error=True) from error

    def _is_over(self) -> bool:
        return getattr(self._body, "paused", None) is not None or super()._is_over()

    def _added_up(self, event: ModelEvent) -> ModelEvent:
        if not isinstance(event, Usage):
            return event
        now = {name: count for name, count in event.report.items() if type(count) is int}
        self._counts = {name: self._before.get(name, 0) + now.get(name, 0) for name in {**self._before, **now}}
        return Usage({**event.report, **self._counts})


def _is_pause(event: ModelEvent) -> bool:
    """True if an event says that the provider paused: the answer is then continued, and its end has another reason."""
    return isinstance(event, Finished) and event.reason == claude.PAUSED
