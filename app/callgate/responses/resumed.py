"""Resumes the stream of a response that another process had begun, after the last of its events.

The chat is replayed from its beginning with the stored turns, which open the same items. Only events and text that were not
sent before are sent. A turn that had not ended is asked again and may differ, so that its sent items are closed as
`incomplete` and are no part of the response.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import ChatEnded, ChatEvent, TurnStarted
from callgate.responses.output import OpenOutput, ResponseHead, ResponseWriter
from callgate.untrusted.doors import written_here
from callgate.untrusted.readers import read_value

ENDS: Final = tuple(f"event: response.{end}\n".encode() for end in ("completed", "incomplete", "failed"))
_NUMBER: Final = re.compile(rb'"sequence_number":(\d+)')
_PLACE: Final = ("output_index", "content_index", "summary_index", "annotation_index")
_decode = read_value


def events_in(data: bytes) -> list[bytes]:
    """Return the events of a response in a stream."""
    return [event + b"\n\n" for event in data.split(b"\n\n") if event.startswith(b"event: ")]


def number_of(event: bytes) -> int:
    match = _NUMBER.search(event)
    if match:
        return int(match[1])
    return -1


def fields_of(event: bytes) -> dict[str, Any]:
    """Return the data of an event."""
    fields: dict[str, Any] = _decode(written_here(event.partition(b"\ndata: ")[2]))
    return fields


class ResumedWriter(ResponseWriter):
    """Writes the events that follow those that were sent."""

    def __init__(
        self, head: ResponseHead, diagnosis: Diagnosis | None, events: Sequence[bytes], kept_turns: int
    ) -> None:
        """`kept_turns`: the number of stored turns."""
        super().__init__(head, diagnosis)
        self._number = number_of(events[-1]) + 1
        self._kept_turns = kept_turns
        self._sent: set[tuple[Any, ...]] = set()
        self._sent_text: dict[tuple[Any, ...], str] = {}
        self._said: dict[tuple[Any, ...], int] = {}
        """The length of each text so far in this replay."""
        self._done_items: dict[int, dict[str, Any]] = {}
        self._unclaimed: dict[int, dict[str, Any]] = {}
        """Sent items that no turn has opened again."""
        for event in events:
            self._note(fields_of(event))

    def _note(self, event: Mapping[str, Any]) -> None:
        if "output_index" not in event:
            return  # an event of the whole response
        key = _key(event["type"], event)
        index = event["output_index"]
        if event["type"].endswith(".delta"):
            self._sent_text[key] = self._sent_text.get(key, "") + event["delta"]
            return
        self._sent.add(key)
        if event["type"] == "response.output_item.added":
            # An unfinished item is no part of the response.
            self._items.append({"status": "in_progress"})
            self._turns.append(0)
            self._unclaimed[index] = event["item"]
        elif event["type"] == "response.output_item.done":
            self._done_items[index] = event["item"]

    def take(self, event: ChatEvent) -> None:
        if type(event) is TurnStarted and event.index >= self._kept_turns:
            self._close_unclaimed()
        super().take(event)

    def end(self, ended: ChatEnded) -> dict[str, Any]:
        self._close_unclaimed()
        return super().end(ended)

    def emit(self, type: str, fields: Mapping[str, Any]) -> None:
        if "output_index" in fields:
            key = _key(type, fields)
            if type.endswith(".delta"):
                if not (unsent := self._unsent(key, fields["delta"])):
                    return
                fields = {**fields, "delta": unsent}
            elif key in self._sent:
                return
        super().emit(type, fields)

    def emit_text(self, message: OpenOutput, text: str) -> None:
        key = ("response.output_text.delta", message.index, message.text_at, None, None)
        if unsent := self._unsent(key, text):
            super().emit_text(message, unsent)

    def _unsent(self, key: tuple[Any, ...], text: str) -> str:
        before = self._said.get(key, 0)
        self._said[key] = before + len(text)
        return text[max(0, len(self._sent_text.get(key, "")) - before) :]

    def _open(self, kind: str, item: dict[str, Any], more: str = "") -> OpenOutput:
        for index, earlier in self._unclaimed.items():
            if (earlier["type"], earlier.get("name")) == (item["type"], item.get("name")):
                del self._unclaimed[index]
                self._items[index] = {"id": earlier["id"], **item}
                return OpenOutput(self._items[index], index)
        return super()._open(kind, item, more)

    def _done(self, index: int) -> None:
        if index in self._done_items:
            self._items[index] = self._done_items[index]
        else:
            super()._done(index)

    def _close_unclaimed(self) -> None:
        unclaimed = self._unclaimed
        self._unclaimed = {}
        for index, item in unclaimed.items():
            if index in self._done_items:
                continue
            if item["type"] == "message":
                self._message = self._open_again(item, index)
                self._close_message("incomplete")
            elif item["type"] == "reasoning":
                self._thought = self._open_again({**item, "status": "incomplete"}, index)
                self._close_thought()
            else:
                self._items[index] = {**item, "status": "incomplete"}
                self._done(index)
            self._items[index] = {"status": "in_progress"}

    def _open_again(self, item: dict[str, Any], index: int) -> OpenOutput:
        """Return an item of an unfinished turn, with what was sent of it."""
        output = OpenOutput(item, index)
        self._items[index] = item
        for key, text in self._sent_text.items():
            if key[1] != index:
                continue
            if key[0] == "response.refusal.delta":
                output.refusal = text
                output.refusal_at = key[2]
            else:
                output.pieces = [text]
                output.text_at = key[2]
        for key in self._sent:
            if key[:2] == ("response.content_part.added", index) and output.refusal_at != key[2]:
                output.text_at = key[2]
        return output


def _key(type: str, fields: Mapping[str, Any]) -> tuple[Any, ...]:
    return (type, *map(fields.get, _PLACE))
