"""Fakes of our own ports: a model that answers as scripted, tools that do one thing each, a listener that records.

Nothing here stands for somebody else's library; what goes over a wire is `tests.scripted_upstream`'s.

    model = ScriptedModel(calls(("echo", {"text": "hi"})), says("done"))
    toolbox = ScriptedToolbox(echo=EchoTool())
    listener = Listener()
    await converse(ask_for("hello"), model, toolbox, listener, new_id=counter("call"))
    assert listener.text == "done"
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from callgate.calls.offer import OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.attempts import Attempts
from callgate.conversation.events import (
    CallDelta,
    CallEnded,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    Finished,
    ModelEvent,
    ModelOutput,
    TextDelta,
    TurnEnded,
)
from callgate.conversation.model_requests import as_model_request
from callgate.conversation.ports import (
    Begin,
    Model,
    ModelAnswer,
    ModelRequest,
    Passthrough,
    Plan,
    ProgressReport,
    Report,
    begin_at_once,
    hand_nothing,
)
from callgate.conversation.usage import Usage
from callgate.tools.executor import CallContext, Executor, Policy, Tool
from callgate.tools.schema import compile_schema

PATIENCE = 30.0
"""Seconds a wait may last before it fails the test."""
ANYTHING: Mapping[str, Any] = {"type": "object"}
_Event = TypeVar("_Event")

# Models ------------------------------------------------------------------------------------------

Step: TypeAlias = Sequence[ModelEvent] | asyncio.Event | BaseException
"""One step of a turn: a batch of events, a gate that must open first, or a failure. A failure that comes first is
raised instead of an answer, as a provider refuses; later it breaks the answer off."""
ScriptedTurn: TypeAlias = Sequence[Step]


@dataclass(slots=True, eq=False)
class Asking:
    """One question that the model was asked, and how the listening to its answer ended."""

    ask: ModelRequest
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    end: Literal["open", "read", "left", "cancelled", "failed"] = "open"
    """read: to its end; left: closed before; cancelled: closed because the listener was; failed: as scripted."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history as plain objects, the client's encoded messages too."""
        return [plain(message) for message in self.ask.messages]

    @property
    def tool_results(self) -> dict[str, str]:
        return {str(m["tool_call_id"]): str(m["content"]) for m in self.messages if m.get("role") == "tool"}


class ScriptedModel:
    """A `Model` that plays one scripted turn for each question. `asked` keeps what it was asked."""

    def __init__(
        self, *turns: ScriptedTurn, name: str = "scripted", reason_is_raw: bool = True, repeat_last: bool = False
    ) -> None:
        self.name = name
        self.asked: list[Asking] = []
        self._turns = turns
        self._reason_is_raw = reason_is_raw
        self._repeat_last = repeat_last
        self._arrival = asyncio.Event()

    async def wait(self, count: int = 1) -> Asking:
        """Waits until the model was asked so often, and gives the newest of these questions."""
        async with asyncio.timeout(PATIENCE):
            while len(self.asked) < count:
                await self._arrival.wait()
        return self.asked[count - 1]

    @asynccontextmanager
    async def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator["ScriptedAnswer"]:
        asking = Asking(as_model_request(request))
        turn = self._turn(len(self.asked))
        self.asked.append(asking)
        self._arrival.set()
        self._arrival = asyncio.Event()
        try:
            if turn and isinstance(turn[0], BaseException):
                raise turn[0]
            yield ScriptedAnswer(turn, asking, self._reason_is_raw)
        except asyncio.CancelledError:
            if asking.end == "open":
                asking.end = "cancelled"
            raise
        finally:
            if asking.end == "open":
                asking.end = "failed" if turn and isinstance(turn[0], BaseException) else "left"
            asking.closed.set()

    def _turn(self, at: int) -> ScriptedTurn:
        if at < len(self._turns):
            return self._turns[at]
        assert self._repeat_last, f"the model was asked {at + 1} times and has {len(self._turns)} turns"
        assert self._turns, "a model without turns has none to repeat"
        return self._turns[-1]


