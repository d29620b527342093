"""Hands requests to the recorder: a whole run where a tool of ours is offered, otherwise a row if it failed."""

from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec

from callgate.api.chat_request import SAYS_NOTHING, ChatRequest, other_fields
from callgate.api.conversation import Conversation
from callgate.api.errors import recorded_error
from callgate.api.middleware import CLIENT_CLOSED, RequestContext
from callgate.api.run_ports import TakenOver
from callgate.callers.caller import Caller, owner_name
from callgate.conversation.errors import ChatError
from callgate.records.policy import NOT_KEPT, RecordPolicy
from callgate.records.ports import Recording
from callgate.records.row import RunRow
from callgate.runtime.route import Route
from callgate.runtime.runtime import Runtime
from callgate.untrusted.readers import read_value

LONGEST_NAME = 200
"""Characters of a model's name, which with a wildcard is the client's text."""
CARRIED_ON = "carried_on"
"""Instead of a state: another process carries the run on. Only spans are kept here."""
OWN = "own"
"""The value of `X-Callgate-Record` by which a run is recorded for its key, though it uses no tool, with its texts in memory where the
config says nothing of them."""
NO_EFFECT = frozenset({"", "on", OWN})
"""Values of `X-Callgate-Record` that do not forbid to keep texts."""


def begin(
    runtime: Runtime,
    route: Route,
    conversation: Conversation,
    context: RequestContext,
    request: ChatRequest,
    caller: Caller,
    began: float,
) -> None:
    """Begin to record a request; only for its spans where runs are not recorded."""
    trace = conversation.trace
    if trace is not None and trace.is_exported:
        trace.request.update(request_attributes(request))
    policy = runtime.recording.keyless_policy if caller.anonymous else runtime.recording.common_policy
    if policy is None or "x-callgate-record" in context.headers:
        policy = _policy(runtime, route, context, request, caller)
    is_kept = route.is_recorded or "replay_of" in context.ids or is_own(runtime, context, caller)
    if policy.runs == "off":
        is_kept = False
    if is_kept or (trace is not None and trace.is_exported):
        row = _row(route, conversation, context, request, caller, began)
        policy = policy if is_kept else NOT_KEPT
        conversation.recording = runtime.recorder.begin(row, policy, runtime.prices.of_responder, trace)
        if policy.content_bytes is not None:
            _keep_request(conversation.recording, request, _offered_by(route))


def keep_unusual(
    runtime: Runtime,
    route: Route,
    conversation: Conversation,
    context: RequestContext,
    request: ChatRequest,
    caller: Caller,
    began: float,
) -> None:
    """Record an unusual request, if those are recorded and it is not yet."""
    recording = conversation.recording
    policy = _policy(runtime, route, context, request, caller)
    if policy.runs == "off" or (recording is not None and recording.is_listed):
        return
    if recording is None:
        row = _row(route, conversation, context, request, caller, began)
        recording = runtime.recorder.begin(row, policy, runtime.prices.of_responder, conversation.trace)
        conversation.recording = recording
        recording.began = conversation.diagnoses[0].began
        for choice, diagnosis in enumerate(conversation.diagnoses):
            for seconds, event in diagnosis.happened():
                recording.note_earlier(seconds, choice, event)
    else:
        recording.is_listed = True
        recording.policy = policy
    _keep_request(recording, request, _offered_by(route))


def _row(
    route: Route,
    conversation: Conversation,
    context: RequestContext,
    request: ChatRequest,
    caller: Caller,
    began: float,
) -> RunRow:
    user = request.normalized.get("user")
    return RunRow(
        id=conversation.run_id,
        began=began,
        model=request.model[:LONGEST_NAME],
        request_id=context.request_id,
        key=caller.name,
        end_user="" if user is None else sha256(bytes(user)).hexdigest()[:16],
        stream=request.delivery.stream,
        choices=request.n,
        route=context.route,
        replay_of=context.ids.get("replay_of", ""),
    )


