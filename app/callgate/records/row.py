"""Defines what is recorded of one request: its row, events and texts."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from callgate.untrusted.doors import OWN_BYTES, Door

UNDER_WAY: Final = "under_way"
"""The state of a run that has not ended."""
STATES: Final = (
    *("answered", "handed_back", "turn_limit", "gave_up", "refused", "failed", "client_left", "cut_off", "stopped"),
    UNDER_WAY,
)
"""The states of a run."""
USUAL_STATES: Final = frozenset({"answered", "handed_back", UNDER_WAY})
"""A run in any other state is odd."""
RECORDED_TEXT: Final = Door(name="a recorded text", bytes=OWN_BYTES)
"""Texts of a recording that are JSON: a client, a model or a tool wrote them."""

WITHOUT_MODEL: Final = frozenset({"tool", "mcp"})
"""The routes of calls that no model made: of `/v1/tools/{name}/call`, and of MCP clients."""
NAME_CHARACTERS: Final = 64
"""The kept length of a tool's name. No offered tool has a longer one, but a model may invent names."""


class Kept(StrEnum):
    """Whether the texts of a run are kept, and why not."""

    NOTHING = "nothing"
    """`record.content` is off, or the request asked for none."""
    CONTENT = "content"
    MEMORY = "memory"
    """In memory alone, for the key of the request: the config does not say whether texts are kept."""
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
    """The API; one of `WITHOUT_MODEL` for a call of a tool that no model made."""
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
    note: str = ""
    """Why it ended so, where its state does not say it: `failed_turns`, `repeated_call`, …"""
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
    outcomes: Mapping[str, Mapping[str, int]] = {}
    """How often the calls of each tool ended in which way: `returned`, a kind of failure, `denied`, a flaw, `handed_back`, `not_run`."""
    question: str = ""
    """The beginning of what the user asked last, if texts are kept."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    tokens_cache_written: int = 0
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
    match = _WIRE.match(part)
    if match is None:
        return None
    return match[1]


class RunEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """An event of a run. Texts, arguments and results are not in it but in `RecordedRun.content`."""

    at: float
    """Seconds since the run began."""
    kind: str
    choice: int = 0
    turn: int | None = None
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)


class RecordedRun(msgspec.Struct, gc=False):
    """Everything that is recorded of one run. `content` has its texts by part: `request`, `turn.0.text`, `call.ID.arguments`, …"""

    row: RunRow
    events: Sequence[RunEvent] = ()
    content: Mapping[str, str] = msgspec.field(default_factory=dict)
