"""Wraps a model: what it says goes on as hooks let it, with a short tail held back in a stream.

Text, reasoning and refusal come in pieces, and each is judged as one text. What else an answer has, such as citations, is judged at its
end. Log probabilities spell out the words, and are left out.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec.structs import replace

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import (
    CallsNotAlone,
    ExtraField,
    Finished,
    Judgement,
    Logprobs,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.messages_api import CONTEXT
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, TurnModel, hand_nothing
from callgate.conversation.usage import Usage
from callgate.guardrails.hook import Blocked, Guardrail, Stretch
from callgate.guardrails.judge import ChatJudge
from callgate.guardrails.leaves import TooDeep, texts_in
from callgate.guardrails.patterns import PatternSearch, PatternStretch
from callgate.guardrails.sizes import Sizes, SizeStretch
from callgate.guardrails.verdicts import GuardEvent
from callgate.guardrails.windows import WindowStretch

TEXT: Final = "text"
REASONING: Final = "reasoning"
FILTERED: Final = "content_filter"
_UNREAD: Final = frozenset({CONTEXT})
"""Fields without anything that the model said."""
_WORST_FIRST: Final[Sequence[Judgement]] = ("masked", "failed_open", "passed")
_JSON_FORMATS: Final = (b"json_object", b"json_schema")


class GuardedModel:
    """A model whose answers are judged."""

    def __init__(self, inner: TurnModel, judge: ChatJudge) -> None:
        self.name = inner.name
        self._inner = inner
        self._judge = judge

    @asynccontextmanager
    async def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator[ModelAnswer]:
        request = replace(request, record_body=None)  # which would be recorded as it came
        is_json = isinstance(request, ModelRequest) and _wants_json(request)
        async with self._inner.send(request, attempts) as answer:
            yield _GuardedAnswer(answer, self._judge, is_whole=not request.stream, is_json=is_json)


def _wants_json(request: ModelRequest) -> bool:
    form = request.params.get("response_format")
    if isinstance(form, dict):
        return form.get("type") in ("json_object", "json_schema")
    return form is not None and any(name in bytes(form) for name in _JSON_FORMATS)


class AnswerNotes:
    """What each hook did in one answer."""

    def __init__(self) -> None:
        self._judgements: dict[str, Judgement] = {}
        self._kinds: dict[str, dict[str, None]] = {}

    def note(self, hook: str, judgement: Judgement, kinds: Sequence[str]) -> None:
        earlier = self._judgements.get(hook, "passed")
        self._judgements[hook] = min(earlier, judgement, key=_WORST_FIRST.index)
        self._kinds.setdefault(hook, {}).update(dict.fromkeys(kinds))

    def has_masked(self) -> bool:
        return "masked" in self._judgements.values()

    async def tell(self, judge: ChatJudge) -> None:
        """Tell of each hook once, and begin anew."""
        for hook in judge.hooks.answer:
            verdict = self._judgements.get(hook.name)
            if verdict is not None:
                await judge.judged(hook.name, "answer", verdict, tuple(self._kinds[hook.name]))
        self._judgements = {}
        self._kinds = {}


class _AnswerPart:
    """One text of an answer, which goes from hook to hook."""

    def __init__(self, hooks: Sequence[Guardrail], stretches: Sequence[Stretch], notes: AnswerNotes) -> None:
        self._hooks = hooks
        self._stretches = stretches
        self._notes = notes
        self.last: ModelEvent = TextDelta("")
        """The event of its last piece, whose form the next one gets."""

    async def feed(self, text: str) -> str:
        for stretch in self._stretches:
            text = await stretch.feed(text)
            if not text:
                break
        return text

    async def finish(self) -> str:
        text = ""
        for hook, stretch in zip(self._hooks, self._stretches, strict=True):
            if text:
                text = await stretch.feed(text)
            text += await stretch.finish()
            self._notes.note(hook.name, stretch.judgement, tuple(stretch.kinds))
        return text


class _GuardedAnswer:
    """One answer, batch by batch."""

    def __init__(self, inner: ModelAnswer, judge: ChatJudge, *, is_whole: bool, is_json: bool) -> None:
        self._inner = inner
        self._batches = aiter(inner)
        self._judge = judge
        self._hooks = judge.hooks.answer
        self._is_whole = is_whole
        self._is_json = is_json
        self._notes = AnswerNotes()
        self._parts: dict[str, _AnswerPart] = {}
        """The texts that are open, by their names."""
        self._thinking: list[ModelEvent] = []
        """A signed block of thinking, which is judged whole: a masked one has no valid signature."""
        self._aside: dict[str, list[ExtraField]] = {}
        """The other fields, by their names, which are judged at the end."""
        self._out: list[ModelEvent] = []
        self._has_ended = False

    @property
    def reason_is_raw(self) -> bool:
        return self._inner.reason_is_raw

    @property
    def lane(self) -> str:
        return self._inner.lane

    hand_to = hand_nothing

    def __aiter__(self) -> "_GuardedAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        while not self._has_ended:
            events: Sequence[ModelEvent] | None = None
            self._out = []
            try:
                events = await anext(self._batches, None)
                if events is None:
                    self._has_ended = True
                    await self._finish()
                else:
                    await self._take(events)
            except Blocked as blocked:
                await self._end(events or (), blocked)
            except TooDeep as error:
                await self._end(events or (), Blocked(self._hooks[0].name, str(error), "failed_closed"))
            if self._out:
                return self._out
        raise StopAsyncIteration

    async def _end(self, events: Sequence[ModelEvent], blocked: Blocked) -> None:
        """End the answer as a provider's filter would; its usage counts where it is known already."""
        self._has_ended = True
        self._judge.is_masked = True
        await self._judge.blocked(blocked, "answer")
        self._out += [event for event in events if isinstance(event, Usage) and event not in self._out]
        self._out.append(Finished(FILTERED))

    async def _take(self, events: Sequence[ModelEvent]) -> None:
        is_signed = any(isinstance(event, ThinkingBlock) for event in events)
        for event in events:
            match event:
                case TextDelta(text=text):
                    await self._end_thinking()
                    await self._end_part(REASONING)
                    await self._feed(TEXT, event, text)
                case ReasoningDelta(text=text) if not is_signed:
                    await self._feed(REASONING, event, text)
                case ReasoningDelta() | ThinkingBlock():
                    self._thinking.append(event)
                    if isinstance(event, ThinkingBlock) and event.block.get("signature"):
                        await self._end_thinking()
                case ExtraField(field=field, value=str() as text):
                    await self._feed(field, event, text)
                case ExtraField(field=field):
                    self._aside.setdefault(field, []).append(event)
                case Logprobs():
                    continue
                case CallsNotAlone(text=text):
                    await self._end_part(TEXT)
                    self._out.append(CallsNotAlone(await self._whole(TEXT, text)))
                case Finished():
                    await self._finish()
                    self._out.append(event)
                case _:
                    self._out.append(event)

    async def _feed(self, name: str, event: ModelEvent, text: str) -> None:
        part = self._parts.get(name)
        if part is None:
            stretches = [self._stretch(hook, name) for hook in self._hooks]
            part = self._parts[name] = _AnswerPart(self._hooks, stretches, self._notes)
        part.last = event
        self._add(event, await part.feed(text))

    def _add(self, event: ModelEvent, text: str) -> None:
        """Let a piece of text go on, in the form of an event."""
        if not text:
            return
        match event:
            case ExtraField():
                self._out.append(replace(event, value=text))
            case TextDelta() | ReasoningDelta():
                self._out.append(replace(event, text=text))

    def _stretch(self, hook: Guardrail, name: str) -> Stretch:
        check = hook.check
        if isinstance(check, PatternSearch):
            return PatternStretch(hook, check, is_json=self._is_json and name == TEXT)
        if isinstance(check, Sizes):
            return SizeStretch(hook, check)
        return WindowStretch(hook, self._event(name), is_whole=self._is_whole)

    def _event(self, name: str) -> GuardEvent:
        return replace(self._judge.about, point="answer", part=name)

    async def _end_part(self, name: str) -> None:
        part = self._parts.pop(name, None)
        if part is not None:
            self._add(part.last, await part.finish())

    async def _end_thinking(self) -> None:
        """Judge a signed block of thinking whole; one that is masked goes on without its signature."""
        events = self._thinking
        self._thinking = []
        thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        if not thought:
            blocks = [event.block for event in events if isinstance(event, ThinkingBlock)]
            thought = "".join(text for block in blocks if isinstance(text := block.get("thinking"), str))
        masked = await self._whole(REASONING, thought)
        if masked == thought:
            self._out += events
        elif masked:
            self._out.append(ReasoningDelta(masked, "thinking"))

    async def _finish(self) -> None:
        """Let go what is held, and tell what came of it."""
        await self._end_thinking()
        for name in (REASONING, *self._parts):
            await self._end_part(name)
        aside = self._aside
        self._aside = {}
        for field, events in aside.items():
            if field in _UNREAD or await self._is_clean(field, [event.value for event in events]):
                self._out += events
        self._judge.is_masked |= self._notes.has_masked()
        await self._notes.tell(self._judge)

    async def _is_clean(self, field: str, values: list[Any]) -> bool:
        """Return whether nothing of a field would be masked. It comes in pieces, which are judged together too."""
        leaves = texts_in(values, is_message=True)
        if not leaves:
            return True
        texts = ("".join(leaves), *leaves)
        return list(await self._judged(replace(self._event(field), texts=texts))) == list(texts)

    async def _whole(self, name: str, text: str) -> str:
        """Judge a text that is there at once."""
        if not text:
            return text
        (masked,) = await self._judged(replace(self._event(name), texts=(text,)))
        return masked

    async def _judged(self, event: GuardEvent) -> Sequence[str]:
        for hook in self._hooks:
            judged = await hook.judge(event)
            self._notes.note(hook.name, judged.judgement, judged.kinds)
            event = replace(event, texts=judged.texts)
        return event.texts
