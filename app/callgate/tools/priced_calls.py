"""Charges calls of tools that cost something to the budget of whoever makes them, before they run."""

from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome, ResultFacts, Returned
from callgate.calls.states import ReadyCall
from callgate.tools.executor import CallContext, Executor


class PricedTool:
    """Runs calls by another executor once their price is charged. A call is charged once, whatever comes of it."""

    def __init__(self, executor: Executor, nano: int) -> None:
        """`nano`: the price of one call, in billionths of a dollar."""
        self._executor = executor
        self._nano = nano

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        if context.charge is not None:
            refusal = await context.charge(context.key, self._nano)
            if refusal is not None:
                return Failed(f"Not run: {refusal}", FailureKind.REFUSED)
        outcome = await self._executor.execute(call, context)
        if not isinstance(outcome, Returned):
            return outcome
        return replace(outcome, facts=replace(outcome.facts or ResultFacts(), nano=self._nano))
