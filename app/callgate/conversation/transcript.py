"""The history of a chat. Only `Transcript.after` adds to it, so that it is always well formed: each call of an assistant
message gets exactly one answer, directly behind it, in the order of the calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.conversation.events import HiddenTurns
from callgate.conversation.ports import Message
from callgate.conversation.turn import Turn

IMAGES = "Images returned by the tools above:"
GIVEN_BACK = frozenset({"role", "content", "tool_calls"})
"""The fields of an assistant message that every client sends back."""


class Transcript(msgspec.Struct, frozen=True, gc=False):
    """All messages so far: the client's as it sent them, then ours."""

    messages: Sequence[Message]
    sees_images: bool = False
    """Whether the model takes images; if not, an image in a result is mentioned in text."""
    own: tuple[dict[str, Any], ...] = ()
    """The messages at the end that we made."""

    def after(self, turn: Turn, answers: Mapping[str, Outcome]) -> "Transcript":
        """Return the history with this turn and an answer to each of its calls.

        A call without an answer is a bug and fails here, not at the provider.
        """
        round_ = [turn.assistant_message()]
        has_images = False
        for call in turn.calls:
            outcome = answers[call.id]
            round_.append(self._result(call.id, outcome))
            if type(outcome) is not Failed and outcome.images:
                has_images = True
        if has_images:
            round_ += self._images(answers[call.id] for call in turn.calls)
        return Transcript((*self.messages, *round_), self.sees_images, (*self.own, *round_))

    def edited(self, messages: Sequence[Message]) -> "Transcript":
        """Return the history with changed messages in the places of its own."""
        begin = len(messages) - len(self.own)
        own = tuple(message for message in messages[begin:] if isinstance(message, dict))
        return replace(self, messages=messages, own=own)

    def summarized(self, messages: Sequence[Message]) -> "Transcript":
        """Return a history that begins with a summary, in which nothing is hidden from the client."""
        return replace(self, messages=messages, own=())

    def hidden(self, turn: Turn, answers: Mapping[str, Outcome]) -> HiddenTurns | None:
        """Return what the client is not shown when it gets unanswered calls of this turn; None if there is nothing."""
        assistant = turn.assistant_message()
        ours = [call.id for call in turn.calls if call.id in answers]
        if not (self.own or ours or assistant.keys() - GIVEN_BACK):
            return None
        return HiddenTurns(
            before=self.own,
            assistant=assistant,
            results={id: self._result(id, answers[id]) for id in ours},
            after=tuple(self._images(answers[id] for id in ours)),
            ran=tuple(id for id in ours if not _was_not_run(answers[id])),
        )

    def _result(self, id: str, outcome: Outcome) -> dict[str, Any]:
        if type(outcome) is Failed or not outcome.images:
            text = outcome.text
        else:
            if self.sees_images:
                where = "shown in the next message"
            else:
                where = "not shown, this model takes no images"
            kinds = ", ".join(image.mime_type for image in outcome.images)
            note = f"[{len(outcome.images)} image(s) ({kinds}): {where}]"
            text = f"{outcome.text}\n{note}" if outcome.text else note
        return {"role": "tool", "tool_call_id": id, "content": text}

    def _images(self, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
        if not self.sees_images:
            return []
        images = [image for outcome in outcomes if type(outcome) is not Failed for image in outcome.images]
        if not images:
            return []
        # Tool messages take text only, so images follow in a user message.
        parts: list[dict[str, Any]] = [{"type": "text", "text": IMAGES}]
        parts += [
            {"type": "image_url", "image_url": {"url": f"data:{image.mime_type};base64,{image.data}"}}
            for image in images
        ]
        return [{"role": "user", "content": parts}]


def shows_images(message: Message) -> TypeGuard[dict[str, Any]]:
    """True for a message that shows the images of our tools."""
    if isinstance(message, msgspec.Raw) or message.get("role") != "user":
        return False
    match message.get("content"):
        case [{"type": "text", "text": text}, *_]:
            return bool(text == IMAGES)
        case _:
            return False


def _was_not_run(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.kind is FailureKind.NOT_RUN
