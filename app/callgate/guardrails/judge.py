"""The hooks of one chat, at all points: what they judge goes to its listeners."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.calls.arguments import Fragments, encode_arguments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.offer import Offer
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import Call, ReadyCall, Wrapping
from callgate.conversation.events import GuardrailJudged, Judgement
from callgate.conversation.messages_api import BLOCKS, SIGNED
from callgate.conversation.response_items import ITEMS
from callgate.conversation.turn import Turn
from callgate.guardrails.hook import Blocked, Guardrail
from callgate.guardrails.leaves import TooDeep, texts_in, with_texts
from callgate.guardrails.verdicts import GuardEvent, Point
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import read_value

Say = Callable[[GuardrailJudged], Awaitable[None]]
NamesOf = Callable[[str], Collection[str]]
"""Returns all names of a tool, by the one that it has in the chat."""

_TEXT_OF_TURN: Final = (SIGNED, BLOCKS, ITEMS)
"""Fields of a turn that say again what its text, thinking and calls say, for the provider that they are from."""


class HooksAtPoints(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks that look at the requests of a key to a model."""

    request: tuple[Guardrail, ...] = ()
    answer: tuple[Guardrail, ...] = ()
    arguments: tuple[Guardrail, ...] = ()
    result: tuple[Guardrail, ...] = ()

    @property
    def looks_behind_requests(self) -> bool:
        """Whether any of them looks at what comes after the request."""
        return bool(self.answer or self.arguments or self.result)