def _policy(
    runtime: Runtime, route: Route, context: RequestContext, request: ChatRequest, caller: Caller
) -> RecordPolicy:
    names = request.model, route.name
    return runtime.recording.policy(
        caller.name, names, content=wants_content(context), private_to=private_to(runtime, context, caller)
    )


def private_to(runtime: Runtime, context: RequestContext, caller: Caller) -> str:
    """Return the owner of a request whose texts may be kept in memory for it alone; empty where they may not."""
    if caller.anonymous:  # who that is, is known only where nobody else comes
        may = runtime.recording.keeps_of_keyless
    else:
        may = is_own(runtime, context, caller)
    if may:
        return owner_name(caller)
    return ""


def is_own(runtime: Runtime, context: RequestContext, caller: Caller) -> bool:
    """Return whether a client wants to look at its run afterwards, and may, whatever else is recorded of such requests."""
    if context.headers.get("x-callgate-record") != OWN:
        return False
    return runtime.access.may_see(caller)


def wants_content(context: RequestContext) -> bool:
    """True if a request allows its content to be stored. Unknown values of the header forbid it."""
    return "x-callgate-record" not in context.headers or context.headers["x-callgate-record"] in NO_EFFECT


def _offered_by(route: Route) -> Iterable[str]:
    if route.server_tools is None:
        return ()
    return route.server_tools.by_name


def _keep_request(recording: Recording, request: ChatRequest, offered: Iterable[str]) -> None:
    """`offered`: the names of our tools that it was offered."""
    if recording.policy.content_bytes is not None:
        # The request for a replay, without the fields about the format of its answer.
        if request.tools is SAYS_NOTHING and request.history is None:
            plain = partial(_plain_body, request.model, request.normalized, request.metadata)
            recording.keep_request(plain, request.written_bytes())
            return
        body = {"model": request.model, "messages": request.written_history(), **request.other_fields()}
        if tools := request.read_tools():
            body["tools"] = tools
        if request.tools.choice is not None:
            body["tool_choice"] = request.tools.choice
        if (tool_filter := request.tools.filter) is not None:
            if isinstance(tool_filter, tuple):
                tool_filter = ",".join(offered) or "none"
            body["metadata"] = {**request.metadata, "tools": tool_filter}
        recording.keep_request(partial(dict, body), request.written_bytes())


def _plain_body(model: str, fields: Mapping[str, msgspec.Raw], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of a client that says nothing about tools."""
    return {"model": model, "messages": fields["messages"], **other_fields(fields, metadata)}


def request_attributes(request: ChatRequest) -> dict[str, Any]:
    """Return the span attributes of a request to a model."""
    attributes: dict[str, Any] = {}
    if named := conversation_of(request):
        attributes["gen_ai.conversation.id"] = named
    for field, name in _ASKED.items():
        if field not in request.normalized:
            continue
        value = read_value(request.normalized[field])
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[name] = value
    return attributes


def conversation_of(request: ChatRequest) -> str:
    """Return the id of the conversation that a client names; empty where it names none, and none is made up."""
    for field in CONVERSATION_FIELDS:
        if isinstance(name := request.metadata.get(field), str) and name:
            return name[:LONGEST_NAME]
    return request.origin.conversation[:LONGEST_NAME]


CONVERSATION_FIELDS: Final = ("conversation_id", "session_id", "thread_id", "chat_id")
"""Of `metadata`, as clients name it."""

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
    recording: Recording, runtime: Runtime, context: RequestContext, state: str, error: ChatError | None = None
) -> None:
    """End a recording. `state`: where the chat has no ending of its own."""
    if state == CARRIED_ON or (error is not None and isinstance(error, TakenOver)):
        # The other process records all of it, under the same id.
        recording.is_listed = False
        recording.policy = NOT_KEPT
        state = "cut_off"
    status = context.status or CLIENT_CLOSED
    runtime.recorder.end(
        recording,
        state=state,
        status=error.status if error is not None and status < 400 else status,
        error="" if error is None else recorded_error(error),
    )
