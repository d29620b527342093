"""A request that was judged: all that the loop and the lanes are given of it is made here."""

import msgspec

from callgate.api.chat_request import ChatRequest
from callgate.callers.caller import Caller
from callgate.conversation.ports import (
    NO_FIELDS,
    JudgedFields,
    LeaveOut,
    ModelRequest,
    Original,
    Passthrough,
    tell_nobody,
)
from callgate.policy.judge import judge_chat_fast, judge_named
from callgate.policy.litellm_settings import without_settings

_encode = msgspec.json.Encoder().encode


class JudgedRequest(msgspec.Struct, frozen=True):
    """A request that names only what it may."""

    request: ChatRequest
    fields: JudgedFields
    original: Original | None
    leave_out: LeaveOut = tell_nobody

    def params(self) -> JudgedFields:
        """Return the fields that are no attributes of a request."""
        return without_settings(self.request.other_fields())

    def for_model(self) -> ModelRequest:
        """Return the request for a model that reads it."""
        request = self.request
        return ModelRequest(
            request.read_history(),
            request.read_tools(),
            request.tools.choice,
            self.params(),
            request.delivery.stream,
            self.original,
            request.tools.takes_calls,
            leave_out=self.leave_out,
        )

    def passed_through(self) -> Passthrough:
        """Return the request for passing it through, without our own keys of the metadata."""
        request = self.request
        fields = self.fields
        if "metadata" in fields and self.original is None:
            metadata: dict[str, object] = {}
            if request.metadata:
                metadata["metadata"] = msgspec.Raw(_encode(request.metadata))
            fields = without_settings({name: fields[name] for name in fields if name != "metadata"} | metadata)
        delivery = request.delivery
        return Passthrough(
            fields,
            delivery.stream,
            delivery.include_usage,
            request.n,
            bool(request.outline.tools),
            self.for_model,
            self.original,
            request.tools.takes_calls,
        )


def judged_request(
    request: ChatRequest, caller: Caller, *, may_select: bool, leave_out: LeaveOut = tell_nobody
) -> JudgedRequest:
    """Return a request that names only what it may. Raises the `ChatError` for any other."""
    origin = request.origin
    original = origin.original
    if original is not None and not original.is_chat:
        fields = judge_named(request.named(), caller, may_select=may_select)
        return JudgedRequest(request, fields, original.judged(fields), leave_out)
    chat_fields = None
    if not origin.may_have_ids:
        chat_fields = judge_chat_fast(request.fields, caller)
    if chat_fields is None:
        chat_fields = judge_named(request.named(), caller, may_select=may_select)
    own = None if original is None else original.judged(NO_FIELDS)
    return JudgedRequest(request, chat_fields, own, leave_out)
