"""Takes calls out of a stream that is passed through, where calls are forbidden: OpenAI's chunks, and Anthropic's events."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from callgate.conversation.events import FORBIDDEN, NOT_RUN_SHOWN, CallNotRun, Finished
from callgate.conversation.finish import meaning_of
from callgate.conversation.finish_words import FinishClass
from callgate.http.event_stream import payloads_in
from callgate.models.direct.chunks import entries
from callgate.models.direct.model import read_json

_MARK = b"_call"
_CALLS = re.compile(rb'"(?:tool_calls|function_call)"\s*:\s*(?:\[\s*[^\]\s]|\{)')
"""Calls in an answer; not a field that is null or an empty list, which many servers send with every answer."""


def has_calls(data: bytes) -> bool:
    """True if an answer, or a part of it, has calls. The search for a few bytes that comes first costs next to nothing."""
    return data.find(_MARK) >= 0 and _CALLS.search(data) is not None


def says_calls(reasons: Sequence[Finished]) -> bool:
    """True if one of the finish reasons says that there are calls."""
    return any(meaning_of(reason).kind is FinishClass.TOOL_CALLS for reason in reasons)


class LeftOutCalls:
    """The calls that were taken out of one stream."""

    def __init__(self) -> None:
        self.calls: tuple[CallNotRun, ...] = ()
        """The first of them, as many as are ever shown."""
        self._seen: set[tuple[Any, Any, str]] = set()

    def take_from(self, payload: bytes) -> bytes | None:
        """Return a chunk without its calls, and with `stop` for a finish reason that says calls; None where nothing is left of it.
        A chunk that cannot be read is left out whole."""
        try:
            chunk = read_json(payload)
        except ValueError:
            return None
        if not isinstance(chunk, dict):
            return None
        has_more = bool(chunk.get("usage"))
        for choice in entries(chunk.get("choices")):
            for message in (choice.get("delta"), choice.get("message")):
                if isinstance(message, dict):
                    self._note(choice.get("index"), message)
                    has_more |= bool(message)
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and says_calls((Finished(reason),)):
                choice["finish_reason"] = "stop"
            has_more |= reason is not None
        if has_more:
            return json.dumps(chunk, separators=(",", ":")).encode()
        return None

    def _note(self, choice: Any, message: dict[str, Any]) -> None:
        """Take the calls out of a delta. A fragment without a name continues a call that was noted before."""
        for place, name in _named(message.pop("tool_calls", None), message.pop("function_call", None)):
            call = (str(choice), str(place), name)
            if call not in self._seen and len(self.calls) < NOT_RUN_SHOWN:
                self._seen.add(call)
                self.calls += (CallNotRun(name, FORBIDDEN),)


def _named(calls: Any, function: Any) -> Iterator[tuple[Any, str]]:
    for entry in entries(calls):
        for described in (entry.get("function"), entry.get("custom")):
            if isinstance(described, dict) and isinstance(described.get("name"), str) and described["name"]:
                yield entry.get("index"), described["name"]
    if isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]:
        yield None, function["name"]


class LeftOutBlocks:
    """The `tool_use` blocks that were taken out of one stream of Anthropic's."""

    MARK = b'"tool_use"'
    """Part of a stream with such a block, and of its end."""

    def __init__(self) -> None:
        self.calls: tuple[CallNotRun, ...] = ()
        """The first of them, as many as are ever shown."""
        self._places: set[int] = set()

    def are_in(self, data: bytes) -> bool:
        """True if events have such a block, or come behind one."""
        return bool(self._places) or self.MARK in data

    def take_from(self, data: bytes) -> bytes:
        """Return whole events without these blocks; the blocks behind them move up. An event that cannot be read is left out."""
        written: list[bytes] = []
        for payload in payloads_in(data):
            try:
                event = read_json(payload.data)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("type"), str) and self._stays(event):
                written.append(f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode())
        return b"".join(written)

    def _stays(self, event: dict[str, Any]) -> bool:
        """Give an event its new place; return False for one of a block that is taken out."""
        block = event.get("content_block")
        place = event.get("index")
        delta = event.get("delta")
        if isinstance(block, dict) and block.get("type") == "tool_use" and type(place) is int:
            self._places.add(place)
            if len(self.calls) < NOT_RUN_SHOWN:
                self.calls += (CallNotRun(str(block.get("name") or ""), FORBIDDEN),)
        if type(place) is int:
            event["index"] = place - sum(removed_place < place for removed_place in self._places)
        if event["type"] == "message_delta" and isinstance(delta, dict) and delta.get("stop_reason") == "tool_use":
            delta["stop_reason"] = "end_turn"
        return place not in self._places
