"""`POST /v1/runs/{id}/replay`: replays a recorded run, with the same model or another, from its beginning or from a turn."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import structlog
from msgspec.structs import replace

from callgate.api.answers import BodyWriter, EmitAny, StreamWriter, Work
from callgate.api.chat_request import ChatRequest
from callgate.api.conversation import Conversation, Replay
from callgate.api.endpoint import FaceEndpoint
from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.faces import FaceExchange
from callgate.api.json_body import read_json_body
from callgate.api.middleware import RequestContext
from callgate.callers.caller import words_for
from callgate.chat.requests import read_chat_request
from callgate.chat.writers import AnswerHead, CompletionWriter
from callgate.config.schema.whole import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.recorder.recorded_tools import CallNotRecorded, RecordedToolbox
from callgate.recorder.replayable import NotReplayable, history_before, request_of, results_of, tools_of
from callgate.recorder.routes.run_facts import found_run, not_replayable
from callgate.records.row import RecordedRun
from callgate.runs.durable_runs import DurableRuns
from callgate.runtime.manager import RuntimeManager
from callgate.untrusted.doors import Opened, written_here

PATH = "/v1/runs/{id}/replay"
STOPPED = "stopped"
"""The state of a replay that was stopped at a call which is not in the recording."""

audit = structlog.get_logger("callgate.audit")


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a replay request."""

    model: str | None = None
    """Another model than the run's own."""
    from_turn: int = 0
    """The index of the first turn that is asked again; earlier ones are taken from the recording."""
    tools: Literal["recorded", "run"] = "recorded"
    """`recorded`: calls get their recorded results, and nothing is run. `run`: they are run again."""


def replay_endpoint(manager: RuntimeManager, runs: DurableRuns) -> FaceEndpoint:
    """Return what replays a run. The run's id is on every log line."""
    return FaceEndpoint(manager, _ReplayFace(manager), runs)


class _ReplayFace:
    """Reads a request out of a recording."""

    route = "replay"
    adapts_requests = False
    keeps_answers = False
    stores_whole_stream = False

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager

    async def read(self, body: Opened, context: RequestContext, config: Config) -> "_Replay":
        caller = context.caller
        id = context.path.rstrip("/").split("/")[-2][:64]
        context.ids["replay_of"] = id
        assert caller is not None, "the middleware requires a caller here"
        settings = read_json_body(
            body or written_here(b"{}"), ReplayBody, '{"model": "…", "from_turn": 0, "tools": "recorded"}'
        )
        run = await found_run(self._manager, id, caller)
        id = context.ids["replay_of"] = run.row.id
        try:
            body_again = request_of(run)
            if settings.from_turn < 0:
                raise ChatError(400, "`from_turn` should be 0 or more.", param="from_turn", code="invalid_value")
            body_again["messages"] = history_before(run, settings.from_turn)
            if settings.from_turn and body_again.get("tool_choice") != "none":
                body_again.pop("tool_choice", None)  # it applies to the first turn only
            body_again["model"] = settings.model or body_again.get("model") or run.row.model
            request = read_chat_request(
                written_here(encode(body_again)), {}, config.limits.messages, config.limits.json_depth
            )
            request = replace(request, may_pass=False)
            if settings.tools == "recorded":
                tools = _tools(run, request)
            else:
                tools = None
        except NotReplayable as why:
            raise not_replayable(run, why) from None
        audit.info("run_replayed", by=words_for(caller), run=id, model=request.model, tools=settings.tools)
        return _Replay(id, settings, request, tools)


class _Replay(FaceExchange):
    """One replay, answered whole."""

    def __init__(self, id: str, settings: ReplayBody, request: ChatRequest, tools: RecordedToolbox | None) -> None:
        self.request = request
        self.replay = Replay(tools, self._until_stopped)
        self._id = id
        self._wanted = settings
        self._stopped: str | None = None

    def _until_stopped(self, conversation: Conversation, work: Work) -> Work:
        async def replay(emit: EmitAny) -> None:
            try:
                await work(emit)
            except* CallNotRecorded as stopped:
                first: BaseException = stopped
                while isinstance(first, BaseExceptionGroup):
                    first = first.exceptions[0]
                self._stopped = str(first)
                assert conversation.recording is not None, "a replay is always recorded"
                conversation.recording.row.state = STOPPED

        return replay

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        head = AnswerHead(conversation.run_id, began, self.request.model)
        writer = CompletionWriter(_head=head, _diagnosis=diagnoses[0] if diagnoses else None)
        return _ReplayWriter(self, writer, conversation.run_id)

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        raise AssertionError("a replay is answered whole")

    def stream_end(self, error: ChatError, written: bytes) -> bytes:
        raise AssertionError("a replay is answered whole")

    def facts(self) -> dict[str, Any]:
        settings = self._wanted
        facts = {"replay_of": self._id, "from_turn": settings.from_turn, "tools": settings.tools}
        return {**facts, "model": self.request.model, "stopped": self._stopped}


class _ReplayWriter:
    """Writes the new run, and its answer; None where it was stopped."""

    def __init__(self, replay: _Replay, inner: CompletionWriter, run_id: str) -> None:
        self._replay = replay
        self._inner = inner
        self._run_id = run_id

    def write(self, event: Any) -> None:
        self._inner.write(event)

    def body(self) -> dict[str, Any]:
        facts = self._replay.facts()
        answer = self._inner.body() if facts["stopped"] is None else None
        return {"object": "run.replay", "run": self._run_id, **facts, "answer": answer}


def _tools(run: RecordedRun, request: ChatRequest) -> RecordedToolbox:
    described = (tool.function or tool.custom for tool in request.outline.tools or ())
    return RecordedToolbox(tools_of(run), {tool.name for tool in described if tool is not None}, results_of(run))


def replay_operation(errors: dict[str, Any]) -> dict[str, Any]:
    """Return its OpenAPI description: the route is a plain ASGI callable."""
    described = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "model": {"type": "string", "description": "Another model than the run's own."},
            "from_turn": {"type": "integer", "minimum": 0, "default": 0},
            "tools": {"enum": ["recorded", "run"], "default": "recorded"},
        },
    }
    conflict = {
        "description": "Too little of the run is kept.",
        "content": {"application/json": {"schema": envelope_schema()}},
    }
    return {
        "tags": ["runs"],
        "operationId": "replay_run",
        "summary": "Ask a recorded run again; calls get their recorded results, or are run again",
        **in_path("id"),
        "requestBody": {"content": {"application/json": {"schema": described}}},
        "responses": {
            "200": {"description": "The run that came of it, and its answer."},
            **errors,
            "409": conflict,
        },
    }