class AskedOnce:
    """A model without other ways to ask it, as a conversation asks it."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model

    def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        return self._model.send(request)


class ScriptedAnswer:
    """An `Answer` that plays the steps of a turn."""

    def __init__(self, turn: ScriptedTurn, asking: Asking, reason_is_raw: bool) -> None:
        self.reason_is_raw = reason_is_raw
        self.lane = "scripted"
        self._turn = turn
        self._asking = asking

    hand_to = hand_nothing

    async def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        for step in self._turn:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, BaseException):
                self._asking.end = "failed"
                raise step
            else:
                yield step
        self._asking.end = "read"


def says(
    text: str, *, finish: str | None = "stop", usage: Mapping[str, Any] | None = None, piece: int = 8
) -> list[Step]:
    """A turn of text, in pieces."""
    batches: list[Step] = [[TextDelta(text[at : at + piece])] for at in range(0, len(text), piece)]
    return [*batches, *_closing(finish, usage)]


def calls(
    *wanted: tuple[str, Mapping[str, Any] | str],
    text: str = "",
    finish: str | None = "tool_calls",
    usage: Mapping[str, Any] | None = None,
    ids: Sequence[str] | None = None,
    piece: int = 8,
) -> list[Step]:
    """A turn of native calls, in fragments. A dict is sent as its JSON text, a str as it is, however broken."""
    steps: list[Step] = [[TextDelta(text)]] if text else []
    for index, (name, arguments) in enumerate(wanted):
        call_id = ids[index] if ids is not None else f"call_{name}_{index}"
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        steps.append([CallDelta(index=index, id=call_id, name=name, arguments="")])
        parts = [written[at : at + piece] for at in range(0, len(written), piece)]
        steps += [[CallDelta(index=index, arguments=part)] for part in parts]
    return [*steps, *_closing(finish, usage)]


def after(gate: asyncio.Event, turn: ScriptedTurn) -> list[Step]:
    """The same turn, once the gate is open."""
    return [gate, *turn]


def broken_off(turn: ScriptedTurn, error: BaseException, keep: int) -> list[Step]:
    """The first steps of a turn, and then the error."""
    return [*turn[:keep], error]


def hangs() -> list[Step]:
    """A turn that never comes."""
    return [asyncio.Event()]


def _closing(finish: str | None, usage: Mapping[str, Any] | None) -> list[Step]:
    steps: list[Step] = [] if finish is None else [[Finished(finish)]]
    return steps if usage is None else [*steps, [Usage(usage)]]


# Tools -------------------------------------------------------------------------------------------


class EchoTool:
    """Answers with its arguments, as JSON."""

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        return Returned(json.dumps(call.arguments, ensure_ascii=False, sort_keys=True))


class AnsweringTool:
    """Answers with what it was given, one outcome for each call; the last one again and again."""

    def __init__(self, *outcomes: Outcome | str) -> None:
        assert outcomes, "a tool that answers needs an answer"
        self._outcomes = [Returned(one) if isinstance(one, str) else one for one in outcomes]
        self._played = 0

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        at = min(self._played, len(self._outcomes) - 1)
        self._played += 1
        return self._outcomes[at]


class FailingTool(AnsweringTool):
    """Returns the failure it was made with."""

    def __init__(self, text: str = "it did not work", kind: FailureKind = FailureKind.RAISED) -> None:
        super().__init__(Failed(text, kind))


class RaisingTool:
    """Breaks the protocol: it raises, as a bug of ours would."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        raise self._error


class HangingTool:
    """Never answers. Says when it was started and when it was cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError("nobody opens this gate")


class GatedTool:
    """Answers once its gate is open, with its arguments."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        self.started.set()
        await self.gate.wait()
        return Returned(json.dumps(call.arguments, sort_keys=True))


