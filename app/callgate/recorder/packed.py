"""The stored form of a run's events: arrays without field names, a third as long as `RunEvent`s. They are made when a request ends,
and are converted to `RunEvent`s when they are read.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from callgate.conversation.events import ProviderHead
from callgate.conversation.prices import NANO, Price, counted
from callgate.recorder.row import Recording, RunEvent, RunRow

COMPRESSED_FROM: Final = 2048
"""Longer bodies are compressed, in bytes. Shorter ones take more time than they save space."""


NAME_CHARACTERS: Final = 64
"""The kept length of a tool's name. No offered tool has a longer one, but a model may invent names."""


SUMMED: Final = (b"s", b"S")
"""The first byte of stored events with a complete row: uncompressed, and compressed."""
UNSUMMED: Final = (b"u", b"U")
"""The same for events whose row lacks their totals. No longer written: format 2 had them for plain runs."""
PLAIN_FACTS: Final = (
    *("request_id", "process", "route", "end_user", "stream", "choices", "status", "finish_reason", "error", "seconds"),
    *("trace_id", "parent_span"),
)
"""The fields of a plain run's row that neither follow from its events nor are fields of `KeptRun`. New ones go to the end."""
CONTENT: Final = (b"-", b"z")
"""The first byte of stored texts, and in format 1 of the file also of events, which then had field names."""


PLAIN_WEIGHT: Final = 2048
"""About how many bytes a run without texts takes at most while it waits to be written."""


class PackedTurnStart(msgspec.Struct, array_like=True, tag=1, gc=False):
    at: float
    choice: int
    turn: int

    def event(self) -> RunEvent:
        return RunEvent(self.at, "turn_started", self.choice, self.turn, {})


class PackedCall(msgspec.Struct, array_like=True, gc=False):
    """A call at the end of its turn."""

    id: str
    name: str | None
    owner: str | None
    more: Mapping[str, Any] | None = None
    """Its verdict, repairs and flaw; None for a call that was complete without repairs."""


class PackedTurn(msgspec.Struct, array_like=True, tag=2, gc=False):
    at: float
    choice: int
    turn: int
    seconds: float
    first_seconds: float
    attempts: int
    lane: str
    model: str
    deployment: str
    host: str
    reasons: Sequence[str]
    calls: Sequence[PackedCall]
    usage: Mapping[str, Any] | None
    price: Price | None
    """None if unknown. The cost of the turn is calculated when the event is read."""
    findings: Sequence[str]
    head: ProviderHead | None
    reason_is_raw: bool

    def event(self) -> RunEvent:
        facts: dict[str, Any] = {
            "seconds": self.seconds,
            "finish_reasons": self.reasons,
            "findings": list(self.findings),
            "calls": [
                {"id": call.id, "name": call.name, "owner": call.owner, **(call.more or {"verdict": "ready"})}
                for call in self.calls
            ],
            "usage": self.usage,
            "lane": self.lane,
            "attempts": self.attempts,
            "first_seconds": self.first_seconds,
            "model": self.model,
            "deployment": self.deployment,
            "host": self.host,
        }
        if self.head is not None:
            facts["response_id"], facts["response_model"] = self.head.id, self.head.model
        if self.price is not None and self.usage is not None:
            facts["cost"] = self.price.of_usage(self.usage) / NANO
        if not self.reason_is_raw:
            facts["finish_reason_rewritten"] = True
        return RunEvent(self.at, "turn_ended", self.choice, self.turn, facts)


class PackedCallStart(msgspec.Struct, array_like=True, tag=3, gc=False):
    at: float
    choice: int
    turn: int
    id: str
    name: str
    writes: bool

    def event(self) -> RunEvent:
        facts = {"id": self.id, "name": self.name, "writes": self.writes}
        return RunEvent(self.at, "call_started", self.choice, self.turn, facts)


class PackedCallEnd(msgspec.Struct, array_like=True, tag=4, gc=False):
    at: float
    choice: int
    turn: int
    id: str
    name: str
    seconds: float
    outcome: str
    bytes: int
    cut_bytes: int

    def event(self) -> RunEvent:
        facts: dict[str, Any] = {"id": self.id, "name": self.name, "seconds": self.seconds}
        facts |= {"outcome": self.outcome, "bytes": self.bytes}
        if self.cut_bytes:
            facts["cut_bytes"] = self.cut_bytes
        return RunEvent(self.at, "call_ended", self.choice, self.turn, facts)


