"""The tools of the Responses API that a client runs itself, as functions: each has items of its own for calls and outputs.

A model behind that API is given the tool itself. Any other is given a function with the arguments that OpenAI documents, and its
calls become the items that the client expects.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_encode = msgspec.json.Encoder().encode

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
FAILED: Final = "Failed. "
"""The beginning of the text for an output that says it failed."""


class ClientRunItem(msgspec.Struct, frozen=True, kw_only=True):
    """One such tool."""

    kind: str
    """The type of the tool."""
    name: str
    """Of the function."""
    call: str
    output: str
    """The types of its items."""
    prefix: str
    """The beginning of the ids of its calls."""
    field: str
    """The field of a call that its arguments are in; empty where they are fields of the call."""
    fixed: Mapping[str, Any] = {}
    """What the field, or the call, has unless the arguments say otherwise."""
    settings: Sequence[str] = ()
    """The fields of the tool that go to a provider."""
    description: str
    parameters: Mapping[str, Any]

    def function(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def native(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tool for a provider that has it."""
        return {"type": self.kind, **{name: tool[name] for name in self.settings if tool.get(name) is not None}}

    def arguments_of(self, item: Mapping[str, Any]) -> str:
        """Return the arguments of the function for a call's item."""
        if self.field:
            arguments = item.get(self.field)
            if isinstance(arguments, Mapping):
                arguments = {name: value for name, value in arguments.items() if value is not None}
        else:
            arguments = {name: item[name] for name in self.parameters["properties"] if item.get(name) is not None}
        return _encode(arguments).decode()

    def item_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a call's item, without its ids and status."""
        if self.field:
            return {"type": self.call, self.field: {**self.fixed, **arguments}}
        own = {name: value for name, value in arguments.items() if name in self.parameters["properties"]}
        return {"type": self.call, **self.fixed, **own}

    def sent_call(self, call_id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's item for the provider that made it."""
        digest = hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:24]
        return {"id": f"{self.prefix}_{digest}", "call_id": call_id, "status": "completed", **self.item_of(arguments)}


def _closed(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


_PATCH: Final = _closed(
    {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"], "description": "What to do."},
        "path": {**_TEXT, "description": "The file, relative to the root of the workspace."},
        "diff": {**_TEXT, "description": "The change in V4A diff format; not for `delete_file`."},
    },
    "type",
    "path",
)
_SHELL: Final = _closed(
    {
        "commands": {**_TEXTS, "description": "The commands, in the order in which they are run."},
        "timeout_ms": {**_NUMBER, "description": "The longest time that they may take, in milliseconds."},
        "max_output_length": {**_NUMBER, "description": "How many characters of the output to keep."},
    },
    "commands",
)
_LOCAL_SHELL: Final = _closed(
    {
        "command": {**_TEXTS, "description": "The command and its arguments."},
        "env": {"type": "object", "additionalProperties": _TEXT, "description": "Environment variables."},
        "working_directory": {**_TEXT, "description": "Where to run it."},
        "timeout_ms": {**_NUMBER, "description": "The longest time that it may take, in milliseconds."},
        "user": {**_TEXT, "description": "The user to run it as."},
    },
    "command",
)
_POINT: Final = {"type": "object", "properties": {"x": _NUMBER, "y": _NUMBER}, "required": ["x", "y"]}
_ACTION: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "type": {
            "type": "string",
            "enum": ["click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type", "wait"],
            "description": "What to do.",
        },
        "x": {**_NUMBER, "description": "In pixels from the left. For `click`, `double_click`, `move` and `scroll`."},
        "y": {**_NUMBER, "description": "In pixels from the top."},
        "button": {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"], "description": "`click`."},
        "path": {"type": "array", "items": _POINT, "description": "`drag`: the points to go through."},
        "keys": {**_TEXTS, "description": "`keypress`: the keys to press together; else those to hold meanwhile."},
        "scroll_x": {**_NUMBER, "description": "`scroll`: the horizontal distance."},
        "scroll_y": {**_NUMBER, "description": "`scroll`: the vertical distance."},
        "text": {**_TEXT, "description": "`type`: the text to type."},
    },
    "required": ["type"],
}
_CHECKS: Final = {"type": "array", "items": {"type": "object"}, "description": "Leave this out."}
_USES: Final = "Uses a mouse and a keyboard. What the screen shows afterwards is returned."

