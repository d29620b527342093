"""The hook `sizes`: blocks what is too large."""

from collections.abc import Collection
from typing import Final

from callgate.conversation.events import Judgement
from callgate.guardrails.hook import Blocked, Guardrail
from callgate.guardrails.verdicts import PASS, Block, GuardEvent, Verdict

BYTES_PER_TOKEN: Final = 4


class Sizes:
    """The limits of the hook."""

    def __init__(self, max_bytes: int | None, max_tokens: int | None) -> None:
        limits = []
        if max_bytes is not None:
            limits.append(max_bytes)
        if max_tokens is not None:
            limits.append(max_tokens * BYTES_PER_TOKEN)
        self.most = min(limits)

    def reason(self) -> str:
        return f"it is larger than {self.most} bytes"

    async def check(self, event: GuardEvent) -> Verdict:
        if sum(map(size_of, event.texts)) > self.most:
            return Block(self.reason())
        return PASS


class SizeStretch:
    """One text that comes in pieces, of which nothing is held back."""

    def __init__(self, hook: Guardrail, sizes: Sizes) -> None:
        self._hook = hook
        self._sizes = sizes
        self._size = 0
        self.judgement: Judgement = "passed"
        self.kinds: Collection[str] = ()

    async def feed(self, text: str) -> str:
        self._size += size_of(text)
        if self._size > self._sizes.most:
            raise Blocked(self._hook.name, self._sizes.reason(), "blocked")
        return text

    async def finish(self) -> str:
        return ""


def size_of(text: str) -> int:
    if text.isascii():
        return len(text)
    return len(text.encode(errors="surrogatepass"))
