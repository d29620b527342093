"""What a request hands to the recorder: a run where a tool of ours is on offer, and otherwise a row if it failed."""

from hashlib import sha256
from typing import Any, Final

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
) -> None:
    """Begin to record a request; one that nobody wants to see for its spans alone."""
    trace = conversation.trace
    if trace is not None and trace.is_exported:
        trace.request.update(request_attributes(request))
    if route.is_recorded or "replay_of" in context.ids:
        row = _row(route, conversation, context, request, caller, began)
        conversation.recording = runtime.begin_recording(row, trace, content=_wants_content(context))
        _say_request(conversation.recording, request)
    elif trace is not None and trace.is_exported:
        row = _row(route, conversation, context, request, caller, began)
        conversation.recording = runtime.recorder.begin_unlisted(row, trace)


def is_unusual(conversation: Conversation, error: ChatError | None) -> bool:
    """Whether a request failed, or outlived failures of a provider."""
    return error is not None or conversation.diagnoses[0].has_failed_attempts


def keep_unusual(
    runtime: Runtime,
    route: Route,
    conversation: Conversation,
    context: RequestContext,
    request: ChatRequest,
    caller: Caller,
    began: float,
) -> None:
    """Have an unusual request recorded, if those are and it is not yet."""
    recording = conversation.recording
    if not runtime.records_errors or (recording is not None and recording.is_listed):
        return
    if recording is None:
        row = _row(route, conversation, context, request, caller, began)
        recording = runtime.begin_recording(row, conversation.trace, content=_wants_content(context))
        conversation.recording = recording
        recording.began = conversation.diagnoses[0].began
        for choice, diagnosis in enumerate(conversation.diagnoses):
            recording.seen += [(at, choice, event) for at, event in diagnosis.happened()]
    else:
        runtime.list_run(recording, content=_wants_content(context))
    _say_request(recording, request)


def _row(
    route: Route,
    conversation: Conversation,
    context: RequestContext,
    request: ChatRequest,
    caller: Caller,
    began: float,
) -> RunRow:
    user = request.words.get("user")
    return RunRow(
        id=conversation.run_id,
        began=began,
        model=route.name,
        request_id=context.request_id,
        key=caller.name,
        end_user="" if user is None else sha256(bytes(user)).hexdigest()[:16],
        stream=request.stream,
        choices=request.n,
        route=context.route,
        replay_of=context.ids.get("replay_of", ""),
    )


def _wants_content(context: RequestContext) -> bool:
    return context.headers.get("x-callgate-record", "").lower() != OFF


def _say_request(recording: RunRecording, request: ChatRequest) -> None:
    if recording.policy.content_bytes is not None:
        # The request as it can be asked again; without the parts that say how it is answered.
        body = {"model": request.model, "messages": request.history, **request.params}
        if request.tools:
            body["tools"] = request.tools
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
        if request.tool_filter is not None:
            body["metadata"] = {**request.metadata, "tools": request.tool_filter}
        recording.say("request", msgspec.json.encode(body).decode(errors="replace"))


def request_attributes(request: ChatRequest) -> dict[str, Any]:
    """What spans say of how a model was asked."""
    attributes: dict[str, Any] = {}
    for field, name in _ASKED.items():
        if (given := request.params.get(field)) is None:
            continue
        value = msgspec.json.decode(given) if isinstance(given, msgspec.Raw) else given
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[name] = value
    return attributes


_ASKED: Final = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


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
