"""One run while it is under way. What happens in its chats is noted as it is, and packed when it has ended."""

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
"""What is known of the trace of a run."""
RunsKept: TypeAlias = Literal["all", "eventful", "off"]
WireKept: TypeAlias = Literal["off", "on_error", "on"]

PLAIN_EVENTS: Final = 64
"""Of a run that is summed up by whoever looks: a list of many of them has to be quick."""
PACKED_AT_ONCE: Final = 500
"""Events of a run that the event loop packs, a third of a millisecond; the thread packs longer runs."""


class RecordPolicy(msgspec.Struct, frozen=True):
    """The settings of recording."""

    runs: RunsKept = "all"
    passed: Literal["all", "errors"] = "errors"
    content_bytes: int | None = None
    """How much of each text is kept; None keeps none."""
    wire: WireKept = "off"
    """Whether the bodies of providers' answers are kept with the other texts."""
    keep_days: float = 14.0
    keep_bytes: int = 1024**3
    wire_days: float = 1.0
    slow_seconds: float = 30.0
    """What `eventful` takes for slow."""

    def keeps(self, run: PackedRun) -> bool:
        """Whether a run is kept."""
        if self.runs != "eventful":
            return self.runs == "all"
        row = run.whole_row
        slow = row.seconds is not None and row.seconds > self.slow_seconds
        return bool(row.is_odd or row.calls or row.findings or row.error or slow)


NOT_KEPT: Final = RecordPolicy(runs="off")


class Asked(Protocol):
    """A request."""

    @property
    def history(self) -> Sequence[Message]: ...


def no_price(by: Responder) -> Price | None:
    return None


class RunRecording(msgspec.Struct, eq=False, gc=False):
    """One run while it is under way."""

    row: RunRow
    """As far as the request knows it; `row_now` adds what its events say."""
    policy: RecordPolicy
    mask: Mask
    price: PriceOf = no_price
    trace: Trace | None = None
    """Where it is exported: what is known of its trace."""
    is_plain: bool = True
    """False where a call of it was broken or failed, or a deployment had to be asked again. Known when it is packed."""
    is_listed: bool = True
    """Whether it is a run for those who look; not where it is recorded for the sake of its spans alone."""
    began: float = msgspec.field(default_factory=monotonic)
    happened: list[Happened] = []
    said: dict[str, str] = {}
    weight: int = 0
    """Of the texts; where it waits to be packed by the thread, of all of it."""
    watchers: "list[asyncio.Queue[Happened | None]]" = []
    is_kept: bool = True
    """False when the thread has packed it and found nothing worth keeping."""
    is_deleted: bool = False
    """While it waited."""

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def has_texts(self) -> bool:
        return self.policy.content_bytes is not None

    @property
    def events(self) -> list[Packed]:
        """What has happened until now."""
        return packed(self, list(self.happened))  # a copy: of a run under way there may be more

    def note(self, choice: int, event: ChatEvent) -> None:
        """Note an event that happens now."""
        self.happened.append((monotonic(), choice, event))
        if self.watchers:
            self.show()

    def note_earlier(self, seconds: float, choice: int, event: ChatEvent) -> None:
        """Note an event that happened so many seconds after the run began."""
        self.happened.append((self.began + seconds, choice, event))

    def show(self) -> None:
        """Show the last event to those who follow the run."""
        for watcher in self.watchers:
            watcher.put_nowait(self.happened[-1])

    def around(self, model: TurnModel, choice: int, asked: Asked) -> TurnModel:
        """The model that is asked in one choice, where texts are kept; what is said is recorded."""
        policy = self.policy
        assert policy.content_bytes is not None, "nothing of what is said is kept"
        return RecordedModel(model, self, choice, asked.history, policy.content_bytes, wire=policy.wire != "off")

    def say(self, part: str, text: str) -> None:
        """A text that is to be kept, where texts are."""
        if self.policy.content_bytes is not None and text:
            self.said[part] = text
            self.weight += len(text)

    def row_now(self) -> RunRow:
        """Its row, without looking at a text: a list of runs may be a list of many long ones."""
        row = summed_up(self.row, self.events)
        if self.policy.content_bytes is not None:
            row.kept = Kept.CONTENT
        return row

    def to_write(self) -> "PackedRun | RunRecording | None":
        """What waits to be written when it has ended: itself where packing it takes long, and None where nothing is kept of it."""
        row, policy = self.row, self.policy
        if policy.content_bytes is not None or self.trace is not None or len(self.happened) > PACKED_AT_ONCE:
            self.weight += 1024 * len(self.happened)
            return self
        events = self.events
        is_plain = self.is_plain and policy.runs == "all" and not row.replay_of and len(events) <= PLAIN_EVENTS
        if is_plain and events and type(ended := events[-1]) is PackedEnd:
            row.state, row.finish_reason = str(ended.ending), ended.finish_reason
            if row.state in USUAL_STATES:
                return PackedRun.plain(row, events)
        run = PackedRun.of(summed_up(self.row, events), events)
        return run if self.policy.keeps(run) else None

    def packed(self) -> PackedRun:
        """All of it, its texts masked and cut."""
        events = self.events
        row = summed_up(self.row, events)
        most = self.policy.content_bytes
        if most is None:
            return PackedRun.of(row, events)
        content, cut = kept_texts(dict(self.said), most, self.mask)
        row.kept = Kept.CUT if any(wire_turn(part) is None for part in cut) else Kept.CONTENT
        if cut:
            events.append(PackedEvent(events[-1].at if events else 0.0, 0, "content_cut", None, {"parts": cut}))
        if self.policy.wire == "on_error" and not row.is_odd:
            content = {part: text for part, text in content.items() if wire_turn(part) is None}
        return PackedRun.of(row, events, content)


def kept_texts(said: Mapping[str, str], most: int, mask: Mask) -> tuple[dict[str, str], list[str]]:
    """Texts as they are kept: masked, and so many bytes of each; and those that were longer."""
    content: dict[str, str] = {}
    cut: list[str] = []
    for part, text in said.items():
        # Masked before it is cut, or the beginning of a secret would stay; and not all of what will be cut anyway.
        encoded = mask(text[: most + MASKED_BEYOND]).encode(errors="replace")
        if len(text) > most + MASKED_BEYOND or len(encoded) > most:
            cut.append(part)
        content[part] = encoded[:most].decode(errors="ignore")
    return content, cut


class TextsListener(Listener, msgspec.Struct, eq=False, gc=False):
    """Keeps what the calls of one chat say and what tools answer."""

    _recording: RunRecording
    _choice: int

    handlers: ClassVar[Handlers] = {}

    @handles(handlers, TurnEnded)
    def _turn_ended(self, event: TurnEnded) -> None:
        answer, keep = event.answer, self._recording.say
        for call in (*answer.run, *answer.handed_back, *answer.broken):
            keep(part_of(self._choice, f"call.{call.id}.arguments"), call.text)
            if isinstance(call, ReadyCall) and call.findings:
                read = msgspec.json.encode(call.arguments).decode()
                keep(part_of(self._choice, f"call.{call.id}.read"), read)

    @handles(handlers, CallEnded)
    def _call_ended(self, event: CallEnded) -> None:
        self._recording.say(part_of(self._choice, f"call.{event.call.id}.result"), event.outcome.text)
