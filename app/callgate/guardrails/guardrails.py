"""The hooks of one reading of the config, and which of them look at a request."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.conversation.errors import ChatError
from callgate.conversation.events import GuardrailJudged
from callgate.guardrails.hook import Blocked, Guardrail
from callgate.guardrails.judge import ChatJudge, HooksAtPoints, Say
from callgate.guardrails.leaves import TooDeep, names_twice
from callgate.guardrails.request_texts import (
    NothingStandsForIt,
    NotWords,
    RequestTexts,
    Shown,
    check_changes,
)
from callgate.guardrails.verdicts import GuardEvent, Point
from callgate.untrusted.doors import Opened, written_here
from callgate.untrusted.readers import read_shape, read_value

LARGE: Final = 262_144
"""The size from which a body is read in a thread."""
REMEMBERED: Final = 1024
"""Models and keys whose hooks are remembered: clients may send any names."""
REMEMBERED_CHARS: Final = 512
"""The length of the names of a model up to which its hooks are."""
KEPT_OF_BLOCKED: Final[Sequence[str]] = ("model", "stream", "max_tokens", "background", "store")
"""The fields of a blocked request that its face reads, and that say nothing."""
WITHHELD: Final = "[held back by a guardrail]"
"""What stands for what the client of a blocked request said."""

_encode = msgspec.json.Encoder().encode


class JudgedBody(msgspec.Struct, frozen=True):
    """The body of a request as it goes on."""

    body: Opened
    verdicts: Sequence[GuardrailJudged] = ()
    blocked: Blocked | None = None


class Guardrails:
    """All hooks."""

    def __init__(self, hooks: Sequence[Guardrail], tell: Callable[[GuardrailJudged], None]) -> None:
        """`tell` hears what is judged where there is no chat."""
        self.hooks = hooks
        self.tell = tell
        self._chosen: dict[tuple[Collection[str], str], HooksAtPoints] = {}
        self.of_descriptions = self._at("description", hooks)

    def of(self, models: Collection[str], key: str) -> HooksAtPoints:
        """Return the hooks that look at the requests of a key to a model, by all its names."""
        place = (models, key)
        chosen = self._chosen.get(place)
        if chosen is None:
            hooks = [hook for hook in self.hooks if hook.scope.admits(models, key)]
            chosen = HooksAtPoints(
                request=self._at("request", hooks),
                answer=self._at("answer", hooks),
                arguments=self._at("arguments", hooks),
                result=self._at("result", hooks),
            )
            if sum(map(len, models)) <= REMEMBERED_CHARS:
                if len(self._chosen) >= REMEMBERED:
                    self._chosen.clear()
                self._chosen[place] = chosen
        return chosen

    def chat(self, hooks: HooksAtPoints, *, model: str, key: str, run_id: str, say: Say) -> ChatJudge:
        """Return what judges in one chat."""
        return ChatJudge(hooks, GuardEvent(point="answer", texts=(), model=model, key=key, run_id=run_id), say)

    async def body(self, hooks: HooksAtPoints, body: Opened, *, model: str, key: str) -> JudgedBody:
        """Judge what a client sent, before anything reads it."""
        verdicts: list[GuardrailJudged] = []

        async def keep(verdict: GuardrailJudged) -> None:
            verdicts.append(verdict)

        judge = ChatJudge(hooks, GuardEvent(point="request", texts=(), model=model, key=key), keep)
        try:
            fields = read_shape(body, dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return JudgedBody(body)  # no request, as its reader will say
        if len(body) > LARGE:
            is_ambiguous = await asyncio.to_thread(names_twice, body)
        else:
            is_ambiguous = names_twice(body)
        if is_ambiguous:
            # Readers differ in which of them counts: a hook would see the one, and a model the other.
            message = "An object of the request has a field twice, and a guardrail looks at requests."
            raise ChatError(400, message, code="duplicate_parameter")
        try:
            request = _texts_of(fields)
            texts = await self._judged(judge, request.shown)
        except Blocked as blocked:
            return JudgedBody(_without_texts(fields), verdicts, blocked)
        except TooDeep as error:
            unread = Blocked(hooks.request[0].name, str(error), "failed_closed")
            return JudgedBody(_without_texts(fields), verdicts, unread)
        if changed := request.fields_with(texts):
            return JudgedBody(_with(fields, changed), verdicts)
        return JudgedBody(body, verdicts)

    async def texts(self, hooks: HooksAtPoints, shown: Sequence[Shown], *, model: str, key: str) -> Sequence[str]:
        """Judge texts of a request that has no body of JSON; return what goes on. Raises `Blocked`."""

        async def say(verdict: GuardrailJudged) -> None:
            self.tell(verdict)

        return await self._judged(
            ChatJudge(hooks, GuardEvent(point="request", texts=(), model=model, key=key), say), shown
        )

    @staticmethod
    async def _judged(judge: ChatJudge, shown: Sequence[Shown]) -> Sequence[str]:
        texts: Sequence[str] = [text.text for text in shown]
        for hook in judge.hooks.request:
            texts = await judge.texts((hook,), replace(judge.about, texts=tuple(texts)))
            try:
                check_changes(shown, texts)
            except NothingStandsForIt as error:
                blocked = Blocked(hook.name, str(error), "blocked")
                await judge.blocked(blocked, "request")
                raise blocked from None
        return texts

    def _at(self, point: Point, hooks: Sequence[Guardrail]) -> tuple[Guardrail, ...]:
        return tuple(hook for hook in hooks if point in hook.points)


def _texts_of(fields: dict[str, msgspec.Raw]) -> RequestTexts:
    try:
        return RequestTexts({name: read_value(value) for name, value in fields.items()})
    except NotWords as error:
        raise ChatError(400, str(error), param=error.field, code="unsupported_value") from None


def _without_texts(fields: dict[str, msgspec.Raw]) -> Opened:
    """Return the body of a blocked request without what its client said, which nobody is to keep."""
    withheld = {"messages": [{"role": "user", "content": WITHHELD}], "input": WITHHELD}
    others = {name: fields[name] for name in KEPT_OF_BLOCKED if name in fields}
    return _with(others, {name: value for name, value in withheld.items() if name in fields})


def _with(fields: dict[str, msgspec.Raw], words: dict[str, Any]) -> Opened:
    return written_here(_encode({**fields, **{name: msgspec.Raw(_encode(value)) for name, value in words.items()}}))
