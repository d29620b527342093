"""Shows the trace of a run in its stream: fragments, verdicts and results as `x_callgate` fields of empty chunks.

For the page and for debugging: `X-Callgate-Events: trace`, with a key that may see runs.
"""

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from callgate.calls.outcome import Returned
from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    CallDelta,
    CallEnded,
    ChatEnded,
    ChatEvent,
    ModelOutput,
    ReasoningDelta,
    TextDelta,
)
from callgate.recorder.events import RECORDED, Mask, run_events
from callgate.recorder.private_texts import kept_texts
from callgate.recorder.recording import RunRecording
from callgate.records.policy import RecordPolicy
from callgate.records.ports import ChunkStream, PriceOf, no_price
from callgate.records.row import RunEvent, RunRow

RESULT_BYTES = 65_536
"""The limit of each text."""
IMAGE_CHARACTERS = 4 * 1024 * 1024
"""The limit of the images of one call, as they are written in a stream. Those beyond it are left out."""


class TraceWriter:
    """Writes a stream with the events of its run."""

    def __init__(self, inner: ChunkStream, row: RunRow, mask: Mask, price: PriceOf = no_price) -> None:
        self._inner = inner
        self._mask = mask
        self._recording = RunRecording(row, RecordPolicy(content_bytes=RESULT_BYTES), mask, price)
        self._held: list[RunEvent] = []
        """The events before the first content, until which an error can have its own status."""
        self._is_open = False

    def write(self, event: ChatEvent) -> bytes:
        self._held += self._read(event)
        self._is_open = self._is_open or isinstance(event, ModelOutput | ChatEnded)
        if not self._is_open:
            return self._inner.write(event)
        shown = self._held
        self._held = []
        if isinstance(event, ChatEnded):
            return self._shown(shown) + self._inner.write(event)
        return self._inner.write(event) + self._shown(shown)

    def heartbeat(self) -> bytes:
        return self._inner.heartbeat()

    def error(self, error: ChatError) -> bytes:
        shown = self._held
        self._held = []
        return self._shown(shown) + self._inner.error(error)

    def _shown(self, events: list[RunEvent]) -> bytes:
        if not events:
            return b""
        return self._inner.heartbeat({"x_callgate": {"trace": [msgspec.structs.asdict(event) for event in events]}})

    def _read(self, event: ChatEvent) -> Iterator[RunEvent]:
        recording = self._recording
        if isinstance(event, ModelOutput):
            yield from self._output(event, round(time.monotonic() - recording.began, 6))
            return
        if not isinstance(event, RECORDED):
            return
        recording.note(0, event)
        texts, _ = kept_texts(recording.all_texts(), RESULT_BYTES, self._mask)
        for run_event in run_events(recording, recording.happened):
            facts = dict(run_event.facts)
            if run_event.kind == "turn_ended":
                facts["calls"] = [
                    {**call, "arguments": texts.get(f"call.{call['id']}.arguments", "")} for call in facts["calls"]
                ]
            elif run_event.kind == "call_ended":
                facts["result"] = texts.get(f"call.{facts['id']}.result", "")
                if images := _images(event):
                    facts["images"] = images
            yield msgspec.structs.replace(run_event, facts=facts)
        recording.happened.clear()

    def _output(self, output: ModelOutput, at: float) -> Iterator[RunEvent]:
        characters = 0
        for event in output.events:
            if isinstance(event, TextDelta | ReasoningDelta):
                characters += len(event.text)
            elif isinstance(event, CallDelta):
                written = event.arguments
                facts: dict[str, Any] = {"index": event.index, "id": event.id, "name": event.name}
                facts["arguments"] = self._mask(written) if isinstance(written, str) else written
                yield RunEvent(at, "call_fragment", 0, output.turn, facts)
        if characters:
            yield RunEvent(at, "words", 0, output.turn, {"characters": characters})


def _images(event: ChatEvent) -> list[str]:
    """Return the images that a call returned, as addresses with the image in them."""
    images: list[str] = []
    if not isinstance(event, CallEnded) or not isinstance(event.outcome, Returned):
        return images
    left = IMAGE_CHARACTERS
    for image in event.outcome.images:
        left -= len(image.data)
        if left >= 0:
            images.append(f"data:{image.mime_type};base64,{image.data}")
    return images
