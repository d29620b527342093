"""Records a run. The events of its chats are kept as they are, and encoded when it has ended."""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from callgate.calls.states import Call, ReadyCall
from callgate.conversation.events import CallEnded, ChatEvent, TurnAccount, TurnEnded
from callgate.conversation.listeners import Handlers, Listener, handles
from callgate.conversation.ports import Message
from callgate.http.trace_context import Trace
from callgate.recorder.backlog import Backlog
from callgate.recorder.ended_run import ROW_WEIGHT, EndedRun, encode, ended_run
from callgate.recorder.events import RECORDED, Happened, Mask, read_events
from callgate.recorder.hours import HourNote
from callgate.recorder.private_texts import (
    PrivateTexts,
    UnwrittenRequest,
    question_in,
    shown_question,
    weight_of_texts,
    with_texts,
    written_request,
)
from callgate.recorder.turn_texts import MASKED_BEYOND, KeptTurns, part_of
from callgate.recorder.usual_run import keep_usual_fast
from callgate.records.policy import RecordPolicy
from callgate.records.ports import PriceOf, no_price
from callgate.records.row import Kept, RecordedRun, RunRow

ENCODED_AT_ONCE: Final = 500
"""The most events of a run that the event loop encodes: half a millisecond. The thread encodes longer runs."""
REQUEST_WEIGHT: Final = 1024
"""About how many bytes an unwritten request takes in memory beside its text."""
EVENT_WEIGHT: Final = 1024
"""About how many bytes an event takes in memory before it is encoded."""
KEPT_AS_IT_CAME: Final = 256 * 1024
"""The most bytes of a run's texts that are kept in memory without being masked and cut before they are shown."""


