"""Rewrites a conversation with tools for models without them: earlier calls as text in a format, results as messages.

Messages without calls or results are not changed or decoded. A message made here is never next to another user message,
because some providers require alternating roles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callgate.calls.json_text import JsonFault, read_json
from callgate.conversation import raw_json
from callgate.conversation.ports import Message
from callgate.text_calls.prompts import Style
from callgate.text_calls.writers import PastCall, PastResult


@dataclass(slots=True)
class PromptedHistory:
    """Collects the rewritten messages."""

    style: Style
    messages: list[Message] = field(default_factory=list)
    called: dict[str, None] = field(default_factory=dict)
    """The names of the tools called so far, in order."""
    _ours: bool = False
    """The last message was made here from results."""

    def add(self, messages: Sequence[Message]) -> None:
        views = [_MessageView(message, _decoded(message)) for message in messages]
        place = 0
        while place < len(views):
            # One message, or a turn with calls and all its results.
            view = views[place]
            after = place + 1
            past_calls = view.calls()
            if not past_calls and not view.is_result:
                if self._ours and view.role == "user":
                    result = _decoded(self.messages.pop())
                    self._append({**view.body, "content": _joined(result["content"], view.body.get("content"))})
                else:
                    self._append(view.message)
                place = after
            else:
                first_result = after if past_calls else place
                after = next((at for at in range(first_result, len(views)) if not views[at].is_result), len(views))
                names = {call.id: call.name for call in past_calls}
                results = [view.result(names) for view in views[first_result:after]]
                self.called |= dict.fromkeys(call.name for call in past_calls)
                for calls, answers in self._rounds(past_calls, results):
                    if calls:
                        self._append(view.with_text(self.style.write(view.text(), calls)))
                        view = _MessageView(view.message, {**view.body, "content": None})
                    if answers:
                        self.add_to_last_user_message(self.style.write_results(answers))
                        self._ours = True
                place = after

    def _rounds(
        self, calls: Sequence[PastCall], results: Sequence[PastResult]
    ) -> Iterator[tuple[Sequence[PastCall], Sequence[PastResult]]]:
        """Yield the turn; in a format with one call per turn, one turn for each call."""
        if not self.style.one_call_a_turn or len(calls) < 2:
            yield calls, results
            return
        for place, call in enumerate(calls):
            last = place == len(calls) - 1
            ids = {call.id} | ({result.id for result in results} - {earlier.id for earlier in calls} if last else set())
            yield [call], [result for result in results if result.id in ids]

    # -- adding

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._ours = False

    def add_to_last_user_message(self, text: str) -> None:
        """Add text to the last message if it is the user's, else as a new user message."""
        last = _decoded(self.messages[-1]) if self.messages else {}
        if last.get("role") == "user":
            self.messages[-1] = {**last, "content": _joined(last.get("content"), text)}
        else:
            self.messages.append({"role": "user", "content": text})

    def add_to_system_message(self, text: str) -> None:
        """Add text to the leading system or developer message, or as a new first message."""
        first = _decoded(self.messages[0]) if self.messages else {}
        if first.get("role") in ("system", "developer"):
            self.messages[0] = {**first, "content": _joined(first.get("content"), text)}
        else:
            self.messages.insert(0, {"role": "system", "content": text})


@dataclass(frozen=True, slots=True)
class _MessageView:
    """A message with its calls, results and text."""

    message: Message
    body: dict[str, Any]

    @property
    def role(self) -> Any:
        return self.body.get("role")

    @property
    def is_result(self) -> bool:
        return self.role in ("tool", "function")

    def text(self) -> str:
        content = self.body.get("content")
        if isinstance(content, str):
            return content
        parts = content if isinstance(content, list) else []
        return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))

    def calls(self) -> list[PastCall]:
        if self.role != "assistant":
            return []
        legacy = self.body.get("function_call")
        entries = self.body.get("tool_calls") or ([{"function": legacy}] if legacy else [])
        functions = [(entry.get("function") or {}, entry.get("id") or "") for entry in entries]
        return [
            PastCall(function.get("name") or "", _object(function.get("arguments")), id) for function, id in functions
        ]

    def result(self, names: Mapping[str, str]) -> PastResult:
        id = self.body.get("tool_call_id") or ""
        name = names.get(id) or self.body.get("name") or "tool"
        return PastResult(name, self.text(), id)

    def with_text(self, text: str) -> dict[str, Any]:
        fields = {key: value for key, value in self.body.items() if key not in ("tool_calls", "function_call")}
        return {**fields, "content": text}


def _object(arguments: Any) -> dict[str, Any]:
    """Return arguments as an object; `{}` for anything else, which only a client can have written."""
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except JsonFault:
            return {}
    if isinstance(arguments, dict):
        return arguments
    return {}


def _decoded(message: Message) -> dict[str, Any]:
    body = raw_json.read(message)
    if isinstance(body, dict):
        return body
    return {}


def _joined(before: Any, after: Any) -> Any:
    """Join two contents: as text where both are text, else as a list of parts."""
    if isinstance(before, list) or isinstance(after, list):
        return [*_parts(before), *_parts(after)]
    return "\n\n".join(text for text in (before, after) if text)


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    if content:
        return [{"type": "text", "text": content}]
    return []
