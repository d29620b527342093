"""`ToolCallBuffer`: checks arguments as the gate does, for programs that collect tool calls themselves.

Arguments are read by `callgate.calls.arguments` alone, with the same repairs and errors as in a chat. A buffer does not
check what only the gate knows: whether the tool was offered, and its schema.
"""

from dataclasses import dataclass
from typing import Any

from callgate.calls.arguments import ArgumentsError, read_arguments

MAX_PREVIEW = 100
"""Characters of the arguments shown in an error."""


class ToolCallBuffer:
    """Tool calls by id, each with its arguments as they were given, and whether those are one whole object."""

    def __init__(self, finish_reason: str | None = None) -> None:
        self.finish_reason = finish_reason
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add_tool_call(self, tool_call_id: str, tool_name: str | None, arguments: Any = None) -> None:
        """Add a call. Adding an id again replaces what was there, in its place."""
        self._entries[tool_call_id] = _Entry(tool_call_id, tool_name, arguments)

    def is_complete(self, tool_call_id: str) -> bool:
        """True if the call has a name and its arguments are one whole object; false for an id never seen."""
        entry = self._entries.get(tool_call_id)
        if entry is None:
            return False
        return entry.is_complete()

    def parse_arguments(self, tool_call_id: str) -> dict[str, Any]:
        """The arguments as an object. Raises `ValueError` if they do not make one, `KeyError` for an id never seen."""
        return self._entries[tool_call_id].parse()

    def get_all_complete_tool_calls(self) -> dict[str, dict[str, Any]]:
        return {id_: entry.record() for id_, entry in self._entries.items() if entry.is_complete()}

    def get_incomplete_tool_calls(self) -> dict[str, dict[str, Any]]:
        return {id_: entry.record() for id_, entry in self._entries.items() if not entry.is_complete()}

    def clear(self) -> None:
        self._entries.clear()

    def validate_completion_state(self) -> bool:
        """True if the finish reason and the calls fit together: no call was cut by `length`, and with `tool_calls` there is
        at least one call."""
        if self.finish_reason == "length":
            return all(entry.is_complete() for entry in self._entries.values())
        return bool(self._entries) or self.finish_reason != "tool_calls"


@dataclass(slots=True)
class _Entry:
    id: str
    name: str | None
    arguments: Any
    _read: dict[str, Any] | ArgumentsError | None = None
    """The result of reading the arguments, which are read once and when needed."""

    def is_complete(self) -> bool:
        return bool(self.name) and isinstance(self._outcome(), dict)

    def parse(self) -> dict[str, Any]:
        outcome = self._outcome()
        if isinstance(outcome, dict):
            return outcome
        if isinstance(self.arguments, str):
            preview = self.arguments
        else:
            preview = repr(self.arguments)
        if len(preview) > MAX_PREVIEW:
            preview = f"{preview[:MAX_PREVIEW]}…"
        problem = outcome.problem
        raise ValueError(
            f"arguments of tool {self.name!r}, call {self.id!r}, are {outcome.flaw.value}: "
            f"expected {problem.expected}{problem.note and f' ({problem.note})'}; they are: {preview!r}"
        ) from outcome

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "arguments": self.arguments,
            "type": "function",
            "complete": self.is_complete(),
        }

    def _outcome(self) -> dict[str, Any] | ArgumentsError:
        if self._read is None:
            if isinstance(self.arguments, dict):
                self._read = self.arguments  # parsed already; reading it again could only change it
            else:
                try:
                    self._read = read_arguments([self.arguments]).value
                except ArgumentsError as error:
                    self._read = error
        return self._read