class ReportingTool:
    """Says how far it is, word by word, and then answers."""

    def __init__(self, *words: str) -> None:
        self._words = words

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        for done, word in enumerate(self._words, start=1):
            await occasion.report(ProgressReport(word, done / len(self._words)))
        return Returned("reported")


class CountingTool:
    """Wraps a tool and keeps count: which calls came, on what occasions, and how many ran at once."""

    def __init__(self, inner: Executor | None = None) -> None:
        self.calls: list[ReadyCall] = []
        self.occasions: list[CallContext] = []
        self.running = 0
        self.peak = 0
        self._inner = inner or EchoTool()
        self._arrival = asyncio.Event()

    async def execute(self, call: ReadyCall, occasion: CallContext) -> Outcome:
        self.calls.append(call)
        self.occasions.append(occasion)
        self.running += 1
        self.peak = max(self.peak, self.running)
        self._arrival.set()
        self._arrival = asyncio.Event()
        try:
            return await self._inner.execute(call, occasion)
        finally:
            self.running -= 1

    async def wait(self, count: int) -> None:
        """Waits until so many calls have come."""
        async with asyncio.timeout(PATIENCE):
            while len(self.calls) < count:
                await self._arrival.wait()


def tool(name: str, executor: Executor, parameters: Mapping[str, Any] = ANYTHING, policy: Policy | None = None) -> Tool:
    """A server-side tool around an executor, its schema compiled as in the product."""
    return Tool(name, f"A fake called {name}.", parameters, executor, compile_schema(parameters), policy or Policy())


@dataclass(frozen=True)
class NamedTool:
    """A tool as filters and approval rules see it: its name and its address."""

    name: str
    address: str = "config/x"

    @property
    def claimed(self) -> str:
        return self.name

    @property
    def contested(self) -> bool:
        return False


class FakeSource:
    """A `Source` that has these tools, and says whether it is open."""

    def __init__(self, *tools: Tool, name: str = "fake", fails: BaseException | None = None) -> None:
        self.name = name
        self.kind = "fake"
        self.state: Literal["new", "open", "closed"] = "new"
        self._tools = tools
        self._fails = fails

    async def open(self) -> None:
        if self._fails is not None:
            raise self._fails
        self.state = "open"

    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    async def close(self) -> None:
        self.state = "closed"


class ScriptedToolbox:
    """A `Toolbox` over executors, for tests of the loop: `ScriptedToolbox({"lookup"}, echo=EchoTool())`.

    The names in the set are the client's; every other tool is ours, and takes any object unless a schema is given.
    """

    def __init__(
        self, clients: set[str] | None = None, schemas: Mapping[str, Mapping[str, Any]] | None = None, **ours: Executor
    ) -> None:
        self._clients = clients or set()
        self._ours = ours
        self.ran: list[ReadyCall] = []
        given = {name: (schemas or {}).get(name, ANYTHING) for name in (*ours, *sorted(self._clients))}
        self.offer: Mapping[str, OfferedTool] = {
            name: OfferedTool(name, schema, compile_schema(schema) if name in ours else None)
            for name, schema in given.items()
        }
        self._definitions: Sequence[msgspec.Raw] = [
            encoded({"type": "function", "function": {"name": name, "parameters": dict(schema)}})
            for name, schema in given.items()
        ]

    def definitions(self) -> Sequence[msgspec.Raw]:
        return self._definitions

    def plan(self, settled: Sequence[Call]) -> Plan:
        theirs = tuple(call for call in settled if self.is_clients(call.name))
        rest = [call for call in settled if not self.is_clients(call.name)]
        return Plan(
            ours=tuple(call for call in rest if isinstance(call, ReadyCall)),
            theirs=theirs,
            broken=tuple(call for call in rest if isinstance(call, BrokenCall)),
        )

    def is_clients(self, name: str | None) -> bool:
        return name in self._clients

    def writes(self, call: ReadyCall) -> bool:
        return False

    def is_ordered(self, call: ReadyCall) -> bool:
        return self.writes(call)

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        await begin()
        self.ran.append(call)
        return await self._ours[call.name].execute(call, occasion(report))


