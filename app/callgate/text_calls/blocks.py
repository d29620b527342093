"""Reads tool calls in content blocks: pieces by index, one call per block, complete when its block stops.

A block has its call as XML (`<invoke name="…"><parameter name="…">…`, with or without the `<function_calls>` around it) or as
one JSON object with `name` and `arguments` (or `input`, or `parameters`). It is read only after the block has stopped, and
checked by the gate like any call.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from callgate.calls.json_text import JsonFault, read_json, value_end
from callgate.calls.offer import Check, OfferedTool
from callgate.calls.states import BrokenCall, Flaw, FlawDetail, ReadyCall
from callgate.conversation.events import CallWritten
from callgate.conversation.turn import TurnBuilder

Compile: TypeAlias = Callable[[Mapping[str, Any]], Check]
"""Compiles a JSON Schema into a check."""


def required_only(parameters: Mapping[str, Any]) -> Check:
    """Make a check for missing required parameters only, for callers without a schema compiler."""
    required = [name for name in parameters.get("required") or () if isinstance(name, str)]

    def check(arguments: dict[str, Any]) -> FlawDetail | None:
        missing = [name for name in required if name not in arguments]
        if not missing:
            return None
        names = ", ".join(missing)
        return FlawDetail(pointer="", expected=f"required: {', '.join(required)}", got=f"without {names}")

    return check


class ToolUseBuffer:
    """Gathers content blocks by index. `handle_content_block_stop` returns the call of one.

    `attempt_count` is the number of consecutive broken calls; at `max_attempts` the buffer is `exhausted`, and the caller should
    stop to ask the model again. A whole call, or `reset()` after a tool ran, resets the count.
    """

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]] = (),
        max_attempts: int = 3,
        *,
        compile: Compile = required_only,
        new_id: Callable[[], str] = lambda: f"call_{uuid4().hex}",
    ) -> None:
        self.max_attempts = max_attempts
        self.attempt_count = 0
        self._offer: dict[str, OfferedTool] = {}
        for function in (schema["function"] for schema in tools):
            name = function["name"]
            parameters = function.get("parameters") or {}
            self._offer[name] = OfferedTool(name, parameters, compile(parameters))
        self._new_id = new_id
        self._pieces: dict[int, list[str]] = {}
        self._ids: dict[int, str] = {}

    @property
    def exhausted(self) -> bool:
        return self.attempt_count >= self.max_attempts

    def handle_content_block_delta(self, index: int, content: str, tool_id: str | None = None) -> None:
        self._pieces.setdefault(index, []).append(content)
        if tool_id:
            self._ids.setdefault(index, tool_id)

    def handle_content_block_stop(self, index: int) -> ReadyCall | BrokenCall | None:
        """Return the checked call of this block; None if the index had no block. The index is free afterwards."""
        text = "".join(self._pieces.pop(index, ())).strip()
        id = self._ids.pop(index, None)
        if not text:
            return None
        fenced = _FENCED.fullmatch(text)
        if fenced or text.startswith("{"):
            written = _from_json(fenced["body"] if fenced else text, repaired=bool(fenced))
        else:
            written = _from_markup(
                text, {name: tool.parameters.get("properties") or () for name, tool in self._offer.items()}
            )
        call = self._settled(written, id)
        if isinstance(call, ReadyCall):
            self.attempt_count = 0
        else:
            self.attempt_count = self.attempt_count + 1
        return call

    def reset(self) -> None:
        """Reset the count of attempts, after a tool ran. Open blocks are kept."""
        self.attempt_count = 0

    def _settled(self, written: CallWritten, id: str | None) -> ReadyCall | BrokenCall:
        building = TurnBuilder(offer=self._offer, ids=self._new_id)
        building.feed(
            [
                CallWritten(
                    name=written.name,
                    arguments=written.arguments,
                    id=id,
                    flaw=written.flaw,
                    repaired=written.repaired,
                    only_text=written.only_text,
                    undeclared_json=written.undeclared_json,
                    from_text=True,
                )
            ]
        )
        calls = building.finish().calls
        if len(calls) == 1:
            return calls[0]
        # A call that holds several (`multi_tool_use.parallel`) is not supported in a block.
        return BrokenCall(id or self._new_id(), written.name, Flaw.INVALID_MARKUP, str(written.arguments))


_FENCED = re.compile(r"```[a-z]*\s*\n(?P<body>.*?)\s*```", re.DOTALL)


# XML ------------------------------------------------------------------------------------------------------------------


def _from_markup(text: str, tools: Mapping[str, Collection[str]]) -> CallWritten:
    # Imported here, because the readers are slow to load and JSON blocks do not need them.
    from callgate.text_calls.reader import reader_for
    from callgate.text_calls.writers import ANTML

    reader = reader_for("antml" if f"<{ANTML}" in text else "xml", tools, thinking="unknown", is_judging=False)
    calls = [event for event in (*reader.feed(text), *reader.finish()) if isinstance(event, CallWritten)]
    if len(calls) == 1:
        return calls[0]
    # No call, or several: a block has one call, and choosing one would silently drop the others.
    return CallWritten(name=calls[0].name if calls else None, arguments=text, flaw=Flaw.INVALID_MARKUP)


# JSON -----------------------------------------------------------------------------------------------------------------

_ARGUMENT_KEYS = ("arguments", "input", "parameters")


def _from_json(text: str, *, repaired: bool) -> CallWritten:
    try:
        value = read_json(text)
    except JsonFault as fault:
        flaw = Flaw.TRUNCATED if fault.cut else Flaw.INVALID_JSON
        return CallWritten(name=_name_in(text), arguments=text, flaw=flaw)
    name = value.get("name") if isinstance(value, dict) else None
    keys = [key for key in _ARGUMENT_KEYS if isinstance(value, dict) and key in value]
    if len(keys) > 1:
        # Ambiguous.
        return CallWritten(name=_string(name), arguments=text, flaw=Flaw.INVALID_JSON)
    return CallWritten(name=_string(name), arguments=value[keys[0]] if keys else None, repaired=repaired)


def _name_in(text: str) -> str | None:
    """Return the name in an incomplete text, if its string is closed: `{"name": "x", "argum` names x."""
    at = 1
    while key := _MEMBER.match(text, at):
        try:
            end = value_end(text, key.end())
        except JsonFault:
            return None
        if key["key"] == '"name"':
            value = read_json(text[key.end() : end])
            return _string(value)
        at = end
    return None


_MEMBER = re.compile(r'[\s,]*(?P<key>"[^"\\]*")\s*:\s*')


def _string(value: Any) -> str | None:
    if isinstance(value, str) and value:
        return value
    return None
