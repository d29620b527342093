"""Reads a whole answer of the usual form straight into its events: the fast twin of `read_completion` in `chunks`.

It equals the plain reading for every answer, or returns None. msgspec checks the form while it decodes, which takes a third of the
instructions of decoding all of it and looking at each field afterwards.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from callgate.conversation.call_assembly import MAX_CALLS
from callgate.conversation.events import CallWritten, Finished, ModelEvent, ProviderHead, TextDelta
from callgate.conversation.usage import Usage
from callgate.untrusted.readers import Text, json_reader


class _UsualFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _UsualCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A call without signatures, and of no custom tool."""

    function: _UsualFunction
    id: str | None = None
    type: Any = None
    index: Any = None


_Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)] | None


class _UsualMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message with text or calls. Of its other fields those that are often there, without a value."""

    content: str | None = None
    tool_calls: Annotated[list[_UsualCall], msgspec.Meta(max_length=MAX_CALLS)] | None = None
    role: Any = None
    refusal: None = None
    annotations: _Nothing = None
    audio: None = None
    function_call: None = None
    reasoning: None = None
    reasoning_content: None = None


class _UsualChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    message: _UsualMessage
    finish_reason: str | None = None
    index: Literal[0] = 0
    logprobs: None = None


class _UsualCompletion(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields that report no error."""

    object: Literal["chat.completion"]
    choices: Annotated[list[_UsualChoice], msgspec.Meta(min_length=1, max_length=1)]
    id: str | None = None
    model: str | None = None
    created: Any = None
    usage: dict[str, Any] | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    provider: Any = None
    obfuscation: Any = None


_completion: Final[Callable[[Text], _UsualCompletion]] = json_reader(_UsualCompletion)


def read_completion_fast(text: Text) -> list[ModelEvent] | None:
    """Return the events of an answer of the usual form, None of any other. A name that an object has twice is not noticed."""
    try:
        body = _completion(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    choice = body.choices[0]
    message = choice.message
    events: list[ModelEvent] = []
    if body.id or body.model:
        tier = body.service_tier or None
        events.append(ProviderHead(body.id or None, body.model or None, body.system_fingerprint or None, tier))
    if message.tool_calls:
        if message.content:
            return None  # which of them comes first is not seen here
        for call in message.tool_calls:
            function = call.function
            events.append(CallWritten(function.name or None, function.arguments, call.id))
    elif message.content:
        events.append(TextDelta(message.content))
    if choice.finish_reason:
        events.append(Finished(choice.finish_reason))
    if body.usage:
        events.append(Usage(body.usage))
    return events
