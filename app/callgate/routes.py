"""The routes of a server that has nothing but chat, and their OpenAPI descriptions where FastAPI cannot derive them."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from callgate.api.errors import (
    ANTHROPIC_VERSION,
    MESSAGES,
    answer_chat_error,
    answer_failure,
    answer_http_exception,
    encode,
    envelope_schema,
    in_path,
)
from callgate.api.middleware import context_of
from callgate.api.page import page_routes
from callgate.api.run_ports import Runs
from callgate.callers.caller import Caller
from callgate.conversation.errors import ChatError
from callgate.face_routes import add_faces
from callgate.messages.described import messages_operation
from callgate.messages.models import model_card, models_page
from callgate.models.routes import PATHS, ProxyEndpoint
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.tools.approvals.routes import approval_routes
from callgate.tools.kinds.mcp.routes import login_routes
from callgate.tools.routes import tool_routes

YES = frozenset({"1", "true", "on"})
OF_KEYS = b"callgate_key_used"
"""What begins a metric of what each key used."""


def add_routes(
    app: FastAPI, manager: RuntimeManager, runs: Runs, *, page: bool = True
) -> Mapping[tuple[str, str], ASGIApp]:
    """Add all routes; return those that the middleware calls directly."""
    routes_fast = add_faces(app, manager, runs)
    for path in PATHS:
        passing = ProxyEndpoint(manager, path)
        for start in ("/v1", ""):
            app.router.routes.append(Route(start + path, passing, methods=["POST"], name=f"pass_on {path}"))
    app.include_router(_models(manager))
    app.include_router(tool_routes(manager))
    app.include_router(login_routes(manager))
    app.include_router(approval_routes(manager))
    if page:
        app.router.routes.extend(page_routes(manager))
    app.include_router(_health(manager))
    app.exception_handler(404)(answer_http_exception)
    app.exception_handler(405)(answer_http_exception)
    app.exception_handler(ChatError)(answer_chat_error)
    app.exception_handler(Exception)(answer_failure)
    _describe_chat(app)
    return routes_fast


def _models(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["models"])
    wrong: dict[int | str, dict[str, Any]] = {
        404: {"description": "No such model.", "content": {"application/json": {"schema": envelope_schema()}}}
    }

    flag = {"in": "query", "schema": {"enum": ["1"]}}

    @router.get(
        "/v1/models",
        summary="The models this key may ask; with `details=1` how each is reached, with `price=1` what it costs too",
        openapi_extra={"parameters": [{"name": "details", **flag}, {"name": "price", **flag}]},
    )
    @router.get("/models", include_in_schema=False)
    async def list_models(request: Request) -> Response:
        caller = context_of(request.scope).caller
        context_of(request.scope).route = "models"
        assert caller is not None
        if ANTHROPIC_VERSION in request.headers:
            return _json(models_page(manager.current.model_names(caller), manager.opened_at, request.query_params))
        names = manager.current.model_names(caller)
        if request.query_params.get("details") not in YES:
            return _json({"object": "list", "data": [_model(manager, name) for name in names]})
        priced = request.query_params.get("price") in YES
        return _json({"object": "list", "data": [_detailed(manager, name, caller, priced=priced) for name in names]})

    @router.get(
        "/v1/models/{model:path}",  # noqa: FAST003 - read from the request, see `in_path`
        summary="One model; with `price=1` also what a million of its tokens costs",
        responses=wrong,
        openapi_extra={
            "parameters": [
                *in_path("model")["parameters"],
                {"name": "price", **flag},
            ]
        },
    )
    @router.get("/models/{model:path}", include_in_schema=False)
    async def get_model(request: Request) -> Response:
        model: str = request.path_params["model"]
        caller = context_of(request.scope).caller
        context_of(request.scope).route = "models"
        assert caller is not None
        manager.current.check_model(model, caller)
        if ANTHROPIC_VERSION in request.headers:
            return _json(model_card(model, manager.opened_at))
        return _json(_detailed(manager, model, caller, priced=request.query_params.get("price") in YES))

    return router


def _health(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["operating"])

    @router.get("/health/live", summary="The process answers")
    async def live() -> Response:
        return _json({"status": "ok"})

    @router.get(
        "/health/ready",
        summary="New requests are welcome; with `strict=1` only while every store can be used",
        openapi_extra={"parameters": [{"name": "strict", "in": "query", "schema": {"enum": ["1"]}}]},
    )
    @router.get("/health", include_in_schema=False)
    async def ready(request: Request) -> Response:
        if not manager.is_ready():
            return _json({"status": "unavailable"}, 503)
        facts: dict[str, Any] = {"status": "ok"}
        if manager.refused:
            facts["config"] = "refused"
        if degraded := manager.degraded():
            facts["degraded"] = degraded
        if degraded and request.query_params.get("strict") in YES:
            return _json({**facts, "status": "degraded"}, 503)
        return _json(facts)

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        context = context_of(request.scope)
        context.route = "metrics"
        assert context.caller is not None, "the middleware identifies the caller of every other route than health"
        if not manager.current.access.may_see_metrics(context.caller):
            raise ChatError(
                403,
                "Metrics name every model and tool, and this key is limited to some: it needs `admin: on`.",
                type="permission_error",
                code="metrics_not_allowed",
            )
        text, content_type = await manager.exposition(request.headers.get("accept", ""))
        if not manager.current.access.may_see_all(context.caller):
            text = b"".join(line for line in text.splitlines(keepends=True) if OF_KEYS not in line)
        return Response(text, media_type=content_type)

    return router


def _model(manager: RuntimeManager, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": manager.opened_at, "owned_by": "callgate"}


def _detailed(manager: RuntimeManager, name: str, caller: Caller, *, priced: bool) -> dict[str, Any]:
    """Describe a model with its deployments, and with what a million of its tokens costs if `priced`."""
    shown = _model(manager, name) | _how_it_is_asked(manager.current, name, caller)
    if "x_callgate" in shown and priced:
        shown["x_callgate"]["price"] = manager.current.prices.per_million(name)
    return shown


def _how_it_is_asked(runtime: Runtime, name: str, caller: Caller) -> dict[str, Any]:
    """Return each deployment's lane, its tool calling (null while no probe was needed), and its state."""
    if not runtime.diagnostics:
        return {}
    sees = runtime.access.may_see(caller)
    deployments = runtime.models.deployments(name, with_hosts=sees)
    shown: dict[str, Any] = {
        "tool_calling": [deployment["tool_calling"] for deployment in deployments],
        "deployments": deployments,
    }
    if sees and (concurrency := runtime.concurrency(name)) is not None:
        shown["concurrency"] = concurrency
    return {"x_callgate": shown}


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