class ChatJudge:
    """Judges what happens in one chat."""

    def __init__(self, hooks: HooksAtPoints, about: GuardEvent, say: Say) -> None:
        """`about`: what hooks are shown of the chat. `say` tells its listeners."""
        self.hooks = hooks
        self.about = about
        self.say = say
        self.turns = 0
        """How many turns have ended."""
        self.names_of: NamesOf = lambda name: (name,)
        self.is_masked = False
        """Something of this turn's answer was masked or left out."""
        self._checked: dict[str, ReadyCall] = {}
        """The calls whose arguments were judged, by their ids."""
        self._blocked: dict[str, Failed] = {}

    async def texts(
        self,
        hooks: Sequence[Guardrail],
        event: GuardEvent,
        *,
        call_id: str = "",
        tool_names: Collection[str] = (),
    ) -> Sequence[str]:
        """Have hooks judge texts one after the other; return what goes on. Raises `Blocked`."""
        for hook in hooks:
            if tool_names and not hook.scope.admits_tool(tool_names):
                continue
            try:
                judged = await hook.judge(event)
            except Blocked as blocked:
                await self.blocked(blocked, event.point, event.tool, call_id)
                raise
            await self.judged(hook.name, event.point, judged.judgement, judged.kinds, event.tool, call_id)
            event = replace(event, texts=judged.texts)
        return event.texts

    async def judged(
        self, hook: str, point: Point, verdict: Judgement, kinds: Sequence[str], tool: str = "", call_id: str = ""
    ) -> None:
        await self.say(
            GuardrailJudged(
                turn=self._turn_of(point),
                hook=hook,
                point=point,
                verdict=verdict,
                tool=tool,
                call_id=call_id,
                kinds=tuple(kinds),
            )
        )

    async def blocked(self, blocked: Blocked, point: Point, tool: str = "", call_id: str = "") -> None:
        await self.say(
            GuardrailJudged(
                turn=self._turn_of(point),
                hook=blocked.hook,
                point=point,
                verdict=blocked.judgement,
                tool=tool,
                call_id=call_id,
                kinds=blocked.kinds,
                reason=blocked.reason,
            )
        )

    def _turn_of(self, point: Point) -> int:
        """Return the turn that something belongs to: what comes before the end of a turn belongs to the next."""
        if point in ("request", "answer"):
            return self.turns
        return self.turns - 1

    # -- calls

    async def settled(self, turn: Turn, offer: Offer) -> Turn:
        """Return a turn whose calls were judged, and that says nothing a second time that was masked."""
        is_changed = self.is_masked
        self.turns += 1
        self._checked = {}
        self._blocked = {}
        calls: list[Call] = []
        for call in turn.calls:
            judged = call
            if isinstance(call, ReadyCall) and self.hooks.arguments:
                judged = await self._judged_call(call, offer)
            is_changed |= judged is not call
            calls.append(judged)
        self.is_masked = False
        if not is_changed:
            return turn
        fields = {name: value for name, value in turn.extra_fields.items() if name not in _TEXT_OF_TURN}
        return replace(turn, calls=tuple(calls), extra_fields=fields)

    def is_blocked(self, call: Call) -> bool:
        """Return whether a call of this turn was blocked."""
        return call.id in self._blocked

    async def before_run(self, call: ReadyCall, offer: Offer) -> ReadyCall | Failed:
        """Return a call as it may run, or why it may not. One of a turn was judged with it."""
        if call.id in self._blocked:
            return self._blocked[call.id]
        if not self.hooks.arguments or self._checked.get(call.id) is call:
            return call
        judged = await self._judged_call(call, offer)
        if not isinstance(judged, ReadyCall):
            return Failed("Not run: with what a guardrail masked it does not fit its schema.", FailureKind.NOT_RUN)
        return self._blocked.get(call.id, judged)

    async def _judged_call(self, call: ReadyCall, offer: Offer) -> Call:
        """Return the call as it goes on: with masked arguments, through the gate again, or without any where it is blocked."""
        names = self.names_of(call.name)
        try:
            leaves = [call.text]
            if not call.custom:
                leaves = texts_in(call.arguments)
            event = replace(
                self.about,
                point="arguments",
                texts=tuple(leaves),
                tool=call.name,
                call_id=call.id,
                arguments=call.text,
            )
            texts = await self.texts(self.hooks.arguments, event, call_id=call.id, tool_names=names)
        except Blocked as blocked:
            return self._not_run(call, str(blocked))
        except TooDeep as error:
            return self._not_run(call, str(error))
        judged: Call = call
        if list(texts) != leaves:
            judged = self._masked(call, texts, offer)
        if isinstance(judged, ReadyCall):
            self._checked[call.id] = judged
        return judged

    def _not_run(self, call: ReadyCall, why: str) -> ReadyCall:
        self._blocked[call.id] = Failed(f"Not run: {why}.", FailureKind.REFUSED)
        return _with_arguments(call, {}, "{}")

    def _masked(self, call: ReadyCall, texts: Sequence[str], offer: Offer) -> Call:
        if call.custom:
            return replace(call, text=texts[0])
        arguments = with_texts(call.arguments, texts)
        text = encode_arguments(arguments)
        written = Fragments()
        written.add(text)
        as_written = FoundCall(call.id, call.name, written)
        [judged] = settle([as_written], offer, failure=None, at_length=False, new_id=lambda: call.id)
        if isinstance(judged, ReadyCall):
            return _with_arguments(call, judged.arguments, text)
        if call.wrapping is None:
            return judged
        return replace(judged, wrapping=_wrapped(call, call.wrapping, arguments))

    # -- results

    def looks_at_results_of(self, names: Collection[str]) -> bool:
        """Return whether a hook looks at what a tool of these names returns."""
        return any(hook.scope.admits_tool(names) for hook in self.hooks.result)

    async def outcome(self, call: ReadyCall, outcome: Outcome, names: Collection[str]) -> Outcome:
        """Return the outcome of a call as the model may read it."""
        images: Sequence[str] = ()
        leaves: list[str] = []
        structured: Any = None
        try:
            if isinstance(outcome, Returned):
                images = [f"data:{image.mime_type};base64,{image.data}" for image in outcome.images]
                if outcome.structured is not None:
                    structured = read_value(outcome.structured)
                    leaves = texts_in(structured)
            event = replace(
                self.about,
                point="result",
                texts=(outcome.text, *leaves),
                tool=call.name,
                call_id=call.id,
                images=images,
            )
            texts = await self.texts(self.hooks.result, event, call_id=call.id, tool_names=names)
        except Blocked as blocked:
            return Failed(f"The result was held back, {blocked}.", FailureKind.REFUSED)
        except TooDeep as error:
            return Failed(f"The result was held back: {error}.", FailureKind.REFUSED)
        if texts[0] == outcome.text and list(texts[1:]) == leaves:
            return outcome
        outcome = replace(outcome, text=texts[0])
        if isinstance(outcome, Returned) and outcome.structured is not None:
            encoded = msgspec.json.encode(with_texts(structured, texts[1:]))
            outcome = replace(outcome, structured=msgspec.Raw(encoded))
        return outcome


def _with_arguments(call: ReadyCall, arguments: dict[str, Any], text: str) -> ReadyCall:
    wrapping = call.wrapping
    if wrapping is not None:
        wrapping = _wrapped(call, wrapping, arguments)
    return replace(call, arguments=arguments, text=text, wrapping=wrapping)


def _wrapped(call: ReadyCall, wrapping: Wrapping, arguments: dict[str, Any]) -> Wrapping:
    """Return the call of a bridge as it would be written for other arguments."""
    written = read_value(written_here(wrapping.text.encode()))
    name = call.name
    if isinstance(written, dict):
        name = written.get("name", name)
    return Wrapping(wrapping.name, encode_arguments({"name": name, "arguments": arguments}))
