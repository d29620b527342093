"""Turns every failure into the JSON body and the status that the clients of its route expect."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from callgate.api import anthropic_errors as anthropics
from callgate.api import mcp_errors
from callgate.api.not_served import not_served
from callgate.conversation.errors import ChatError
from callgate.conversation.events import Attempt
from callgate.telemetry.logs import masked

log = structlog.get_logger("callgate.api")

encode = msgspec.json.Encoder().encode

DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream in OpenAI's format."""
ErrorBody: TypeAlias = Callable[[ChatError], bytes]
ErrorShape: TypeAlias = Callable[[ChatError, str], Any]
"""Makes the body of an error, given the id of the request."""
MESSAGES: Final = "/v1/messages"
ANTHROPIC_VERSION: Final = "anthropic-version"
OVERLOADED = 529
FAILED_AFTER_WRITE = "failed_after_write"
NOT_REPEATED = 400
"""The status, with its usual type, that no known client retries."""
REPEATED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that clients retry."""
PERMANENT = frozenset(
    {
        "approval_decided",
        "hash_mismatch",
        "idempotency_key_interrupted",
        "insufficient_quota",
        "run_cancelled",
        "run_given_up",
        "run_not_replayable",
        "upstream_auth",
    }
)
"""Codes of errors that stay as they are, although clients repeat their status."""
TAKEN_OVER: Final = "run_taken_over"
"""The code of an error after which another process carries the run on."""
SAFE_AFTER_WRITE = frozenset({TAKEN_OVER})
"""Codes of errors after which the same request with its key repeats nothing, because its run goes on and has one answer."""
ABOUT_RETRIES = frozenset({"x-should-retry", "retry-after", "retry-after-ms"})
"""Headers that tell a client whether and when to repeat a request."""
MAX_NEAR_PATH = 100
"""Characters of an unknown path that is compared with those of the routes."""
OF_PROVIDERS: Final = frozenset(
    {
        *("upstream_auth", "upstream_error", "upstream_overloaded", "upstream_timeout", "upstream_unreachable"),
        *("insufficient_quota", "model_not_found", "rate_limit_exceeded"),
    }
)
"""Codes of errors whose detail says what a provider said."""
REASON_CHARACTERS: Final = 500
REASON_END: Final = " (Told because this server is for this machine alone.)"
NO_HEADERS: Mapping[str, str] = {}
SHAPES: Mapping[str, ErrorShape] = {MESSAGES: anthropics.error_shape, mcp_errors.MCP_PATH: mcp_errors.error_shape}
"""The formats of errors by path prefix; OpenAI's for all others."""

SERVER_ERROR = "The server had an error while processing your request."
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def as_chat_error(failure: BaseException) -> ChatError:
    """Return the error for the client. Any exception but our own errors becomes a 500 without details."""
    if isinstance(failure, ChatError):
        return failure
    if isinstance(failure, BaseExceptionGroup):
        first, *others = failure.exceptions
        if all(isinstance(other, ChatError) for other in others):  # calls side by side met the same
            return as_chat_error(first)
    log.error("request_failed", exc_info=failure)
    return ChatError(500, SERVER_ERROR, type="server_error")


def in_openais_shape(error: ChatError) -> bytes:
    return encode(error.envelope())


def openai_stream_end(error: ChatError, _: bytes = b"") -> bytes:
    """Return the end of a stream that failed, in OpenAI's format."""
    return b"data: " + encode(error.envelope()) + b"\n\n" + DONE


