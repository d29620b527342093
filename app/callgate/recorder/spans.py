"""Turns a recorded run into spans, with the names of OpenTelemetry's conventions for generative AI (1.41) and ours
under `callgate.`."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, TypeAlias

import msgspec

from callgate.conversation.usage import COUNTS, Usage
from callgate.http.trace_context import Trace, span_id_for, trace_id_for
from callgate.models.providers import span_name_of
from callgate.recorder.genai_messages import message_attributes
from callgate.recorder.turn_texts import part_of
from callgate.records.row import RecordedRun, RunEvent

Attributes: TypeAlias = Mapping[str, Any]
"""Strings, numbers, booleans, and lists of strings. None values are omitted."""
NANO: Final = 1_000_000_000
LATEST_NAMES: Final = {"gen_ai.usage.cache_creation.input_tokens": "gen_ai.usage.cache_write.input_tokens"}


class SpanKind(IntEnum):
    """The kinds of OTLP."""

    INTERNAL = 1
    CLIENT = 3


class SpanEvent(msgspec.Struct, frozen=True):
    at: int
    """Nanoseconds since 1970, as in all spans."""
    name: str
    attributes: Attributes


class Span(msgspec.Struct):
    id: str
    """16 hex digits."""
    parent: str
    name: str
    kind: SpanKind
    start: int
    end: int
    attributes: Attributes
    error: str = ""
    """The error; empty if there is none."""
    events: Sequence[SpanEvent] = ()
    parent_is_remote: bool = False


class SpanOptions(msgspec.Struct, frozen=True):
    """Whether spans include kept texts, and which attribute names they use."""

    in_spans: bool = False
    in_events: bool = False
    latest_names: bool = False
    """Use the attribute names of the conventions after 1.41."""


NO_TEXTS: Final = SpanOptions()


def trace_id_of(recording: RecordedRun) -> str:
    """Return the trace id of the request, or one made from the id of the run. 32 hex digits."""
    return recording.row.trace_id or trace_id_for(recording.row.id)


def spans_of(recording: RecordedRun, trace: Trace | None = None, options: SpanOptions = NO_TEXTS) -> list[Span]:
    """Return the spans of a run, its turns, their attempts, and the calls that ran. `trace`: attributes beside the events."""
    spans = _SpanReader(recording, options, {} if trace is None else trace.request).spans()
    if trace is not None and trace.notes:
        _add_notes(spans, trace)
    if options.latest_names:
        for span in spans:
            span.attributes = {LATEST_NAMES.get(name, name): value for name, value in span.attributes.items()}
    return spans


def _add_notes(spans: Sequence[Span], trace: Trace) -> None:
    by_id = {span.id: span for span in spans}
    for id, attributes in list(trace.notes.items()):
        if (span := by_id.get(id)) is not None:
            span.attributes = {**span.attributes, **attributes}
            if span.error == "raised" and "mcp.method.name" in attributes:
                span.attributes["error.type"] = "tool_error"


class _SpanReader:
    def __init__(self, recording: RecordedRun, options: SpanOptions, request: Attributes) -> None:
        self._recording = recording
        self._row = recording.row
        self._options = options
        self._request = request
        self._run = self._id("run")
        self._repairs: dict[tuple[int, Any], Sequence[str]] = {}
        """The repairs of a call, by choice and id."""
        self._waits: dict[tuple[int, Any], list[SpanEvent]] = {}
        """When a call began to wait for approval, and when it was approved."""

    def spans(self) -> list[Span]:
        row = self._row
        events = self._recording.events
        last = max((event.at for event in events), default=0.0)
        run = Span(
            id=self._run,
            parent=row.parent_span,
            parent_is_remote=bool(row.parent_span),
            name="invoke_agent callgate",
            kind=SpanKind.INTERNAL,
            start=self._moment(0.0),
            end=self._moment(last if row.seconds is None else row.seconds),
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "callgate",
                "gen_ai.conversation.id": self._request.get("gen_ai.conversation.id"),
                "gen_ai.request.model": row.model,
                **{count.span: getattr(row, count.column) for count in COUNTS if count.part_of is None},
                "gen_ai.response.finish_reasons": [row.finish_reason] if row.finish_reason else None,
                "error.type": row.error or None,
                "callgate.run.id": row.id,
                "callgate.run.ending": row.state,
                "callgate.run.replay_of": row.replay_of or None,
                "callgate.key": row.key,
                "callgate.cost": row.cost,
            },
            error=row.error,
        )
        began: dict[tuple[str, int, Any], RunEvent] = {}
        attempts: dict[tuple[int, Any], list[RunEvent]] = {}
        moments: list[SpanEvent] = []
        spans = [run]
        for event in events:
            match event.kind:
                case "turn_started":
                    began.setdefault(("turn", event.choice, event.turn), event)
                case "turn_ended":
                    for call in event.facts["calls"]:
                        if call.get("repairs"):
                            self._repairs[event.choice, call["id"]] = call["repairs"]
                    attempts_before = attempts.get((event.choice, event.turn), ())
                    start = began.get(("turn", event.choice, event.turn), event)
                    spans.append(self._turn(event, start, attempts_before))
                    number = event.facts.get("attempts", 1)
                    if event.facts.get("host") and all(
                        attempt.facts["number"] != number for attempt in attempts_before
                    ):
                        spans.append(self._last_attempt(event, start))
                case "attempt":
                    attempts_before = attempts.setdefault((event.choice, event.turn), [])
                    span = self._attempt(event)
                    if any(
                        attempt.facts["number"] == event.facts["number"] for attempt in attempts_before
                    ):  # it answered, and broke off
                        spans = [earlier for earlier in spans if earlier.id != span.id]
                    attempts_before.append(event)
                    spans.append(span)
                case "calls_handed_back" | "guardrail_judged":
                    moments.append(self._of_run(event))
                case "call_started":
                    began["call", event.choice, event.facts["id"]] = event
                case "call_progress":
                    self._note_wait(event)
                case "call_ended":
                    spans.append(self._call(event, began.get(("call", event.choice, event.facts["id"]), event)))
        run.events = moments
        spans += self._without_end(began, attempts, spans)
        return spans

    def _of_run(self, event: RunEvent) -> SpanEvent:
        """Return the event of the run's span for one of the run."""
        facts = event.facts
        at = self._moment(event.at)
        if event.kind == "calls_handed_back":
            return SpanEvent(
                at, "callgate.calls.handed_back", {"callgate.tools": [call["name"] for call in facts["calls"]]}
            )
        attributes = {f"callgate.guardrail.{name}": facts[name] for name in ("hook", "point", "verdict")}
        if facts.get("name"):
            attributes["gen_ai.tool.name"] = facts["name"]
        return SpanEvent(at, "callgate.guardrail", attributes)

    def _without_end(
        self,
        began: Mapping[tuple[str, int, Any], RunEvent],
        attempts: Mapping[tuple[int, Any], Sequence[RunEvent]],
        spans_with_end: Sequence[Span],
    ) -> list[Span]:
        """Return the spans of turns and calls that did not end, because the run failed or its client left."""
        ended = {span.id for span in spans_with_end}
        last = spans_with_end[0].end
        error = self._row.error or self._row.state
        spans: list[Span] = []
        for (what, choice, which), event in began.items():
            id = self._id(what, choice, which)
            if id in ended:
                continue
            if what == "turn":
                name = f"chat {self._row.model}".rstrip()
            else:
                name = f"execute_tool {event.facts['name']}"
            attributes = {
                "gen_ai.operation.name": "chat" if what == "turn" else "execute_tool",
                "gen_ai.request.model": self._row.model if what == "turn" else None,
                "gen_ai.tool.name": event.facts.get("name"),
                "gen_ai.tool.call.id": event.facts.get("id"),
                "error.type": error,
            }
            kind = SpanKind.CLIENT if what == "turn" else SpanKind.INTERNAL
            events = (
                self._retries(attempts.get((choice, which), ()))
                if what == "turn"
                else self._waits.get((choice, which), ())
            )
            spans.append(Span(id, self._run, name, kind, self._moment(event.at), last, attributes, error, events))
        return spans

    def _retries(self, attempts: Sequence[RunEvent]) -> list[SpanEvent]:
        return [
            SpanEvent(
                self._moment(attempt.at),
                "callgate.attempt.failed",
                {"error.type": attempt.facts["reason"], "callgate.attempt.number": attempt.facts["number"]},
            )
            for attempt in attempts
            if attempt.facts.get("reason")
        ]

    def _turn(self, event: RunEvent, began: RunEvent, attempts: Sequence[RunEvent]) -> Span:
        facts = event.facts
        messages: Mapping[str, str] = {}
        if self._recording.content and (self._options.in_spans or self._options.in_events):
            messages = message_attributes(self._recording, event.choice, event.turn or 0)
        events = self._retries(attempts)
        events += [
            SpanEvent(
                self._moment(event.at),
                "callgate.call.broken",
                {
                    "gen_ai.tool.name": call["name"],
                    "gen_ai.tool.call.id": call["id"],
                    "callgate.call.flaw": call["flaw"],
                },
            )
            for call in facts["calls"]
            if call["verdict"] == "broken"
        ]
        if messages and self._options.in_events:
            events.append(SpanEvent(self._moment(event.at), "gen_ai.client.inference.operation.details", messages))
        return Span(
            id=self._turn_id(event),
            parent=self._run,
            name=f"chat {self._row.model}".rstrip(),
            kind=SpanKind.CLIENT,
            start=self._moment(began.at),
            end=self._moment(event.at),
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": span_name_of(facts.get("deployment") or ""),
                "gen_ai.request.model": self._row.model,
                "gen_ai.request.stream": self._row.stream,
                "gen_ai.request.choice.count": self._row.choices if self._row.choices > 1 else None,
                **self._request,
                "gen_ai.response.id": facts.get("response_id") or None,
                "gen_ai.response.model": facts.get("response_model") or None,
                "gen_ai.response.finish_reasons": facts["finish_reasons"],
                "gen_ai.response.time_to_first_chunk": facts.get("first_seconds"),
                **Usage(facts["usage"] or {}).attributes(),
                **_server(facts.get("host") or ""),
                **(messages if self._options.in_spans else {}),
                "callgate.deployment": facts.get("deployment") or None,
                "callgate.lane": facts["lane"] or None,
                "callgate.findings": facts["findings"] or None,
                "callgate.turn": event.turn,
            },
            events=events,
        )

    def _last_attempt(self, event: RunEvent, began: RunEvent) -> Span:
        """Return the span of the attempt that answered. It has no event of its own if it was the first."""
        facts = event.facts
        number = facts.get("attempts", 1)
        return Span(
            id=self._id("attempt", event.choice, event.turn, number),
            parent=self._turn_id(event),
            name="POST",
            kind=SpanKind.CLIENT,
            start=self._moment(began.at),
            end=self._moment(event.at),
            attributes={
                "http.request.method": "POST",
                "http.response.status_code": 200,
                **_server(facts["host"]),
                "callgate.deployment": facts.get("deployment") or None,
                "callgate.attempt.number": number,
            },
        )

    def _attempt(self, event: RunEvent) -> Span:
        facts = event.facts
        return Span(
            id=self._id("attempt", event.choice, event.turn, facts["number"]),
            parent=self._turn_id(event),
            name="POST",
            kind=SpanKind.CLIENT,
            start=self._moment(event.at - facts["seconds"]),
            end=self._moment(event.at),
            attributes={
                "http.request.method": "POST",
                "http.response.status_code": facts["status"] or None,
                **_server(facts["host"]),
                "error.type": facts.get("reason") or None,
                "callgate.deployment": facts["deployment"] or None,
                "callgate.attempt.number": facts["number"],
                "callgate.attempt.reason": facts.get("reason") or None,
            },
            error=facts.get("reason", ""),
        )

    def _call(self, event: RunEvent, began: RunEvent) -> Span:
        facts = event.facts
        content = self._recording.content if self._options.in_spans else {}
        failure = "" if facts["outcome"] == "returned" else facts["outcome"]
        part = part_of(event.choice, f"call.{facts['id']}")
        return Span(
            id=self._id("call", event.choice, facts["id"]),
            parent=self._run,
            name=f"execute_tool {facts['name']}",
            kind=SpanKind.INTERNAL,
            start=self._moment(began.at),
            end=self._moment(event.at),
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": facts["name"],
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": facts["id"],
                "gen_ai.tool.call.arguments": content.get(f"{part}.arguments"),
                "gen_ai.tool.call.result": content.get(f"{part}.result"),
                "error.type": failure or None,
                "callgate.call.safety": "read_only" if began.facts.get("writes") is False else None,
                "callgate.call.bytes_cut": facts.get("cut_bytes"),
                "callgate.call.repairs": self._repairs.get((event.choice, facts["id"])),
            },
            error=failure,
            events=self._waits.get((event.choice, facts["id"]), ()),
        )

    def _note_wait(self, event: RunEvent) -> None:
        facts = event.facts
        if "approval" in facts:
            name = "waiting_for_approval"
        elif facts.get("approved"):
            name = "approved"
        elif "input" in facts:
            name = "waiting_for_input"
        else:
            name = ""
        if name:
            noted = SpanEvent(self._moment(event.at), f"callgate.call.{name}", {})
            self._waits.setdefault((event.choice, facts["id"]), []).append(noted)

    def _turn_id(self, event: RunEvent) -> str:
        return self._id("turn", event.choice, event.turn)

    def _id(self, *parts: object) -> str:
        return span_id_for(self._row.id, *parts)

    def _moment(self, at: float) -> int:
        return int((self._row.began + max(at, 0.0)) * NANO)


def _server(host: str) -> dict[str, Any]:
    address, _, port = host.rpartition(":")
    if not address or not port.isdecimal():
        return {"server.address": host or None}
    return {"server.address": address.strip("[]"), "server.port": int(port)}


def as_otlp(recording: RecordedRun) -> dict[str, Any]:
    """Return the spans as the JSON body of a POST to `/v1/traces` of a collector."""
    trace = trace_id_of(recording)
    spans = [_encoded(span, trace) for span in spans_of(recording)]
    scope = {"scope": {"name": "callgate"}, "spans": spans}
    resource = {"attributes": _attributes({"service.name": "callgate"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _encoded(span: Span, trace: str) -> dict[str, Any]:
    encoded = {
        "traceId": trace,
        "spanId": span.id,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(max(span.start, span.end)),
        "attributes": _attributes(span.attributes),
        "events": [
            {"timeUnixNano": str(event.at), "name": event.name, "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "status": {"code": 2, "message": span.error} if span.error else {},
    }
    return encoded | ({"parentSpanId": span.parent} if span.parent else {})


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(element) for element in value]}}
        case _:
            return {"stringValue": str(value)}