class RunRecording(msgspec.Struct, eq=False, gc=False):
    """A run from its beginning until it is written."""

    row: RunRow
    """What is known from the request; `row_now` adds the totals of the events."""
    policy: RecordPolicy
    mask: Mask
    price: PriceOf = no_price
    trace: Trace | None = None
    """Its trace, if it is exported."""
    is_listed: bool = True
    """False if it is recorded only for its spans."""
    began: float = msgspec.field(default_factory=monotonic)
    happened: list[Happened] = []
    texts: dict[str, str] = {}
    has_all_texts: bool = False
    """True once those of its calls are among them."""
    request: UnwrittenRequest | None = None
    """What was asked, where its text is not made yet."""
    followers: list[Backlog] = []
    """What waits for the clients that follow the run."""
    ended: EndedRun | None = None
    """The run as it is written, once it is encoded."""
    is_deleted: bool = False
    """True if it was deleted while it waited to be written."""
    weighed: int = 0
    """What it weighs in the queue of the thread."""

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def has_texts(self) -> bool:
        """True if its texts are shown to all who may see the run."""
        return self.policy.content_bytes is not None and not self.policy.private_to

    def note(self, choice: int, event: ChatEvent) -> None:
        """Record an event that happens now."""
        self.happened.append((monotonic(), choice, event))
        if self.followers:
            self.notify_followers()

    def note_earlier(self, seconds: float, choice: int, event: ChatEvent) -> None:
        """Record an event that happened so many seconds after the run began."""
        self.happened.append((self.began + seconds, choice, event))

    def notify_followers(self) -> None:
        """Send the last event to the clients that follow the run."""
        happened = self.happened[-1]
        weight = weight_of(happened)
        for backlog in self.followers:
            backlog.put(happened, weight)

    def turn_texts(self, choice: int, history: Sequence[Message]) -> KeptTurns:
        """Return what keeps the texts of one choice's turns. `history`: the client's messages. Only for runs whose texts are kept."""
        policy = self.policy
        assert policy.content_bytes is not None, "this run keeps no texts"
        most = policy.content_bytes + MASKED_BEYOND
        return KeptTurns(
            _texts=self.texts,
            _prefix=part_of(choice, ""),
            _known=history,
            _most=most,
            _wire=policy.wire != "off",
        )

    def events_listener(self, choice: int) -> Listener:
        """Return the listener that records the events of one choice."""
        return EventsListener(_recording=self, _choice=choice)

    def keep_text(self, part: str, text: str) -> None:
        """Keep a text in place of the last one of this name, if the policy keeps texts. An empty text is none."""
        if self.policy.content_bytes is None:
            return
        if text:
            self.texts[part] = text
        else:
            self.texts.pop(part, None)

    def keep_request(self, body: Callable[[], Mapping[str, Any]], bytes: int | None) -> None:
        """Keep what was asked; `body` returns it. `bytes`: how long it is, where all of it is in the client's own bytes, which nobody
        changes."""
        if bytes is not None and self.policy.private_to:
            self.request = UnwrittenRequest(body, bytes)
        else:
            self.keep_text("request", written_request(body()))

    def weight(self) -> int:
        """Return about how many bytes it takes in memory while it waits to be written."""
        if self.ended is not None:
            return self.ended.weight()
        weight = ROW_WEIGHT + EVENT_WEIGHT * len(self.happened)
        weight += sum(map(len, self.texts.values()))
        if self.request is not None:
            weight += self.request.bytes
        if not self.has_all_texts:
            weight += self._calls_length()
        return weight

    def weigh(self) -> int:
        """Remember what it weighs now, and return that."""
        self.weighed = self.weight()
        return self.weighed

    def row_now(self) -> RunRow:
        """Return its row without processing its texts: lists of runs have to be fast. Thread-safe."""
        happened = list(self.happened)  # before `ended` is looked at, see `encode`
        if self.ended is not None:
            return self.ended.row()
        row = read_events(self, self.row, happened).row
        if self.has_texts:
            row.kept = Kept.CONTENT
        return row

    def recorded_now(self, owner: str = "") -> RecordedRun:
        """Return the run with its events until now, as an owner may see it. Thread-safe."""
        happened = list(self.happened)
        texts = dict(self.texts)
        if self.ended is not None:
            return self.ended.as_seen_by(owner).recorded()
        ended, _ = msgspec.structs.replace(self, happened=happened, texts=texts, has_all_texts=False).encode()
        return ended.as_seen_by(owner).recorded()

    def is_encoded_quickly(self) -> bool:
        """Return False if encoding takes too long for the event loop. The texts of a private run are gathered for that."""
        events = len(self.happened)
        if self.trace is not None or events > ENCODED_AT_ONCE:
            return False
        if self.policy.content_bytes is None:
            return True
        if not self.policy.private_to or 2 * events > ENCODED_AT_ONCE:  # events that tell more of texts are read twice
            return False
        self._gather_texts()
        size = weight_of_texts(self.texts)
        if self.request is not None:
            size += self.request.bytes
        return size <= KEPT_AS_IT_CAME

    def _gather_texts(self) -> None:
        """Put the texts of its calls beside the others, once for all that asks for them: nothing happens in it any more."""
        self.texts = self.all_texts()
        self.has_all_texts = True

    def all_texts(self) -> dict[str, str]:
        """Return the texts that are kept until now but an unwritten request, with the arguments and results of calls, which its events
        have."""
        if self.has_all_texts:
            return self.texts
        texts = dict(self.texts)
        if self.policy.content_bytes is None:
            return texts
        for _, choice, event in self.happened:
            if type(event) is CallEnded:
                if event.outcome.text:
                    texts[part_of(choice, f"call.{event.call.id}.result")] = event.outcome.text
            elif type(event) is TurnEnded and has_calls(event.answer):
                for call in calls_of(event.answer):
                    if call.text:
                        texts[part_of(choice, f"call.{call.id}.arguments")] = call.text
                    if isinstance(call, ReadyCall) and call.findings:
                        read_arguments = msgspec.json.encode(call.arguments).decode()
                        texts[part_of(choice, f"call.{call.id}.read")] = read_arguments
        return texts

    def _calls_length(self) -> int:
        """Return how long the texts of its calls are."""
        length = 0
        for _, _, event in self.happened:  # a generator would take twice as long
            if type(event) is CallEnded or type(event) is TurnEnded:
                length += _texts_length(event)
        return length

    def encode(self) -> tuple[EndedRun, Sequence[HourNote]]:
        """Set `ended`, with the texts masked and cut where they may be written, and forget what it was made from. Returns it with what
        the totals of its hour need."""
        ended, notes = self._usual() or self._any()
        self.ended = ended
        # New objects: readers in other threads still iterate over the old ones.
        self.happened = []
        self.texts = {}
        self.request = None
        return ended, notes

    def _usual(self) -> tuple[EndedRun, Sequence[HourNote]] | None:
        """Encode a usual run; None for another, and for one whose texts are written."""
        if self.has_texts:
            return None
        usual = keep_usual_fast(self, self.row, self.happened)
        if usual is None:
            return None
        pack, notes = usual
        ended = EndedRun(self.row, b"", b"", usual=pack)
        if self.policy.private_to:
            ended.private_to = self.policy.private_to
            ended.private = self._private_texts(self.all_texts())
        return ended, notes

    def _any(self) -> tuple[EndedRun, Sequence[HourNote]]:
        """Encode any run."""
        reader = read_events(self, self.row, self.happened)
        if self.has_texts:
            texts = self.all_texts()
            reader.row.question = shown_question(question_in(texts), self.mask)
            ended = with_texts(reader.row, reader.events, texts, self.policy, self.mask)
            return ended, reader.hour_notes
        ended = ended_run(reader.row, reader.events)
        if self.policy.private_to:
            events = b""
            if reader.tells_texts:
                with_texts_reader = read_events(_WithTexts(self.mask, self.price, self.began), self.row, self.happened)
                events = encode(with_texts_reader.events)
            ended.private_to = self.policy.private_to
            ended.private = self._private_texts(self.all_texts(), events)
        return ended, reader.hour_notes

    def _private_texts(self, texts: Mapping[str, str], events: bytes = b"") -> PrivateTexts:
        """Return what is kept for the owner alone, as it came; what is long is masked and cut now, or it would take too much memory.
        `events`: where they tell more to whoever may see the texts."""
        size = weight_of_texts(texts)
        if self.request is not None:
            size += self.request.bytes + REQUEST_WEIGHT
        private = PrivateTexts(
            events=events,
            texts=texts,
            texts_bytes=size,
            request=self.request,
            policy=self.policy,
            mask=self.mask,
        )
        if size > KEPT_AS_IT_CAME:
            return private.cut_now()
        if private.request is not None:
            private.request = private.request.detached()
        return private


