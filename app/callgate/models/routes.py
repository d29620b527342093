"""Routes of other requests than chats (embeddings, audio, …): proxied to the provider of the model that they name."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from callgate.api.answers import STREAM_HEADERS, ClientDisconnected, run_unless_disconnected, start_message
from callgate.api.bodies import check_body, read_body
from callgate.api.guarded_bodies import check_not_blocked, judged_body, judged_texts
from callgate.api.middleware import RequestContext, context_of
from callgate.api.rights import caller_after_body
from callgate.api.strict_json import LARGE_BODY, PASSED_ON, Fields, open_body, read_fields
from callgate.callers.caller import Caller, account_of
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEnded, Ending, EndingKind, TurnStarted
from callgate.conversation.ids import new_run_id
from callgate.conversation.ports import JudgedFields
from callgate.conversation.usage import Usage
from callgate.models.proxied_routes import Form
from callgate.models.resolve import ModelConfig
from callgate.policy.judge import NamedThings, judge_form, judge_named
from callgate.policy.operator_ids import may_have_ids
from callgate.records.row import RunRow
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.untrusted.doors import Door, Opened, open_text
from callgate.untrusted.readers import NULL, Text, json_reader, read_shape, value_at

COMPLETIONS = "/completions"
PATHS = (
    "/embeddings",
    COMPLETIONS,
    "/moderations",
    "/rerank",
    "/images/generations",
    "/images/edits",
    "/images/variations",
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
)
"""Paths after `/v1`."""
MOST_FIELDS = 1000
"""Fields of a JSON body, which are checked one by one."""
MOST_ANSWERS = 100_000
"""The most that a request may count as; more are refused by every limit."""
TAIL_BYTES = 65_536
"""Bytes at the end of a response in which its usage is searched, which providers write last."""
MOST_USAGES = 8
"""The last of them that are looked at: each may go on to the end."""
TAIL = Door(name="end of a response that is passed on", bytes=4 * TAIL_BYTES)

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')


def _read_fields(body: bytes, max_depth: int) -> Fields:
    """Return the fields of a body. Its values are not counted, because a request for embeddings may have a million tokens."""
    opened = open_body(body, PASSED_ON)
    fields = read_fields(opened, max_depth)
    if len(fields) > MOST_FIELDS:
        raise ChatError(400, f"The request has more than {MOST_FIELDS} fields.", code="too_many_values")
    return fields


async def _counted(body: bytes) -> Opened:
    if len(body) > LARGE_BODY:
        return await asyncio.to_thread(open_body, body, PASSED_ON)
    return open_body(body, PASSED_ON)


class ProxyEndpoint:
    """Proxies one kind of request."""

    def __init__(self, manager: RuntimeManager, path: str) -> None:
        self._manager = manager
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "passed_on"
        assert context.caller is not None, "the middleware requires a caller here"
        with self._manager.leased as runtime:
            check_body(context.headers, runtime.limits.body_bytes)
            context.aftermath.shows_reasons = runtime.is_for_one_person and bool(context.caller.anonymous)
            body = await read_body(receive, runtime.limits.body_bytes, context.hold)
            caller = caller_after_body(self._manager, context)
            if runtime.guarding is not None and not _is_form(context):
                body = await judged_body(runtime, context, caller, await _counted(body))
                check_not_blocked(runtime, context)
            try:
                if "traceparent" in context.headers:
                    runtime.traces.pass_on(context.headers)
                proxied = await self._read_request(runtime, context, context.caller, body)
                used = runtime.metrics.model(context.model, account_of(context.caller))
                began = time.time()
                since = time.monotonic()
                try:
                    with await runtime.place_at(proxied.model):
                        await run_unless_disconnected(proxied.answer(send), receive)
                except ChatError as error:
                    used.failed_request()
                    self._record(runtime, context, proxied.model, began, since, error)
                    raise
                used.passed_on(proxied.usage, runtime.prices.of(proxied.model))
            except ClientDisconnected:
                context.notes["ending"] = "client_left"

    def _record(
        self, runtime: Runtime, context: RequestContext, model: str, began: float, since: float, error: ChatError
    ) -> None:
        """Record a failed request, where those are recorded."""
        assert context.caller is not None, "the middleware requires a caller here"
        names = model, runtime.catalogue.entry(model).configured_name
        policy = runtime.recording.policy(context.caller.name, names, content=False)
        if policy.runs == "off":
            return
        run = context.ids["run_id"] = new_run_id()
        row = RunRow(
            id=run,
            began=began,
            model=context.model,
            request_id=context.request_id,
            key=context.caller.name,
            route=self._path.removeprefix("/"),
            state="failed",
        )
        recording = runtime.recorder.begin(row, policy)
        recording.began = since
        status = context.status or error.status
        runtime.recorder.end(recording, state="failed", status=status, error=error.code or error.type)

    async def _read_request(
        self, runtime: Runtime, context: RequestContext, caller: Caller, body: bytes
    ) -> "_ProxiedRequest":
        is_form = _is_form(context)
        form = Form.read(body, context.headers["content-type"]) if is_form else None
        is_large = len(body) > LARGE_BODY
        reading = partial(_read_fields, body, runtime.limits.json_depth)
        if is_form:
            fields = {}
        elif is_large:
            fields = await asyncio.to_thread(reading)
        else:
            fields = reading()
        model = _model(fields) if form is None else form.model
        if not model:
            raise ChatError(400, "you must provide a model parameter", param="model", code="missing_required_parameter")
        entry = runtime.check_model(model, caller)
        if form is not None and runtime.guarding is not None:
            form = await _judged_form(runtime, caller, form, model)
        if self._path == COMPLETIONS and runtime.guarding is not None and runtime.guarding.of(model, caller).answer:
            message = f"A guardrail looks at what `{model}` says, which it cannot do at /v1{COMPLETIONS}. Ask /v1/chat{COMPLETIONS}."
            raise ChatError(400, message, code="unsupported_route")
        judging = partial(self._judge, fields, form, may_have_ids(body), caller, entry)
        if is_large:
            judged = await asyncio.to_thread(judging)
        else:
            judged = judging()
        passage = await runtime.models.proxy_to_provider(model)
        context.model = runtime.catalogue.entry(model).configured_name
        context.notes["model"] = model
        if passage is None:
            raise ChatError(
                404,
                f"The model `{model}` cannot be asked at {self._path}: its provider has no API of this shape.",
                param="model",
                code="unsupported_route",
            )
        if form is None:
            way = passage.json(self._path, judged)
            answers = _answers_wanted(fields)
        else:
            way = passage.form(self._path, form, judged)
            answers = max((_number(text, "n") for text in form.texts("n")), default=1)
        return _ProxiedRequest(runtime, caller, model, len(body), answers, way)

    @staticmethod
    def _judge(
        fields: Fields, form: Form | None, may_have_ids: bool, caller: Caller, entry: ModelConfig
    ) -> JudgedFields:
        if form is None:
            return judge_named(
                NamedThings(fields, may_have_ids=may_have_ids), caller, may_select=entry.provider_selectors
            )
        return judge_form(form.names(), caller, may_select=entry.provider_selectors)


def _is_form(context: RequestContext) -> bool:
    return context.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def _judged_form(runtime: Runtime, caller: Caller, form: Form, model: str) -> Form:
    """Return a form as the hooks of the config let it go on. What is in its files no hook sees."""
    assert runtime.guarding is not None, "nobody asks where there are no hooks"
    if not runtime.guarding.of(model, caller).request:
        return form
    texts = await judged_texts(runtime, caller, model, form.fields())
    return form.with_fields(texts)


class _ProxiedRequest:
    """One proxied request, within the allowance of its key."""

    def __init__(
        self,
        runtime: Runtime,
        caller: Caller,
        model: str,
        size: int,
        answers: int,
        way: AbstractAsyncContextManager[Any],
    ) -> None:
        """`answers`: how many pictures or texts are wanted."""
        self.model = model
        self._answers = answers
        self.usage: Usage | None = None
        """The usage in the response, after it was passed on."""
        self._runtime = runtime
        self._caller = caller
        self._size = size
        self._way = way

    async def answer(self, send: Send) -> None:
        if not self._caller.allowance.is_metered and self._caller.person is None:
            self.usage = usage_in(await self._pass_on(send, {}))
            return
        meter = self._runtime.meter(self._caller, self.model, self._size, None, self._answers)
        tally = meter.tally(self._answers)
        async with meter:
            tally.handle(TurnStarted(0))  # counts as estimated unless the response has its usage
            self.usage = usage_in(await self._pass_on(send, meter.headers))
            if self.usage is not None:
                tally.handle(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), self.usage))

    async def _pass_on(self, send: Send, headers: Mapping[str, str]) -> bytes:
        """Pass the response on, and return its last bytes."""
        tail = b""
        async with self._way as answer:
            is_stream = answer.content_type.lower().startswith("text/event-stream")
            fields = {"content-type": answer.content_type, "x-content-type-options": "nosniff", **headers}
            await send(start_message(200, {**STREAM_HEADERS, **fields} if is_stream else fields))
            async for part in answer.parts():
                tail = (tail + part)[-TAIL_BYTES:]
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return tail


def usage_in(tail: bytes) -> Usage | None:
    """Return the last usage in the end of a response, in the form of Chat Completions or of Responses."""
    for match in list(_USAGE.finditer(tail))[: -1 - MOST_USAGES : -1]:
        try:
            usage, _ = value_at(open_text(tail[match.end() :].decode("utf-8", "replace"), TAIL), 0)
        except (ValueError, RecursionError):
            continue
        if type(usage.get("prompt_tokens")) is int:
            counts = Usage(usage).counts()
        elif type(usage.get("input_tokens")) is int:
            counts = Usage.of_responses(usage).counts()
        else:
            continue
        return Usage.of(counts.prompt, counts.completion)
    return None


def _answers_wanted(fields: Mapping[str, msgspec.Raw]) -> int:
    """Return how many answers a request wants: `n` (or `best_of`, of which all are made) for each of its prompts."""
    prompts = 1
    if bytes(raw := fields.get("prompt", msgspec.Raw())).startswith(b"["):
        inputs = read_shape(raw, list[msgspec.Raw])
        if inputs and bytes(inputs[0])[:1] in (b'"', b"["):  # else one prompt, as tokens
            prompts = len(inputs)
    return prompts * max(_number(bytes(fields.get(name, b"null")).decode(), name) for name in ("n", "best_of"))


def _number(written: str, name: str) -> int:
    """Return a number of answers as a client wrote it. Raises `ChatError` for what is none: providers may take it for one."""
    if written == "null":
        return 1
    if _INTEGER.fullmatch(written) is None:
        raise ChatError(400, f"Invalid type for '{name}': expected a whole number.", param=name, code="invalid_type")
    return min(max(int(written), 1), MOST_ANSWERS)


_name: Callable[[Text], str | None] = json_reader(str | None)


def _model(fields: Mapping[str, msgspec.Raw]) -> str | None:
    try:
        return _name(fields.get("model", NULL))
    except msgspec.ValidationError:
        raise ChatError(
            400, "Invalid type for 'model': expected a string.", param="model", code="invalid_type"
        ) from None
