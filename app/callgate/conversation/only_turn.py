"""Whole answers with which a chat ends at once. `passed_answer_fast` asks for one that goes to the client as its provider's bytes,
`read_answer_fast` for one of text, where tools are on offer; each returns what the loop would tell of it."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final

import msgspec

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import (
    AnswerPassed,
    ChatEnded,
    Ending,
    EndingKind,
    Finished,
    ModelEvent,
    ModelOutput,
    TextDelta,
    TurnAccount,
    TurnEnded,
)
from callgate.conversation.finish import finish_of_whole
from callgate.conversation.loop import CUT, passed_ending
from callgate.conversation.ports import Emit, ModelAnswer, ModelRequest, Passthrough, TurnModel, TurnTexts
from callgate.conversation.preloaded_model import PreloadedAnswer
from callgate.conversation.usage import Usage, add_usage
from callgate.conversation.whole_turn import NO_OFFER, whole_turn_fast

_ANSWERED: Final = Ending(EndingKind.ANSWERED, "stop")
_ANSWERED_IN_PART: Final = Ending(EndingKind.ANSWERED, "length")


async def passed_answer_fast(
    request: Passthrough, model: TurnModel, emit: Emit, clock: Callable[[], float] = time.monotonic
) -> "AnswerPassed | BegunModel":
    """Ask for the only turn of a request that is passed through and not streamed.

    The event that it returns equals what `converse` would emit, for every answer that goes on as its provider's bytes. Of any
    other it returns the model that has begun to answer, with which `converse` goes on. Failed attempts are emitted as ever.
    """
    attempts = Attempts(0, emit, began=clock())
    exchange = model.send(request, attempts)
    answer = await exchange.__aenter__()
    passed = None
    if type(answer) is PreloadedAnswer:
        passed = answer.passed()
    if passed is None:
        return BegunModel(_model=model, _exchange=exchange, _answer=answer, _attempts=attempts)
    first_seconds = clock() - attempts.began
    await exchange.__aexit__(None, None, None)
    finish = finish_of_whole(passed.reasons)
    is_unended = attempts.succeeded(gave_reason=bool(finish.reasons))
    usage = passed.usage
    is_cut = not finish.unknown and (is_unended or finish.winner in CUT)
    return AnswerPassed(
        passed.data,
        passed_ending(finish.winner, finish.unknown, takes_calls=request.takes_calls),
        finish.reasons,
        finish.unknown,
        is_cut,
        usage,
        None if usage is None else usage.counts(),
        clock() - attempts.began,
        first_seconds,
        answer.lane,
        attempts.by,
        attempts.number,
    )


class AnswerRead(msgspec.Struct, frozen=True, gc=False):
    """The events of a chat that ended with its first turn, in their order; `TurnStarted` came before them."""

    output: ModelOutput
    turn_ended: TurnEnded
    chat_ended: ChatEnded


async def read_answer_fast(
    request: ModelRequest,
    model: TurnModel,
    emit: Emit,
    texts: TurnTexts | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> "AnswerRead | BegunModel":
    """Ask for the first turn of a chat that is not streamed.

    The events that it returns equal those that `converse` would emit with `USUAL_RULES`, for every answer that was read to its end and is text
    with a usual finish reason. Of any other, such as one with calls, it returns the model that has begun to answer, with which
    `converse` goes on. Failed attempts are emitted as ever. `texts`: keeps what the model is sent and says.
    """
    attempts = Attempts(0, emit, began=clock())
    exchange = model.send(request if texts is None else texts.begin(request), attempts)
    try:
        answer = await exchange.__aenter__()
    except BaseException:
        if texts is not None:
            texts.end("", "")
        raise
    turn = None
    events: Sequence[ModelEvent] = ()
    if type(answer) is PreloadedAnswer and answer.reason_is_raw:
        events = answer.events
        turn = whole_turn_fast(events, NO_OFFER, 0)
    if turn is None:
        return BegunModel(_model=model, _exchange=exchange, _answer=answer, _attempts=attempts)
    first_seconds = clock() - attempts.began
    await exchange.__aexit__(None, None, None)
    if texts is not None:
        texts.end("".join(event.text for event in events if type(event) is TextDelta), "")
    attempts.succeeded(gave_reason=True)
    usage = turn.usage
    is_cut = turn.winner in CUT
    account = TurnAccount(
        reasons=turn.reasons,
        findings=(),
        run=(),
        handed_back=(),
        broken=(),
        usage=usage,
        seconds=clock() - attempts.began,
        lane=answer.lane,
        by=attempts.by,
        attempts=attempts.number,
        first_seconds=first_seconds,
        head=turn.head,
        is_cut=is_cut,
        counts=None if usage is None else usage.counts(),
    )
    return AnswerRead(
        ModelOutput(0, events),
        TurnEnded(0, account),
        ChatEnded(
            _ANSWERED_IN_PART if is_cut else _ANSWERED,
            add_usage((usage,)),
            request.messages,
            turn,
            () if usage is None else (usage,),
        ),
    )


class BegunModel(msgspec.Struct, eq=False, kw_only=True):
    """A model that was asked for a turn already, and has begun its answer. Asked for that turn, it gives this answer; asked again, it
    goes on with the next attempt."""

    _model: TurnModel
    _exchange: AbstractAsyncContextManager[ModelAnswer] | None
    _answer: ModelAnswer
    _attempts: Attempts

    @property
    def name(self) -> str:
        return self._model.name

    def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        exchange = self._exchange
        if exchange is None:
            return self._model.send(request, attempts)
        self._exchange = None
        if attempts is not None:
            attempts.chooser = self._attempts.chooser
            attempts.began = self._attempts.began
        return _BegunExchange(exchange, self._answer)

    async def abandoned(self) -> TurnEnded | None:
        """Close the answer where nobody has asked for it, and return what is known of its turn: its provider has counted it."""
        exchange = self._exchange
        if exchange is None:
            return None
        self._exchange = None
        await exchange.__aexit__(None, None, None)
        events: Sequence[ModelEvent] = ()
        if type(self._answer) is PreloadedAnswer:
            events = self._answer.events
        attempts = self._attempts
        reasons = tuple(event.reason for event in events if type(event) is Finished)
        attempts.succeeded(gave_reason=bool(reasons))
        usage = next((event for event in events if type(event) is Usage), None)
        account = TurnAccount(
            reasons=reasons,
            findings=(),
            run=(),
            handed_back=(),
            broken=(),
            usage=usage,
            seconds=time.monotonic() - attempts.began,
            lane=self._answer.lane,
            by=attempts.by,
            attempts=attempts.number,
            counts=None if usage is None else usage.counts(),
        )
        return TurnEnded(attempts.turn, account)


class BegunTurn(msgspec.Struct, frozen=True, gc=False):
    """The first turn of a chat whose model has begun to answer, but not with text alone."""

    request: ModelRequest
    texts: TurnTexts | None
    """Were told of the request, and wait for what was said."""
    model: BegunModel

    async def abandoned(self) -> TurnEnded | None:
        """Return the turn, where the chat failed before anybody has read the answer."""
        turn_ended = await self.model.abandoned()
        if turn_ended is not None and self.texts is not None:
            self.texts.end("", "")
        return turn_ended


class _BegunExchange(msgspec.Struct, eq=False):
    """The context manager of an answer that was begun outside of it."""

    exchange: AbstractAsyncContextManager[ModelAnswer]
    answer: ModelAnswer

    async def __aenter__(self) -> ModelAnswer:
        return self.answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self.exchange.__aexit__(kind, error, trace)
