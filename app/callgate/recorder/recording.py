"""Records a run while it is under way. The events of its chats are kept as they are, and packed when it has ended."""

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import ClassVar, Final, Literal, Protocol, TypeAlias

import msgspec

from callgate.calls.states import ReadyCall
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    ChatFailed,
    Responder,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.ports import Message, TurnModel
from callgate.conversation.prices import Price
from callgate.http.trace_context import Trace
from callgate.recorder.model import MASKED_BEYOND, RecordedModel, part_of
from callgate.recorder.packed import Packed, PackedEnd, PackedEvent, PackedRun, summed_up
from callgate.recorder.packing import Happened, Mask, PriceOf, packed
from callgate.recorder.row import USUAL_STATES, Kept, RunRow, wire_turn

NOTED: Final = (
    TurnStarted,
    TurnEnded,
    CallStarted,
    CallProgress,
    CallEnded,
    Attempt,
    CallsHandedBack,
    ChatEnded,
    ChatFailed,
)
"""The events that are recorded."""
RunTrace: TypeAlias = Trace
"""The trace of a run."""
RunsKept: TypeAlias = Literal["all", "eventful", "off"]
WireKept: TypeAlias = Literal["off", "on_error", "on"]

PLAIN_EVENTS: Final = 64
"""The most events of a plain run. Its row is calculated when it is read, and long lists must be fast."""
PLAIN_BYTES: Final = 8192
"""The most bytes of a plain run. Whoever reads one run of a chunk reads the whole chunk."""
PACKED_AT_ONCE: Final = 500
"""The most events of a run that the event loop packs: a third of a millisecond. The thread packs longer runs."""


class RecordPolicy(msgspec.Struct, frozen=True):
    """The settings of recording."""

    runs: RunsKept = "all"
    passed: Literal["all", "errors"] = "errors"
    content_bytes: int | None = None
    """The kept length of each text, in bytes; None keeps no texts."""
    wire: WireKept = "off"
    """Whether the bodies of providers' answers are kept with the other texts."""
    keep_days: float = 14.0
    keep_bytes: int = 1024**3
    wire_days: float = 1.0
    slow_seconds: float = 30.0
    """`eventful` keeps runs that take longer."""

    def keeps(self, run: PackedRun) -> bool:
        """Return whether a packed run is kept."""
        if self.runs != "eventful":
            return self.runs == "all"
        row = run.whole_row
        slow = row.seconds is not None and row.seconds > self.slow_seconds
        return bool(row.is_odd or row.calls or row.findings or row.error or slow)


NOT_KEPT: Final = RecordPolicy(runs="off")


class HasHistory(Protocol):
    """A request with its messages."""

    @property
    def history(self) -> Sequence[Message]: ...


def no_price(by: Responder) -> Price | None:
    return None


