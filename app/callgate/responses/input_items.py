"""Translates the input of a response into the messages of a chat.

Items are a flat list where a chat has turns: the model's consecutive items become one turn, and the outputs of its calls follow
it in the order of the calls, wherever they are in the list.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.calls.legal_names import legal_name
from callgate.conversation.client_run_items import CALLS as CLIENT_RUN
from callgate.conversation.client_run_items import OUTPUTS as CLIENT_RUN_OUTPUTS
from callgate.conversation.client_run_items import returned_of, row_of_call
from callgate.conversation.errors import ChatError
from callgate.conversation.hidden_history import ReturnedMessage
from callgate.conversation.past_arguments import PastArguments
from callgate.conversation.ports import Message
from callgate.conversation.response_items import BY_CLIENT, ITEMS
from callgate.hosted.returned import key_in, returned_call
from callgate.hosted.rows import ITEMS as HOSTED_ITEMS
from callgate.responses.approvals import Decisions
from callgate.responses.hosted_items import read_back
from callgate.responses.returned_content import INTRO, TEXTS, ReturnedContent

__all__ = ["ReturnedContent", "flat_name", "messages_of"]

SKIPPED: Final = frozenset(
    {
        *HOSTED_ITEMS,
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "additional_tools",
    }
)
"""Items about hosted tools of other servers, which are left out."""
KNOWN_ANYWAY: Final = frozenset({"mcp_list_tools", "additional_tools", "tool_search_output"})
"""Those of which the model is told nothing that it is not told elsewhere: their tools are offered to it."""
OF_CALLS_ALONE: Final = frozenset({"async", "caller"})
OF_OUTPUTS: Final = frozenset({"caller", "name", "namespace"})
"""The fields of a client's calls, and of their outputs, that a chat has no place for."""
OF_TOOLS: Final = ("caller", "environment", "max_output_length")
"""The same of the items of tools that the client runs and this API knows."""
OF_CALLS: Final = OF_CALLS_ALONE | OF_OUTPUTS
ITEMS_OF_TOOLS: Final = CLIENT_RUN | CLIENT_RUN_OUTPUTS
"""Items of the tools that the client runs and this API knows."""
ROLES: Final = ("user", "system", "developer")
_NO_OUTPUT: Final = "No tool output found for function call {}."
_NO_CALL: Final = "No tool call found for function call output with call_id {}."

NOTHING_DECIDED: Final = Decisions()

Item = Mapping[str, Any]
Unseal = Callable[[str], Mapping[str, Any] | None]
"""Unpacks the content of a reasoning item, if it was packed here for the same model."""

_encode = msgspec.json.Encoder().encode


def messages_of(
    input: str | Sequence[Any],
    before: Sequence[Message],
    unseal: Unseal,
    after: Sequence[Message] = (),
    decided: Decisions = NOTHING_DECIDED,
    returned: ReturnedContent | None = None,
) -> list[Message]:
    """Return the messages after `before`, a stored history. Items about our own calls become `ReturnedMessage`, all others ordinary
    messages. `after`: the messages that follow the answers to the unanswered calls of that history. `decided`: the client's
    decisions about calls that needed them. `returned` reads the outputs of the client's tools."""
    waiting = open_calls(before)
    if isinstance(input, str):
        if waiting:
            raise wrong("input", _NO_OUTPUT.format(waiting[0]))
        return [_raw({"role": "user", "content": input})]
    items = [
        _checked_own(item, f"input[{place}]") if _is_own(item) else _checked(item, f"input[{place}]")
        for place, item in enumerate(input)
    ]
    reader = _ItemReader(waiting, items, unseal, after, decided, returned or ReturnedContent())
    messages = list(reader.read())
    reader.check_answered()
    return messages


def is_of_ours(message: object) -> bool:
    """Return whether a message is about a call of ours, which was stored here."""
    return isinstance(message, ReturnedMessage)


