"""Shows running tools in a stream, in the format that the client requested."""

from typing import Any, Final, Protocol, TypeAlias

from callgate.api.chat_request import Dialect
from callgate.calls.outcome import Failed
from callgate.conversation.events import CallEnded, CallProgress, CallStarted

ToolEvent: TypeAlias = CallStarted | CallProgress | CallEnded


class Progress(Protocol):
    """One format. A tool's event is shown as a line of reasoning, as fields of an empty chunk, or not at all."""

    def line(self, event: ToolEvent) -> str | None:
        """Return a line of reasoning, which whole answers have as well."""
        ...

    def fields(self, event: ToolEvent) -> dict[str, Any] | None:
        """Return the fields of a chunk without content."""
        ...


SHOWS_NOTHING: Final[frozenset[Dialect]] = frozenset({"off", "trace"})
"""Formats in which calls are not shown by themselves."""


def progress_in(dialect: Dialect, run_id: str) -> Progress | None:
    match dialect:
        case "off" | "trace":
            return None
        case "x":
            return _Extra(run_id)
        case "reasoning":
            return _ReasoningLines()
        case "openwebui":
            return _OpenWebUI()


class _Extra:
    """`x_callgate` in empty chunks, for clients that support it."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def line(self, event: ToolEvent) -> str | None:
        return None

    def fields(self, event: ToolEvent) -> dict[str, Any] | None:
        facts: dict[str, Any] = {
            "run": self._run_id,
            "turn": event.turn,
            "call": event.call.id,
            "name": event.call.name,
        }
        match event:
            case CallStarted():
                facts["phase"] = "start"
            case CallProgress(message=message, fraction=fraction):
                facts |= {"phase": "progress", "message": message, "fraction": fraction}
                if approval := _wanted_approval(event):
                    facts["approval"] = approval
                if question := _open_question(event):
                    facts["input"] = question
            case CallEnded(outcome=outcome, seconds=seconds):
                facts |= {"phase": "error" if isinstance(outcome, Failed) else "done", "ms": round(seconds * 1000, 1)}
        return {"x_callgate": facts}


class _ReasoningLines:
    """A line of reasoning for each call."""

    def line(self, event: ToolEvent) -> str | None:
        if approval := _wanted_approval(event):
            return f"{event.call.name} waits for approval ({approval}) …"
        if question := _open_question(event):
            return f"{event.call.name} waits for input ({question}) …"
        if isinstance(event, CallStarted):
            return f"Running {event.call.name} …"
        return None

    def fields(self, event: ToolEvent) -> dict[str, Any] | None:
        return None


class _OpenWebUI:
    """The status line of Open WebUI, in a chunk's top-level `event`."""

    def line(self, event: ToolEvent) -> str | None:
        return None

    def fields(self, event: ToolEvent) -> dict[str, Any] | None:
        return {
            "event": {"type": "status", "data": {"description": _status(event), "done": isinstance(event, CallEnded)}}
        }


def _wanted_approval(event: ToolEvent) -> str:
    """Return the id of the approval that a call waits for."""
    if isinstance(event, CallProgress):
        return event.waits_for
    return ""


def _open_question(event: ToolEvent) -> str:
    """Return the id of the question that a call waits for an answer to."""
    if isinstance(event, CallProgress):
        return event.asks
    return ""


def _how_far(event: CallProgress) -> str:
    """Return a line with the message and the fraction of a progress report; a tool may send either alone."""
    parts = [event.message] if event.message else []
    if event.fraction is not None:
        full = round(10 * min(max(event.fraction, 0.0), 1.0))
        parts.append(f"{'▰' * full}{'▱' * (10 - full)} {min(max(event.fraction, 0.0), 1.0):.0%}")
    return " ".join(parts) or "working …"


def _status(event: ToolEvent) -> str:
    match event:
        case CallStarted(call=call):
            return f"Running {call.name} …"
        case CallProgress(call=call):
            return f"{call.name}: {_how_far(event)}"
        case CallEnded(call=call, outcome=Failed()):
            return f"{call.name} failed"
        case CallEnded(call=call):
            return f"{call.name} done"
