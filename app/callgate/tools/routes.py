"""`/v1/tools`: the tools that a key may use, the servers they come from, and calling one without a model."""

import asyncio
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.answers import ClientDisconnected, run_unless_disconnected
from callgate.api.bodies import check_body, read_counted
from callgate.api.direct_call import CallResult, DirectCall
from callgate.api.errors import encode, envelope_schema, error_response, in_path
from callgate.api.json_body import read_json_body
from callgate.api.middleware import CLIENT_CLOSED, RequestContext, context_of
from callgate.api.rights import caller_after_body, caller_of, check_admin, rights_of_chat
from callgate.callers.caller import NOBODY, Caller, words_for
from callgate.callers.principals import principal_of
from callgate.calls.outcome import Failed, Returned
from callgate.calls.states import BrokenCall
from callgate.conversation import feedback
from callgate.conversation.errors import ChatError
from callgate.conversation.ids import new_run_id
from callgate.conversation.ports import Toolbox
from callgate.runtime.chat_setup import RightsNow
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.tools.kinds.mcp.pins import NotHeld
from callgate.untrusted.readers import read_shape

EXAMPLE: Final = '{"arguments": {…}}'
ACCEPTANCE_BYTES: Final = 16_384


class Acceptance(msgspec.Struct, forbid_unknown_fields=True):
    """The body that accepts a tool as it was shown."""

    server: str
    tool: str
    """The server's own name for it."""
    digest: str


class CallBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a call."""

    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """An object, or a text as a model would write it."""
    user: str = ""
    """For whom, where a tool's server wants to know."""

    def text(self) -> str:
        """Return the arguments unparsed, so that the gate sees duplicate keys."""
        text = bytes(self.arguments).strip()
        try:
            if text[:1] == b'"':
                return read_shape(self.arguments, str)
            if text[:1] == b"{":
                return text.decode()
            why = "`arguments` is an object or a text"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = str(error)
        raise ChatError(400, f"The body should be like {EXAMPLE}: {why}.", param="arguments", code="invalid_body")


def tool_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["tools"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    options = {"servers": "With the servers' states.", "models": "With how many of them each model is offered."}
    parameters = [
        {"name": name, "in": "query", "schema": {"enum": ["1"]}, "description": text} for name, text in options.items()
    ]

    @router.get(
        "/v1/tools", summary="The tools of the server that this key may use", openapi_extra={"parameters": parameters}
    )
    async def list_tools(request: Request) -> Response:
        runtime = manager.current
        caller = caller_of(request, "tools")
        listed: dict[str, Any] = {"object": "list", "data": _listed(runtime, caller, request)}
        if request.query_params.get("servers") in {"1", "true", "on"}:
            is_operator = runtime.access.may_administer(caller)
            listed["servers"] = await runtime.servers() if is_operator else []
        if request.query_params.get("models") in {"1", "true", "on"}:
            listed["models"] = _costs_by_model(runtime, caller)
        return Response(encode(listed), media_type="application/json")

    @router.get(
        "/admin/held-tools",
        summary="Tools of MCP servers that are not on offer until somebody accepts them, with what is different",
        responses={403: {"description": "This key may not.", **error}},
    )
    async def list_held(request: Request) -> Response:
        check_admin(manager.current, caller_of(request, "admin"))
        tools = manager.shared.pins.held()
        held = await asyncio.to_thread(lambda: [tool.facts() for tool in tools])
        return Response(encode({"object": "list", "data": held}), media_type="application/json")

    @router.post(
        "/admin/held-tools",
        summary="Accept one held tool, as it was shown",
        responses={
            403: {"description": "This key may not.", **error},
            409: {"description": "It is not held, or is another by now than the one that was shown.", **error},
        },
    )
    async def accept(request: Request) -> Response:
        caller = caller_of(request, "admin")
        check_admin(manager.current, caller)
        body = await read_counted(request.receive, ACCEPTANCE_BYTES)
        check_admin(manager.current, caller_after_body(manager, context_of(request.scope)))
        wanted = read_json_body(body, Acceptance, '{"server": "…", "tool": "…", "digest": "…"}')
        try:
            held = manager.shared.pins.accept(wanted.server, wanted.tool, wanted.digest, words_for(caller))
        except NotHeld:
            message = "No such tool is held, or it is another by now than the one that was shown. Look again."
            raise ChatError(409, message, param="digest", code="tool_not_held") from None
        manager.shared.report_held(wanted.server)
        facts = await asyncio.to_thread(held.facts)
        return Response(encode({**facts, "state": "accepted"}), media_type="application/json")

    @router.get(
        "/v1/tools/{name}",  # noqa: FAST003 - read from the request, see `in_path`
        summary="One tool; with `model` also its schema as that model gets it, and what its provider cannot express",
        responses={404: {"description": "No such tool, or not for this key.", **error}},
        openapi_extra={
            "parameters": [
                *in_path("name")["parameters"],
                {"name": "model", "in": "query", "schema": {"type": "string"}},
            ]
        },
    )
    async def get_tool(request: Request) -> Response:
        caller = caller_of(request, "tools")
        facts = _described(manager.current, request, caller)
        if facts is None:
            raise _no_such_tool(request.path_params["name"])
        return Response(encode(facts), media_type="application/json")

    @router.post(
        "/v1/tools/{name}/call",  # noqa: FAST003 - read from the request, see `in_path`
        summary="Call one tool: through the gate, its policy, approval and the ledger, as a model's call",
        responses={
            403: {"description": "This key may not call tools without a model.", **error},
            404: {"description": "No such tool, or not for this key.", **error},
        },
        openapi_extra=in_path("name")
        | {
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "arguments": {
                                    "anyOf": [{"type": "object"}, {"type": "string"}],
                                    "description": "The arguments, or the text that a model might have written for them.",
                                },
                                "user": {
                                    "type": "string",
                                    "description": "For whom, where a tool's server is used by each user as himself.",
                                },
                            },
                        }
                    }
                },
            }
        },
    )
    async def call_tool(request: Request) -> Response:
        caller = caller_of(request, "tool_call")
        context = context_of(request.scope)
        with manager.leased as runtime:
            check_admin(runtime, caller)
            if "idempotency-key" in context.headers:
                message = "A call of a tool takes no Idempotency-Key. Look into the ledger (`callgate calls`) before you repeat one."
                raise ChatError(400, message, param="Idempotency-Key", code="unsupported_parameter")
            check_body(context.headers, runtime.limits.body_bytes)
            raw_body = await read_counted(request.receive, runtime.limits.body_bytes, context.hold)
            caller = caller_after_body(manager, context)
            check_admin(manager.current, caller)
            body = read_json_body(raw_body, CallBody, EXAMPLE)
            rights = rights_of_chat(manager, context, runtime, model=None, check_caller=check_admin)
            return await _answer(runtime, context, caller, rights.ask, request, body)

    return router