def open_calls(history: Sequence[Message]) -> tuple[str, ...]:
    """Return the calls of a stored history that the client has to answer."""
    answered: set[str] = set()
    for message in reversed(history):
        assert isinstance(message, dict), "stored messages are decoded before they are used"
        if message["role"] == "tool":
            answered.add(message["tool_call_id"])
        elif calls := message.get("tool_calls"):
            return tuple(call["id"] for call in calls if call["id"] not in answered)
        elif message["role"] == "assistant":
            break
    return ()


class _InputTurn:
    """One turn of the model: its text, reasoning and calls up to the next item of the user or a tool."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusal = ""
        self.thought: dict[str, Any] = {}
        self.calls: list[dict[str, Any]] = []
        self.shown: list[tuple[dict[str, Any], str | ReturnedMessage]] = []
        """Calls of ours that were shown, with their results."""

    def __bool__(self) -> bool:
        return bool(self.texts or self.refusal or self.calls or self.shown)

    def think(self, fields: Mapping[str, Any]) -> None:
        """Add reasoning; several reasoning items are from turns of which nothing else was shown."""
        text = fields.get("reasoning_content")
        if text and (before := self.thought.get("reasoning_content")):
            fields = {**fields, "reasoning_content": f"{before}\n\n{text}"}
        for name in ("thinking_blocks", ITEMS):
            if value := fields.get(name):
                fields = {**fields, name: [*self.thought.get(name, ()), *value]}
        self.thought |= fields

    def message(self, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        text = "\n\n".join(self.texts)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")} | self.thought
        if self.refusal:
            message["refusal"] = self.refusal
        if calls:
            message["tool_calls"] = list(calls)
        return message


class _ItemReader:
    """Reads items in order, after collecting the outputs of calls."""

    def __init__(
        self,
        waiting: Sequence[str],
        items: Sequence[Item],
        unseal: Unseal,
        after: Sequence[Message],
        decided: Decisions,
        returned: ReturnedContent,
    ) -> None:
        self._items = items
        self._unseal = unseal
        self._waiting = waiting
        self._after = after
        self._decided = decided
        self._outputs: dict[str, deque[tuple[Item, str]]] = {}
        for place, item in enumerate(items):
            if item["type"].endswith("call_output"):  # each has a `call_id` by now
                self._outputs.setdefault(item["call_id"], deque()).append((item, f"input[{place}]"))
        self._returned = returned
        self._turn = _InputTurn()
        self._past = PastArguments()
        self._hosted_ids: set[str] = set()
        self._answers: dict[str, Mapping[str, Any]] = {}
        """The answers to decided calls of the input, by call id."""

    def read(self) -> Iterator[Message]:
        yield from self._answered(self._waiting, self._decided.answers)
        yield from self._after
        for place, item in enumerate(self._items):
            where = f"input[{place}]"
            self._note_unheard(item)
            match item["type"]:
                case "message" if item["role"] == "assistant":
                    yield from self._end_calling_turn()
                    self._say(item)
                case "message":
                    yield from self._end_turn()
                    yield _raw({"role": item["role"], "content": content_of(item["content"], f"{where}.content")})
                case "reasoning":
                    yield from self._end_calling_turn()
                    self._turn.think(self._thought(item))
                case "function_call" | "custom_tool_call":
                    custom = item["type"] == "custom_tool_call"
                    arguments = _encode({"input": item["input"]}).decode() if custom else item["arguments"]
                    if not custom:
                        self._past.check(arguments, f"{where}.arguments")
                    function = {
                        "name": legal_name(flat_name(item.get("namespace"), item["name"])),
                        "arguments": arguments,
                    }
                    self._turn.calls.append({"id": item["call_id"], "type": "function", "function": function})
                case kind if kind in CLIENT_RUN:
                    self._add_own_call(item, where)
                case kind if kind.endswith("call_output"):
                    # Items after an output belong to a later turn.
                    yield from self._end_turn()
                case "mcp_approval_request":
                    self._add_request(item, where)
                case "mcp_approval_response" if item.get("approval_request_id") in self._decided.in_history:
                    yield from self._end_turn()
                case _ if _is_shown(item) and not self._is_repeated(item):
                    if self._turn.calls:
                        yield from self._end_turn()
                    self._turn.shown.append(self._shown(item, where))
        yield from self._end_turn()

    def _add_own_call(self, item: Item, where: str) -> None:
        """Add a call of a tool that the client runs and this API knows."""
        row = row_of_call(item)
        assert row is not None, "the item was checked"
        arguments = row.arguments_of(item)
        self._past.check(arguments, f"{where}.{row.field or 'actions'}")
        function = {"name": row.name, "arguments": arguments}
        self._turn.calls.append({"id": item["call_id"], "type": "function", "function": function})

    def _is_repeated(self, item: Item) -> bool:
        """True for an item of a declared tool that was there before: its call counts once."""
        if item["type"] == "mcp_call":
            return False
        is_repeated = item["id"] in self._hosted_ids
        self._hosted_ids.add(item["id"])
        return is_repeated

    def _shown(self, item: Item, where: str) -> tuple[dict[str, Any], str | ReturnedMessage]:
        """Return a call of ours, and its answer."""
        if item["type"] == "mcp_call":
            self._past.check(item["arguments"] or "", f"{where}.arguments")
            return _shown(item)
        call, answer, whole = returned_call(item["id"], *read_back(item))
        self._returned.hosted_calls.append(whole)
        return call, answer

    def _note_unheard(self, item: Item) -> None:
        kind = item["type"]
        if kind in SKIPPED and kind not in KNOWN_ANYWAY:
            if not _is_shown(item):
                self._returned.unheard.add(kind)
        elif kind in ITEMS_OF_TOOLS:
            self._returned.unheard.update(name for name in OF_TOOLS if item.get(name) is not None)
        elif fields := OF_CALLS & item.keys():
            own = OF_OUTPUTS if kind.endswith("_output") else OF_CALLS_ALONE
            self._returned.unheard.update(name for name in fields & own if item[name] is not None)

    def _add_request(self, item: Item, where: str) -> None:
        """Add a call that was decided; one without a decision is left out."""
        request = self._decided.in_history.get(str(item.get("id")))
        if request is None:
            return
        if request.is_kept:
            self._turn.calls.append(dict(request.call))
            self._answers[request.call["id"]] = request.answer
        else:
            self._past.check(request.call["function"]["arguments"], f"{where}.arguments")
            self._turn.shown.append((dict(request.call), request.answer["content"]))

    def check_answered(self) -> None:
        """Raise for an output of an unknown call."""
        for call_id, outputs in self._outputs.items():
            for _, where in outputs:
                raise wrong(f"{where}.call_id", _NO_CALL.format(call_id))

    def _say(self, item: Item) -> None:
        content = item["content"]
        if isinstance(content, str):
            self._turn.texts.append(content)
            return
        self._turn.texts += ["".join(part.get("text") or "" for part in content if part["type"] in TEXTS)]
        self._turn.refusal += "".join(part.get("refusal") or "" for part in content if part["type"] == "refusal")

    def _thought(self, item: Item) -> Mapping[str, Any]:
        sealed = item.get("encrypted_content")
        if isinstance(sealed, str) and (unsealed := self._unseal(sealed)) is not None:
            return unsealed
        parts = item.get("content") or item.get("summary") or ()
        if isinstance(parts, str):
            text = parts
        else:
            text = "".join(part["text"] for part in parts if part["type"] in TEXTS)
        if text:
            return {"reasoning_content": text}
        return {}

    def _end_calling_turn(self) -> Iterator[Message]:
        if self._turn.shown or self._turn.calls:
            yield from self._end_turn()

    def _end_turn(self) -> Iterator[Message]:
        turn = self._turn
        self._turn = _InputTurn()
        if not turn:
            return
        if turn.shown:
            # A turn of its own, even where calls of the client follow, whose hidden turns are found by their message.
            yield ReturnedMessage(turn.message([call for call, _ in turn.shown]))
            for call, output in turn.shown:
                if isinstance(output, str):
                    yield ReturnedMessage({"role": "tool", "tool_call_id": call["id"], "content": output})
                else:
                    yield output
            turn.texts = []
            turn.thought = {}
        if turn.calls or not turn.shown:
            yield _raw(turn.message(turn.calls))
            yield from self._answered([call["id"] for call in turn.calls], {})

    def _answered(self, call_ids: Sequence[str], decided: Mapping[str, Message]) -> Iterator[Message]:
        """Yield an answer to each call of a turn. What no tool message can have follows the last of them, because nothing may
        stand between."""
        others: list[dict[str, Any]] = []
        for call_id in call_ids:
            answer = decided.get(call_id)
            yield self._answer(call_id, others) if answer is None else answer
        if others:
            yield _raw({"role": "user", "content": [INTRO, *others]})

    def _answer(self, call_id: str, others: list[dict[str, Any]]) -> Message:
        if (answer := self._answers.pop(call_id, None)) is not None:
            return _raw(answer)
        if not (outputs := self._outputs.get(call_id)):
            raise wrong("input", _NO_OUTPUT.format(call_id))
        item, _ = outputs.popleft()
        if item["type"] not in CLIENT_RUN_OUTPUTS:
            text, parts = self._returned.read(item["output"])
            others += parts
            return _raw({"role": "tool", "tool_call_id": call_id, "content": text})
        text, parts = self._returned.read(returned_of(item))
        others += parts
        # A model behind this API is sent what its client returned.
        known = [{"by": BY_CLIENT, "item": dict(item)}]
        return _raw({"role": "tool", "tool_call_id": call_id, "content": text, ITEMS: known})


# Checking one item ------------------------------------------------------------------------------------------------------


def check_item(item: Any, where: str) -> None:
    """Raise for an item that no response could go on from."""
    if _is_own(item):
        _checked_own(item, where)
    else:
        _checked(item, where)


def _checked(item: Any, where: str) -> dict[str, Any]:
    """Check an item, and add a missing type; other fields stay unchanged."""
    if not isinstance(item, dict):
        raise wrong(where, f"Invalid type for '{where}': expected an object.", "invalid_type")
    checked: dict[str, Any] = {"type": "message", **item} if "role" in item else item
    kind = checked.get("type")
    match kind:
        case "message":
            role = item.get("role")
            if role not in (*ROLES, "assistant"):
                raise wrong(f"{where}.role", f"Invalid value: '{where}.role' is one of {', '.join(ROLES)}, assistant.")
            _check_content(item.get("content"), f"{where}.content")
        case "function_call" | "custom_tool_call":
            text = "arguments" if kind == "function_call" else "input"
            _check_texts(item, where, "call_id", "name", text)
        case "function_call_output" | "custom_tool_call_output":
            _check_texts(item, where, "call_id")
            _check_output(item, where)
        case "reasoning":
            for name in ("summary", "content"):
                _check_content(item.get(name) or [], f"{where}.{name}")
        case "mcp_call":
            _check_texts(item, where, "name", "arguments")
        case "mcp_approval_request" | "mcp_approval_response":
            pass  # checked with the decisions
        case str() if kind in SKIPPED:
            pass
        case str():
            message = f"'{kind[:64]}' items cannot be used with this model; '{where}.type' is refused."
            raise wrong(f"{where}.type", message, "unsupported_value")
        case _:
            raise wrong(f"{where}.type", f"Missing required parameter: '{where}.type'.", "missing_required_parameter")
    return checked


def _is_own(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind in ITEMS_OF_TOOLS


def _checked_own(item: dict[str, Any], where: str) -> dict[str, Any]:
    """Check a call or an output of a tool that the client runs and this API knows."""
    checked = {**item, "call_id": item.get("call_id") or item.get("id")}
    _check_texts(checked, where, "call_id")
    row = row_of_call(item)
    if row is not None and row.field and not isinstance(item.get(row.field), dict):
        at = f"{where}.{row.field}"
        raise wrong(at, f"Invalid type for '{at}': expected an object.", "invalid_type")
    return checked


def _check_texts(item: Item, where: str, *names: str) -> None:
    for name in names:
        value = item.get(name)
        if not isinstance(value, str) or (not value and name in ("call_id", "name")):
            if name in item:
                code = "invalid_type"
            else:
                code = "missing_required_parameter"
            raise wrong(f"{where}.{name}", f"Invalid type for '{where}.{name}': expected a string.", code)


def _check_output(item: Item, where: str) -> None:
    """Check that there is an output; what it is like is no reason to refuse it."""
    if "output" not in item:
        where = f"{where}.output"
        raise wrong(where, f"Missing required parameter: '{where}'.", "missing_required_parameter")


def _check_content(content: Any, where: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong(where, f"Invalid type for '{where}': expected a string or an array.", "invalid_type")
    for place, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise wrong(f"{where}[{place}]", f"Invalid type for '{where}[{place}]': expected a part.", "invalid_type")
        if part["type"] in TEXTS and not isinstance(part.get("text"), str):
            raise wrong(
                f"{where}[{place}].text",
                f"Invalid type for '{where}[{place}].text': expected a string.",
                "invalid_type",
            )
        if part["type"] == "refusal" and not isinstance(part.get("refusal"), str | None):
            where = f"{where}[{place}].refusal"
            raise wrong(where, f"Invalid type for '{where}': expected a string.", "invalid_type")


def content_of(content: str | Sequence[Item], where: str) -> Any:
    """Return the content of a message in the format of Chat Completions. A single text stays a string."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(content)]
    if parts and all(part["type"] == "text" for part in parts) and len(parts) == 1:
        return parts[0]["text"]
    return parts or ""


