"""Reads the chunks of OpenAI-shaped providers into `ModelEvent`s. No other module knows their shapes.

Chunks are read as far as they make sense: keys may be missing or null, lists empty, a message may stand in the place of a
delta. Errors are raised for sizes only. The gate finds what is wrong with a call.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from msgspec import UNSET

from callgate.calls.json_text import sound_text
from callgate.conversation.call_assembly import MAX_CALLS
from callgate.conversation.errors import AnswerTooLarge
from callgate.conversation.events import (
    CallDelta,
    CallWritten,
    CharactersLost,
    ChoiceIgnored,
    ExtraField,
    Finished,
    Logprobs,
    ModelEvent,
    ProviderError,
    ProviderHead,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.finish import classify
from callgate.conversation.finish_words import OPEN, FinishClass, Meaning, is_value
from callgate.conversation.usage import Usage
from callgate.models.direct.chunks_fast import UsualChunk

USUAL_CHOICE: Final = frozenset({"index", "message", "finish_reason", "logprobs"})
"""Fields of a choice that say nothing of an unfinished answer."""
USUAL: Final = frozenset(
    {
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
        "system_fingerprint",
        "service_tier",
        "provider",
        "obfuscation",
    }
)
"""Fields of a chunk that report no error."""
EXTRAS = frozenset({"extra_content", "provider_specific_fields"})
"""Fields of a call that hold signatures and must go back with it."""


MAX_FIELDS = 1000
"""Fields of one delta or message. Providers have a dozen, and each is an event."""
MAX_CHOICES = 1000
"""Choices of one body, of which OpenAI allows 128."""


class ChunkReader:
    """Reads the chunks of one stream. Its state between chunks: whether the head was sent, and half a character that a
    proxy cut off at the end of a chunk."""

    def __init__(self, choice: int = 0, reasoning_field: str = "", *, is_under_way: bool = False) -> None:
        """`reasoning_field`: the provider's own field for reasoning, where it has one. `is_under_way`: the stream began before, and its
        head is known."""
        self._choice = choice
        self._reasoning_field = reasoning_field
        self._head_sent = is_under_way
        self._half = ""
        self._has_calls = False
        self._has_reason = False
        self._reasons_go_on = False
        """Calls came after a finish reason, so that one does not show the end."""

    @property
    def has_ended(self) -> bool:
        """True if a finish reason has come that is the end of the answer."""
        return self._has_reason and not self._reasons_go_on

    @property
    def holds_half(self) -> bool:
        """True if the next text begins with a character whose first half has come."""
        return bool(self._half)

    def read(self, chunk: object) -> list[ModelEvent]:
        """Read one chunk; return its events in order."""
        events: list[ModelEvent] = []
        if not isinstance(chunk, dict):
            errors = _no_object(chunk)
            may_be_piece = self._has_calls and isinstance(chunk, list) and chunk and not errors
            return [CallDelta(arguments=chunk)] if may_be_piece else errors
        if not self._head_sent and (head := _head(chunk)) is not None:
            self._head_sent = True
            events.append(head)
        choices = chunk.get("choices")
        if isinstance(choices, list):
            if len(choices) > MAX_CHOICES:
                raise AnswerTooLarge(f"{MAX_CHOICES} choices")
            for place, choice in enumerate(choices):
                if isinstance(choice, dict):
                    self._read_choice(choice, place, events)
                elif choice and self._has_calls:
                    events.append(CallDelta(arguments=[choice]))  # unknown format: kept, to break its call
            if len(choices) > 1:
                # A finish reason counts after all else in its chunk, whichever entry it is in.
                events.sort(key=lambda event: type(event) is Finished)
        elif choices and self._has_calls:
            events.append(CallDelta(arguments=[choices]))
        if not (USUAL.issuperset(chunk) and chunk.get("object") == "chat.completion.chunk"):
            events += _errors_in(chunk)
        if usage := chunk.get("usage"):
            events += _usage(usage)
        return events

    def read_usual(self, chunk: UsualChunk) -> list[ModelEvent] | None:
        """Read one chunk of the usual form. Equals `read` of it, or returns None, and nothing is read then: the first half of a character
        is held, and for text and a call at once, of which the order is not seen here."""
        if self._choice or self._half:
            return None
        events: list[ModelEvent] = []
        has_head = not self._head_sent and bool(chunk.id or chunk.model)
        if has_head:
            tier = chunk.service_tier or None
            events.append(ProviderHead(chunk.id or None, chunk.model or None, chunk.system_fingerprint or None, tier))
        for choice in chunk.choices:
            delta = choice.delta
            if calls := delta.tool_calls:
                if delta.content:
                    return None
                call = calls[0]
                id_ = call.id
                if id_ is UNSET:
                    id_ = None
                function = call.function
                arguments = function.arguments
                if arguments is UNSET:
                    arguments = None
                events.append(CallDelta(call.index, id_, function.name or None, arguments))
                self._has_calls = True
                self._reasons_go_on |= self._has_reason
            elif delta.content:
                events.append(TextDelta(delta.content))
            if reason := choice.finish_reason:
                events.append(Finished(reason))
                self._has_reason = self._has_reason or reason in OPEN.listed or is_value(reason)
        self._head_sent |= has_head
        if chunk.usage:
            events += _usage(chunk.usage)
        return events

    def finish(self) -> list[ModelEvent]:
        """Return what is held back when the stream ends: half a character whose other half did not come."""
        half = self._half
        self._half = ""
        if half:
            return [TextDelta("\ufffd"), CharactersLost()]
        return []

    def _read_choice(self, choice: dict[str, Any], place: int, events: list[ModelEvent]) -> None:
        index = choice.get("index")
        if type(index) is not int:
            index = whole_number(index)
            if index is None:
                index = place
        if index != self._choice:
            events.append(ChoiceIgnored(index))
            return
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")
        if isinstance(delta, dict):
            self._read_delta(delta, events)
        elif delta and self._has_calls:
            events.append(CallDelta(arguments=[delta]))
        if _read_rest(choice, events):
            self._has_reason = True

    def _read_delta(self, delta: dict[str, Any], events: list[ModelEvent]) -> None:
        if len(delta) > MAX_FIELDS:
            raise AnswerTooLarge(f"{MAX_FIELDS} fields in a delta")
        for key, value in delta.items():
            if not value:
                continue
            if key == "content" and isinstance(value, str):
                if value.isascii() and not self._half:
                    events.append(TextDelta(value))
                elif text := self._sound(value):
                    events.append(TextDelta(text))
                    if text.count("\ufffd") > value.count("\ufffd"):
                        events.append(CharactersLost())
            elif key == "tool_calls":
                events += _pieces(value, inside=self._has_calls)
                self._has_calls = True
                self._reasons_go_on |= self._has_reason
            elif key == "function_call":
                events += _legacy_piece(value, inside=self._has_calls)
                self._has_calls = True
                self._reasons_go_on |= self._has_reason
            elif key == "reasoning" and delta.get("reasoning_content"):
                continue  # the same text under two names
            elif key != "role":
                _read_field(key, value, events, self._reasoning_field)

    def _sound(self, text: str) -> str:
        """Return text that can be encoded. A proxy that counts in UTF-16 may cut a character in two; the first half is
        held until the second comes."""
        text = self._half + text
        self._half = ""
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            if "\ud800" <= text[-1] <= "\udbff":
                self._half = text[-1]
                text = text[:-1]
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text


def read_completion(body: object, choice: int = 0, reasoning_field: str = "") -> list[ModelEvent]:  # noqa: PLR0912
    """Read a whole answer: a `chat.completion` body, or one of its choices alone."""
    events: list[ModelEvent] = []
    if not isinstance(body, dict):
        return _no_object(body)
    if (head := _head(body)) is not None:
        events.append(head)
    choices = body.get("choices") if "choices" in body else [body]
    if not isinstance(choices, list):
        choices = []
    elif len(choices) > MAX_CHOICES:
        raise AnswerTooLarge(f"{MAX_CHOICES} choices")
    for place, entry in enumerate(choices):
        if isinstance(entry, dict):
            index = whole_number(entry.get("index"))
            if index is None:
                index = place
            if index != choice:
                events.append(ChoiceIgnored(index))
            else:
                message = entry.get("message") or entry.get("delta")
                if isinstance(message, dict):
                    _read_message(message, events, reasoning_field)
                _read_rest(entry, events)
                if not USUAL_CHOICE.issuperset(entry):
                    events += unfinished(entry)
    is_usual = choices and USUAL.issuperset(body) and body.get("object") == "chat.completion"
    if not is_usual and "choices" in body:
        events += unfinished(body)
    if not is_usual and ("choices" in body or not body.get("error")):
        events += _errors_in(body)
    if (usage := body.get("usage")) and "choices" in body:
        events += _usage(usage)
    return events


def _read_message(message: dict[str, Any], events: list[ModelEvent], reasoning_field: str) -> None:
    if len(message) > MAX_FIELDS:
        raise AnswerTooLarge(f"{MAX_FIELDS} fields in its message")
    for key, value in message.items():
        if not value:
            continue
        if key == "tool_calls":
            events += map(_written, _counted(value))
        elif key == "function_call":
            if isinstance(value, dict):
                events.append(CallWritten(_text(value.get("name")), value.get("arguments"), legacy=True))
        elif key == "reasoning" and message.get("reasoning_content"):
            continue
        elif key != "role":
            _read_field(key, value, events, reasoning_field)


# Fields that read the same in a delta and in a whole message -----------------------------------------------------------


def _read_field(key: str, value: Any, events: list[ModelEvent], reasoning_field: str) -> None:
    """Read a field that is not null or empty."""
    read = _FIELDS.get("reasoning_content" if key == reasoning_field else key)
    if read is None:
        events.append(ExtraField(key, value))
    else:
        events += read(value)


def _content(value: Any) -> Iterator[ModelEvent]:
    if isinstance(value, str):
        sound = sound_text(value)
        yield TextDelta(sound)
        if sound is not value and sound.count("\ufffd") > value.count("\ufffd"):
            yield CharactersLost()
        return
    for part in entries(value):
        if (text := _text(part.get("text"))) and part.get("type") != "thinking":
            yield TextDelta(sound_text(text))
        if thinking := _flat(part.get("thinking")):
            yield ReasoningDelta(sound_text(thinking), "thinking")


def _flat(value: Any) -> str:
    """Return the text of thinking, which is text or a list of parts with text."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) or "" for part in entries(value))
    return _text(value) or ""