async def _answer(
    runtime: Runtime, context: RequestContext, caller: Caller, rights: RightsNow, request: Request, body: CallBody
) -> Response:
    """Call the tool that the path names."""
    name = request.path_params["name"]
    arguments = body.text()
    run_id = context.ids["run_id"] = new_run_id()
    principal = NOBODY
    if runtime.knows_identities:
        principal = principal_of(caller, body.user, context.headers)
    tools = runtime.offered.of_key(caller.tools)
    toolbox = runtime.toolboxes.of_server(tools, caller, run_id, rights, principal)
    if name not in toolbox.offer:
        raise _no_such_tool(name)
    calling = DirectCall(runtime, context, caller, toolbox, run_id=run_id, route="tool", name=name, arguments=arguments)
    try:
        call_result = await calling.result(
            lambda work: run_unless_disconnected(work, request.receive, runtime.limits.request_seconds)
        )
    except ClientDisconnected:
        return Response(status_code=CLIENT_CLOSED)
    except ChatError as failure:
        return error_response(request, failure, _headers(context, run_id))
    facts = {"object": "tool.call", "run": run_id, **_facts(call_result, name, toolbox)}
    return Response(encode(facts), media_type="application/json", headers=_headers(context, run_id))


def _headers(context: RequestContext, run_id: str) -> dict[str, str]:
    headers = {"x-callgate-run": run_id, "cache-control": "no-store"}
    if context.wrote:
        return headers | {"x-should-retry": "false"}
    return headers


def _facts(call_result: CallResult, name: str, toolbox: Toolbox) -> dict[str, Any]:
    call = call_result.call
    outcome = call_result.outcome
    facts: dict[str, Any] = {"id": call.id, "name": name}
    if isinstance(call, BrokenCall) or outcome is None:
        assert isinstance(call, BrokenCall), "a whole call has an outcome"
        facts |= {"verdict": "broken", "flaw": str(call.flaw), "outcome": "not_run"}
        return facts | {"text": feedback.explain(call, toolbox.offer)}
    facts |= {"verdict": "ready", "repairs": [str(finding) for finding in call.findings]}
    facts |= {
        "outcome": str(outcome.kind) if isinstance(outcome, Failed) else "returned",
        "ms": round(call_result.seconds * 1000, 1),
        "text": outcome.text,
    }
    if isinstance(outcome, Returned):
        facts["cut_bytes"] = outcome.cut_bytes
        facts["images"] = [f"data:{image.mime_type};base64,{image.data}" for image in outcome.images]
    return facts


def _listed(runtime: Runtime, caller: Caller, request: Request) -> list[dict[str, Any]]:
    """Describe the tools that a caller may use; for an operator also those that cannot be used, and why."""
    if runtime.access.may_administer(caller):
        return runtime.offered.listed(caller.tools, with_quarantined=True)
    unlisted: frozenset[str] = frozenset()
    if runtime.knows_identities:
        unlisted = runtime.unlisted(principal_of(caller, "", context_of(request.scope).headers))
    tools = runtime.offered.listed(caller.tools, with_quarantined=False)
    return [facts for facts in tools if facts["name"] not in unlisted]


def _costs_by_model(runtime: Runtime, caller: Caller) -> list[dict[str, Any]]:
    """Say how many tools each model is offered where a caller asks it, and about how many tokens of every prompt they cost."""
    return [{"id": name, **runtime.tool_costs(name, caller)} for name in runtime.model_names(caller)]


def _described(runtime: Runtime, request: Request, caller: Caller) -> dict[str, Any] | None:
    """Describe the tool that the path names; with a model also how that is sent it. None where there is no such tool."""
    name = request.path_params["name"]
    model = request.query_params.get("model")
    facts = next((tool for tool in _listed(runtime, caller, request) if tool["name"] == name), None)
    if facts is None or model is None or "parameters" not in facts:
        return facts
    runtime.check_model(model, caller)
    return {**facts, "sent": {"model": model, **runtime.models.schema_for(model, facts["parameters"])}}


def _no_such_tool(name: str) -> ChatError:
    return ChatError(404, f"No tool `{name[:64]}`, or not for this key.", param="name", code="tool_not_found")
