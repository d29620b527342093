"""The ports of recording: whoever records runs is put in behind them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from callgate.config.schema.whole import Config
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ChatEvent, Responder
from callgate.conversation.listeners import Listener
from callgate.conversation.ports import Message, TurnTexts
from callgate.conversation.prices import Price
from callgate.http.trace_context import Parent, Trace
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow
from callgate.telemetry.metrics import Metrics

RunTrace: TypeAlias = Trace
"""The trace of a run."""
PriceOf: TypeAlias = Callable[[Responder], Price | None]
"""Returns the price of a deployment, if it is known without a request to another server."""


def no_price(by: Responder) -> Price | None:
    return None


class Recording(Protocol):
    """What is recorded of one run, from its beginning."""

    row: RunRow
    policy: RecordPolicy
    is_listed: bool
    """False if it is recorded only for its spans."""
    began: float

    @property
    def has_texts(self) -> bool: ...

    def note(self, choice: int, event: ChatEvent) -> None:
        """Record an event that happens now."""
        ...

    def note_earlier(self, seconds: float, choice: int, event: ChatEvent) -> None:
        """Record an event that happened so many seconds after the run began."""
        ...

    def turn_texts(self, choice: int, history: Sequence[Message]) -> TurnTexts:
        """Return what keeps the texts of one choice's turns. `history`: the client's messages. Only for runs whose texts are kept."""
        ...

    def events_listener(self, choice: int) -> Listener:
        """Return the listener that records the events of one choice."""
        ...

    def keep_request(self, body: Callable[[], Mapping[str, Any]], bytes: int | None) -> None:
        """Keep what was asked, if the policy keeps texts; `body` returns it. `bytes`: how long it is, where all of it is in the
        client's own bytes, which nobody changes."""
        ...

    def keep_text(self, part: str, text: str) -> None:
        """Keep a text, if the policy keeps texts."""
        ...


class ChunkStream(Protocol):
    """Writes the chunks of a stream, which may have further fields."""

    def write(self, event: Any, /) -> bytes: ...

    def heartbeat(self, fields: Mapping[str, Any] | None = None, /) -> bytes: ...

    def error(self, error: ChatError) -> bytes: ...


class TracedStream(Protocol):
    """Writes a stream with the events of its run."""

    def write(self, event: Any, /) -> bytes: ...

    def heartbeat(self) -> bytes: ...

    def error(self, error: ChatError) -> bytes: ...


class Publisher(Protocol):
    """Tells whoever watches this process."""

    def publish(self, kind: str, facts: Any = None) -> None:
        """Send a message to all who watch. Thread-safe."""
        ...

    def end(self) -> None:
        """End all feeds, present and later ones."""
        ...


class RunRecorder(Protocol):
    """Records the runs of this process."""

    @property
    def watchers(self) -> Publisher: ...

    def begin(
        self, row: RunRow, policy: RecordPolicy, price: PriceOf = no_price, trace: Trace | None = None
    ) -> Recording:
        """Begin to record a run. With `runs="off"` it is recorded only for its spans, and is not listed."""
        ...

    def end(self, recording: Recording, *, state: str = "", status: int = 200, error: str = "") -> None:
        """End a run. `state` is used if the chat has no ending of its own."""
        ...

    def traced(self, stream: ChunkStream, run_id: str, price: PriceOf = no_price) -> TracedStream:
        """Return the stream with the events of its run in it, and the cost of each turn. Raises `ChatError` 400 where nobody reads them."""
        ...

    def open(self) -> None: ...

    async def close(self) -> None: ...


class RecordRules(Protocol):
    """What is recorded of requests."""

    @property
    def common_policy(self) -> RecordPolicy | None:
        """The policy of all requests; None where it depends on the key, the model or the request."""
        ...

    @property
    def keyless_policy(self) -> RecordPolicy | None:
        """The same for requests without a key."""
        ...

    def change(self, policy: RecordPolicy) -> None:
        """Change the policy of all requests."""
        ...

    def records(self, *, with_tools: bool) -> bool:
        """Return whether runs are recorded, from the beginning or only when they fail."""
        ...

    @property
    def keeps_of_keyless(self) -> bool:
        """Whether texts of requests without a key are kept in memory, for them alone."""
        ...

    def policy(
        self, key: str, models: Sequence[str] = (), *, content: bool = True, private_to: str = ""
    ) -> RecordPolicy:
        """Return what is recorded of a request with this key. `models`: the names of its model, as the client and as the config
        write it. `content`: false where the request wants no content stored. `private_to`: the owner for whom texts are kept in
        memory, where the config says nothing of them."""
        ...


class RequestTracer(Protocol):
    """Decides which requests are traced."""

    def begin(self, run_id: str, parent: Parent | None) -> Trace | None:
        """Return the trace of a run; None if it is not sampled and has no parent to pass on."""
        ...


class SpanExport(Protocol):
    """Exports the spans of requests; its queue stays across a reload."""

    def use(self, config: Config) -> RequestTracer | None:
        """Make the tracer of requests; None where spans are not exported."""
        ...

    async def close(self) -> None:
        """Send the queued spans, with a short timeout."""
        ...


class SharedNews(Protocol):
    """News of runs between the processes that share a Redis."""

    def watch(self) -> None:
        """Announce that a client watches here."""
        ...

    def on_message(self, what: str) -> None:
        """Handle a message of another process, or the notice that this one is subscribed."""
        ...

    async def close(self) -> None: ...


class RecorderParts(Protocol):
    """Builds what records runs."""

    def recorder(self, config: Config, metrics: Metrics) -> RunRecorder:
        """Build the recorder. Raises `BadEntry` where it cannot do what the config says."""
        ...

    def rules(self, config: Config, recorder: RunRecorder) -> RecordRules: ...

    def spans(self, metrics: Metrics, recorder: RunRecorder) -> SpanExport: ...

    def news(self, recorder: RunRecorder, publish: Callable[[str], Awaitable[bool]]) -> SharedNews | None:
        """`publish` sends a message to the other processes."""
        ...
