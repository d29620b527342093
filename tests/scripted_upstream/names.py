"""Behaviour by model name, for running by hand and for fault matrices: `agent+cut@3`, `echo+429x2+retry=1`.

A name is a base (see `agent`) and modifiers, each joined with `+`; what stands before the last `/` is a provider's and
is ignored. A modifier nobody knows makes the model unknown, so that a typing error is seen.

    faults   STATUS[xN]   that status, the first N requests of this name only
             retry=S      retry-after on those
             cut[@N] reset[@N] hang[@N] malformed[@N] misframed[@N] errevent[@N] empty html noconn
             onlyturn=N   the fault and the finish below only on that turn of the conversation, from 0
    ends     nodone eof linger
    finish   stopfinish nullfinish length filter nocalls badargs emptyargs objargs nullargs dupcall
    shape    noindex index0 nullid sameid emptyid idall namesplit onechunk allinone interleave callcontent emptychoices
             roleall usageall nousage reasoning crlf comments bytes split coalesce fields chunk=N unicode
    timing   delay=S gap=S
    checks   lax
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.scripted_upstream.agent import BASES, answer
from tests.scripted_upstream.faces import arguments_of
from tests.scripted_upstream.records import RequestRecord
from tests.scripted_upstream.script import (
    Call,
    Cut,
    Empty,
    ErrorEvent,
    Fault,
    Hang,
    Html,
    Malformed,
    Misframed,
    Pace,
    Reply,
    Reset,
    Shape,
    Verbatim,
)

FAULTS: dict[str, Callable[[int | None], Fault]] = {
    "cut": lambda at: Cut(after=at or 0),
    "reset": lambda at: Reset(after=at or 0),
    "hang": lambda at: Hang(after=at),
    "malformed": lambda at: Malformed(after=at or 0),
    "misframed": lambda at: Misframed(after=at or 0),
    "errevent": lambda at: ErrorEvent(after=at or 0),
    "noconn": lambda _: Cut(after=None),
    "empty": lambda _: Empty(),
    "html": lambda _: Html(),
}

SHAPES: dict[str, dict[str, Any]] = {
    "noindex": {"index": "none"},
    "index0": {"index": "zero"},
    "nullid": {"ids": "none"},
    "sameid": {"ids": "same"},
    "emptyid": {"ids": "empty"},
    "idall": {"head_everywhere": True},
    "namesplit": {"name_split": True},
    "onechunk": {"one_chunk": True},
    "allinone": {"all_in_one": True},
    "interleave": {"interleave": True},
    "emptychoices": {"empty_choices": True},
    "roleall": {"role_everywhere": True},
    "usageall": {"usage_everywhere": True},
    "crlf": {"crlf": True},
    "comments": {"comments": True},
    "bytes": {"split": "bytes"},
    "split": {"split": "characters"},
    "coalesce": {"coalesce": True},
    "fields": {"fields": True},
}

ENDINGS: dict[str, Callable[[Reply], Reply]] = {
    "stopfinish": lambda reply: replace(reply, finish="stop"),
    "nullfinish": lambda reply: replace(reply, finish=None),
    "filter": lambda reply: replace(reply, finish="content_filter"),
    "length": lambda reply: replace(reply, finish="length", calls=[_shortened(call) for call in reply.calls]),
    "nocalls": lambda reply: replace(reply, calls=(), finish="tool_calls") if reply.calls else reply,
    "badargs": lambda reply: _with_arguments(reply, lambda _: '{"broken": tru'),
    "emptyargs": lambda reply: _with_arguments(reply, lambda given: "" if given == "{}" else given),
    "objargs": lambda reply: _with_arguments(reply, lambda _: None),
    "nullargs": lambda reply: _with_arguments(reply, lambda _: Verbatim(None)),
    "dupcall": lambda reply: replace(reply, calls=[*reply.calls, *reply.calls[:1]]),
}

ALWAYS: dict[str, Callable[[Reply], Reply]] = {
    "nodone": lambda reply: replace(reply, end="no_done"),
    "eof": lambda reply: replace(reply, end="eof"),
    "linger": lambda reply: replace(reply, end="linger"),
    "nousage": lambda reply: replace(reply, usage=None),
    "reasoning": lambda reply: replace(reply, reasoning="thinking about it"),
    "callcontent": lambda reply: replace(reply, text="Let me look that up.") if reply.calls else reply,
    "unicode": lambda reply: replace(reply, text=f"{reply.text} é你好\U0001f600 fin") if reply.text else reply,
}

NUMBERS = frozenset({"retry", "onlyturn", "delay", "gap", "chunk"})
FLAGS = {*SHAPES, *ENDINGS, *ALWAYS, "lax"}
STATUS = re.compile(r"([2-5]\d\d)(?:x(\d+))?")
PLACED = re.compile(r"([a-z]+)(?:@(\d+))?")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a model name asks for."""

    base: str
    flags: tuple[str, ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()
    fault: Fault | None = None
    status: int | None = None
    times: int | None = None

    @property
    def lax(self) -> bool:
        return "lax" in self.flags

    def reply(self, request: RequestRecord, seen: int) -> Reply:
        """The answer to a request, before which `seen` others for this name had come."""
        numbers = dict(self.numbers)
        reply = answer(self.base, request)
        for flag in self.flags:
            reply = ALWAYS.get(flag, _same)(reply)
        changes = {key: value for flag in self.flags for key, value in SHAPES.get(flag, {}).items()}
        shape = replace(Shape(piece=int(numbers.get("chunk", Shape().piece))), **changes)
        reply = replace(reply, shape=shape, pace=Pace(before=numbers.get("delay", 0), between=numbers.get("gap", 0)))
        if request.turn != numbers.get("onlyturn", request.turn):
            return reply
        for flag in self.flags:
            reply = ENDINGS.get(flag, _same)(reply)
        if self.status is not None and (self.times is None or seen < self.times):
            return _failing(self.status, numbers.get("retry"))
        return replace(reply, fault=self.fault)


def behaviour(name: str) -> Behaviour | None:
    """What a name means, or None when it means nothing."""
    base, *modifiers = name.rsplit("/", 1)[-1].split("+")
    if base not in BASES:
        return None
    found = Behaviour(base)
    for modifier in modifiers:
        more = _modified(found, modifier)
        if more is None:
            return None
        found = more
    return found


def _modified(found: Behaviour, modifier: str) -> Behaviour | None:
    if modifier in FLAGS:
        return replace(found, flags=(*found.flags, modifier))
    key, equals, value = modifier.partition("=")
    if equals and key in NUMBERS:
        return replace(found, numbers=(*found.numbers, (key, float(value))))
    if status := STATUS.fullmatch(modifier):
        return replace(found, status=int(status[1]), times=int(status[2]) if status[2] else None)
    placed = PLACED.fullmatch(modifier)
    if placed and placed[1] in FAULTS:
        return replace(found, fault=FAULTS[placed[1]](int(placed[2]) if placed[2] else None))
    return None


def _failing(status: int, retry_after: float | None) -> Reply:
    codes = {429: ("rate_limit_exceeded", "rate_limit_error"), 401: ("invalid_api_key", "authentication_error")}
    code, kind = codes.get(status, (None, "server_error" if status >= 500 else "invalid_request_error"))
    error = {"message": f"scripted {status}", "type": kind, "param": None, "code": code}
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return Reply(status=status, headers=headers, body={"error": error})


def _same(reply: Reply) -> Reply:
    return reply


def _shortened(call: Call) -> Call:
    text = str(arguments_of(call))
    return replace(call, arguments=text[: max(1, len(text) * 2 // 3)])


def _with_arguments(reply: Reply, change: Callable[[str], str | Verbatim | None]) -> Reply:
    """None from `change` keeps an object an object: it goes on the wire as one."""
    calls = []
    for call in reply.calls:
        changed = change(str(arguments_of(call)))
        calls.append(replace(call, arguments=Verbatim(call.arguments) if changed is None else changed))
    return replace(reply, calls=calls)
