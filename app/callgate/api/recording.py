"""What a request hands to the recorder: a run where a tool of ours is on offer, and otherwise a row if it failed."""

import time
from hashlib import sha256

import msgspec

from callgate.api.conversation import Conversation
from callgate.api.middleware import RequestContext
from callgate.api.requests import ChatRequest
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
from callgate.recorder.recorder import RunRecording
from callgate.recorder.row import RunRow
from callgate.runtime.route import Route
from callgate.runtime.runtime import Runtime

OFF = "off"
"""What `X-Callgate-Record` says to have nothing kept of what is said."""


class RequestRecording:
    """The recording of one request, which may never begin."""

    __slots__ = ("_began", "_caller", "_context", "_conversation", "_recording", "_request", "_route", "_runtime")

    def __init__(
        self,
        runtime: Runtime,
        route: Route,
        conversation: Conversation,
        context: RequestContext,
        request: ChatRequest,
        caller: Caller,
    ) -> None:
        self._runtime, self._route, self._conversation = runtime, route, conversation
        self._context, self._request, self._caller = context, request, caller
        self._began = time.time()
        self._recording: RunRecording | None = None
        if runtime.records(passed=not route.server_tools):
            self._recording = conversation.recording = self._begin()

    def end(self, state: str, status: int, error: ChatError | None = None) -> None:
        """`state` where the chat did not come to an ending of its own."""
        if error is not None:
            self._runtime.recorder.counter(self._caller.name, self._route.name).failed += 1
        if self._recording is None and error is not None and self._runtime.records_errors:
            self._recording = self._begin()
        if self._recording is not None:
            self._runtime.recorder.end(
                self._recording,
                state=state,
                status=status if error is None or status >= 400 else error.status,
                error="" if error is None else error.code or error.type,
            )

    def _begin(self) -> RunRecording:
        request, context = self._request, self._context
        wants_content = context.headers.get("x-callgate-record", "").lower() != OFF
        user = request.params.get("user")
        row = RunRow(
            id=self._conversation.run_id,
            began=self._began,
            model=self._route.name,
            request_id=context.request_id,
            key=self._caller.name,
            end_user=sha256(bytes(user)).hexdigest()[:16] if isinstance(user, msgspec.Raw) else "",
            stream=request.stream,
            choices=request.n,
        )
        recording = self._runtime.begin_recording(row, content=wants_content)
        if recording.policy.content_bytes is not None:
            recording.say("request", _as_json(request))
        return recording


def _as_json(request: ChatRequest) -> str:
    """The request as it can be asked again; without the parts that say how it is answered."""
    body = {"model": request.model, "messages": request.messages, **request.params}
    if request.tools:
        body["tools"] = request.tools
    return msgspec.json.encode(body).decode(errors="replace")
