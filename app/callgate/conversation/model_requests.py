"""Makes of a request what a model reads that is behind another API than its client's."""

import msgspec
from msgspec.structs import replace

from callgate.conversation.errors import ChatError, SeparateChoices
from callgate.conversation.messages_api import BLOCKS, CONTEXT, SIGNED
from callgate.conversation.ports import Message, ModelRequest, Passthrough
from callgate.untrusted.readers import read_shape


def as_model_request(
    request: ModelRequest | Passthrough, api: str = "chat", *, signed: bool = True, cache_marks: bool = False
) -> ModelRequest:
    """Return the request for a model that reads it and answers with one choice. Raises `SeparateChoices` where more are
    requested.

    A request of another API than the model's is converted to Chat Completions, or refused where that cannot express it.
    `signed`: whether the model's provider takes thinking with signatures; `cache_marks`: whether it takes cache marks in chats.
    """
    if not isinstance(request, ModelRequest):
        if request.n > 1:
            raise SeparateChoices
        request = replace(request.read(), record_body=request.record_body)
    if request.original is None or request.original.api == api:
        return request
    for where, kind in request.original.foreign:
        message = f"{where}: only a model behind Anthropic's own API understands `{kind[:64]}`, and this one is not"
        raise ChatError(400, message, param=where, code="unsupported_content")
    original = request.original
    unplaced = original.unplaced
    if cache_marks and not original.is_chat:
        from callgate.conversation.cache_marks import unplaced_beside_marks, with_marks  # for the few that take them

        request = with_marks(request, original)
        unplaced = unplaced_beside_marks(original)
    for name in unplaced:
        request.leave_out(name)
    if original.is_chat:
        return replace(request, original=None)
    messages = [_fit_for_chats(message, signed=signed) for message in request.messages]
    return replace(request, messages=messages, original=None)


def with_withheld(request: ModelRequest) -> ModelRequest:
    """Return the request with the tools that are withheld from this turn, of which none may be called."""
    if request.tools or not request.withheld:
        return request
    return replace(request, tools=request.withheld, tool_choice="none", withheld=())


def _fit_for_chats(message: Message, *, signed: bool) -> Message:
    """Remove what only Anthropic's API has. Signatures are valid only for the model that made them."""
    if isinstance(message, dict):
        dropped = {BLOCKS, CONTEXT}
        if BLOCKS in message or not signed:
            dropped.add(SIGNED)
        return {name: value for name, value in message.items() if name not in dropped}
    if signed or SIGNED.encode() not in bytes(message):
        return message
    fields = read_shape(message, dict[str, msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode({name: value for name, value in fields.items() if name != SIGNED}))
