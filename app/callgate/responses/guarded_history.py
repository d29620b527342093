"""Has the hooks of the config judge what a response's request goes on from: it was stored by a request that they may not have looked at."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from callgate.api.guarded_bodies import judged_messages
from callgate.callers.caller import Caller
from callgate.responses.stored import ResponseInput
from callgate.runtime.runtime import Runtime
from callgate.state.responses import StoredResponse

OF_CLIENTS: Final = frozenset({"user", "system", "developer"})


async def judged_input(runtime: Runtime, caller: Caller, model: str, response_input: ResponseInput) -> ResponseInput:
    """Return an input as it goes on. Raises `ChatError` where hooks do not let it on."""
    if response_input.is_sent:
        return response_input  # judged with the body
    items = response_input.items
    given_items = response_input.given
    if not isinstance(items, str):
        judged = await judged_messages(runtime, caller, model, items)
        if items is given_items:
            given_items = judged
        items = judged
    parent = response_input.parent
    if parent is not None:
        parent = await _judged_parent(runtime, caller, model, parent)
    return replace(response_input, items=items, given=given_items, parent=parent)


async def _judged_parent(runtime: Runtime, caller: Caller, model: str, parent: StoredResponse) -> StoredResponse:
    """Return the previous response with the messages of its client as they go on. What models and tools said was judged when they
    said it."""
    places = [at for at, message in enumerate(parent.history) if message.get("role") in OF_CLIENTS]
    messages: Sequence[Any] = [parent.history[at] for at in places]
    judged = await judged_messages(runtime, caller, model, messages)
    if judged is messages:
        return parent
    history = [*parent.history]
    for at, message in zip(places, judged, strict=True):
        history[at] = message
    return replace(parent, history=history)
