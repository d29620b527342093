"""Reads the answers of the Responses API into model events.

The arguments of a call are sent several times; where these differ the call is broken. Only the event that ends the response
ends the answer.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from callgate.calls.json_text import sound_text
from callgate.calls.states import Flaw
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from callgate.conversation.finish import finished
from callgate.conversation.finish_words import FinishClass, FinishWords
from callgate.conversation.response_items import ITEMS
from callgate.http.event_stream import ErrorEvent
from callgate.upstream.chunks import error_in, reason_in, whole_number
from callgate.upstream.direct_model import (
    TWICE,
    JsonEvents,
    WholeBody,
    has_duplicate_names,
    reported,
)
from callgate.upstream.translation import field_of

WORDS: Final = FinishWords(
    {FinishClass.LENGTH: "max_output_tokens max_tokens length", FinishClass.CONTENT_FILTER: "content_filter"},
    is_closed=True,
)
"""Why a response is incomplete. Its status, where that is another than is documented, is judged by the same list."""
CALLS: Final = frozenset({"function_call", "custom_tool_call"})
KEPT: Final = CALLS | {"message", "reasoning"}
"""Items that are sent back in the model's next turn. All others are of tools that its provider runs."""
PIECES: Final[Mapping[str, str]] = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
"""Events with pieces of a call's arguments, and the field with all of it in the last one."""
SUMMARIES: Final = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_summary.delta"})
THINKING: Final = frozenset({"response.reasoning_text.delta", "response.reasoning.delta"})
ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
FAILED: Final = frozenset({"failed", "cancelled", "in_progress", "queued"})
"""Statuses of a response that is over, or ought to be, and has not come to its end. Of any other we know nothing."""
STATUSES: Final = {
    "server_error": 500,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "context_length_exceeded": 400,
}
OF_REQUESTS: Final = ("invalid_", "image_", "unsupported_", "empty_image", "failed_to_download")
"""HTTP statuses for the codes of failed responses, and prefixes of codes for client errors."""


