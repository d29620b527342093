"""Shows a text that comes in pieces to a hook that knows whole texts only.

It is shown windows that begin and end at places which only the text decides, and not how it was cut: so it says the same of it. Half
of a window goes on, and the other half is shown again with what follows, so that what is no longer than that half is seen whole.
"""

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from callgate.conversation.events import Judgement
from callgate.guardrails.hook import Guardrail
from callgate.guardrails.verdicts import GuardEvent

BEFORE: Final = 4_096
"""Characters of what the client has already that a hook is shown."""


class WindowStretch:
    """One text, shown in windows."""

    def __init__(self, hook: Guardrail, event: GuardEvent, *, is_whole: bool) -> None:
        """`event`: what is shown beside the text. `is_whole`: the text is shown once, at its end, because nobody waits for its
        beginning."""
        self._hook = hook
        self._event = event
        self._is_whole = is_whole
        self._held: list[str] = []
        self._text = ""
        self._before = ""
        self.kinds: Collection[str] = ()
        self.judgement: Judgement = "passed"

    async def feed(self, text: str) -> str:
        if self._is_whole:
            self._held.append(text)
            return ""
        self._text += text
        out = []
        while len(self._text) >= self._hook.hold:
            window = self._text[: self._hook.hold]
            following = self._text[self._hook.hold :]
            masked = await self._judged(window)
            half = max(len(masked) - self._hook.hold // 2, 0)
            out.append(self._let_go(masked[:half]))
            self._text = masked[half:] + following
        return "".join(out)

    async def finish(self) -> str:
        text = "".join(self._held) + self._text
        self._held = []
        self._text = ""
        if not text:
            return ""
        return self._let_go(await self._judged(text))

    async def _judged(self, text: str) -> str:
        judged = await self._hook.judge(replace(self._event, texts=(text,), before=self._before))
        if judged.judgement != "passed":
            if self.judgement != "masked":
                self.judgement = judged.judgement
            self.kinds = (*self.kinds, *judged.kinds)
        return judged.texts[0]

    def _let_go(self, text: str) -> str:
        self._before = (self._before + text)[-BEFORE:]
        return text