_FIELDS: Final[dict[str, Callable[[Any], Iterable[ModelEvent]]]] = {
    "content": _content,
    "reasoning_content": lambda value: (_reasoning("reasoning_content", value),),
    "reasoning": lambda value: (_reasoning("reasoning", value),),
    "thinking_blocks": lambda value: map(ThinkingBlock, entries(value)),
    "error": lambda value: (_error(value),),
}


def _reasoning(field: Literal["reasoning_content", "reasoning"], value: Any) -> ModelEvent:
    if isinstance(value, str):
        return ReasoningDelta(sound_text(value), field)
    return ExtraField(field, value)


def _pieces(value: Any, *, inside: bool) -> Iterator[CallDelta]:
    """Return the call fragments of a delta. An unreadable entry, `inside` the list of calls, may be a piece of a call and
    breaks the call that it is assigned to."""
    if isinstance(value, list):
        if len(value) > MAX_CALLS:
            raise AnswerTooLarge(f"{MAX_CALLS} calls")
    else:
        value = [value]
    for entry in value:
        if isinstance(entry, dict):
            odd = entry.get("function") if inside else None
            yield _call_delta(entry, odd if isinstance(odd, str | int | float | list) and odd else None)
        elif entry and inside:
            yield CallDelta(arguments=[entry])