class _Open:
    """A call that is being written."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        self.id, self.name = _id(item), item.get("name")
        item_id = item.get("id")
        self.item_id = item_id if isinstance(item_id, str) else None
        self.pieces: list[str] = []
        self.checked = ""
        """The whole arguments, as an event had them."""
        self.is_over = False
        """An event said that it is complete."""


class ResponseEvents(JsonEvents):
    """Reads a stream of events. Only the event that ends the response ends the answer, not the end mark after it."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self._by = by
        self._calls: dict[int, _Open] = {}
        self._said: set[tuple[int | None, int | None]] = set()
        """The parts of messages of which text has come."""
        self._message: int | None = None
        """The index of the current message."""
        self._thought: tuple[str, object, object] | None = None
        """The kind of thinking that is emitted, and the part that was emitted last."""
        self._has_head = False

    def _read_payload(self, payload: bytes, event: Any) -> Sequence[ModelEvent]:
        is_end = bool(self._calls) and isinstance(event, dict) and _kind(event) in ENDS
        if (is_end or _is_about_calls(payload)) and has_duplicate_names(payload):
            self.fault = TWICE
            return ()
        if not isinstance(event, dict):
            # No part of an answer; it may be an error.
            return reported(payload) if type(payload) is ErrorEvent else self._chunks.read(event)
        found = self._read_event(event)
        # The failure of one of the provider's tools is no failure of the answer.
        is_ours = str(event.get("type")).startswith("response.")
        return found if found or is_ours or type(payload) is not ErrorEvent else reported(payload)

    def _read_event(self, event: dict[str, Any]) -> list[ModelEvent]:
        kind = _kind(event)
        if not kind.startswith("response."):
            error = error_in(event)
            return [] if error is None else [_failed(event.get("error") or event)]
        if kind in ENDS:
            return self._ended(event.get("response"), kind.rpartition(".")[2])
        if event.get("error") or "error" in kind:
            return [_failed(event.get("error") or event)]
        at = whole_number(event.get("output_index"))
        if kind in ("response.created", "response.in_progress", "response.queued"):
            return self._head(event.get("response"))
        about, _, what = kind.rpartition(".")
        if about in PIECES:
            given = event.get("delta") if what == "delta" else event.get(PIECES[about])
            return self._piece(at, given) if what == "delta" else self._check(at, given)
        if kind == "response.output_text.delta":
            return self._text(at, event)
        if kind == "response.refusal.delta" and isinstance(delta := event.get("delta"), str):
            self._said.add((at, None))
            return [ExtraField("refusal", sound_text(delta))]
        if kind in SUMMARIES or kind in THINKING:
            return self._think(kind, at, event)
        if kind == "response.output_text.annotation.added":
            return [ExtraField("annotations", list(_annotations([event.get("annotation")])))]
        item = event.get("item")
        if kind == "response.output_item.added" and isinstance(item, dict):
            return self._begun(at, item)
        if kind == "response.output_item.done" and isinstance(item, dict):
            return self._item(at, item)
        return []

    def _head(self, response: Any) -> list[ModelEvent]:
        if self._has_head or not isinstance(response, dict):
            return []
        self._has_head = True
        return [head_of(response)]

    def _text(self, at: int | None, event: Mapping[str, Any]) -> list[ModelEvent]:
        delta, logprobs = event.get("delta"), event.get("logprobs")
        if not isinstance(delta, str):
            return []
        between = self._goes_on(at)
        self._said.add((at, None))
        events = [*between, *self._chunks.read({"choices": [{"delta": {"content": delta}}]})]
        if isinstance(logprobs, list) and logprobs:
            events.append(Logprobs({"content": logprobs}))
        return events

    def _goes_on(self, at: int | None) -> list[ModelEvent]:
        """Go on to the message at a place; return the separator before it."""
        before, self._message = self._message, at
        return [TextDelta("\n\n")] if before is not None and at != before else []

    def _think(self, kind: str, at: int | None, event: Mapping[str, Any]) -> list[ModelEvent]:
        delta = event.get("delta")
        if not isinstance(delta, str) or not delta:
            return []
        shown = "summary" if kind in SUMMARIES else "text"
        place = (shown, at, event.get("summary_index", event.get("content_index")))
        before = self._thought
        if before is not None and before[0] != shown:
            return []  # providers that send both kinds send the same text twice
        self._thought = place
        between = "\n\n" if before is not None and before != place else ""
        return [ReasoningDelta(between + sound_text(delta))]

    # -- items

    def _begun(self, at: int | None, item: Mapping[str, Any]) -> list[ModelEvent]:
        if _kind(item) not in CALLS:
            return []
        if at is None or at in self._calls:
            return self._breaks("an item has no place of its own")
        self._calls[at] = _Open(item)
        name = item.get("name")
        custom = item["type"] == "custom_tool_call"
        return [CallDelta(at, _id(item), name if isinstance(name, str) and name else None, custom=custom)]

    def _piece(self, at: int | None, given: Any) -> list[ModelEvent]:
        call = None if at is None else self._calls.get(at)
        if call is None or at is None:
            return self._breaks("a piece belongs to no call")
        if isinstance(given, str):
            call.pieces.append(given)
        return [CallDelta(at, arguments=given if isinstance(given, str) else [given])]

    def _check(self, at: int | None, given: Any) -> list[ModelEvent]:
        """Compare the pieces of a call with its whole arguments. Where they differ the call is broken."""
        call = None if at is None else self._calls.get(at)
        if call is None or at is None:
            return self._breaks("a text belongs to no call")
        call.is_over = True
        if given is None or given == "":
            return []
        if not isinstance(given, str):
            return [CallDelta(at, arguments=[given])]
        came, call.pieces = "".join(call.pieces) or call.checked, []
        call.checked = came or given
        if not came:
            return [CallDelta(at, arguments=given)]
        return [] if came == given else [CallDelta(at, arguments=[given])]

    def _item(self, at: int | None, item: dict[str, Any]) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        kind = _kind(item)
        if kind in CALLS:
            if at is not None and at not in self._calls:
                events += self._begun(at, item)
            events += self._whole_call(at, item)
        elif kind == "message" and (at, None) not in self._said:
            self._said.add((at, None))
            events += [*self._goes_on(at), *_spoken(item)]
        if kind in KEPT:
            events.append(ExtraField(ITEMS, [{"by": self._by, "item": item}]))
        return events

    def _whole_call(self, at: int | None, item: Mapping[str, Any]) -> list[ModelEvent]:
        """Read the whole item of a call whose pieces have come."""
        call = None if at is None else self._calls.get(at)
        events = self._check(at, item.get("input" if item.get("type") == "custom_tool_call" else "arguments"))
        if call is None:
            return events
        if _is_partly(item):
            events.append(CallDelta(at, arguments=[{"status": item["status"]}]))
        if item.get("name") not in (None, call.name):
            events.append(CallDelta(at, arguments=[{"name": item["name"]}]))
        return events

    def _breaks(self, why: str) -> list[ModelEvent]:
        self.fault = why
        return []

    def _ended(self, response: Any, word: str) -> list[ModelEvent]:
        self.done = True
        if not isinstance(response, dict):
            self.done = False
            return self._breaks("the last event has no response")
        events: list[ModelEvent] = [*self._chunks.finish(), *self._head(response)]
        output = response.get("output")
        items = [
            (at, item) for at, item in enumerate(output if isinstance(output, list) else ()) if isinstance(item, dict)
        ]
        announced = set(self._calls)
        if not self._said and not self._calls:
            for at, item in items:
                events += self._item(at, item)
        else:
            events += self._compared(items)
        # Of a call that came only here nothing shows whether it was cut, as in a whole answer.
        events = [
            replace(event, at_once=True) if isinstance(event, CallDelta) and event.index not in announced else event
            for event in events
        ]
        events += end_of(response, has_calls=bool(self._calls))
        if word != "completed" and response.get("status") in (None, "completed") and not response.get("error"):
            # The event's type stands for a missing status.
            events += end_of({"status": word}, has_calls=bool(self._calls))
        return events

    def _compared(self, items: Sequence[tuple[int, dict[str, Any]]]) -> list[ModelEvent]:
        """Compare the whole response with the calls that came in pieces. A call that no event completed and without arguments
        is cut off."""
        events: list[ModelEvent] = []
        by_id = {call.id: at for at, call in self._calls.items() if call.id is not None}
        item_ids = {call.item_id for call in self._calls.values()}
        for place, item in items:
            if _kind(item) not in CALLS:
                continue
            id_ = _id(item)
            at = place if id_ is None else by_id.get(id_, place)
            beside = self._calls.get(at)
            if id_ not in by_id and beside is not None and _is_other(item, beside, item_ids):
                at = max(self._calls) + 1
            events += self._whole_call(at, item) if at in self._calls else self._item(at, item)
        for at, call in self._calls.items():
            if not (call.is_over or call.pieces):
                events.append(CallDelta(at, arguments="{"))
        return events


