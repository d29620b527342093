"""The script of the upstream: what it answers. Values only: nothing here knows a socket or a provider's format.

A test writes `Reply` values and hands them to `Upstream.script`. A reply says what the model says; its `shape` says how
oddly that is put on the wire, its `pace` when, its `fault` where the transport or the provider fails, its `end` how a
streamed body closes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from tests.scripted_upstream.records import RequestRecord


class Derived(Enum):
    """Stands for a value worked out from the rest of the reply; None must stay free to mean "send none"."""

    DERIVED = "derived"


DERIVED: Literal[Derived.DERIVED] = Derived.DERIVED


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Call arguments that go on the wire as this JSON value, not as text: an object, a list, a number, null."""

    value: Any


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. A dict of arguments is sent as its compact JSON text, a str as it is, however broken."""

    name: str | None
    arguments: Mapping[str, Any] | str | Verbatim = field(default_factory=dict)
    id: str | None = None
    """None: one is made up, unique for the life of the upstream."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the call, such as a provider's signatures."""


# Where an answer goes wrong ----------------------------------------------------------------------
# `after` counts the events of a streamed body that are sent before; [DONE] is the last of them. None means that not
# even the response's head is sent. An answer that is sent whole fails half way through its body.


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is closed (FIN) with the body unfinished."""

    after: int | None = 0
    into: int = 0
    """So many bytes of the next event still go out: the cut can be inside a line, or inside a character."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (RST)."""

    after: int | None = 0


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing more comes. It ends when the client leaves or the upstream is closed."""

    after: int | None = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """An event whose JSON is broken off; the stream then goes on. Whole: a body that is broken JSON."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Misframed:
    """A chunk-size line that is no number: the HTTP framing itself is broken."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The provider reports an error inside a 200. In a stream nothing but the end of the body follows."""

    after: int = 0
    message: str = "scripted error inside the answer"
    code: str | int | None = "server_error"
    type: str = "server_error"
    named: bool = False
    """The event carries an `event: error` line, as some gateways send it."""


@dataclass(frozen=True, slots=True)
class Empty:
    """200 with no body at all."""


@dataclass(frozen=True, slots=True)
class Html:
    """200 with a web page, as a misconfigured gateway answers."""


Fault: TypeAlias = Cut | Reset | Hang | Malformed | Misframed | ErrorEvent | Empty | Html

End: TypeAlias = Literal["done", "no_done", "eof", "error", "linger"]
"""How a streamed body closes: `done` with [DONE]; `no_done` properly framed but without it; `eof` by closing a
connection that is the body's only frame, which a client cannot tell from a proper end; `error` by closing inside a
chunked body, which it can; `linger` with [DONE] but the body left open until the client goes."""


# How an answer looks and when it comes -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """How oddly an answer is put on the wire. The defaults are what OpenAI does."""

    piece: int = 8
    """Characters of text or arguments in one delta."""
    index: Literal["own", "none", "zero"] = "own"
    ids: Literal["own", "none", "same", "empty"] = "own"
    head_everywhere: bool = False
    """Id and name on every fragment of a call, not just the first."""
    name_split: bool = False
    one_chunk: bool = False
    """Each call whole in one delta."""
    all_in_one: bool = False
    """Everything, the finish reason included, in one single chunk."""
    interleave: bool = False
    """Fragments of parallel calls take turns."""
    finish_on_last: bool = False
    """The finish reason sits on the last delta that has content instead of a chunk of its own."""
    empty_choices: bool = False
    """A first chunk with `choices: []`, as Azure sends it."""
    role_everywhere: bool = False
    usage_everywhere: bool = False
    usage_unasked: bool = False
    split: Literal["no", "bytes", "characters"] = "no"
    """`bytes`: one byte at a time; `characters`: every event in two writes, cut inside a multi-byte character."""
    coalesce: bool = False
    """All events in one write."""
    crlf: bool = False
    comments: bool = False
    """A comment line before every event."""
    bare_colon: bool = False
    """`data:` without the space that is optional after it."""
    fields: bool = False
    """`event:`, `id:` and `retry:` lines around the data."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer stops after so many events until the gate is opened; None holds back the head as well."""

    gate: asyncio.Event
    after: int | None = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """When things are sent. Tests use `hold`; the seconds are for running the upstream by hand and for benchmarks."""

    hold: Hold | None = None
    before: float = 0.0
    between: float = 0.0


# The reply ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model, or of whatever stands before it."""

    text: str | None = None
    calls: Sequence[Call] = ()
    finish: str | Literal[Derived.DERIVED] | None = DERIVED
    usage: Mapping[str, Any] | Literal[Derived.DERIVED] | None = DERIVED
    reasoning: str | None = None
    refusal: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the assistant message; in a stream they ride on the first delta."""

    chunks: Sequence[Mapping[str, Any]] | None = None
    """Stream: these chunk objects and no others, as they are."""
    body: Any = None
    """Whole, or with a status other than 200: this body. bytes and str go out as they are, the rest as JSON."""

    end: End = "done"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    shape: Shape = Shape()
    pace: Pace = Pace()


Chooser: TypeAlias = Callable[["RequestRecord"], Reply]


class Script:
    """The answers of one scripted model, in the order in which requests arrive."""

    def __init__(self, answers: Sequence[Reply] | Chooser, *, repeat_last: bool = False, lax: bool = False) -> None:
        self._answers: Sequence[Reply] | Chooser = answers if callable(answers) else tuple(answers)
        self._repeat_last = repeat_last
        self.lax = lax
        """Message histories that OpenAI would refuse are taken."""
        self.played = 0

    def next(self, request: "RequestRecord") -> Reply | None:
        """The answer to this request, or None when the script has run out."""
        at = self.played
        self.played += 1
        if callable(self._answers):
            return self._answers(request)
        if at < len(self._answers):
            return self._answers[at]
        return self._answers[-1] if self._repeat_last and self._answers else None

    @property
    def left(self) -> int:
        """How many answers were never asked for; none for a script that chooses."""
        return 0 if callable(self._answers) else max(0, len(self._answers) - self.played)


def by_turn(replies: Sequence[Reply]) -> Chooser:
    """Chooses by how far the conversation is, so that conversations side by side do not take each other's answers."""

    def choose(request: "RequestRecord") -> Reply:
        return replies[min(request.turn, len(replies) - 1)]

    return choose