ROWS: Final[Sequence[ClientRunItem]] = (
    ClientRunItem(
        kind="apply_patch",
        name="apply_patch",
        call="apply_patch_call",
        output="apply_patch_call_output",
        prefix="apc",
        field="operation",
        settings=("allowed_callers",),
        description="Creates, updates or deletes a file of the workspace.",
        parameters=_PATCH,
    ),
    ClientRunItem(
        kind="shell",
        name="shell",
        call="shell_call",
        output="shell_call_output",
        prefix="sh",
        field="action",
        fixed={"timeout_ms": None, "max_output_length": None},
        settings=("allowed_callers", "environment"),
        description="Runs shell commands. Returns what each wrote, and how it ended.",
        parameters=_SHELL,
    ),
    ClientRunItem(
        kind="local_shell",
        name="local_shell",
        call="local_shell_call",
        output="local_shell_call_output",
        prefix="lsh",
        field="action",
        fixed={"type": "exec", "env": {}},
        description="Runs a command in a shell.",
        parameters=_LOCAL_SHELL,
    ),
    ClientRunItem(
        kind="computer",
        name="computer",
        call="computer_call",
        output="computer_call_output",
        prefix="cu",
        field="",
        fixed={"pending_safety_checks": []},
        description=_USES,
        parameters=_closed(
            {"actions": {"type": "array", "items": _ACTION}, "pending_safety_checks": _CHECKS}, "actions"
        ),
    ),
    ClientRunItem(
        kind="computer_use_preview",
        name="computer_use_preview",
        call="computer_call",
        output="computer_call_output",
        prefix="cu",
        field="",
        fixed={"pending_safety_checks": []},
        settings=("display_width", "display_height", "environment"),
        description=_USES,
        parameters=_closed({"action": _ACTION, "pending_safety_checks": _CHECKS}, "action"),
    ),
)
BY_KIND: Final[Mapping[str, ClientRunItem]] = {row.kind: row for row in ROWS}
OUTPUTS: Final = frozenset(row.output for row in ROWS)
CALLS: Final = frozenset(row.call for row in ROWS)
_BY_CALL: Final[Mapping[str, ClientRunItem]] = {row.call: row for row in reversed(ROWS)}
_HOSTED: Final = ("container_auto", "container_reference")
"""The environments of a shell that the provider runs."""


def client_run(tool: Mapping[str, Any]) -> ClientRunItem | None:
    """Return the row of a tool that its client runs; None for any other."""
    environment = tool.get("environment")
    if isinstance(environment, Mapping) and environment.get("type") in _HOSTED:
        return None
    kind = tool.get("type")
    return BY_KIND.get(kind) if isinstance(kind, str) else None


def row_of_call(item: Mapping[str, Any]) -> ClientRunItem | None:
    """Return the row of a call's item; None for any other item."""
    row = _BY_CALL.get(str(item.get("type")))
    if row is not None and row.call == "computer_call" and "actions" not in item and "action" in item:
        return BY_KIND["computer_use_preview"]
    return row


def returned_of(item: Mapping[str, Any]) -> Any:
    """Return what an output's item says, as the output of a function."""
    output = item.get("output")
    kind = item["type"]
    if kind == "apply_patch_call_output":
        return (FAILED if item.get("status") == "failed" else "") + (output if isinstance(output, str) else "")
    if kind == "computer_call_output" and isinstance(output, Mapping):
        return [{"type": "input_image", "image_url": output.get("image_url"), "detail": "auto"}]
    if isinstance(output, str):
        return output
    return _encode(output).decode()


def sent_output(row: ClientRunItem, call_id: str, text: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output's item for the provider that made the call. `item`: the fields of the client's own, where it is known."""
    if row.output == "apply_patch_call_output":
        said: dict[str, Any] = {"status": "completed", "output": text}
        if text.startswith(FAILED):
            said = {"status": "failed", "output": text.removeprefix(FAILED)}
        return {"type": row.output, "call_id": call_id, **said}
    if row.output == "local_shell_call_output":
        return {"type": row.output, "id": call_id, "output": text}
    return {"type": row.output, "call_id": call_id, "output": text, **item}


def returned_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an output's item that only a provider with such items reads, without names of files."""
    fields: dict[str, Any] = {}
    output = item.get("output")
    if isinstance(output, list):
        fields["output"] = [_named(part, "stdout", "stderr", "outcome") for part in output if isinstance(part, Mapping)]
    elif isinstance(output, Mapping):
        fields["output"] = {"type": "computer_screenshot", **_named(output, "image_url")}
    checks = item.get("acknowledged_safety_checks")
    if isinstance(checks, list):
        fields["acknowledged_safety_checks"] = [
            _named(check, "id", "code", "message") for check in checks if isinstance(check, Mapping)
        ]
    return fields


def _named(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value[name] for name in names if value.get(name) is not None}