def _is_other(item: Mapping[str, Any], beside: _Open, known: Collection[Any]) -> bool:
    """True if an item of the whole response is no call that was announced: the response may count its items otherwise than its
    events, so that its place may be another's."""
    item_id = item.get("id")
    return isinstance(item_id, str) and beside.item_id is not None and item_id not in known


class ResponseObject(WholeBody):
    """Reads a body that is one response."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self._by = by

    def finish(self) -> Sequence[ModelEvent]:
        text = b"".join(self._parts)
        if _is_about_calls(text) and has_duplicate_names(text):
            self.fault = TWICE
            return ()
        return super().finish()

    def _read(self, found: Any) -> Sequence[ModelEvent]:
        output = found.get("output") if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(output, list):
            error = error_in(found) if isinstance(found, dict) else None
            if error is None:
                self.fault = "the body is not a response"
                return ()
            self.done = True
            return [_failed(error.body)]
        self.done = True
        events: list[ModelEvent] = [head_of(found)]
        has_calls = spoke = False
        for item in output:
            kind = _kind(item) if isinstance(item, dict) else ""
            if kind in CALLS:
                has_calls = True
                custom = item["type"] == "custom_tool_call"
                flaw = Flaw.TRUNCATED if _is_partly(item) else None
                given, name = item.get("input" if custom else "arguments"), item.get("name")
                events.append(
                    CallWritten(
                        name if isinstance(name, str) else None,
                        None if given == "" else given,
                        _id(item),
                        flaw,
                        custom=custom,
                    )
                )
            elif kind == "message":
                events += [TextDelta("\n\n")] if spoke else []
                spoke = True
                events += _spoken(item)
            elif kind == "reasoning":
                thought = "\n\n".join(texts_of(item.get("summary"))) or "\n\n".join(texts_of(item.get("content")))
                events += [ReasoningDelta(sound_text(thought))] if thought else []
            if kind in KEPT:
                events.append(ExtraField(ITEMS, [{"by": self._by, "item": item}]))
        return [*events, *end_of(found, has_calls=has_calls)]


def _is_about_calls(text: bytes) -> bool:
    return b"function_call" in text or b"custom_tool_call" in text


def head_of(response: Mapping[str, Any]) -> ProviderHead:
    id, model, tier = (response.get(name) for name in ("id", "model", "service_tier"))
    return ProviderHead(
        id if isinstance(id, str) else None,
        model if isinstance(model, str) else None,
        service_tier=tier if isinstance(tier, str) else None,
    )


def _kind(found: Mapping[str, Any]) -> str:
    """Return the type of an event or an item; empty where that is no text."""
    kind = found.get("type")
    return kind if isinstance(kind, str) else ""


def _is_partly(item: Mapping[str, Any]) -> bool:
    return item.get("status") not in (None, "completed")


def _id(item: Mapping[str, Any]) -> str | int | None:
    id = item.get("call_id")
    return id if isinstance(id, str | int) and not isinstance(id, bool) else None


def _spoken(item: Mapping[str, Any]) -> Iterator[ModelEvent]:
    content = item.get("content")
    for part in content if isinstance(content, list) else ():
        text, refusal, logprobs = (field_of(part, name) for name in ("text", "refusal", "logprobs"))
        if isinstance(text, str) and text:
            yield TextDelta(sound_text(text))
            if isinstance(logprobs, list) and logprobs:
                yield Logprobs({"content": logprobs})
        if isinstance(refusal, str) and refusal:
            yield ExtraField("refusal", sound_text(refusal))
        if isinstance(annotations := field_of(part, "annotations"), list) and annotations:
            yield ExtraField("annotations", list(_annotations(annotations)))


def texts_of(parts: Any) -> Iterator[str]:
    """The texts in a list of parts."""
    for part in parts if isinstance(parts, list) else ():
        if isinstance(text := field_of(part, "text"), str) and text:
            yield text


def _annotations(found: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Convert annotations to those of Chat Completions."""
    for each in found:
        if isinstance(each, dict) and each.get("type") == "url_citation":
            yield {"type": "url_citation", "url_citation": {name: it for name, it in each.items() if name != "type"}}