def _part(part: Item, where: str) -> dict[str, Any]:
    match part["type"]:
        case kind if kind in TEXTS:
            return {"type": "text", "text": part["text"]}
        case "refusal":
            return {"type": "text", "text": str(part.get("refusal") or "")}
        case "input_image" if isinstance(part.get("image_url"), str):
            if part.get("detail"):
                detail = {"detail": part["detail"]}
            else:
                detail = {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_file" if isinstance(part.get("file_data"), str):
            if part.get("filename"):
                named = {"filename": part["filename"]}
            else:
                named = {}
            return {"type": "file", "file": {"file_data": part["file_data"], **named}}
        case "input_audio" if isinstance(part.get("input_audio"), dict):
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case "input_image" | "input_file":
            name = next((name for name in ("file_id", "file_url") if part.get(name)), "")
            if name == "file_id":
                # An id names an object of the operator's account.
                raise _refused(f"{where}.file_id", "Files are not kept here; send the data itself.")
            raise _refused(f"{where}.{name}" if name else where, "This part names nothing that can be sent on.")
        case kind:
            raise _refused(f"{where}.type", f"'{kind[:64]}' parts cannot be used with this model.")


def _is_shown(item: Item) -> bool:
    """True for a call of ours that the client was shown."""
    return item["type"] == "mcp_call" or (item["type"] in HOSTED_ITEMS and bool(key_in(item.get("id"))))


def _shown(item: Item) -> tuple[dict[str, Any], str]:
    """Return a call of ours that was shown, and its result, which is the client's text now."""
    error = item.get("error")
    if isinstance(error, dict) and isinstance(error.get("content"), list):
        texts = [part.get("text") for part in error["content"] if isinstance(part, dict)]
        error = "".join(text for text in texts if isinstance(text, str))
    output = item.get("output")
    if isinstance(output, str):
        text = output
    else:
        text = str(error or "") or "Not run."
    call = {"name": item["name"], "arguments": item["arguments"] or "{}"}
    if isinstance(item.get("id"), str) and item["id"]:
        id = item.get("id")
    else:
        id = f"mcp_{item['name']}"
    return {"id": id, "type": "function", "function": call}, text


def flat_name(namespace: Any, name: str) -> str:
    """Return one name for a tool in a namespace, which Chat Completions does not have."""
    if isinstance(namespace, str) and namespace:
        return f"{namespace}__{name}"
    return name


def _raw(message: Mapping[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(_encode(message))


def _refused(param: str, message: str) -> ChatError:
    return ChatError(400, f"{message} '{param}' is refused.", param=param, code="unsupported_value")
