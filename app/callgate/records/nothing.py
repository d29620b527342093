"""Stands where nothing is recorded: the ports of recording without a recorder behind them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar, Final, NoReturn

import msgspec

from callgate.config.entry_errors import BadEntry
from callgate.config.schema.whole import Config
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEvent
from callgate.conversation.listeners import Handlers, Listener
from callgate.conversation.ports import Message, ModelRequest, Passthrough, TurnTexts
from callgate.http.trace_context import Trace
from callgate.records.policy import NOT_KEPT, RecordPolicy
from callgate.records.ports import ChunkStream, PriceOf, no_price
from callgate.records.row import RunRow
from callgate.telemetry.metrics import Metrics


class DeafListener(Listener):
    """Hears of no event."""

    handlers: ClassVar[Handlers] = {}


DEAF: Final = DeafListener()


class UnkeptTexts:
    """Keeps nothing of what a model is sent and says."""

    def begin(self, request: ModelRequest | Passthrough) -> ModelRequest | Passthrough:
        return request

    def end(self, text: str, reasoning: str) -> None:
        """Forget what the answer said."""


UNKEPT_TEXTS: Final = UnkeptTexts()


class UnkeptRecording(msgspec.Struct, eq=False, gc=False):
    """A run of which nothing is recorded."""

    row: RunRow
    policy: RecordPolicy = NOT_KEPT
    is_listed: bool = False
    began: float = msgspec.field(default_factory=monotonic)

    @property
    def has_texts(self) -> bool:
        return False

    def note(self, choice: int, event: ChatEvent) -> None:
        """Forget the event."""

    def note_earlier(self, seconds: float, choice: int, event: ChatEvent) -> None:
        """Forget the event."""

    def turn_texts(self, choice: int, history: Sequence[Message]) -> TurnTexts:
        return UNKEPT_TEXTS

    def events_listener(self, choice: int) -> Listener:
        return DEAF

    def keep_request(self, body: Callable[[], Mapping[str, Any]], bytes: int | None) -> None:
        """Forget what was asked."""

    def keep_text(self, part: str, text: str) -> None:
        """Forget the text."""


class NobodyWatches:
    """Publishes to nobody."""

    def publish(self, kind: str, facts: Any = None) -> None:
        """Tell nobody."""

    def end(self) -> None:
        """End nothing: there are no feeds."""


class NoRecorder:
    """Records nothing."""

    def __init__(self) -> None:
        self.watchers: Final = NobodyWatches()

    def begin(
        self, row: RunRow, policy: RecordPolicy, price: PriceOf = no_price, trace: Trace | None = None
    ) -> UnkeptRecording:
        return UnkeptRecording(row)

    def end(self, recording: object, *, state: str = "", status: int = 200, error: str = "") -> None:
        """Forget the run."""

    def traced(self, stream: ChunkStream, run_id: str, price: PriceOf = no_price) -> NoReturn:
        message = "This server records no runs, so that it cannot show their events (`X-Callgate-Events: trace`)."
        raise ChatError(400, message, param="X-Callgate-Events", code="trace_not_available")

    def open(self) -> None:
        """Open nothing."""

    async def close(self) -> None:
        """Close nothing."""


class NothingRecorded:
    """The rules by which nothing is recorded."""

    common_policy: Final = NOT_KEPT
    keyless_policy: Final = NOT_KEPT
    keeps_of_keyless: Final = False

    def change(self, policy: RecordPolicy) -> NoReturn:
        raise ValueError("this server has no recorder")

    def records(self, *, with_tools: bool) -> bool:
        return False

    def policy(
        self, key: str, models: Sequence[str] = (), *, content: bool = True, private_to: str = ""
    ) -> RecordPolicy:
        return NOT_KEPT


class NoSpans:
    """Exports no spans."""

    def use(self, config: Config) -> None:
        """Return no tracer."""
        if config.traces.endpoint is not None:
            raise BadEntry(("traces", "endpoint"), None, "this server has no recorder, which would send the spans")

    async def close(self) -> None:
        """Close nothing."""


class WithoutRecorder:
    """Builds what stands in for a recorder."""

    def recorder(self, config: Config, metrics: Metrics) -> NoRecorder:
        return NoRecorder()

    def rules(self, config: Config, recorder: object) -> NothingRecorded:
        if config.record.runs != "off" and "runs" in config.record.model_fields_set:
            raise BadEntry(("record", "runs"), None, "this server has no recorder: leave it out, or say `off`")
        return NothingRecorded()

    def spans(self, metrics: Metrics, recorder: object) -> NoSpans:
        return NoSpans()

    def news(self, recorder: object, publish: Callable[[str], Awaitable[bool]]) -> None:
        """Return no news: nothing is recorded that others could watch."""