def _legacy_piece(value: Any, *, inside: bool) -> Iterator[CallDelta]:
    if isinstance(value, dict):
        yield CallDelta(name=_text(value.get("name")), arguments=value.get("arguments"), legacy=True)
    elif inside:
        yield CallDelta(arguments=[value], legacy=True)


def _call_delta(entry: dict[str, Any], odd: Any = None) -> CallDelta:
    function = entry.get("function")
    place = entry.get("index")
    if place is not None and type(place) is not int:
        place = whole_number(place)
    if not isinstance(function, dict):
        custom = entry.get("custom")
        if isinstance(custom, dict):
            name = _text(custom.get("name"))
            text = custom.get("input")
            return CallDelta(place, _id(entry.get("id")), name, text, _extras(entry), custom=True)
        function = {"arguments": [odd]} if odd is not None else {}
    return CallDelta(
        place, _id(entry.get("id")), _text(function.get("name")), function.get("arguments"), _extras(entry)
    )


def _written(entry: dict[str, Any]) -> CallWritten:
    function = entry.get("function")
    if not isinstance(function, dict):
        custom = entry.get("custom")
        if isinstance(custom, dict):
            name = _text(custom.get("name"))
            text = custom.get("input")
            return CallWritten(name, text, _id(entry.get("id")), extras=_extras(entry), custom=True)
        function = {}
    name = _text(function.get("name"))
    arguments = function.get("arguments")
    return CallWritten(name, arguments, _id(entry.get("id")), extras=_extras(entry))


