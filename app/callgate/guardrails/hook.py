"""A hook of the config: whose what it looks at, and its verdicts, which count by `on_error` where it has none."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog

from callgate.conversation.events import Judgement
from callgate.guardrails.verdicts import Block, Check, GuardEvent, Mask, Pass, Point
from callgate.tools.tool_filter import glob_matches

log = structlog.get_logger("callgate.guardrails")

NOT_JUDGED: Final = "it could not be checked"
"""What is said of what a hook blocks because it has no verdict."""
MAX_REASON: Final = 500
MOST_KINDS: Final = 20
MAX_KIND: Final = 64


class Stretch(Protocol):
    """One text that comes in pieces, in the hands of one hook. Raises `Blocked`."""

    @property
    def judgement(self) -> Judgement:
        """What came of it so far."""
        ...

    @property
    def kinds(self) -> Collection[str]:
        """What was noticed so far."""
        ...

    async def feed(self, text: str) -> str:
        """Take a piece; return what may go on."""
        ...

    async def finish(self) -> str:
        """Return what was held back."""
        ...


class Blocked(Exception):
    """Raised where something may not go on."""

    def __init__(self, hook: str, reason: str, judgement: Judgement, kinds: Sequence[str] = ()) -> None:
        super().__init__(f"blocked by the guardrail `{hook}`: {reason}")
        self.hook = hook
        self.reason = reason
        self.judgement: Judgement = judgement
        self.kinds = tuple(kinds)


class Judged(msgspec.Struct, frozen=True):
    """What came of a look: the texts that go on."""

    texts: Sequence[str]
    judgement: Judgement
    kinds: tuple[str, ...] = ()


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose requests and which tools a hook is for; None is all."""

    models: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    tools: Sequence[str] | None = None

    def admits(self, models: Collection[str], key: str) -> bool:
        """`models`: the names of the requested model; none where no model is asked, which every hook looks at."""
        if self.models is not None and models and not _any_matches(self.models, models):
            return False
        return self.keys is None or _any_matches(self.keys, (key,))

    def admits_tool(self, names: Collection[str]) -> bool:
        """`names`: all names that the tool has: what only may be meant is looked at."""
        return self.tools is None or _any_matches(self.tools, names)


class Guardrail(msgspec.Struct, frozen=True, kw_only=True):
    """One hook."""

    name: str
    points: frozenset[Point]
    check: Check
    scope: Scope = Scope()
    fails_open: bool = False
    seconds: float = 5.0
    hold: int = 256
    """Characters of a streamed text that it holds back at most."""

    async def judge(self, event: GuardEvent) -> Judged:
        """Return what goes on. Raises `Blocked`."""
        try:
            async with asyncio.timeout(self.seconds):
                verdict: Any = await self.check.check(event)
        except TimeoutError:
            return self._failed(event, f"no verdict after {self.seconds:g} s")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an operator's code, or his server's answer: anything may come
            return self._failed(event, type(error).__name__)
        return self._read(event, verdict)

    def _read(self, event: GuardEvent, verdict: Any) -> Judged:
        match verdict:
            case Pass():
                return Judged(event.texts, "passed")
            case Block(reason=str() as reason):
                raise Blocked(self.name, reason[:MAX_REASON], "blocked", _words(verdict.kinds))
            case Mask() if _are_texts(verdict.texts, len(event.texts)):
                if list(verdict.texts) == list(event.texts):
                    return Judged(event.texts, "passed")
                return Judged(tuple(verdict.texts), "masked", _words(verdict.kinds))
            case _:
                return self._failed(event, "what it returned is no verdict")

    def _failed(self, event: GuardEvent, why: str) -> Judged:
        log.warning("guardrail_failed", hook=self.name, point=event.point, reason=why, passes=self.fails_open)
        if self.fails_open:
            return Judged(event.texts, "failed_open")
        raise Blocked(self.name, NOT_JUDGED, "failed_closed")


def _are_texts(texts: Any, count: int) -> bool:
    if not isinstance(texts, list | tuple) or len(texts) != count:
        return False
    return all(isinstance(text, str) for text in texts)


def _words(kinds: Any) -> tuple[str, ...]:
    """Return the words for what was noticed, bounded: an author may write anything."""
    if not isinstance(kinds, list | tuple):
        return ()
    return tuple(dict.fromkeys(str(kind)[:MAX_KIND] for kind in kinds[:MOST_KINDS]))


def _any_matches(patterns: Sequence[str], names: Collection[str]) -> bool:
    return any(glob_matches(pattern, name) for pattern in patterns for name in names)