class _WithTexts(NamedTuple):
    """How the events of a run are read for whoever may see its texts."""

    mask: Mask
    price: PriceOf
    began: float
    has_texts: bool = True


def weight_of(happened: Happened) -> int:
    """Return about how many bytes an event takes in memory with its texts."""
    return EVENT_WEIGHT + _texts_length(happened[2])


def _texts_length(event: ChatEvent) -> int:
    """Return how long the texts are that an event holds until it is encoded."""
    if type(event) is CallEnded:
        return len(event.outcome.text)
    if type(event) is TurnEnded and has_calls(event.answer):
        return sum(len(call.text) for call in calls_of(event.answer))
    return 0


def has_calls(answer: TurnAccount) -> bool:
    """Return whether a model made any calls in a turn."""
    return bool(answer.run or answer.handed_back or answer.broken or answer.postponed)


def calls_of(answer: TurnAccount) -> tuple[Call, ...]:
    """Return all calls of a turn."""
    return (*answer.run, *answer.handed_back, *answer.broken, *answer.postponed)


class EventsListener(Listener, msgspec.Struct, eq=False, gc=False, kw_only=True):
    """Records the events of one choice."""

    _recording: RunRecording
    _choice: int

    handlers: ClassVar[Handlers] = {}

    @handles(handlers, *RECORDED)
    def _note(self, event: ChatEvent) -> None:
        # `RunRecording.note`, without a call of a function.
        recording = self._recording
        recording.happened.append((monotonic(), self._choice, event))
        if recording.followers:
            recording.notify_followers()
