"""What a hook is shown, and what it may say of it. For authors: `from callgate.guardrails.verdicts import Block, GuardEvent, Mask, Pass`."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

Point: TypeAlias = Literal["request", "answer", "arguments", "result", "description"]
"""Where a hook looks."""


class GuardEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a hook is shown."""

    point: Point
    texts: Sequence[str]
    """The texts to judge: all of a request, a piece of an answer, the texts in a call's arguments, a result, a description."""
    model: str = ""
    """The requested model; empty where no model is asked."""
    key: str = ""
    """The name of the key."""
    run_id: str = ""
    tool: str = ""
    """The tool, where it is about one."""
    call_id: str = ""
    arguments: str = ""
    """The arguments of a call, as JSON, where it is about a call."""
    before: str = ""
    """For a streamed answer: the end of what the client has of it already."""
    part: str = "text"
    """For an answer: `text`, `reasoning`, `refusal`, or the name of another field."""
    images: Sequence[str] = ()
    """The images of a result, as `data:` URLs."""


class Pass(msgspec.Struct, frozen=True):
    """Nothing is wrong."""


class Mask(msgspec.Struct, frozen=True):
    """These texts go on instead, as many as there were."""

    texts: Sequence[str]
    kinds: Sequence[str] = ()
    """What was masked, in a word each, for the run."""


class Block(msgspec.Struct, frozen=True):
    """It does not go on. The reason is told to whoever it was for: the client, or the model."""

    reason: str
    kinds: Sequence[str] = ()


Verdict: TypeAlias = Pass | Mask | Block
PASS = Pass()


class Check(Protocol):
    """A hook as its author writes it."""

    async def check(self, event: GuardEvent) -> Verdict: ...
