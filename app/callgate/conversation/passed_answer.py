"""Whole answers that go to the client as their provider's bytes: `passed_answer_fast` asks for one, and tells of it in one event."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import msgspec

from callgate.conversation.attempts import Attempts
from callgate.conversation.events import AnswerPassed
from callgate.conversation.finish import finish_of_whole
from callgate.conversation.loop import CUT, passed_ending
from callgate.conversation.ports import Emit, ModelAnswer, ModelRequest, Passthrough, TurnModel
from callgate.conversation.preloaded_model import PreloadedAnswer


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
    return AnswerPassed(
        data=passed.data,
        ending=passed_ending(finish.winner, finish.unknown, takes_calls=request.takes_calls),
        reasons=finish.reasons,
        unknown_reasons=finish.unknown,
        is_cut=not finish.unknown and (is_unended or finish.winner in CUT),
        usage=usage,
        counts=None if usage is None else usage.counts(),
        seconds=clock() - attempts.began,
        first_seconds=first_seconds,
        lane=answer.lane,
        by=attempts.by,
        attempts=attempts.number,
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
