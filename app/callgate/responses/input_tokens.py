"""`POST /v1/responses/input_tokens`: counts the tokens of a request, including the offered tools."""

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
from callgate.api.token_counts import counted_tokens
from callgate.callers.caller import NOBODY
from callgate.callers.principals import principal_of
from callgate.responses.face import ResponsesFace
from callgate.runtime.manager import RuntimeManager


class InputTokens:
    """Counts tokens without asking the model."""

    def __init__(self, manager: RuntimeManager, face: ResponsesFace) -> None:
        self._manager = manager
        self._face = face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.route = "count_tokens"
        with self._manager.leased as runtime:
            limit = runtime.config.limits.body_bytes
            check_body(context.headers, limit)
            body = await read_counted(receive, limit, context.hold)
            caller = caller_after_body(self._manager, context)
            if self._manager.current.guarding is not None:
                body = await judged_body(self._manager.current, context, caller, body)
                check_not_blocked(self._manager.current, context)
            request = (await self._face.read(body, context, runtime.config)).request
            principal = NOBODY
            if runtime.knows_identities:
                principal = principal_of(caller, request.user(), context.headers)
            route = route_of(runtime, request, caller, principal)
            judged = judged_request(request, caller, may_select=route.entry.provider_selectors)
            context.model = route.name
            setup = runtime.toolboxes.engage(route, caller, "", request.read_tools(), request.tools.allowed)
            model_request = replace(judged.for_model(), tools=setup.toolbox.definitions())
            counted = await counted_tokens(runtime, route, caller, model_request, len(body))
        shown = {"object": "response.input_tokens", "input_tokens": counted.tokens}
        await send_whole(send, 200, encode(shown), counted.headers)