class PackedEnd(msgspec.Struct, array_like=True, tag=5, gc=False):
    at: float
    choice: int
    ending: str
    finish_reason: str
    note: str

    def event(self) -> RunEvent:
        facts = {"ending": self.ending, "finish_reason": self.finish_reason, "note": self.note}
        return RunEvent(self.at, "ended", self.choice, None, facts)


class PackedEvent(msgspec.Struct, array_like=True, tag=0, gc=False):
    """An event that few runs have, with named facts."""

    at: float
    choice: int
    kind: str
    turn: int | None
    facts: Mapping[str, Any]

    def event(self) -> RunEvent:
        return RunEvent(self.at, self.kind, self.choice, self.turn, self.facts)


Packed: TypeAlias = PackedTurnStart | PackedTurn | PackedCallStart | PackedCallEnd | PackedEnd | PackedEvent

encode: Final = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_row: Final = msgspec.msgpack.Decoder(RunRow).decode
_decode = msgspec.msgpack.Decoder(list[Packed]).decode
_decode_plain = msgspec.msgpack.Decoder(tuple[list[Any], list[Packed]]).decode
_plain_facts = attrgetter(*PLAIN_FACTS)
_decode_named = msgspec.msgpack.Decoder(list[RunEvent]).decode
_decode_content = msgspec.msgpack.Decoder(dict[str, str]).decode


class KeptRun(msgspec.Struct, array_like=True, gc=False):
    """A run that has ended, without its texts."""

    id: str
    began: float
    model: str
    key: str
    state: str
    is_odd: bool
    row: bytes
    """Empty for a plain run: its row is calculated from `events` when it is read."""
    events: bytes
    """Uncompressed, with the first byte as in the file. For a plain run its `PLAIN_FACTS` and events, without that byte."""

    @property
    def whole_row(self) -> RunRow:
        if self.row:
            return row_in_file(decode_row(self.row), self.events)
        return summed_up(*self._plain())

    def recording(self) -> Recording:
        if self.row:
            return recording_in_file(decode_row(self.row), self.events, None)
        row, events = self._plain()
        return Recording(summed_up(row, events), [each.event() for each in events])

    def _plain(self) -> tuple[RunRow, list[Packed]]:
        facts, events = _decode_plain(self.events)
        row = RunRow(self.id, self.began, self.model, key=self.key, state=self.state)
        for name, value in zip(PLAIN_FACTS, facts, strict=False):
            setattr(row, name, value)
        return row, events


class PackedRun(KeptRun, array_like=True, gc=False):
    """A run that has ended, while it waits to be written and in memory."""

    content: bytes = b""
    """Empty if no texts are kept."""
    replay_of: str = ""
    weight: int = PLAIN_WEIGHT
    """About how many bytes it takes in memory."""
    is_deleted: bool = False
    """True if it was deleted while it waited."""

    @classmethod
    def of(cls, row: RunRow, events: Sequence[Packed], content: Mapping[str, str] | None = None) -> "PackedRun":
        head = row.id, row.began, row.model, row.key, row.state, row.is_odd, encode(row)
        run = cls(*head, SUMMED[0] + encode(events), encode(content) if content else b"", row.replay_of)
        run.weight += len(run.events) + len(run.content)
        return run

    @classmethod
    def plain(cls, row: RunRow, events: Sequence[Packed]) -> "PackedRun":
        """Pack a run in a usual state that is no replay."""
        return cls(row.id, row.began, row.model, row.key, row.state, False, b"", encode((_plain_facts(row), events)))

    def summed(self) -> "PackedRun":
        """Return a plain run with its own row."""
        row, events = self._plain()
        return PackedRun.of(summed_up(row, events), events)

    def recording(self) -> Recording:
        found = super().recording()
        found.content = _decode_content(self.content) if self.content else {}
        return found

    def bodies(self) -> tuple[bytes, bytes]:
        """Return events and texts as stored. The first byte of each tells its encoding; texts may be empty."""
        events = self.events
        if len(events) > COMPRESSED_FROM:
            events = _stored(events[1:], SUMMED)
        return events, _stored(self.content, CONTENT) if self.content else b""


