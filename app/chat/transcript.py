"""The history of a chat. `Transcript.after` is the only maker of history, so it is always well formed:
each call of an assistant message gets exactly one answer, right behind it, in the order of the calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.calls.outcome import Failed, Image, Outcome
from app.chat.ports import Message
from app.chat.turn import Turn


@dataclass(frozen=True, slots=True)
class Transcript:
    """All messages so far: the client's as it sent them, then ours."""

    messages: tuple[Message, ...]
    sees_images: bool = False
    """Whether the model takes images; if not, an image in a result is described in words."""

    def after(self, turn: Turn, answers: Mapping[str, Outcome]) -> "Transcript":
        """The history with this turn and an answer to each of its calls.

        A call that nobody answered is a mistake of ours and fails here, not at the provider.
        """
        outcomes = [answers[call.id] for call in turn.calls]
        made: list[Message] = [turn.assistant_message()]
        for call, outcome in zip(turn.calls, outcomes, strict=True):
            made.append({"role": "tool", "tool_call_id": call.id, "content": self._text_of(outcome)})
        images = [image for outcome in outcomes if not isinstance(outcome, Failed) for image in outcome.images]
        if images and self.sees_images:
            made.append(_show(images))
        return replace(self, messages=(*self.messages, *made))

    def saying(self, role: str, text: str) -> "Transcript":
        """The history with one more message of ours."""
        return replace(self, messages=(*self.messages, {"role": role, "content": text}))

    def _text_of(self, outcome: Outcome) -> str:
        if isinstance(outcome, Failed) or not outcome.images:
            return outcome.text
        words = "shown in the next message" if self.sees_images else "not shown, this model takes no images"
        kinds = ", ".join(image.mime_type for image in outcome.images)
        note = f"[{len(outcome.images)} image(s) ({kinds}): {words}]"
        return f"{outcome.text}\n{note}" if outcome.text else note


def _show(images: Sequence[Image]) -> dict[str, Any]:
    """Tool messages take text only, so images follow in a user message."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "Images returned by the tools above:"}]
    parts += [
        {"type": "image_url", "image_url": {"url": f"data:{image.mime_type};base64,{image.data}"}} for image in images
    ]
    return {"role": "user", "content": parts}
