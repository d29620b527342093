"""Reads the answers of the Responses API into model events.

The arguments of a call are sent several times; where these differ the call is broken. Only the event that ends the response
ends the answer.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from callgate.calls.arguments import encode_arguments
from callgate.calls.json_text import sound_text
from callgate.calls.states import Flaw
from callgate.conversation.client_run_items import CALLS as CLIENT_RUN
from callgate.conversation.client_run_items import row_of_call
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
)
from callgate.conversation.finish import finished
from callgate.conversation.finish_words import FinishClass, FinishWords
from callgate.conversation.response_items import ITEMS, OF_PROVIDERS, PROVIDER
from callgate.conversation.usage import HOSTED_USES, Usage
from callgate.http.event_stream import Payload
from callgate.models.direct.chunks import error_in, reason_in, whole_number
from callgate.models.direct.model import (
    TWICE,
    JsonEvents,
    WholeBody,
    has_duplicate_names,
    reported,
)
from callgate.models.json_values import list_or_empty, nonempty_str, str_or_none
from callgate.models.translated.translation import NO_EVENT, field_of

WORDS: Final = FinishWords(
    {FinishClass.LENGTH: "max_output_tokens max_tokens length", FinishClass.CONTENT_FILTER: "content_filter"},
    is_closed=True,
)
"""Why a response is incomplete. Its status, where that is another than is documented, is judged by the same list."""
CALLS: Final = frozenset({"function_call", "custom_tool_call"})
SEARCH: Final = "tool_search_call"
"""An item in which the model searches for tools, which is for the client to do."""
ABOUT_CALLS: Final = tuple(kind.encode() for kind in (*CALLS, *sorted(CLIENT_RUN)))
_CALL: Final = b"_call"
if not all(_CALL in kind for kind in ABOUT_CALLS):
    raise AssertionError("a kind of calls would not be looked for")
KEPT: Final = CALLS | {"message", "reasoning", "compaction"}
"""Items that are sent back in the model's next turn. All others are of tools that its provider runs."""
PIECES: Final[Mapping[str, str]] = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
"""Events with pieces of a call's arguments, and the field with all of it in the last one."""
PARTS: Final = frozenset({"delta", "item"})
"""Fields of events with a part of the answer."""
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
        self.id = _id(item)
        self.name = item.get("name")
        self.item_id = str_or_none(item.get("id"))
        self.first = _arguments_of(item)
        """The arguments with which it was announced."""
        self.pieces: list[str] = []
        self.checked = ""
        """The whole arguments, as an event had them."""
        self.is_over = False
        """An event said that it is complete."""

    def is_contradicted(self) -> bool:
        """True if it was announced with other arguments than came behind."""
        if self.first in (None, "", "{}"):
            return False
        arguments = "".join(self.pieces) or self.checked
        return not (isinstance(self.first, str) and arguments.startswith(self.first))