def _stored(body: bytes, marks: tuple[bytes, bytes]) -> bytes:
    return marks[1] + zlib.compress(body, 1) if len(body) > COMPRESSED_FROM else marks[0] + body


def _read(body: bytes) -> bytes:
    return zlib.decompress(body[1:]) if body[:1] in (SUMMED[1], UNSUMMED[1], CONTENT[1]) else body[1:]


def stored_content(content: Mapping[str, str]) -> bytes:
    return _stored(encode(content), CONTENT)


def content_in_file(body: bytes) -> dict[str, str]:
    return _decode_content(_read(body))


def row_in_file(row: RunRow, events: bytes) -> RunRow:
    """Return a row from the file; `events` is the stored body of its events."""
    return summed_up(row, _decode(_read(events))) if events[:1] in UNSUMMED else row


def recording_in_file(row: RunRow, events: bytes | None, content: bytes | None) -> Recording:
    texts = content_in_file(content) if content else {}
    if not events:
        return Recording(row, [], texts)
    if events[:1] in CONTENT:
        return Recording(row, _decode_named(_read(events)), texts)
    packed = _decode(_read(events))
    row = summed_up(row, packed) if events[:1] in UNSUMMED else row
    return Recording(row, [each.event() for each in packed], texts)


def summed_up(row: RunRow, events: Iterable[Packed]) -> RunRow:
    """Return a copy of a row with the totals of its events: turns, tokens, cost, calls and findings."""
    row = copy(row)
    nano: int | None = 0
    findings: dict[str, None] = {}
    tools: dict[str, None] = {}
    was_tried = False
    for event in events:  # comparing types takes a fifth of the time of `isinstance`
        if type(event) is PackedTurn:
            if not row.turns:
                row.first_seconds = max(event.at - event.seconds, 0.0) + event.first_seconds
            row.turns += 1
            row.attempts += event.attempts
            row.deployment = event.deployment
            if event.usage is not None:
                _add_tokens(row, event.usage)
                if event.price is not None:
                    nano = None if nano is None else nano + event.price.of_usage(event.usage)
                elif counted(event.usage, "prompt_tokens") or counted(event.usage, "completion_tokens"):
                    nano = None
                row.cost = None if nano is None else nano / NANO
            if event.calls:
                _add_calls(row, event.calls, tools)
            if event.findings:
                findings |= dict.fromkeys(map(str, event.findings))
        elif type(event) is PackedCallEnd:
            row.failed_calls += event.outcome != "returned"
        elif type(event) is PackedEnd:
            row.state, row.finish_reason = str(event.ending), event.finish_reason
        elif type(event) is PackedEvent:
            was_tried = was_tried or event.kind == "attempt"
    if was_tried:
        row.attempts = _attempts(events)
    row.findings, row.tools = list(findings), list(tools)
    return row


def _add_tokens(row: RunRow, usage: Mapping[str, Any]) -> None:
    row.tokens_in += counted(usage, "prompt_tokens")
    row.tokens_out += counted(usage, "completion_tokens")
    if details := usage.get("prompt_tokens_details"):
        row.tokens_cached += counted(details, "cached_tokens")
    if details := usage.get("completion_tokens_details"):
        row.tokens_reasoning += counted(details, "reasoning_tokens")


def _add_calls(row: RunRow, calls: Iterable[PackedCall], tools: dict[str, None]) -> None:
    for call in calls:
        if call.owner is None:
            row.broken_calls += 1
        else:
            row.calls += 1
        if call.name:
            tools[call.name[:NAME_CHARACTERS]] = None


def _attempts(events: Iterable[Packed]) -> int:
    """Return the number of attempts, including those in turns that did not end."""
    most: dict[tuple[int, int | None], int] = {}
    for event in events:
        number = 0
        if type(event) is PackedTurn:
            number = event.attempts
        elif type(event) is PackedEvent and event.kind == "attempt":
            number = event.facts["number"]
        if number > most.get((event.choice, turn := getattr(event, "turn", None)), 0):
            most[event.choice, turn] = number
    return sum(most.values())
