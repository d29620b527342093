"""The hooks of one reading of the config, and which of them look at a request."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.conversation.events import GuardrailJudged
from callgate.guardrails.hook import Blocked, Guardrail
from callgate.guardrails.judge import ChatJudge, HooksAtPoints, Say
from callgate.guardrails.leaves import TooDeep, texts_in, with_texts
from callgate.guardrails.verdicts import GuardEvent, Point
from callgate.untrusted.doors import Opened, written_here
from callgate.untrusted.readers import read_shape, read_value

REMEMBERED: Final = 1024
"""Models and keys whose hooks are remembered: clients may send any names."""
REMEMBERED_CHARS: Final = 512
"""The length of the names of a model up to which its hooks are."""
SAID_BY_CLIENTS: Final = (
    *("messages", "input", "system", "instructions", "prompt", "prediction", "suffix"),
    *("documents", "query", "items"),
)
"""The fields of requests, of every API, with words for the model."""
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
        words = {name: read_value(fields[name]) for name in SAID_BY_CLIENTS if name in fields}
        try:
            leaves = texts_in(words, is_message=True)
            event = replace(judge.about, texts=tuple(leaves))
            texts = await judge.texts(hooks.request, event)
        except Blocked as blocked:
            return JudgedBody(_without_texts(fields), verdicts, blocked)
        except TooDeep as error:
            unread = Blocked(hooks.request[0].name, str(error), "failed_closed")
            return JudgedBody(_without_texts(fields), verdicts, unread)
        if list(texts) == leaves:
            return JudgedBody(body, verdicts)
        return JudgedBody(_with(fields, with_texts(words, texts, is_message=True)), verdicts)

    def _at(self, point: Point, hooks: Sequence[Guardrail]) -> tuple[Guardrail, ...]:
        return tuple(hook for hook in hooks if point in hook.points)


def _without_texts(fields: dict[str, msgspec.Raw]) -> Opened:
    """Return the body of a blocked request without what its client said, which nobody is to keep."""
    withheld = {"messages": [{"role": "user", "content": WITHHELD}], "input": WITHHELD}
    others = {name: value for name, value in fields.items() if name not in SAID_BY_CLIENTS}
    return _with(others, {name: value for name, value in withheld.items() if name in fields})


def _with(fields: dict[str, msgspec.Raw], words: dict[str, Any]) -> Opened:
    return written_here(_encode({**fields, **{name: msgspec.Raw(_encode(value)) for name, value in words.items()}}))
