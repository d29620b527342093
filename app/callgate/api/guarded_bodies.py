"""Has the hooks of the config judge the bodies of requests, before anything reads them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.api.middleware import RequestContext
from callgate.callers.caller import Caller
from callgate.conversation.errors import ChatError
from callgate.runtime.runtime import Runtime
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import json_reader

if TYPE_CHECKING:
    from callgate.guardrails.hook import Blocked


class _ModelNamed(msgspec.Struct):
    model: str = ""


_named = json_reader(_ModelNamed)


async def judged_body(
    runtime: Runtime, context: RequestContext, caller: Caller, body: Opened, model: str | None = None
) -> Opened:
    """Return the body as it goes on. What hooks say of it is noted in the context, for the run. `model`: where the path names
    it, and the body does not count."""
    guarding = runtime.guarding
    assert guarding is not None, "nobody asks where there are no hooks"
    if model is None:
        try:
            model = _named(body).model
        except msgspec.ValidationError:
            model = ""  # not every route reads the model: all hooks look
        except (msgspec.DecodeError, RecursionError):
            return body  # no request, as its reader will say
    judged = await guarding.body(model, caller, body)
    context.judged = judged.verdicts
    if judged.blocked is not None:
        context.blocked = blocked_request(judged.blocked)
    return judged.body


async def judged_texts(
    runtime: Runtime, caller: Caller, model: str, fields: Sequence[tuple[str, str]]
) -> Sequence[str]:
    """Return the texts of a form as they go on. Raises `ChatError` where hooks do not let it on."""
    guarding = runtime.guarding
    assert guarding is not None, "nobody asks where there are no hooks"
    with _blocked_is_refused():
        return await guarding.form(model, caller, fields)


async def judged_messages(runtime: Runtime, caller: Caller, model: str, messages: Sequence[Any]) -> Sequence[Any]:
    """Return messages or items that were stored as they go on; the same object where nothing of them is changed. Raises `ChatError` where
    hooks do not let them on."""
    guarding = runtime.guarding
    assert guarding is not None, "nobody asks where there are no hooks"
    with _blocked_is_refused():
        return await guarding.messages(model, caller, messages)


@contextmanager
def _blocked_is_refused() -> Iterator[None]:
    from callgate.guardrails.hook import Blocked  # imported where there are any

    try:
        yield
    except Blocked as blocked:
        raise blocked_request(blocked) from None


def check_not_blocked(runtime: Runtime, context: RequestContext) -> None:
    """Raise where a request was blocked that gets no run, in which its hooks could be heard."""
    if context.blocked is None:
        return
    if runtime.guarding is not None:
        for verdict in context.judged:
            runtime.guarding.tell(verdict)
    raise context.blocked


def blocked_request(blocked: "Blocked") -> ChatError:
    """Return the error of a request that hooks do not let on."""
    return ChatError(400, f"The request was {blocked}.", code="content_filter")