def end_of(response: Mapping[str, Any], *, has_calls: bool) -> Iterator[ModelEvent]:
    """Translate the status of a response to a finish reason, which this API does not have."""
    if isinstance(counts := response.get("usage"), dict):
        yield usage_of(counts)
    status, error = reason_in(response.get("status")), response.get("error")
    if error or status in FAILED:
        yield _failed(error or f"the response is {status}")
    elif status == "incomplete":
        reason = reason_in(field_of(response, "incomplete_details", "reason")) or "length"
        yield finished(reason, WORDS)
    elif status == "completed":
        yield Finished("tool_calls" if has_calls else "stop")
    elif status is not None:
        yield finished(status, WORDS)


def _failed(error: Any) -> ProviderError:
    if isinstance(error, dict) and "status" not in error and isinstance(code := error.get("code"), str):
        status = STATUSES.get(code) or (400 if code.startswith(OF_REQUESTS) else None)
        error = error if status is None else {**error, "status": status}
    message = error.get("message") if isinstance(error, dict) else error
    return ProviderError(message if isinstance(message, str) and message else "the provider reported an error", error)


def usage_of(counts: Mapping[str, Any]) -> Usage:
    """Convert token counts to those of Chat Completions."""
    known = {name: value for name, value in counts.items() if type(value) is int}
    prompt, completion = known.get("input_tokens", 0), known.get("output_tokens", 0)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": known.get("total_tokens", prompt + completion),
    }
    for name, theirs in (
        ("prompt_tokens_details", "input_tokens_details"),
        ("completion_tokens_details", "output_tokens_details"),
    ):
        if isinstance(details := counts.get(theirs), dict) and details:
            usage[name] = {each: value for each, value in details.items() if type(value) is int}
    return Usage(usage)
