"""A recorded run as spans, with the names of OpenTelemetry's conventions for generative AI (1.41) and ours under `callgate.`."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import Any, Final, TypeAlias

import msgspec

from callgate.recorder.row import Recording, RunEvent

Attributes: TypeAlias = Mapping[str, Any]
"""Texts, numbers, switches, and lists of texts. What is None is left out."""
NANO: Final = 1_000_000_000


class SpanKind(IntEnum):
    """As the protocol numbers them."""

    INTERNAL = 1
    CLIENT = 3


class SpanEvent(msgspec.Struct, frozen=True):
    at: int
    """Nanoseconds since 1970, as everywhere here."""
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
    """What went wrong; empty where nothing did."""
    events: Sequence[SpanEvent] = ()


def trace_id_of(recording: Recording) -> str:
    """The trace that the request came with, or one that follows from the id of the run. 32 hex digits."""
    return recording.row.trace_id or sha256(recording.row.id.encode()).hexdigest()[:32]


def spans_of(recording: Recording) -> list[Span]:
    """The run, its turns with their attempts, and the calls that ran. Contents are in none of them."""
    return _Reader(recording).spans()


class _Reader:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._row = recording.row
        self._run = self._id("run")

    def spans(self) -> list[Span]:
        row, events = self._row, self._recording.events
        last = max((event.at for event in events), default=0.0)
        run = Span(
            id=self._run,
            parent="",
            name="invoke_agent callgate",
            kind=SpanKind.INTERNAL,
            start=self._moment(0.0),
            end=self._moment(last if row.seconds is None else row.seconds),
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "callgate",
                "gen_ai.request.model": row.model,
                "gen_ai.usage.input_tokens": row.tokens_in,
                "gen_ai.usage.output_tokens": row.tokens_out,
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
        found = [run]
        for event in events:
            match event.kind:
                case "turn_started":
                    began.setdefault(("turn", event.choice, event.turn), event)
                case "turn_ended":
                    found.append(self._turn(event, began.get(("turn", event.choice, event.turn), event)))
                case "attempt":
                    found.append(self._attempt(event))
                case "call_started":
                    began["call", event.choice, event.facts["id"]] = event
                case "call_ended":
                    found.append(self._call(event, began.get(("call", event.choice, event.facts["id"]), event)))
        return found

    def _turn(self, event: RunEvent, began: RunEvent) -> Span:
        facts, usage = event.facts, event.facts["usage"] or {}
        broken = [
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
        return Span(
            id=self._turn_id(event),
            parent=self._run,
            name=f"chat {self._row.model}".rstrip(),
            kind=SpanKind.CLIENT,
            start=self._moment(began.at),
            end=self._moment(event.at),
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": self._row.model,
                "gen_ai.request.stream": self._row.stream,
                "gen_ai.response.model": facts.get("model") or None,
                "gen_ai.response.finish_reasons": facts["finish_reasons"],
                "gen_ai.response.time_to_first_chunk": facts.get("first_seconds"),
                "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
                "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
                "server.address": facts.get("host") or None,
                "callgate.deployment": facts.get("deployment") or None,
                "callgate.lane": facts["lane"] or None,
                "callgate.findings": facts["findings"] or None,
                "callgate.turn": event.turn,
            },
            events=broken,
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
                "server.address": facts["host"] or None,
                "error.type": facts.get("reason") or None,
                "callgate.deployment": facts["deployment"] or None,
                "callgate.attempt.number": facts["number"],
                "callgate.attempt.reason": facts.get("reason") or None,
            },
            error=facts.get("reason", ""),
        )

    def _call(self, event: RunEvent, began: RunEvent) -> Span:
        facts = event.facts
        failure = "" if facts["outcome"] == "returned" else facts["outcome"]
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
                "error.type": failure or None,
                "callgate.call.writes": began.facts.get("writes"),
                "callgate.call.bytes_cut": facts.get("cut_bytes"),
            },
            error=failure,
        )

    def _turn_id(self, event: RunEvent) -> str:
        return self._id("turn", event.choice, event.turn)

    def _id(self, *parts: object) -> str:
        return sha256("\0".join(map(str, (self._row.id, *parts))).encode()).hexdigest()[:16]

    def _moment(self, at: float) -> int:
        return int((self._row.began + max(at, 0.0)) * NANO)


def as_otlp(recording: Recording) -> dict[str, Any]:
    """The spans as the body of a POST to `/v1/traces` of a collector, in JSON."""
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
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}
