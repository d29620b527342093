"""`POST /v1/messages/count_tokens`."""

import asyncio
from functools import partial

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from callgate.api.answers import send_whole
from callgate.api.errors import encode
from callgate.api.messages.requests import read_messages_request
from callgate.api.middleware import context_of
from callgate.api.operator_ids import check_ids
from callgate.api.requests import check_body, read_body
from callgate.api.strict_json import LARGE_BODY
from callgate.api.token_counts import counted_tokens
from callgate.runtime.manager import RuntimeManager


class CountEndpoint:
    """Counts the tokens of a request as it would go to the model, our tools included."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "count_tokens"
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        limits = self._manager.current.config.limits
        check_body(context.headers, limits.body_bytes)
        body = await read_body(receive, limits.body_bytes, context.hold, counted=True)
        reading = partial(
            read_messages_request,
            body,
            context.headers,
            limits.messages,
            limits.json_depth,
            counts_only=True,
            reads_files=self._manager.current.reads_files,
        )
        read = reading() if len(body) <= LARGE_BODY else await asyncio.to_thread(reading)
        request = read.request
        with self._manager.lease() as runtime:
            route = runtime.choose(
                request.model,
                caller,
                wanted_tools=request.tool_filter,
                tool_choice=request.tool_choice,
                client_tools=request.client_tools,
            )
            if request.may_have_ids and not route.entry.provider_selectors:
                check_ids(request.fields, dotted=True)
            context.model = route.name
            setup = runtime.toolboxes.engage(route, caller, "", request.tools, None)
            ask = replace(request.read(), tools=setup.toolbox.schemas)
            counted = await counted_tokens(runtime, route, caller, ask, len(body))
        await send_whole(send, 200, encode({"input_tokens": counted.tokens}), counted.headers)
