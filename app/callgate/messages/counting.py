"""`POST /v1/messages/count_tokens`."""

import asyncio
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from callgate.api.answers import send_whole
from callgate.api.bodies import check_body, read_counted
from callgate.api.endpoint import route_of
from callgate.api.errors import encode
from callgate.api.guarded_bodies import check_not_blocked, judged_body
from callgate.api.judged_request import judged_request
from callgate.api.middleware import context_of
from callgate.api.rights import caller_after_body
from callgate.api.strict_json import LARGE_BODY
from callgate.api.token_counts import counted_tokens
from callgate.callers.caller import NOBODY
from callgate.callers.principals import principal_of
from callgate.conversation.context import ContextKeeper, ContextWishes
from callgate.conversation.ports import ModelRequest
from callgate.messages.context_edits import MANAGEMENT
from callgate.messages.declared import stand_ins_of
from callgate.messages.requests import read_messages_request, with_context
from callgate.runtime.manager import RuntimeManager


class CountEndpoint:
    """Counts the tokens of a request as it would go to the model, our tools included."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "count_tokens"
        limits = self._manager.current.config.limits
        check_body(context.headers, limits.body_bytes)
        body = await read_counted(receive, limits.body_bytes, context.hold)
        caller = caller_after_body(self._manager, context)
        if self._manager.current.guarding is not None:
            body = await judged_body(self._manager.current, context, caller, body)
            check_not_blocked(self._manager.current, context)
        reading = partial(
            read_messages_request,
            body,
            context.headers,
            limits.messages,
            limits.json_depth,
            counts_only=True,
            reads_files=self._manager.current.toolboxes.reads_files,
            speaks_messages=self._manager.current.toolboxes.speaks_messages,
            stand_ins=partial(stand_ins_of, self._manager.current, caller),
        )
        if len(body) <= LARGE_BODY:
            parsed = reading()
        else:
            parsed = await asyncio.to_thread(reading)
        request = parsed.request
        with self._manager.leased as runtime:
            principal = NOBODY
            if runtime.knows_identities:
                principal = principal_of(caller, request.user(), context.headers)
            route = route_of(runtime, request, caller, principal)
            judged = judged_request(request, caller, may_select=route.entry.provider_selectors)
            context.model = route.name
            setup = runtime.toolboxes.engage(route, caller, "", request.read_tools(), None)
            model_request = replace(judged.for_model(), tools=setup.toolbox.definitions())
            counted = await counted_tokens(runtime, route, caller, model_request, len(body))
            shown: dict[str, Any] = {"input_tokens": counted.tokens}
            if parsed.asks_of_context and not route.speaks_messages():
                shown |= _edited(with_context(request, route.entry).context, model_request, counted.tokens)
        await send_whole(send, 200, encode(shown), counted.headers)


def _edited(wishes: ContextWishes | None, request: ModelRequest, tokens: int) -> dict[str, Any]:
    """Return the count of a request whose context is edited here: about, and what it was before."""
    if wishes is None or not wishes.edits:
        return {}
    keeper = ContextKeeper(wishes=wishes)
    keeper.measure(request.messages, request.tools)
    keeper.count(tokens)
    keeper.edited(request.messages, 0)
    return {"input_tokens": keeper.tokens(), MANAGEMENT: {"original_input_tokens": tokens}}
