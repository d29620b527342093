"""The litellm lane: `litellm.acompletion` makes and sends the request, for providers that have no other lane.

litellm invents finish reasons, retries by itself, lets a request's fields choose addresses and keys, and puts the provider's
body into its errors. So the answer is read from what its HTTP client received (`tap`): by the reader of its wire format
where that is known (`tapped_answer`), else as litellm maps it, and then calls run only where the provider's own end was
received (`raw_end`). With `trust_litellm: on` litellm is believed.
`tests/models/test_litellm_model.py` has a test for each behaviour of litellm that is relied upon.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from math import inf
from typing import Any, Final

import msgspec
import structlog

from callgate.conversation.errors import AnswerTooLarge, BrokenOff, ChatError
from callgate.conversation.events import EndNotSeen, Finished, ModelEvent, ProviderError
from callgate.conversation.model_requests import as_model_request
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, hand_nothing, tell_nobody
from callgate.conversation.readable_content import with_readable_results
from callgate.conversation.request_checks import check_request
from callgate.conversation.response_items import without_items
from callgate.http.credentials import secrets_in
from callgate.http.interface import Deadlines, TooLarge, TransportError
from callgate.models import errors, resolve
from callgate.models import litellm_seam as seam
from callgate.models.direct.chunks import ChunkReader, read_completion
from callgate.models.direct.model import ANSWER_BYTES
from callgate.models.litellm_lane import tapped_answer
from callgate.models.litellm_lane.answer_elsewhere import ReceivedBody, mapped
from callgate.models.litellm_lane.raw_end import RawEnd, end_in
from callgate.models.litellm_lane.tap import Exchange
from callgate.models.litellm_lane.tapped_answer import AskedQuestion, ReadTimes, TappedAnswer
from callgate.models.litellm_model import COMMON_EXTRAS, as_dicts, decoded, from_exception, loaded, supported_params
from callgate.models.media import Fetch, put_in
from callgate.models.params import for_litellm
from callgate.models.providers import OPENAIS_OWN
from callgate.models.resolve import LiteLLMSettings
from callgate.models.retry import has_begun
from callgate.models.translated.bounds import check_schemas
from callgate.models.translated.past_results import put_in_objects
from callgate.models.unplaced import left_out_by_litellm, without_hints
from callgate.parsers.pool import ParserPool

log = structlog.get_logger("callgate.models")

LONG_ANSWER: Final = 256 * 1024
"""Bytes of a whole answer that litellm parses here. What is longer is read by our readers, or mapped in a child process."""


class LiteLLMModel:
    def __init__(
        self,
        name: str,
        settings: LiteLLMSettings,
        deadlines: Deadlines,
        fetch: Fetch | None = None,
        *,
        answer_bytes: int = ANSWER_BYTES,
        trusts_litellm: bool = False,
        parsers: ParserPool | None = None,
    ) -> None:
        """`answer_bytes`: the limit of one answer, in bytes as received. `trusts_litellm`: read answers as litellm maps them,
        and believe it how they ended. `parsers` has litellm map long ones."""
        self.name = name
        self.host = resolve.host_of(settings.arguments)
        self._fetch = fetch
        self._settings = settings
        self._deadlines = deadlines
        self._answer_bytes = answer_bytes
        self._trusts_litellm = trusts_litellm
        self._parsers = parsers or ParserPool()
        self._has_warned = False
        self._takes_extra_body: bool | None = None
        """Asked of litellm once: an entry's provider stays what it is."""
        self._in_bodies = secrets_in(msgspec.json.encode(settings.arguments, enc_hook=str))

    @asynccontextmanager
    async def send(self, request: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        request = as_model_request(request, cache_marks=resolve.takes_cache_marks(self._settings.arguments))
        request = with_readable_results(request)
        check_request(request, plain_names=False)
        check_schemas(request)
        litellm = await loaded()
        own = self._settings.arguments
        request = without_hints(request, partial(supported_params, litellm, own), own)
        clock = _Clock(self._deadlines)
        messages = await put_in(
            [copy.deepcopy(without_items(decoded(message))) for message in request.messages], self._fetch
        )
        put_in_objects(messages)
        self._note_left_out(litellm, request, messages)
        arguments = self._arguments(litellm, request, messages)
        exchange = Exchange(self._answer_bytes, None if request.stream else LONG_ANSWER, self._in_bodies)
        try:
            answer = await self._ask_litellm(litellm, arguments, exchange, clock)
            if self._trusts_litellm:
                tapped = None
            else:
                question = self._question(request, arguments, answer)
                tapped = await self._tapped(question, exchange, clock)
            if tapped is None and isinstance(answer, Exception) and exchange.is_held_back:
                answer = await self._mapped_elsewhere(arguments, exchange, clock)
            if tapped is None and isinstance(answer, Exception):
                raise from_exception(answer, self._settings.secrets) from answer
            if tapped is not None:
                async with _closing(answer):
                    yield tapped
            elif not hasattr(answer, "aclose"):
                if self._trusts_litellm:
                    end = None
                else:
                    end = await self.end_of(exchange, clock)
                yield _WholeAnswer(answer, self._settings.secrets, end)
            else:
                if self._trusts_litellm:
                    end_of = None
                else:
                    end_of = partial(self.end_of, exchange, clock)
                async with _closing(answer):
                    yield _StreamedAnswer(answer, clock, self._settings.secrets, exchange, end_of)
        finally:
            clock.stop()
            await exchange.close()

    async def _ask_litellm(
        self, litellm: Any, arguments: Mapping[str, Any], exchange: Exchange, clock: "_Clock"
    ) -> Any:
        """Return litellm's answer, of a stream once its request was sent; or the error that litellm raised."""
        try:
            with exchange.watched(), seam.nothing_logged():
                async with asyncio.timeout(clock.until_first()):
                    answer = await litellm.acompletion(**arguments)
                    if hasattr(answer, "aclose") and answer.completion_stream is None:
                        await answer.fetch_stream()
        except TimeoutError:
            raise clock.passed("first_byte") from None
        except Exception as error:  # litellm's errors, openai's, and IndexErrors for an odd answer
            if exchange.is_too_large:
                raise errors.answer_too_large(self._answer_bytes) from error
            if exchange.too_much:
                raise AnswerTooLarge(exchange.too_much) from error
            return error
        return answer

    async def _mapped_elsewhere(
        self, arguments: Mapping[str, Any], exchange: Exchange, clock: "_Clock"
    ) -> dict[str, Any]:
        """Read a long answer to its end, and have litellm map it in a child process."""
        responses: list[ReceivedBody] = []
        for body in exchange.responses:
            try:
                async with asyncio.timeout(clock.until_idle()):
                    responses.append(ReceivedBody(body.status, body.headers, await body.whole()))
            except TimeoutError:
                raise clock.passed("idle") from None
            except TooLarge as error:
                raise errors.answer_too_large(self._answer_bytes) from error
            except TransportError as error:
                raise errors.from_transport(error) from error
        return await mapped(self._parsers, self.name, arguments, self._settings.secrets, responses)

    def _question(self, request: ModelRequest, arguments: Mapping[str, Any], answer: Any) -> AskedQuestion:
        return AskedQuestion(
            model=str(self._settings.arguments["model"]),
            tools=arguments.get("tools", ()),
            as_format="response_format" in request.params,
            completion=None if request.stream or isinstance(answer, Exception) else answer,
        )

    async def _tapped(self, question: AskedQuestion, exchange: Exchange, clock: "_Clock") -> TappedAnswer | None:
        """Return the answer as it was received, where its wire format is known."""
        try:
            async with asyncio.timeout(clock.until_first()):
                wire = await tapped_answer.find(exchange)
        except TimeoutError:
            raise clock.passed("first_byte") from None
        if wire is None:
            return None
        reader = wire.format.reader(question, self._report)
        times = ReadTimes(clock.until_first, clock.until_idle)
        return TappedAnswer(wire.body, reader, self._settings.secrets, self._answer_bytes, times)

    async def end_of(self, exchange: Exchange, clock: "_Clock") -> RawEnd:
        """Return the end of an answer as it was received, and log once where there is none."""
        try:
            async with asyncio.timeout(clock.until_idle()):
                end = await end_in(exchange)
        except TimeoutError:
            end = RawEnd((), "the rest of the body did not come in time")
        if end.why_not_seen and not self._has_warned:
            self._has_warned = True
            log.warning("end_not_seen", model=self.name, why=end.why_not_seen, todo=TODO)
        return end

    def _note_left_out(self, litellm: Any, request: ModelRequest, messages: Sequence[Any]) -> None:
        if request.leave_out is tell_nobody:
            return
        if any(message.get("role") == "developer" and message.get("name") for message in messages):
            request.leave_out("messages.name")  # litellm makes a system message of it, without a name
        own = self._settings.arguments
        supported = partial(supported_params, litellm, own)
        wire = resolve.wire_of(own)
        for name in left_out_by_litellm(request, resolve.provider_of(own), wire, messages, supported):
            request.leave_out(name)

    def _report(self, error: Exception) -> None:
        log.warning("translation_failed", model=self.name, what="answer", error=type(error).__name__)

    def _arguments(self, litellm: Any, request: ModelRequest, messages: Sequence[Any]) -> dict[str, Any]:
        named, beside = for_litellm(request)
        own = dict(self._settings.arguments)
        arguments: dict[str, Any] = {
            **own,
            **{name: decoded(value) for name, value in named.items()},
            "messages": messages,
            "stream": request.stream,
            # No retries, and a timeout: we retry ourselves, and litellm's default timeout is 6000 seconds.
            "max_retries": 0,
            "num_retries": 0,
            "timeout": self._deadlines.total,
        }
        if request.tools:
            arguments["tools"] = [decoded(tool) for tool in request.tools]
            if request.tool_choice is not None:
                arguments["tool_choice"] = decoded(request.tool_choice)
        if request.stream and self._settings.include_usage:
            arguments["stream_options"] = {"include_usage": True}
        extras = {name: decoded(value) for name, value in beside.items()}
        if self._takes_extra_body is None:
            self._takes_extra_body = _takes_extra_body(litellm, own)
        if self._takes_extra_body:
            arguments["extra_body"] = {**(own.get("extra_body") or {}), **extras}
        else:
            arguments |= {name: value for name, value in extras.items() if name in COMMON_EXTRAS}
        return arguments


TODO = (
    "calls of such an answer are not run: reach the model on another lane, or say trust_litellm: on in its entry; "
    "see docs/finish-reasons.md"
)


@asynccontextmanager
async def _closing(answer: Any) -> AsyncIterator[None]:
    """Close what litellm has open for an answer."""
    # litellm's reader of Anthropic's streams closes nothing itself, and the wrapper around it holds on to it.
    lines = getattr(getattr(answer, "completion_stream", None), "streaming_response", None)
    try:
        if hasattr(answer, "aclose"):
            async with aclosing(answer):
                yield
        else:
            yield
    finally:
        if lines is not None and hasattr(lines, "aclose"):
            await lines.aclose()


class _WholeAnswer:
    """One completion. litellm replaces a missing finish reason by `stop`, and keeps those that it rewrote in another field."""

    lane = "litellm"

    def __init__(self, completion: Any, secrets: Sequence[str], end: RawEnd | None) -> None:
        """`end`: how the answer ended as its provider said it; None where litellm is believed."""
        self._completion: Any = completion
        self._secrets = secrets
        self._end = end
        self.reason_is_raw = end is not None and bool(end.reasons)

    hand_to = hand_nothing

    def __aiter__(self) -> "_WholeAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        if self._completion is None:
            raise StopAsyncIteration
        completion = as_dicts(self._completion)
        self._completion = None
        for choice in completion.get("choices") or ():
            fields = choice.get("provider_specific_fields")
            if isinstance(fields, dict) and isinstance(native := fields.get("native_finish_reason"), str):
                choice["finish_reason"] = native
            if self._end is not None and self._end.reasons:
                del choice["finish_reason"]
        events = [*read_completion(completion), *(() if self._end is None else _events_of(self._end))]
        if (failed := next((event for event in events if isinstance(event, ProviderError)), None)) is not None:
            raise errors.reported(failed.message, failed.body, {}, secrets=self._secrets)
        if not has_begun(events):
            raise errors.bad_answer("The model's provider sent an empty answer.")
        return events


class _StreamedAnswer:
    lane = "litellm"

    def __init__(
        self,
        stream: Any,
        clock: "_Clock",
        secrets: Sequence[str],
        exchange: Exchange,
        end_of: Callable[[], Awaitable[RawEnd]] | None,
    ) -> None:
        """`end_of`: returns how the answer ended as its provider said it; None where litellm is believed."""
        self.reason_is_raw = False
        self._stream = stream
        self._exchange = exchange
        self._end_of = end_of
        self._clock = clock
        self._secrets = secrets
        self._chunks = ChunkReader()
        self._begun = False
        self._reason = ""
        self._over = False

    hand_to = hand_nothing

    def __aiter__(self) -> "_StreamedAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        while not self._over:
            batch = await self._next_batch()
            if batch:
                self._begun = self._begun or has_begun(batch)
                return batch
        raise StopAsyncIteration

    async def _next_batch(self) -> Sequence[ModelEvent]:
        if self._stream.sent_stream_usage:
            # Its last chunk. To read on would make litellm build the whole answer a second time.
            return await self._ended()
        try:
            self._clock.wait(begun=self._begun)
            with self._exchange.watched():
                chunk = await anext(self._stream)
        except StopAsyncIteration:
            return await self._ended()
        except asyncio.CancelledError:
            if not self._clock.gave_up():
                raise
            return await self._failed(self._clock.passed("idle" if self._begun else "first_byte"))
        except Exception as error:
            if self._exchange.is_too_large:
                raise errors.answer_too_large(self._exchange.most) from error
            if self._exchange.too_much:
                raise AnswerTooLarge(self._exchange.too_much) from error
            if (report := _report_in(error)) is not None:
                # The provider reported an error in its stream; finish reasons before it still count.
                self._over = True
                error_body = errors.read_error(report)
                if not self._begun:
                    raise errors.reported(error_body.message, {"error": report}, {}, secrets=self._secrets) from error
                return (ProviderError(errors.redact(error_body.message, self._secrets)[: errors.MESSAGE_CHARS]),)
            return await self._failed(from_exception(error, self._secrets))
        finally:
            self._clock.rest()
        read = as_dicts(chunk)
        for choice in read.get("choices") or ():
            choice.pop("finish_reason", None)
        return [*self._chunks.read(read), *self._received()]

    def _received(self) -> Sequence[ModelEvent]:
        """Return the finish reasons as litellm received them. Those in the chunks were mapped to OpenAI's five, a failed turn
        to `stop`, or invented."""
        received = self._stream.received_finish_reason or self._stream.intermittent_finish_reason
        if not isinstance(received, str) or received == self._reason:
            return ()
        self._reason = received
        if self._end_of is None:
            return (Finished(received),)
        return ()

    async def _ended(self) -> Sequence[ModelEvent]:
        self._over = True
        reasons = [*self._received(), *self._chunks.finish()]
        if not self._reason and not self._begun:
            raise errors.bad_answer("The model's provider sent an empty answer.")
        if self._end_of is not None:
            return [*reasons, *await self._provider_end()]
        if self._reason:
            return reasons
        # A body without an end mark and a whole one without a finish reason cannot be distinguished here.
        raise BrokenOff("the stream ended without a finish reason", transport_error=False)

    async def _provider_end(self) -> Sequence[ModelEvent]:
        assert self._end_of is not None
        end = await self._end_of()
        if not end.reasons and not self._reason and not end.is_in_order:
            raise BrokenOff("the stream ended without a finish reason", transport_error=False)
        self.reason_is_raw = bool(end.reasons)
        return _events_of(end, self._reason)

    async def _failed(self, error: ChatError) -> Sequence[ModelEvent]:
        self._over = True
        reasons = self._received()
        if self._reason:
            # litellm also raises for what follows a finished answer.
            if self._end_of is None:
                return reasons
            return await self._provider_end()
        if not self._begun:
            raise error
        raise BrokenOff(error.detail or error.message, transport_error=True) from error


def _events_of(end: RawEnd, mapped: str = "") -> list[ModelEvent]:
    """Return the events for the end of an answer. `mapped` is litellm's word for it."""
    reasons = end.reasons or ((mapped,) if mapped else ())
    events: list[ModelEvent] = [Finished(reason) for reason in reasons]
    if end.why_not_seen:
        return [*events, EndNotSeen()]
    return events


class _Clock:
    """The deadlines of one request; litellm's own `timeout` bounds single reads only."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + deadlines.total
        self._first = self._now() + deadlines.first_byte
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        self._waits = False
        self._gave_up = False
        self._cancelled_before = 0

    def until_first(self) -> float:
        return max(0.0, min(self._first, self._end) - self._now())

    def until_idle(self) -> float:
        return max(0.0, min(self._now() + self._deadlines.idle, self._end) - self._now())

    # One timer per stream, rescheduled only when it fires: each chunk costs two assignments.

    def wait(self, *, begun: bool) -> None:
        """Begin to wait for a chunk; if none comes in time, the task is cancelled, and `gave_up` is true."""
        self._task = asyncio.current_task()
        if begun:
            self._due = min(self._end, self._now() + self._deadlines.idle)
        else:
            self._due = min(self._first, self._end)
        self._waits = True
        if self._timer is None or self._timer.when() > self._due:
            self.stop()
            self._timer = asyncio.get_running_loop().call_at(self._due, self._look)

    def rest(self) -> None:
        self._waits = False

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def gave_up(self) -> bool:
        """True if only we cancelled the task."""
        return self._gave_up and self._task is not None and self._task.uncancel() <= self._cancelled_before

    def _look(self) -> None:
        self._timer = None
        if not self._waits or self._task is None:
            return
        if self._now() < self._due:
            self._timer = asyncio.get_running_loop().call_at(self._due, self._look)
        else:
            self._gave_up = True
            self._cancelled_before = self._task.cancelling()  # libraries do not always call `uncancel`
            self._task.cancel()

    def passed(self, which: str) -> errors.UpstreamError:
        # One that sent nothing at all hangs, whichever time passed; another may answer.
        if which != "first_byte" and self._now() >= self._end:
            return errors.timed_out(
                "The model took longer than the time allowed.", "total", again=False, elsewhere=False
            )
        return errors.timed_out("The model's provider did not answer in time.", which, again=False)


def _report_in(error: BaseException | None) -> object | None:
    """Return the error object of a stream, which the SDK has on an `APIError` among the causes of what litellm raises."""
    while error is not None:
        body = getattr(error, "body", None)
        if type(error).__name__ == "APIError" and isinstance(body, (dict, str)) and body:
            return body
        error = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
    return None


def _takes_extra_body(litellm: Any, arguments: Mapping[str, Any]) -> bool:
    try:
        _, provider, _, _ = litellm.get_llm_provider(
            model=arguments["model"],
            custom_llm_provider=arguments.get("custom_llm_provider"),
            api_base=arguments.get("api_base"),
        )
    except litellm.exceptions.BadRequestError:
        return False
    return provider in OPENAIS_OWN or provider in seam.OPENAI_COMPATIBLE.get()