def whole_number(value: Any) -> int | None:
    """Return an index as a number; some servers write it as a string, or with a fraction of 0."""
    if type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= MAX_INDEX and _WHOLE.fullmatch(value):
        return int(float(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


_WHOLE = re.compile(r"\s*[+-]?[0-9]+(?:\.0*)?\s*", re.ASCII)
MAX_INDEX = 20
"""Characters of an index; a longer one is no number of a call."""


def _id(value: Any) -> str | int | float | None:
    if value is None:  # as in all fragments but the first
        return None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, str) and value:
        return value
    return None


def _extras(entry: dict[str, Any]) -> dict[str, Any]:
    if EXTRAS.isdisjoint(entry):
        return {}
    return {key: entry[key] for key in EXTRAS if entry.get(key)}


def _counted(calls: Any) -> list[dict[str, Any]]:
    if isinstance(calls, list) and len(calls) > MAX_CALLS:
        raise AnswerTooLarge(f"{MAX_CALLS} calls")
    return entries(calls)


def entries(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; a single object counts as a list of one."""
    if isinstance(value, list):
        return [entry for entry in value if isinstance(entry, dict)]
    if isinstance(value, dict):
        return [value]
    return []


# Fields of the choice and of the body ----------------------------------------------------------------------------------


def _read_rest(choice: dict[str, Any], events: list[ModelEvent]) -> bool:
    """Read the fields beside the message, calls before the finish reason. Return whether there is one."""
    if isinstance(logprobs := choice.get("logprobs"), dict) and logprobs:
        events.append(Logprobs(logprobs))
    reasons: Sequence[str] = ()
    if not OTHER_REASONS.isdisjoint(choice):
        reasons = _reasons(choice)
    elif reason := reason_in(choice.get("finish_reason")):
        reasons = [reason]
    if reasons:
        events += map(Finished, reasons)
    if error := choice.get("error"):
        events.append(_error(error))
    if usage := choice.get("usage"):
        events += _usage(usage)
    if not reasons:
        return False
    return any(reason in OPEN.listed or is_value(reason) for reason in reasons)


OTHER_REASONS: Final = frozenset({"native_finish_reason", "provider_specific_fields"})
"""Further fields that may hold a finish reason."""


def _reasons(choice: dict[str, Any]) -> list[str]:
    """Return the finish reason as the provider wrote it; litellm keeps it in another field where it replaced it. A router may
    add the reason of the provider behind it: the more serious of the two counts, and one that is not known counts as well."""
    aside = choice.get("provider_specific_fields")
    reason = (_text(aside.get("native_finish_reason")) if isinstance(aside, dict) else None) or reason_in(
        choice.get("finish_reason")
    )
    native = _text(choice.get("native_finish_reason"))
    if native and _is_worse(OPEN.judge(native), reason):
        if reason:
            return [reason, native]
        return [native]
    if reason:
        return [reason]
    return []


def _is_worse(native: Meaning, reason: str | None) -> bool:
    if native.is_orderly:
        return False
    return reason is None or not native.is_known or native.kind > classify(reason)


def unfinished(answer: dict[str, Any]) -> Iterator[Finished]:
    """Return the finish reason of an answer whose status says that it is not finished, in the words of the Responses API or of
    Ollama."""
    if answer.get("status") == "incomplete":
        details = answer.get("incomplete_details")
        if isinstance(details, dict):
            why = reason_in(details.get("reason"))
        else:
            why = None
        yield Finished(why if why and not OPEN.judge(why).is_orderly else "length")
    elif answer.get("done") is False:
        yield Finished("length")
    elif (status := answer.get("status")) in NOT_COMPLETED:
        yield Finished(status)


NOT_COMPLETED: Final = ("failed", "cancelled")
"""Statuses of a failed response of the Responses API."""


def reason_in(value: Any) -> str | None:
    """Return a finish reason as text, of any other value its JSON: only null and "" are no reason."""
    if value is None:
        return None
    if isinstance(value, str):
        return value or None
    text = json.dumps(value)
    if is_value(text):
        return text
    return f"no text: {text}"


HEAD: Final = ("id", "model", "system_fingerprint", "service_tier")


def _head(body: dict[str, Any]) -> ProviderHead | None:
    id_, model, fingerprint, tier = map(_text, map(body.get, HEAD))
    if id_ is None and model is None:
        return None
    return ProviderHead(id_, model, fingerprint, tier)


def _errors_in(body: dict[str, Any]) -> list[ModelEvent]:
    error = error_in(body)
    if error is None:
        return []
    return [error]


def error_in(body: dict[str, Any]) -> ProviderError | None:
    """Return the error that a chunk or a body reports, in any of the formats that servers use."""
    if error := body.get("error"):
        return _error(error)
    status = body.get("base_resp")  # MiniMax
    if isinstance(status, dict) and status.get("status_code"):
        return _error({"message": status.get("status_msg"), **status})
    for kind in (body.get("object"), body.get("type"), body.get("event")):
        if isinstance(kind, str) and "error" in kind.lower():
            return _error(body)
    if body.get("choices") or body.get("candidates") or any(isinstance(body.get(name), dict) for name in ANSWERS):
        return None
    for name in ERRORS:
        if error := body.get(name):
            return _error(error if isinstance(error, dict) else {**body, "message": body.get("message") or error})
    kind = body.get("type")
    code = body.get("status")
    if (type(code) is int and code >= FIRST_ERROR) or (isinstance(kind, str) and "fail" in kind.lower()):
        return _error({**body, "message": body.get("title")})
    if "msg" in body and "code" in body:
        return _error({**body, "message": body["msg"]})
    if "message" in body and ("code" in body or body["message"]):
        return _error(body)
    return None


ANSWERS: Final = ("message", "delta", "content_block", "output")
"""Fields that hold a part of an answer, with some provider."""
ERRORS: Final = (
    "detail", "details", "errors", "fault", "exception", "error_message", "error_code", "error_msg", "Error", "err",
)  # fmt: skip
"""Fields of bodies that report an error. All but `error` count only where the body has no answer."""

FIRST_ERROR: Final = 400
"""The lowest status of an error, also for one in a body (problem details)."""


def _no_object(value: object) -> list[ModelEvent]:
    """Read an answer, or a chunk of one, that is not an object."""
    if isinstance(value, list):  # Google's format of errors
        return [error for entry in value if isinstance(entry, dict) for error in _errors_in(entry)]
    if isinstance(value, str) and OPEN.judge(value) == Meaning(FinishClass.ERROR):
        return [_error(value)]
    return []


def _error(error: Any) -> ProviderError:
    message = error.get("message") if isinstance(error, dict) else error
    return ProviderError(message if isinstance(message, str) and message else "the provider reported an error", error)


def _usage(usage: Any) -> Sequence[ModelEvent]:
    reported = Usage.of_chat(usage)
    if reported is None:
        return ()
    return (reported,)
