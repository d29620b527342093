"""The hook `patterns`: masks or blocks what has a known shape, in whole texts and in pieces alike."""

import asyncio
from collections.abc import Collection, Sequence

from callgate.conversation.events import Judgement
from callgate.guardrails.hook import Blocked, Guardrail
from callgate.guardrails.scanner import Scanner
from callgate.guardrails.shapes import LABELS, SHAPES, TextShape
from callgate.guardrails.verdicts import PASS, Block, GuardEvent, Mask, Verdict

SLICE = 65_536
"""Characters that are searched at once."""
SMALL_SLICE = 1_024
"""The same where an expression of the operator's own is among what is looked for, which takes longer."""


class ShapeFound(Exception):
    """Raised at a match that blocks."""

    def __init__(self, shape: str) -> None:
        super().__init__(shape)
        self.shape = shape


class FoundOutsideStrings(ShapeFound):
    """Raised at a match in JSON that is no part of a string, so that nothing can stand for it."""


class PatternSearch:
    """What the hook looks for."""

    def __init__(self, names: Sequence[str], own: Sequence[TextShape] = (), *, blocks: bool = False) -> None:
        self.shapes = (*own, *(shape for name, shapes in SHAPES.items() if name in names for shape in shapes))
        self.blocks = blocks
        self.slice = SLICE
        if own:
            self.slice = SMALL_SLICE

    def window(self) -> int:
        """The most characters of a streamed text that are held back."""
        return max(shape.width for shape in self.shapes) + 1

    async def check(self, event: GuardEvent) -> Verdict:
        reaction = Masking(blocks=self.blocks)
        masked = []
        try:
            for text in event.texts:
                masked.append(await self._masked(text, reaction))
        except ShapeFound as match:
            return Block(reason_of(match.shape), kinds=[match.shape])
        if not reaction.kinds:
            return PASS
        return Mask(masked, kinds=[*reaction.kinds])

    async def _masked(self, text: str, reaction: "Masking") -> str:
        scanner = Scanner(self.shapes, reaction)
        pieces = []
        for start in range(0, len(text), self.slice):
            if start:
                await asyncio.sleep(0)  # others go on, and the time of the hook counts
            pieces.append(scanner.feed(text[start : start + self.slice]))
        pieces.append(scanner.finish())
        return "".join(pieces)


class Masking:
    """Replaces matches by the names of their shapes, and notes these."""

    def __init__(self, *, blocks: bool, is_json: bool = False) -> None:
        """`is_json`: the text is JSON, of which only strings can be masked."""
        self._blocks = blocks
        self._is_json = is_json
        self._is_in_string = False
        self._is_escaped = False
        self.kinds: dict[str, None] = {}

    def passed(self, text: str) -> None:
        if not self._is_json:
            return
        for character in text:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = self._is_in_string
            elif character == '"':
                self._is_in_string = not self._is_in_string

    def replaced(self, shape: str) -> str:
        self.kinds[shape] = None
        if self._blocks:
            raise ShapeFound(shape)
        if self._is_json and not self._is_in_string:
            raise FoundOutsideStrings(shape)
        return f"[{label_of(shape)}]"


class PatternStretch:
    """One text that comes in pieces."""

    def __init__(self, hook: Guardrail, patterns: PatternSearch, *, is_json: bool) -> None:
        self._hook = hook
        self._reaction = Masking(blocks=patterns.blocks, is_json=is_json)
        self._scanner = Scanner(patterns.shapes, self._reaction)
        self._slice = patterns.slice

    @property
    def judgement(self) -> Judgement:
        if self._reaction.kinds:
            return "masked"
        return "passed"

    @property
    def kinds(self) -> Collection[str]:
        return self._reaction.kinds

    async def feed(self, text: str) -> str:
        pieces = []
        try:
            for start in range(0, len(text), self._slice):
                if start:
                    await asyncio.sleep(0)
                pieces.append(self._scanner.feed(text[start : start + self._slice]))
        except ShapeFound as match:
            raise self._blocked(match) from None
        return "".join(pieces)

    async def finish(self) -> str:
        try:
            return self._scanner.finish()
        except ShapeFound as match:
            raise self._blocked(match) from None

    def _blocked(self, match: ShapeFound) -> Blocked:
        reason = reason_of(match.shape)
        if isinstance(match, FoundOutsideStrings):
            reason = f"{reason}, as a number in JSON, where nothing can stand for it"
        return Blocked(self._hook.name, reason, "blocked", (match.shape,))


def label_of(shape: str) -> str:
    return LABELS.get(shape, shape.upper())


def reason_of(shape: str) -> str:
    """Return in words what was found, and nothing of the match."""
    return f"it holds what looks like {label_of(shape)}"