class ResponseEvents(JsonEvents):
    """Reads a stream of events. Only the event that ends the response ends the answer, not the end mark after it."""

    def __init__(self, by: str, find: str = "") -> None:
        """`find`: the name of the tool for which the provider's search of tools stands."""
        super().__init__()
        self._by = by
        self._find = find
        self._calls: dict[int, _Open] = {}
        self._hosted: dict[str, str] = {}
        """The items about uses of tools that the provider ran: their types by their ids."""
        self._said: set[tuple[int | None, int | None]] = set()
        """The parts of messages of which text has come."""
        self._message: int | None = None
        """The index of the current message."""
        self._thought: tuple[str, object, object] | None = None
        """The kind of thinking that is emitted, and the part that was emitted last."""
        self._has_head = False

    def _read_payload(self, payload: Payload, event: Any) -> Sequence[ModelEvent]:
        is_end = bool(self._calls) and isinstance(event, dict) and _kind(event) in ENDS
        if (is_end or _is_about_calls(payload.data)) and has_duplicate_names(payload.data):
            self.fault = TWICE
            return ()
        if not isinstance(event, dict):
            # No part of an answer; it may be an error.
            if payload.is_error:
                return reported(payload.data)
            errors = self._chunks.read(event)
            if isinstance(event, list) and event and not errors:
                self.fault = NO_EVENT
            return errors
        events = self._read_event(event)
        # The failure of one of the provider's tools is no failure of the answer.
        is_ours = str(event.get("type")).startswith("response.")
        if events or is_ours or not payload.is_error:
            return events
        return reported(payload.data)

    def _read_event(self, event: dict[str, Any]) -> list[ModelEvent]:
        kind = _kind(event)
        if not kind.startswith("response."):
            if error_in(event) is None:
                return self._other(kind, event)
            return [_failed(event.get("error") or event)]
        if kind in ENDS:
            return self._ended(event.get("response"), kind.rpartition(".")[2])
        if event.get("error") or "error" in kind:
            return [_failed(event.get("error") or event)]
        at = whole_number(event.get("output_index"))
        if kind in ("response.created", "response.in_progress", "response.queued"):
            return self._head(event.get("response"))
        about, _, what = kind.rpartition(".")
        if about in PIECES and what in ("delta", "done"):
            return self._piece_or_whole(event, at, about, what)
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
            self._hosted |= _hosted_items([item])
            return self._item(at, as_function_call(item, self._find))
        return self._other(kind, event)

    def _other(self, kind: str, event: Mapping[str, Any]) -> list[ModelEvent]:
        """Read an event that is none of those which make an answer. One that may have a piece of a call is missed by it."""
        place = whole_number(event.get("output_index"))
        item_id = str_or_none(event.get("item_id"))
        is_at_call = place in self._calls or (
            item_id is not None and item_id in {call.item_id for call in self._calls.values()}
        )
        if any(word in kind.lower() for word in CALLS) or (event.keys() & PARTS and (is_at_call or not kind)):
            return self._breaks("an event says something of a call that is not known")
        return []

    def _piece_or_whole(self, event: Mapping[str, Any], at: int | None, about: str, what: str) -> list[ModelEvent]:
        if what == "delta":
            return self._piece(at, event.get("delta"))
        return self._check(at, event.get(PIECES[about]))

    def _head(self, response: Any) -> list[ModelEvent]:
        if self._has_head or not isinstance(response, dict):
            return []
        self._has_head = True
        return [head_of(response)]

    def _text(self, at: int | None, event: Mapping[str, Any]) -> list[ModelEvent]:
        delta = event.get("delta")
        logprobs = event.get("logprobs")
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
        before = self._message
        self._message = at
        if before is not None and at != before:
            return [TextDelta("\n\n")]
        return []

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
        thought = sound_text(delta)
        if before is not None and before != place:
            thought = f"\n\n{thought}"
        return [ReasoningDelta(thought)]

    # -- items

    def _begun(self, at: int | None, item: Mapping[str, Any]) -> list[ModelEvent]:
        if _kind(item) not in CALLS:
            return []
        if at is None or at in self._calls:
            return self._breaks("an item has no place of its own")
        self._calls[at] = _Open(item)
        name = item.get("name")
        custom = item["type"] == "custom_tool_call"
        return [CallDelta(at, _id(item), nonempty_str(name), custom=custom)]

    def _call_at(self, at: int | None) -> _Open | None:
        return None if at is None else self._calls.get(at)

    def _piece(self, at: int | None, piece: Any) -> list[ModelEvent]:
        call = self._call_at(at)
        if call is None or at is None:
            return self._breaks("a piece belongs to no call")
        if not isinstance(piece, str):
            return [CallDelta(at, arguments=[piece])]
        call.pieces.append(piece)
        return [CallDelta(at, arguments=piece)]

    def _check(self, at: int | None, arguments: Any) -> list[ModelEvent]:
        """Compare the pieces of a call with its whole arguments. Where they differ the call is broken."""
        call = self._call_at(at)
        if call is None or at is None:
            return self._breaks("a text belongs to no call")
        call.is_over = True
        if arguments is None or arguments == "":
            return []
        if not isinstance(arguments, str):
            return [CallDelta(at, arguments=[arguments])]
        came = "".join(call.pieces) or call.checked
        call.pieces = []
        call.checked = came or arguments
        if not came:
            return [CallDelta(at, arguments=arguments)]
        if came == arguments:
            return []
        return [CallDelta(at, arguments=[arguments])]

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
        elif kind in OF_PROVIDERS:
            events.append(ExtraField(ITEMS, [{"by": PROVIDER, "item": item}]))
        return events

    def _whole_call(self, at: int | None, item: Mapping[str, Any]) -> list[ModelEvent]:
        """Read the whole item of a call whose pieces have come."""
        call = self._call_at(at)
        events = self._check(at, _arguments_of(item))
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
        self.is_done = True
        if not isinstance(response, dict):
            self.is_done = False
            return self._breaks("the last event has no response")
        events: list[ModelEvent] = [*self._chunks.finish(), *self._head(response)]
        output = response.get("output")
        if self._calls and not _is_list_of_items(output):
            return self._breaks("the items of the last event are none")
        items = [
            (at, as_function_call(item, self._find))
            for at, item in enumerate(list_or_empty(output))
            if isinstance(item, dict)
        ]
        announced = set(self._calls)
        if not self._said and not self._calls:
            for at, item in items:
                events += self._item(at, item)
        else:
            events += self._compared(items)
        # Of a call that came only here nothing shows whether it was cut, as in a whole answer.
        for place, event in enumerate(events):
            if isinstance(event, CallDelta) and event.index not in announced:
                events[place] = replace(event, at_once=True)
        hosted = Counter({**self._hosted, **_hosted_items(response.get("output"))}.values())
        events += end_of(response, hosted, has_calls=bool(self._calls))
        if word != "completed" and response.get("status") in (None, "completed") and not response.get("error"):
            # The event's type stands for a missing status.
            events += end_of({"status": word}, Counter(), has_calls=bool(self._calls))
        return events

    def _compared(self, items: Sequence[tuple[int, dict[str, Any]]]) -> list[ModelEvent]:
        """Compare the whole response with the calls that came in pieces. A call that no event completed and without arguments
        is cut off."""
        events: list[ModelEvent] = []
        by_id = {call.id: at for at, call in self._calls.items() if call.id is not None}
        item_ids = {call.item_id for call in self._calls.values()}
        for place, item in items:
            kind = _kind(item)
            if kind in OF_PROVIDERS and str(item.get("id") or place) not in self._hosted:
                events += self._item(place, item)
            if kind not in CALLS:
                continue
            id_ = _id(item)
            at = place
            if id_ is not None:
                at = by_id.get(id_, place)
            beside = self._calls.get(at)
            if id_ not in by_id and beside is not None and _is_other(item, beside, item_ids):
                at = max(self._calls) + 1
            if at in self._calls:
                events += self._whole_call(at, item)
            else:
                events += self._item(at, item)
        for at, call in self._calls.items():
            if not (call.is_over or call.pieces):
                events.append(CallDelta(at, arguments="{"))
            if call.is_contradicted():
                events.append(CallDelta(at, arguments=[call.first]))
        return events