def error_body(error: ChatError, path: str, request_id: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    """Return the body of an error, in the format of its path and headers."""
    for start, shape in SHAPES.items():
        if path.startswith(start):
            return encode(shape(error, request_id))
    if is_anthropics(path, headers):
        return encode(anthropics.error_shape(error, request_id))
    return in_openais_shape(error)


def is_anthropics(path: str, headers: Mapping[str, str] = NO_HEADERS) -> bool:
    """True if a request is from a client of Anthropic's API, by its path or headers."""
    return path.startswith(MESSAGES) or ANTHROPIC_VERSION in headers


def status_at(path: str, status: int) -> int:
    """Return the status for a path. Anthropic has its own status for an overloaded server."""
    if status == 503 and path.startswith(MESSAGES):
        return OVERLOADED
    return status


class Aftermath(msgspec.Struct, eq=False):
    """The calls with side effects that one request has started, and what it takes to say why it failed behind them."""

    started: dict[tuple[int, int, str], str] = {}
    """The tools of the calls, by choice, turn and id: ids are unique within a turn only."""
    run_id: str = ""
    sees: Callable[[], bool] = lambda: False
    """Whether the client may see runs; called when something has failed."""
    last_attempt: Attempt | None = None
    shows_reasons: bool = False
    """Whether the client is the operator, who is told what a provider said."""

    def client_error(self, error: ChatError) -> ChatError:
        """Return the error that the client is sent: another one where tools with side effects were started."""
        if self.shows_reasons:
            add_reason(error)
        if not self.started:
            return error
        told = after_write(error)
        if told is not error and self.sees():
            told.report = {"run": self.run_id, "cause": self._cause(error), "started": list(self.started.values())}
        return told

    def _cause(self, error: ChatError) -> dict[str, Any]:
        cause: dict[str, Any] = {"code": error.code or error.type, "status": error.status}
        attempt = self.last_attempt
        if attempt is not None and attempt.status and attempt.reason == error.code:
            cause["provider_status"] = attempt.status
        return cause


def add_reason(error: ChatError) -> None:
    """Add what a provider said to the message of its error, where that is known and not in it. Secrets in it are masked."""
    if error.code not in OF_PROVIDERS or not error.detail or error.message.endswith(REASON_END):
        return
    reason = masked(error.detail)[:REASON_CHARACTERS]
    error.message = f"{error.message} The reason: {reason}{REASON_END}"


def after_write(error: ChatError) -> ChatError:
    """Return the error that a client is sent after a tool with side effects was started.

    Clients retry errors that look like failures of the server, by status or by text, and few of them read the header that
    forbids it: so it has another status, and the text of the failure is only in the log.
    """
    if error.code in SAFE_AFTER_WRITE or (error.status < 500 and error.status not in REPEATED):
        return error
    cause = error.code or error.type
    return FailedAfterWrite(cause, detail=f"{cause}: {error.detail or error.message}")


class FailedAfterWrite(ChatError):
    """A failure after a tool with side effects was started. `cause`: the code of the error that it was."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(
            NOT_REPEATED,
            "This failed after a tool had been started that may change something."
            " Look at what it did before you ask again.",
            code=FAILED_AFTER_WRITE,
            detail=detail,
        )
        self.cause = cause


def recorded_error(error: ChatError) -> str:
    """Return the error of a run for its record, with its cause where the client is not told it."""
    if isinstance(error, FailedAfterWrite):
        return f"{FAILED_AFTER_WRITE}: {error.cause}"
    return error.code or error.type


def shutting_down() -> ChatError:
    """Return the error for requests that are cut off at the end of the drain."""
    message = "The server is shutting down. Try again in a moment."
    return ChatError(503, message, type="server_error", code="shutting_down", retry_after=1)


def is_final(error: ChatError) -> bool:
    """True if the same request cannot succeed, however often it is repeated."""
    if error.retry_after is not None:
        return False
    return error.code in PERMANENT or (400 <= error.status < 500 and error.status not in REPEATED)


def error_headers(error: ChatError) -> dict[str, str]:
    """Return the headers that say whether and when to repeat the request. Some clients repeat even a 401, for minutes."""
    if is_final(error):
        return {"x-should-retry": "false"}
    if error.retry_after is None:
        return {}
    return {
        "retry-after": str(max(1, round(error.retry_after))),
        "retry-after-ms": str(round(error.retry_after * 1000)),
    }


def error_response(request: Request, error: ChatError, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        request.scope["context"].error_body(error),
        error.status,
        headers={**(headers or {}), **error_headers(error)},
        media_type="application/json",
    )


async def answer_http_exception(request: Request, failure: Exception) -> Response:
    """Answer Starlette's errors (unknown route, wrong method) in our format."""
    assert isinstance(failure, HTTPException)
    target = f"{request.method} {request.url.path}"
    if failure.status_code == 404 and (sentence := not_served(request.url.path)):
        error = ChatError(404, sentence, code="unknown_url")
    elif failure.status_code == 404:
        known_paths = [path for route in request.app.routes if "{" not in (path := getattr(route, "path", "{"))]
        near = difflib.get_close_matches(request.url.path[:MAX_NEAR_PATH], known_paths, n=1, cutoff=0.75)
        hint = f" Did you mean {near[0]}?" if near else ""
        error = ChatError(404, f"Unknown request URL: {target}.{hint}", code="unknown_url")
    elif failure.status_code == 405:
        error = ChatError(405, f"Not allowed to {target}.", code="method_not_supported")
    else:
        error = ChatError(
            failure.status_code, str(failure.detail), type=KINDS.get(failure.status_code, "invalid_request_error")
        )
    return error_response(request, error, dict(failure.headers or {}))


async def answer_chat_error(request: Request, failure: Exception) -> Response:
    """Answer our own errors from a FastAPI route."""
    error = as_chat_error(failure)
    request.scope["context"].notes.setdefault("error", error.code or error.type)
    return error_response(request, error)


async def answer_failure(request: Request, _: Exception) -> Response:
    """Answer an unexpected exception in a FastAPI route. The framework raises it again, and the middleware logs it."""
    return error_response(request, ChatError(500, SERVER_ERROR, type="server_error"))


def in_path(name: str) -> dict[str, Any]:
    """Describe a path parameter for OpenAPI. Declared to FastAPI, it would load pydantic's version 1."""
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]}


def envelope_schema() -> dict[str, Any]:
    """Return the schema of errors, for the OpenAPI document."""
    nullable = {"type": ["string", "null"]}
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": nullable,
                    "code": nullable,
                },
            }
        },
    }
