"""Defines what is recorded of one request: its row, events and texts. Adds up usage."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from callgate.conversation.prices import NANO, Price

UNDER_WAY: Final = "under_way"
"""The state of a run that has not ended."""
USUAL_STATES: Final = frozenset({"answered", "handed_back", UNDER_WAY})
"""A run in any other state is odd."""


class Kept(StrEnum):
    """Whether the texts of a run are kept, and why not."""

    NOTHING = "nothing"
    """`record.content` is off, or the request asked for none."""
    CONTENT = "content"
    CUT = "cut"
    """A text was longer than `record.content_bytes`: such a run cannot be replayed."""
    AGED_OUT = "aged_out"
    """The texts were kept, and later removed to free space."""


class RunRow(msgspec.Struct, omit_defaults=True, gc=False):
    """One request in a list of runs."""

    id: str
    began: float
    """Seconds since 1970."""
    model: str = ""
    """The model of the request: a configured name, or one that a wildcard matches."""
    request_id: str = ""
    process: str = ""
    route: str = "chat"
    key: str = ""
    end_user: str = ""
    """A hash of the request's `user`."""
    deployment: str = ""
    """The deployment that answered the last turn."""
    stream: bool = False
    choices: int = 1
    state: str = UNDER_WAY
    """`answered`, `handed_back`, `turn_limit`, `gave_up`, `refused`, `failed`, `client_left`, `cut_off` or `under_way`."""
    status: int = 0
    finish_reason: str = ""
    error: str = ""
    seconds: float | None = None
    first_seconds: float | None = None
    """Seconds until the first content of the model."""
    turns: int = 0
    calls: int = 0
    failed_calls: int = 0
    broken_calls: int = 0
    attempts: int = 0
    findings: Sequence[str] = ()
    tools: Sequence[str] = ()
    """The tools that were called, including those of broken calls, each once."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    tokens_reasoning: int = 0
    cost: float | None = None
    """US dollars; null if no price is known."""
    trace_id: str = ""
    parent_span: str = ""
    """The span id of the request's sender, from its trace."""
    replay_of: str = ""
    kept: Kept = Kept.NOTHING

    @property
    def is_odd(self) -> bool:
        """True if the run ended unusually, or had a broken or failed call, or a retry."""
        return bool(
            self.state not in USUAL_STATES or self.broken_calls or self.failed_calls or self.attempts > self.turns
        )


_WIRE: Final = re.compile(r"(?:choice\.\d+\.)?wire\.(\d+)\.")


def wire_turn(part: str) -> str | None:
    """Return the turn of a text that is the raw body of a provider's response; None for all other texts."""
    found = _WIRE.match(part)
    return None if found is None else found[1]


class KeyUsage(msgspec.Struct):
    """The usage of one model by one key in a day."""

    day: str
    """`2026-11-18`, UTC."""
    key: str
    model: str
    requests: int = 0
    failed: int = 0
    """The requests that ended in an error."""
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    nano: int = 0
    """The known cost, in billionths of a dollar."""
    unpriced: int = 0
    """The requests with tokens of this model, whose price was not known."""
    unpriced_elsewhere: int = 0
    """The requests with tokens of a fallback whose price was not known."""
    priced_in: int = 0
    """All of `tokens_in` but those of this model without a price. Older versions counted no costs, and so none of them."""
    priced_out: int = 0

    def add(self, other: "KeyUsage") -> None:
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SHOWN: Final = ("requests", "failed", "calls", "tokens_in", "tokens_out")
COUNTED: Final = (*_SHOWN, "nano", "unpriced", "unpriced_elsewhere", "priced_in", "priced_out")


def grouped(used: Iterable[KeyUsage], by: str, prices: Mapping[str, Price | None]) -> list[dict[str, Any]]:
    """Add up usage by key, model or day. `cost` is the known cost in US dollars, and `unpriced_requests` the number of
    requests with tokens whose price is not known. `prices` are today's by model, for tokens that had none."""
    rows: dict[str, dict[str, Any]] = {}
    nanos: dict[str, int] = {}
    for each in used:
        name = getattr(each, by)
        row = rows.setdefault(name, dict.fromkeys((*_SHOWN, "unpriced_requests"), 0))
        for field in _SHOWN:
            row[field] += getattr(each, field)
        nano, unpriced = each.nano, each.unpriced_elsewhere
        tokens_in, tokens_out = each.tokens_in - each.priced_in, each.tokens_out - each.priced_out
        if tokens_in or tokens_out:
            price = prices.get(each.model)
            if price is None:
                unpriced += each.unpriced or max(each.requests - each.failed, 1)
            else:
                nano += price.of(tokens_in, tokens_out)
        row["unpriced_requests"] += unpriced
        nanos[name] = nanos.get(name, 0) + nano
    return [{"name": name, **row, "cost": nanos[name] / NANO} for name, row in sorted(rows.items())]


class RunEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """An event of a run. Texts, arguments and results are not in it but in `Recording.content`."""

    at: float
    """Seconds since the run began."""
    kind: str
    choice: int = 0
    turn: int | None = None
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Recording(msgspec.Struct, gc=False):
    """Everything that is recorded of one run. `content` has its texts by part: `request`, `turn.0.text`, `call.ID.arguments`, …"""

    row: RunRow
    events: Sequence[RunEvent] = ()
    content: Mapping[str, str] = msgspec.field(default_factory=dict)
