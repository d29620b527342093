"""When a model's answer has begun. Until then nothing of it has been passed on and the turn may be asked again."""

from collections.abc import Sequence

from app.chat.events import AskedInWords, ChoiceIgnored, Head, ModelEvent, Usage


def is_said(event: ModelEvent) -> bool:
    """Whether this is part of an answer; an id, a role or a count may come before a failure and mean nothing."""
    return not isinstance(event, (Head, AskedInWords, Usage, ChoiceIgnored))


def has_begun(batch: Sequence[ModelEvent]) -> bool:
    return any(is_said(event) for event in batch)
