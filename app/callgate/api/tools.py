"""`/v1/tools`: the tools that a key may use, the servers they come from, and calling one without a model."""

import time
from typing import Any, ClassVar, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.answers import ClientDisconnected, run_unless_disconnected
from callgate.api.conversation import WriteNote, emit_to_listeners
from callgate.api.errors import encode, envelope_schema, error_response, in_path
from callgate.api.json_body import read_json_body
from callgate.api.middleware import CLIENT_CLOSED, RequestContext, context_of
from callgate.api.recording import wants_content
from callgate.api.requests import check_body, read_body
from callgate.api.rights import caller_of, check_admin
from callgate.auth.keys import Caller
from callgate.calls.outcome import Failed, Outcome, Returned
from callgate.calls.states import Call
from callgate.conversation import feedback
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallEnded, CallWritten, Finished, ModelEvent, TurnEnded
from callgate.conversation.ids import new_run_id
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.loop import converse
from callgate.conversation.ports import ModelRequest, emit_nothing
from callgate.conversation.preloaded_model import PreloadedTurns
from callgate.recorder.recording import RunRecording, TextsListener
from callgate.recorder.row import RunRow
from callgate.runtime.manager import RuntimeManager, new_call_id
from callgate.runtime.runtime import Runtime

EXAMPLE: Final = '{"arguments": {…}}'


class CallBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a call."""

    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """An object, or a text as a model would write it."""

    def text(self) -> str:
        """Return the arguments unparsed, so that the gate sees duplicate keys."""
        sent = bytes(self.arguments).strip()
        try:
            if sent[:1] == b'"':
                return msgspec.json.decode(sent, type=str)
            if sent[:1] == b"{":
                return sent.decode()
            why = "`arguments` is an object or a text"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = str(error)
        raise ChatError(400, f"The body should be like {EXAMPLE}: {why}.", param="arguments", code="invalid_body")


def tool_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["tools"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    wanted = {"servers": "With the servers' states.", "models": "With how many of them each model is offered."}
    parameters = [
        {"name": name, "in": "query", "schema": {"enum": ["1"]}, "description": text} for name, text in wanted.items()
    ]

    @router.get(
        "/v1/tools", summary="The tools of the server that this key may use", openapi_extra={"parameters": parameters}
    )
    async def list_tools(request: Request) -> Response:
        runtime, caller = manager.current, caller_of(request, "tools")
        listed: dict[str, Any] = {"object": "list", "data": runtime.tool_list(caller)}
        if request.query_params.get("servers") in {"1", "true", "on"}:
            listed["servers"] = runtime.server_list(caller)
        if request.query_params.get("models") in {"1", "true", "on"}:
            listed["models"] = runtime.tools_by_model(caller)
        return Response(encode(listed), media_type="application/json")

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
        name, caller = request.path_params["name"], caller_of(request, "tools")
        found = manager.current.tool_for(name, request.query_params.get("model"), caller)
        if found is None:
            raise _no_such_tool(name)
        return Response(encode(found), media_type="application/json")

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
                                }
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
        with manager.lease() as runtime:
            check_admin(runtime, caller)
            if "idempotency-key" in context.headers:
                message = "A call of a tool takes no Idempotency-Key. Look into the ledger (`callgate calls`) before you repeat one."
                raise ChatError(400, message, param="Idempotency-Key", code="unsupported_parameter")
            check_body(context.headers, runtime.limits.body_bytes)
            sent = await read_body(request.receive, runtime.limits.body_bytes, context.hold)
            body = read_json_body(sent, CallBody, EXAMPLE)
            calling = _Calling(runtime, context, caller, request.path_params["name"], body.text())
            return await calling.answer(request)

    return router


class _Calling:
    """One call, run as a chat with a model that makes the call and then answers nothing."""

    def __init__(self, runtime: Runtime, context: RequestContext, caller: Caller, name: str, arguments: str) -> None:
        self._run_id = context.ids["run_id"] = new_run_id()
        self._context = context
        self._runtime = runtime
        self._caller = caller
        self._toolbox = runtime.toolboxes.of_server(runtime.offered.of_key(caller.tools), caller, self._run_id)
        if name not in self._toolbox.offer:
            raise _no_such_tool(name)
        self._name = name
        self._arguments = arguments

    async def answer(self, request: Request) -> Response:
        runtime, seen = self._runtime, _Seen()
        row = RunRow(
            id=self._run_id,
            began=time.time(),
            request_id=self._context.request_id,
            key=self._caller.name,
            route="tool",
        )
        policy = runtime.record_policy(self._caller.name, content=wants_content(self._context))
        trace = runtime.begin_trace(self._context.headers, self._run_id)
        recording = runtime.recorder.begin(row, policy, trace=trace)
        status, error, state = 200, "", "cut_off"
        try:
            listeners: list[Listener] = [seen, WriteNote(self._context), runtime.log_listener(self._run_id)]
            if recording.has_texts:
                listeners.append(TextsListener(recording, 0))
            await run_unless_disconnected(
                self._run(listeners, recording), request.receive, runtime.limits.request_seconds
            )
            state = ""
        except ClientDisconnected:
            status, state = CLIENT_CLOSED, "client_left"
            self._context.notes["ending"] = state
            return Response(status_code=CLIENT_CLOSED)
        except ChatError as failure:
            status, error, state = failure.status, failure.code or failure.type, "failed"
            return error_response(request, failure, self._headers)
        finally:
            runtime.recorder.end(recording, state=state, status=status, error=error)
        return Response(encode(self._facts(seen)), media_type="application/json", headers=self._headers)

    async def _run(self, listeners: list[Listener], recording: RunRecording) -> None:
        written: list[ModelEvent] = [CallWritten(self._name, self._arguments, new_call_id()), Finished("tool_calls")]
        await converse(
            ModelRequest(()),
            PreloadedTurns("", [written, [Finished("stop")]]),
            self._toolbox,
            emit_to_listeners(listeners, emit_nothing, recording),
            new_id=new_call_id,
            rules=self._runtime.rules,
        )

    @property
    def _headers(self) -> dict[str, str]:
        headers = {"x-callgate-run": self._run_id, "cache-control": "no-store"}
        return headers | {"x-should-retry": "false"} if self._context.wrote else headers

    def _facts(self, seen: "_Seen") -> dict[str, Any]:
        call, outcome = seen.call, seen.outcome
        assert call is not None, "the model has written one call"
        facts: dict[str, Any] = {"object": "tool.call", "run": self._run_id, "id": call.id, "name": self._name}
        if outcome is None:
            facts |= {"verdict": "broken", "flaw": str(call.flaw), "outcome": "not_run"}
            return facts | {"text": feedback.explain(call, self._toolbox.offer)}
        facts |= {"verdict": "ready", "repairs": [str(finding) for finding in call.findings]}
        facts |= {
            "outcome": str(outcome.kind) if isinstance(outcome, Failed) else "returned",
            "ms": round(seen.seconds * 1000, 1),
            "text": outcome.text,
        }
        if isinstance(outcome, Returned):
            facts["cut_bytes"] = outcome.cut_bytes
            facts["images"] = [f"data:{image.mime_type};base64,{image.data}" for image in outcome.images]
        return facts


class _Seen(Listener):
    """Takes the outcome of the call."""

    handlers: ClassVar[Handlers] = {}

    def __init__(self) -> None:
        self.call: Any = None
        self.outcome: Outcome | None = None
        self.seconds = 0.0

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        calls: list[Call] = [*event.answer.run, *event.answer.broken]
        self.call = self.call or next(iter(calls), None)

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        self.outcome, self.seconds = event.outcome, event.seconds


def _no_such_tool(name: str) -> ChatError:
    return ChatError(404, f"No tool `{name[:64]}`, or not for this key.", param="name", code="tool_not_found")
