"""Routes of other requests than chats (embeddings, audio, …): proxied to the provider of the model that they name."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from callgate.api.answers import STREAM_HEADERS, ClientDisconnected, run_unless_disconnected, start_message
from callgate.api.middleware import RequestContext, context_of
from callgate.api.operator_ids import KEPT_BY_PROVIDERS, check_ids, may_have_ids, of_the_operators
from callgate.api.requests import check_body, read_body
from callgate.api.strict_json import LARGE_BODY, Fields, check_fields, read_fields
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEnded, Ending, EndingKind, TurnStarted
from callgate.conversation.ids import new_run_id
from callgate.recorder.row import RunRow
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.route import check_selectors
from callgate.runtime.runtime import Runtime

PATHS = (
    "/embeddings",
    "/completions",
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

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_objects = json.JSONDecoder()


def _read_fields(body: bytes, max_depth: int) -> Fields:
    """Return the fields of a body. Its values are not counted, because a request for embeddings may have a million tokens."""
    check_fields(body)
    fields = read_fields(body, max_depth)
    if len(fields) > MOST_FIELDS:
        raise ChatError(400, f"The request has more than {MOST_FIELDS} fields.", code="too_many_values")
    return fields


class ProxyEndpoint:
    """Proxies one kind of request."""

    def __init__(self, manager: RuntimeManager, path: str) -> None:
        self._manager, self._path = manager, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "passed_on"
        assert context.caller is not None, "the middleware requires a caller here"
        with self._manager.lease() as runtime:
            check_body(context.headers, runtime.limits.body_bytes)
            body = await read_body(receive, runtime.limits.body_bytes, context.hold)
            try:
                if "traceparent" in context.headers:
                    runtime.pass_trace_on(context.headers)
                asked = await self._asked(runtime, context, context.caller, body)
                used = runtime.metrics.model(context.model, context.caller.name)
                began, since = time.time(), time.monotonic()
                try:
                    with await runtime.place_at(asked.model):
                        await run_unless_disconnected(asked.answer(send), receive)
                except ChatError as error:
                    used.failed_request()
                    self._record(runtime, context, asked.model, began, since, error)
                    raise
                used.passed_on(asked.usage, runtime.prices.of(asked.model))
            except ClientDisconnected:
                context.notes["ending"] = "client_left"

    def _record(
        self, runtime: Runtime, context: RequestContext, model: str, began: float, since: float, error: ChatError
    ) -> None:
        """Record a failed request, where those are recorded."""
        assert context.caller is not None, "the middleware requires a caller here"
        names = model, runtime.catalogue.entry(model).configured_name
        policy = runtime.record_policy(context.caller.name, names, content=False)
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

    async def _asked(self, runtime: Runtime, context: RequestContext, caller: Caller, body: bytes) -> "_ProxiedRequest":
        content_type = context.headers.get("content-type", "")
        is_form = content_type.lower().startswith("multipart/form-data")
        form = runtime.read_form(body, content_type) if is_form else None
        is_large = len(body) > LARGE_BODY
        reading = partial(_read_fields, body, runtime.limits.json_depth)
        fields = {} if is_form else await asyncio.to_thread(reading) if is_large else reading()
        model = _model(fields) if form is None else form.model
        if not model:
            raise ChatError(400, "you must provide a model parameter", param="model", code="missing_required_parameter")
        entry = runtime.check_model(model, caller)
        check_selectors(entry, fields if form is None else form.names())
        if not entry.provider_selectors:
            if form is None and may_have_ids(body):
                await asyncio.to_thread(check_ids, fields) if is_large else check_ids(fields)
            names = () if form is None else form.names()
            named = next((name for name in names if name.partition("[")[0] in KEPT_BY_PROVIDERS), None)
            if named is not None:
                raise of_the_operators(named)
        passage = await runtime.passage(model)
        context.model = runtime.counted_name(model)
        context.notes["model"] = model
        if passage is None:
            raise ChatError(
                404,
                f"The model `{model}` cannot be asked at {self._path}: its provider has no API of this shape.",
                param="model",
                code="unsupported_route",
            )
        if form is None:
            way = passage.json(self._path, fields)
            answers = _answers_wanted(fields)
        else:
            way = passage.form(self._path, form)
            answers = max((_number(text, "n") for text in form.texts("n")), default=1)
        return _ProxiedRequest(runtime, caller, model, len(body), answers, way)


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
        self.usage: dict[str, Any] | None = None
        """The usage in the response, after it was passed on."""
        self._runtime, self._caller, self._size, self._way = runtime, caller, size, way

    async def answer(self, send: Send) -> None:
        if not self._caller.allowance.is_metered:
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
            fields = {"content-type": answer.content_type, **headers}
            await send(start_message(200, {**STREAM_HEADERS, **fields} if is_stream else fields))
            async for part in answer.parts():
                tail = (tail + part)[-TAIL_BYTES:]
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return tail


def usage_in(tail: bytes) -> dict[str, Any] | None:
    """Return the last usage in the end of a response, in the format of Chat Completions."""
    for found in reversed(list(_USAGE.finditer(tail))):
        try:
            usage, _ = _objects.raw_decode(tail[found.end() :].decode("utf-8", "replace"))
        except ValueError:
            continue
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        completion = usage.get("completion_tokens", usage.get("output_tokens", 0))
        if isinstance(prompt, int):
            return {"prompt_tokens": prompt, "completion_tokens": completion}
    return None


def _answers_wanted(fields: Mapping[str, msgspec.Raw]) -> int:
    """Return how many answers a request wants: `n` (or `best_of`, of which all are made) for each of its prompts."""
    prompts = 1
    if bytes(raw := fields.get("prompt", msgspec.Raw())).startswith(b"["):
        given = msgspec.json.decode(raw, type=list[msgspec.Raw])
        if given and bytes(given[0])[:1] in (b'"', b"["):  # else one prompt, as tokens
            prompts = len(given)
    return prompts * max(_number(bytes(fields.get(name, b"null")).decode(), name) for name in ("n", "best_of"))


def _number(written: str, name: str) -> int:
    """Return a number of answers as a client wrote it. Raises `ChatError` for what is none: providers may take it for one."""
    if written == "null":
        return 1
    if _INTEGER.fullmatch(written) is None:
        raise ChatError(400, f"Invalid type for '{name}': expected a whole number.", param=name, code="invalid_type")
    return min(max(int(written), 1), MOST_ANSWERS)


def _model(fields: Mapping[str, msgspec.Raw]) -> str | None:
    try:
        return msgspec.json.decode(fields.get("model", b"null"), type=str | None)
    except msgspec.ValidationError:
        raise ChatError(
            400, "Invalid type for 'model': expected a string.", param="model", code="invalid_type"
        ) from None