class RunRecording(msgspec.Struct, eq=False, gc=False):
    """A run while it is under way."""

    row: RunRow
    """What is known from the request; `row_now` adds the totals of the events."""
    policy: RecordPolicy
    mask: Mask
    price: PriceOf = no_price
    trace: Trace | None = None
    """Its trace, if it is exported."""
    is_plain: bool = True
    """False if a call was broken or failed, or a model was retried. Set when it is packed."""
    is_listed: bool = True
    """False if it is recorded only for its spans."""
    began: float = msgspec.field(default_factory=monotonic)
    happened: list[Happened] = []
    texts: dict[str, str] = {}
    weight: int = 0
    """About how many bytes its texts take; with its events too while it waits for the thread."""
    watchers: "list[asyncio.Queue[Happened | None]]" = []
    is_kept: bool = True
    """Set to False by the thread if the policy does not keep it."""
    is_deleted: bool = False
    """True if it was deleted while it waited."""

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def has_texts(self) -> bool:
        return self.policy.content_bytes is not None

    @property
    def events(self) -> list[Packed]:
        """Its events until now, packed."""
        return packed(self, list(self.happened))  # a copy: events may be added meanwhile

    def note(self, choice: int, event: ChatEvent) -> None:
        """Record an event that happens now."""
        self.happened.append((monotonic(), choice, event))
        if self.watchers:
            self.notify_watchers()

    def note_earlier(self, seconds: float, choice: int, event: ChatEvent) -> None:
        """Record an event that happened so many seconds after the run began."""
        self.happened.append((self.began + seconds, choice, event))

    def notify_watchers(self) -> None:
        """Send the last event to the clients that follow the run."""
        for watcher in self.watchers:
            watcher.put_nowait(self.happened[-1])

    def wrap_model(self, model: TurnModel, choice: int, request: HasHistory) -> TurnModel:
        """Wrap the model of one choice, so that its texts are recorded. Only for runs whose texts are kept."""
        policy = self.policy
        assert policy.content_bytes is not None, "this run keeps no texts"
        return RecordedModel(model, self, choice, request.history, policy.content_bytes, wire=policy.wire != "off")

    def keep_text(self, part: str, text: str) -> None:
        """Keep a text, if the policy keeps texts."""
        if self.policy.content_bytes is not None and text:
            self.texts[part] = text
            self.weight += len(text)

    def row_now(self) -> RunRow:
        """Return its row without processing its texts: lists of runs have to be fast."""
        row = summed_up(self.row, self.events)
        if self.policy.content_bytes is not None:
            row.kept = Kept.CONTENT
        return row

    def to_write(self) -> "PackedRun | RunRecording | None":
        """Pack the ended run. Returns itself if packing takes long and is left to the thread, and None if it is not kept."""
        row, policy = self.row, self.policy
        if policy.content_bytes is not None or self.trace is not None or len(self.happened) > PACKED_AT_ONCE:
            self.weight += 1024 * len(self.happened)
            if policy.content_bytes is None:
                self.weight += sum(_texts_length(event) for _, _, event in self.happened)
            return self
        events = self.events
        is_plain = self.is_plain and policy.runs == "all" and not row.replay_of and len(events) <= PLAIN_EVENTS
        if is_plain and events and type(ended := events[-1]) is PackedEnd:
            row.state, row.finish_reason = str(ended.ending), ended.finish_reason
            if row.state in USUAL_STATES:
                plain = PackedRun.plain(row, events)
                if len(plain.events) <= PLAIN_BYTES:
                    return plain
        run = PackedRun.of(summed_up(self.row, events), events)
        return run if self.policy.keeps(run) else None

    def packed(self) -> PackedRun:
        """Pack the run with its texts, masked and cut."""
        events = self.events
        row = summed_up(self.row, events)
        most = self.policy.content_bytes
        if most is None:
            return PackedRun.of(row, events)
        content, cut = kept_texts(dict(self.texts), most, self.mask)
        row.kept = Kept.CUT if any(wire_turn(part) is None for part in cut) else Kept.CONTENT
        if cut:
            events.append(PackedEvent(events[-1].at if events else 0.0, 0, "content_cut", None, {"parts": cut}))
        if self.policy.wire == "on_error" and not row.is_odd:
            content = {part: text for part, text in content.items() if wire_turn(part) is None}
        return PackedRun.of(row, events, content)


def _texts_length(event: ChatEvent) -> int:
    """Return how long the texts are that an event holds until it is packed."""
    if isinstance(event, CallEnded):
        return len(event.outcome.text)
    if isinstance(event, TurnEnded):
        answer = event.answer
        return sum(len(call.text) for call in (*answer.run, *answer.handed_back, *answer.broken, *answer.postponed))
    return 0


def kept_texts(texts: Mapping[str, str], most: int, mask: Mask) -> tuple[dict[str, str], list[str]]:
    """Mask each text and cut it to `most` bytes. Return the texts, and the names of those that were cut."""
    content: dict[str, str] = {}
    cut: list[str] = []
    for part, text in texts.items():
        # Masked before it is cut, or the beginning of a secret would stay. Text far beyond the cut is not masked, to save time.
        encoded = mask(text[: most + MASKED_BEYOND]).encode(errors="replace")
        if len(text) > most + MASKED_BEYOND or len(encoded) > most:
            cut.append(part)
        content[part] = encoded[:most].decode(errors="ignore")
    return content, cut


class TextsListener(Listener, msgspec.Struct, eq=False, gc=False):
    """Keeps the arguments and results of one choice's calls."""

    _recording: RunRecording
    _choice: int

    handlers: ClassVar[Handlers] = {}

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        answer, keep = event.answer, self._recording.keep_text
        for call in (*answer.run, *answer.handed_back, *answer.broken, *answer.postponed):
            keep(part_of(self._choice, f"call.{call.id}.arguments"), call.text)
            if isinstance(call, ReadyCall) and call.findings:
                read = msgspec.json.encode(call.arguments).decode()
                keep(part_of(self._choice, f"call.{call.id}.read"), read)

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        self._recording.keep_text(part_of(self._choice, f"call.{event.call.id}.result"), event.outcome.text)