def _is_list_of_items(output: Any) -> bool:
    return output is None or (isinstance(output, list) and all(isinstance(item, dict) for item in output))


def _is_other(item: Mapping[str, Any], beside: _Open, known_ids: Collection[Any]) -> bool:
    """True if an item of the whole response is no call that was announced: the response may count its items otherwise than its
    events, so that its place may be another's."""
    item_id = item.get("id")
    return isinstance(item_id, str) and beside.item_id is not None and item_id not in known_ids


class ResponseObject(WholeBody):
    """Reads a body that is one response."""

    def __init__(self, by: str, find: str = "") -> None:
        """`find`: the name of the tool for which the provider's search of tools stands."""
        super().__init__()
        self._by = by
        self._find = find

    def finish(self) -> Sequence[ModelEvent]:
        text = b"".join(self._parts)
        if _is_about_calls(text) and has_duplicate_names(text):
            self.fault = TWICE
            return ()
        return super().finish()

    def _read(self, body: Any) -> Sequence[ModelEvent]:
        if not isinstance(body, dict):
            self.fault = NO_RESPONSE
            return ()
        output = body.get("output")
        if not isinstance(output, list):
            error = error_in(body)
            if error is None:
                self.fault = NO_RESPONSE
                return ()
            self.is_done = True
            return [_failed(error.body)]
        self.is_done = True
        events: list[ModelEvent] = [head_of(body)]
        has_calls = spoke = False
        for item in (as_function_call(entry, self._find) for entry in output if isinstance(entry, dict)):
            kind = _kind(item)
            if kind in CALLS:
                has_calls = True
                events.append(_written_call(item))
            elif kind == "message":
                if spoke:
                    events.append(TextDelta("\n\n"))
                spoke = True
                events += _spoken(item)
            elif kind == "reasoning":
                thought = "\n\n".join(texts_of(item.get("summary"))) or "\n\n".join(texts_of(item.get("content")))
                if thought:
                    events.append(ReasoningDelta(sound_text(thought)))
            if kind in KEPT:
                events.append(ExtraField(ITEMS, [{"by": self._by, "item": item}]))
            elif kind in OF_PROVIDERS:
                events.append(ExtraField(ITEMS, [{"by": PROVIDER, "item": item}]))
        hosted = Counter(_hosted_items(body.get("output")).values())
        return [*events, *end_of(body, hosted, has_calls=has_calls)]


