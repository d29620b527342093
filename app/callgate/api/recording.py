"""What a request hands to the recorder: a run where a tool of ours is on offer, and otherwise a row if it failed."""

import re
from hashlib import sha256

import msgspec

from callgate.api.conversation import Conversation
from callgate.api.middleware import CLIENT_CLOSED, RequestContext
from callgate.api.requests import ChatRequest
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.recorder.recorder import RunRecording
from callgate.recorder.row import RunRow
from callgate.runtime.route import Route
from callgate.runtime.runtime import Runtime

OFF = "off"
"""What `X-Callgate-Record` says to have nothing kept of what is said."""


def begin(
    runtime: Runtime,
    route: Route,
    conversation: Conversation,
    context: RequestContext,
    request: ChatRequest,
    caller: Caller,
    began: float,
) -> RunRecording:
    """Begin to record a request, if it has not ended yet."""
    wants_content = context.headers.get("x-callgate-record", "").lower() != OFF
    user = request.params.get("user")
    row = RunRow(
        id=conversation.run_id,
        began=began,
        model=route.name,
        request_id=context.request_id,
        key=caller.name,
        end_user=sha256(bytes(user)).hexdigest()[:16] if isinstance(user, msgspec.Raw) else "",
        stream=request.stream,
        choices=request.n,
        route=context.route,
        trace_id=trace_id_in(context.headers.get("traceparent", "")),
        replay_of=context.ids.get("replay_of", ""),
    )
    recording = runtime.begin_recording(row, content=wants_content)
    if recording.policy.content_bytes is not None:
        recording.say("request", _as_json(request))
    return recording


def trace_id_in(traceparent: str) -> str:
    """The id of the trace that a request is part of; empty where it names none."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1] if found and found[1].strip("0") else ""


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


def end(
    recording: RunRecording, runtime: Runtime, context: RequestContext, state: str, error: ChatError | None = None
) -> None:
    """`state` where the chat did not come to an ending of its own."""
    status = context.status or CLIENT_CLOSED
    runtime.recorder.end(
        recording,
        state=state,
        status=error.status if error is not None and status < 400 else status,
        error="" if error is None else error.code or error.type,
    )


def _as_json(request: ChatRequest) -> str:
    """The request as it can be asked again; without the parts that say how it is answered."""
    body = {"model": request.model, "messages": request.history, **request.params}
    if request.tools:
        body["tools"] = request.tools
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    if request.tool_filter is not None:
        body["metadata"] = {**request.metadata, "tools": request.tool_filter}
    return msgspec.json.encode(body).decode(errors="replace")