def occasion(report: Report | None = None, **changes: Any) -> CallContext:
    """The circumstances of a run that does not care about them."""
    given = {"run_id": "run_1", "turn": 0, "key": "key_1", "report": report or silent, "max_bytes": 65_536, **changes}
    return CallContext(**given)


async def silent(progress: ProgressReport) -> None:
    """A progress report that goes nowhere."""


def ready(name: str = "echo", arguments: Mapping[str, Any] | None = None, call_id: str = "call_1") -> ReadyCall:
    """A call that came whole."""
    given = dict(arguments or {})
    return ReadyCall(call_id, name, given, json.dumps(given))


# Listeners ---------------------------------------------------------------------------------------


class Listener:
    """Records every event that the loop emits, and can be waited on."""

    def __init__(self, fail_on: type[Any] | None = None, error: BaseException | None = None) -> None:
        self.events: list[ChatEvent] = []
        self._arrival = asyncio.Event()
        self._fail_on = fail_on
        self._error = error

    async def __call__(self, event: ChatEvent) -> None:
        self.events.append(event)
        self._arrival.set()
        self._arrival = asyncio.Event()
        if self._fail_on is not None and self._error is not None and isinstance(event, self._fail_on):
            raise self._error

    def of(self, kind: type[_Event]) -> list[_Event]:
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(self, kind: type[_Event], count: int = 1) -> list[_Event]:
        """Waits until so many events of a kind were emitted."""
        try:
            async with asyncio.timeout(PATIENCE):
                while len(found := self.of(kind)) < count:
                    await self._arrival.wait()
        except TimeoutError:
            raise AssertionError(f"never received {count} {kind.__name__}; received {self.kinds}") from None
        return found

    @property
    def kinds(self) -> list[str]:
        """What happened, by name, pieces of answers left out."""
        return [type(event).__name__ for event in self.events if not isinstance(event, ModelOutput)]

    @property
    def model_events(self) -> list[ModelEvent]:
        """Everything the models did, batches joined."""
        return [event for batch in self.of(ModelOutput) for event in batch.events]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.model_events if isinstance(event, TextDelta))

    @property
    def turns(self) -> list[TurnEnded]:
        return self.of(TurnEnded)

    @property
    def started(self) -> list[str]:
        """The names of the calls that were started, in order."""
        return [event.call.name for event in self.of(CallStarted)]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What each call came to, by its id."""
        return {event.call.id: event.outcome for event in self.of(CallEnded)}

    @property
    def handed_back(self) -> tuple[Call, ...]:
        return tuple(call for event in self.of(CallsHandedBack) for call in event.calls)

    @property
    def ended(self) -> ChatEnded:
        """How the chat ended; it must have, exactly once and last."""
        [end] = self.of(ChatEnded)
        assert self.events[-1] is end, f"{type(self.events[-1]).__name__} was emitted after the end"
        return end


# Small makings -----------------------------------------------------------------------------------


def ask_for(text: str = "hello", **fields: Any) -> ModelRequest:
    """A question of one user message; the message is encoded, as it comes from a client."""
    return ModelRequest(messages=(encoded({"role": "user", "content": text}),), **fields)


def counter(word: str) -> Callable[[], str]:
    """Makes `word_1`, `word_2`, …"""
    numbers = itertools.count(1)
    return lambda: f"{word}_{next(numbers)}"


def encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def plain(message: msgspec.Raw | dict[str, Any]) -> dict[str, Any]:
    """A message of the history as an object, whichever of its two forms it has."""
    found: dict[str, Any] = msgspec.json.decode(message) if isinstance(message, msgspec.Raw) else message
    return found