def _describe_chat(app: FastAPI) -> None:
    """Add the routes that are plain ASGI callables to the OpenAPI document."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = described()
            document["paths"]["/v1/chat/completions"] = {"post": _chat_operation()}
            document["paths"][MESSAGES] = {"post": messages_operation()}
            for path in PATHS:
                body = {
                    "type": "object",
                    "required": ["model"],
                    "additionalProperties": True,
                    "properties": {"model": {"type": "string", "minLength": 1}},
                }
                document["paths"][f"/v1{path}"] = {
                    "post": {
                        "tags": ["passed on"],
                        "operationId": "pass_on" + path.replace("/", "_"),
                        "summary": "Passed on to the provider of the model it names",
                        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                        "responses": {"200": {"description": "What the provider answered."}} | error_answers(),
                    }
                }
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own documented way


def _chat_operation() -> dict[str, Any]:
    message = {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": ["developer", "system", "user", "assistant", "tool", "function"]},
            "content": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]
            },
        },
    }
    body = {
        "type": "object",
        "required": ["model", "messages"],
        "additionalProperties": True,
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "messages": {"type": "array", "items": message, "minItems": 1},
            "stream": {"type": ["boolean", "null"]},
            "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        },
    }
    answers = {
        "200": {
            "description": "A chat.completion, or a stream of chat.completion.chunk events.",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/event-stream": {"schema": {"type": "string"}},
            },
        }
    }
    return {
        "tags": ["chat"],
        "operationId": "create_chat_completion",
        "summary": "Answer a chat, running the tools of this server on the way",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": answers | error_answers(),
    }


def error_answers() -> dict[str, Any]:
    """Describe the errors of a route."""
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    errors = {
        "400": "The request is not valid; `param` names the field.",
        "401": "The key is missing or wrong.",
        "403": "The key may not do this.",
        "404": "No such model.",
        "409": "A request with this Idempotency-Key is under way, or was left half done.",
        "413": "The body is too large.",
        "415": "The body is compressed.",
        "429": "Too many requests.",
        "502": "The model's provider failed.",
        "503": "Over capacity.",
        "504": "It took too long.",
    }
    return {status: {"description": text, **error} for status, text in errors.items()}
