"""`POST /v1/responses/input_tokens`: counts the tokens of a request, including the offered tools."""

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from callgate.api.answers import send_whole
from callgate.api.errors import encode
from callgate.api.middleware import context_of
from callgate.api.operator_ids import check_ids
from callgate.api.requests import check_body, read_body
from callgate.api.responses.face import ResponsesFace
from callgate.api.token_counts import counted_tokens
from callgate.runtime.manager import RuntimeManager


class InputTokens:
    """Counts tokens without asking the model."""

    def __init__(self, manager: RuntimeManager, face: ResponsesFace) -> None:
        self._manager, self._face = manager, face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "count_tokens"
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        with self._manager.lease() as runtime:
            limit = runtime.config.limits.body_bytes
            check_body(context.headers, limit)
            body = await read_body(receive, limit, context.hold, counted=True)
            request = (await self._face.read_here(body, context, runtime.config)).request
            route = runtime.choose(
                request.model,
                caller,
                wanted_tools=request.tool_filter,
                tool_choice=request.tool_choice,
                allowed=request.allowed,
                client_tools=request.client_tools,
            )
            if request.may_have_ids and not route.entry.provider_selectors:
                check_ids(request.fields)
            context.model = route.name
            setup = runtime.toolboxes.engage(route, caller, "", request.tools, request.allowed)
            ask = replace(request.read(), tools=setup.toolbox.schemas)
            counted = await counted_tokens(runtime, route, caller, ask, len(body))
        shown = {"object": "response.input_tokens", "input_tokens": counted.tokens}
        await send_whole(send, 200, encode(shown), counted.headers)