def as_function_call(item: dict[str, Any], find: str = "") -> dict[str, Any]:
    """Return the call of a tool with items of its own as that of the function which stands for it; any other item as it is."""
    if find and item.get("type") == SEARCH:
        return _as_search(item, find)
    row = row_of_call(item)
    if row is None:
        return item
    named: dict[str, Any] = {name: item[name] for name in ("id", "call_id", "status") if name in item}
    return {"type": "function_call", **named, "name": row.name, "arguments": row.arguments_of(item)}


def _as_search(item: Mapping[str, Any], find: str) -> dict[str, Any]:
    named: dict[str, Any] = {name: item[name] for name in ("id", "call_id", "status") if name in item}
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        arguments = encode_arguments(arguments or {})
    return {"type": "function_call", **named, "name": find, "arguments": arguments}


NO_RESPONSE: Final = "the body is not a response"


def _written_call(item: Mapping[str, Any]) -> CallWritten:
    arguments = _arguments_of(item)
    if arguments == "":
        arguments = None
    flaw = None
    if _is_partly(item):
        flaw = Flaw.TRUNCATED
    is_custom = item["type"] == "custom_tool_call"
    return CallWritten(str_or_none(item.get("name")), arguments, _id(item), flaw, custom=is_custom)


def _arguments_of(item: Mapping[str, Any]) -> Any:
    if item.get("type") == "custom_tool_call":
        return item.get("input")
    return item.get("arguments")


def _is_about_calls(text: bytes) -> bool:
    # One search first: each takes 20 ms for the largest event.
    return _CALL in text and any(kind in text for kind in ABOUT_CALLS)


def head_of(response: Mapping[str, Any]) -> ProviderHead:
    id, model, tier = (response.get(name) for name in ("id", "model", "service_tier"))
    return ProviderHead(
        str_or_none(id),
        str_or_none(model),
        service_tier=str_or_none(tier),
    )


def _kind(item: Mapping[str, Any]) -> str:
    """Return the type of an event or an item; empty where that is no text."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return ""


def _is_partly(item: Mapping[str, Any]) -> bool:
    return item.get("status") not in (None, "completed")


def _id(item: Mapping[str, Any]) -> str | int | None:
    id = item.get("call_id")
    if isinstance(id, str | int) and not isinstance(id, bool):
        return id
    return None


def _spoken(item: Mapping[str, Any]) -> Iterator[ModelEvent]:
    content = item.get("content")
    for part in list_or_empty(content):
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
    for part in list_or_empty(parts):
        if isinstance(text := field_of(part, "text"), str) and text:
            yield text


def _annotations(annotations: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Convert annotations to those of Chat Completions."""
    for annotation in annotations:
        if isinstance(annotation, dict) and annotation.get("type") == "url_citation":
            yield {
                "type": "url_citation",
                "url_citation": {name: value for name, value in annotation.items() if name != "type"},
            }


HOSTED_ITEMS: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"}
)
"""Items about a use of a tool that the provider ran."""


def _hosted_items(output: Any) -> dict[str, str]:
    """Return the types of the items about uses of tools that the provider ran, by their ids."""
    kinds: dict[str, str] = {}
    for place, item in enumerate(list_or_empty(output)):
        kind = field_of(item, "type")
        if isinstance(kind, str) and kind in HOSTED_ITEMS:
            kinds[str(field_of(item, "id") or place)] = kind
    return kinds


def end_of(response: Mapping[str, Any], hosted: Mapping[str, int], *, has_calls: bool) -> Iterator[ModelEvent]:
    """Translate the status of a response to a finish reason, which this API does not have. `hosted`: how often its provider ran
    tools of its own."""
    if isinstance(counts := response.get("usage"), dict):
        usage = Usage.of_responses(counts)
        if hosted:
            usage = Usage({**usage.report, HOSTED_USES: dict(hosted)})
        yield usage
    status = reason_in(response.get("status"))
    error = response.get("error")
    cut_by = reason_in(field_of(response, "incomplete_details", "reason"))
    if error or status in FAILED:
        yield _failed(error or f"the response is {status}")
    elif status == "incomplete" or (status == "completed" and cut_by):
        yield finished(cut_by or "length", WORDS)
    elif status == "completed":
        yield Finished("tool_calls" if has_calls else "stop")
    elif status is not None:
        yield finished(status, WORDS)


def _failed(error: Any) -> ProviderError:
    if isinstance(error, dict) and "status" not in error and isinstance(code := error.get("code"), str):
        status = STATUSES.get(code)
        if status is None and code.startswith(OF_REQUESTS):
            status = 400
        if status is not None:
            error = {**error, "status": status}
    message = field_of(error, "message") or error
    return ProviderError(nonempty_str(message) or "the provider reported an error", error)
