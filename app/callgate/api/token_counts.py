"""Counts the tokens of a request within the limits of its key: some counts are made by the provider."""

from collections.abc import Mapping

import msgspec

from callgate.callers.caller import Caller
from callgate.conversation.events import ChatEnded, Ending, EndingKind, TurnStarted
from callgate.conversation.ports import ModelRequest
from callgate.conversation.usage import Usage
from callgate.runtime.route import Route
from callgate.runtime.runtime import Runtime

HEADER = "x-callgate-token-count"


class CountedTokens(msgspec.Struct, frozen=True, gc=False):
    """The number of tokens, and the headers of the response."""

    tokens: int
    headers: Mapping[str, str]


async def counted_tokens(
    runtime: Runtime, route: Route, caller: Caller, request: ModelRequest, size: int
) -> CountedTokens:
    """Count the tokens of a request whose body has `size` bytes. It counts as one request and its tokens, and costs nothing.
    Raises `OverLimit` where the key's limits or budgets are used up, before a provider is asked."""
    meter = runtime.counting_meter(caller, size)
    tally = meter.tally()
    async with meter:
        tally.handle(TurnStarted(0))
        count, is_estimate = await runtime.models.count_tokens(route.entry, request)
        tally.handle(ChatEnded(Ending(EndingKind.ANSWERED, "stop"), Usage({"prompt_tokens": count})))
    return CountedTokens(count, {HEADER: "estimate" if is_estimate else "exact", **meter.headers})
