"""The tools of Anthropic's that a client runs itself, as functions: a model of chats knows no `bash_20250124`, and can call a `bash`."""

from collections.abc import Mapping
from typing import Any, Final

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_PLACE: Final = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_EDITS: Final[dict[str, Any]] = {
    "path": {**_TEXT, "description": "Absolute path to a file or directory."},
    "view_range": {**_PLACE, "description": "`view`: the first and the last line, from 1; -1 is the end of the file."},
    "file_text": {**_TEXT, "description": "`create`: the content of the new file."},
    "old_str": {**_TEXT, "description": "`str_replace`: the text to replace, which must be in the file exactly once."},
    "new_str": {**_TEXT, "description": "`str_replace`: the new text. `insert` in older versions: the text to insert."},
    "insert_line": {
        **_NUMBER,
        "description": "`insert`: the line behind which the text is inserted; 0 is the beginning.",
    },
    "insert_text": {**_TEXT, "description": "`insert`: the text to insert."},
}
_MOVES: Final = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
)
_LOOKS: Final = ("screenshot", "cursor_position")
_MORE_MOVES: Final = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")


def _closed(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


def _commands(*names: str) -> dict[str, Any]:
    return {"command": {"type": "string", "enum": list(names), "description": "What to do."}}


_BASH: Final = (
    "Runs commands in a bash shell that stays open between calls.",
    _closed(
        {
            "command": {**_TEXT, "description": "The command to run. Required unless the shell is restarted."},
            "restart": {"type": "boolean", "description": "Restarts the shell."},
        }
    ),
)
_EDITOR: Final = (
    "Views, creates and edits text files.",
    _closed(_commands("view", "create", "str_replace", "insert") | _EDITS, "command", "path"),
)
_UNDOING_EDITOR: Final = (
    "Views, creates and edits text files. `undo_edit` takes the last edit of a file back.",
    _closed(_commands("view", "create", "str_replace", "insert", "undo_edit") | _EDITS, "command", "path"),
)
_MEMORY: Final = (
    "Keeps what is to be remembered in files below /memories. View that directory before a task begins.",
    _closed(
        _commands("view", "create", "str_replace", "insert", "delete", "rename")
        | _EDITS
        | {
            "path": {**_TEXT, "description": "Path below /memories; not for `rename`."},
            "old_path": {**_TEXT, "description": "`rename`: the path so far."},
            "new_path": {**_TEXT, "description": "`rename`: the new path."},
        },
        "command",
    ),
)


def _computer(*actions: str, zooms: bool = False) -> tuple[str, dict[str, Any]]:
    fields: dict[str, Any] = {
        "action": {"type": "string", "enum": list(actions), "description": "What to do."},
        "coordinate": {**_PLACE, "description": "x and y in pixels from the upper left corner."},
        "text": {**_TEXT, "description": "The text to type, or the key to press."},
    }
    if "scroll" in actions:
        directions = {"type": "string", "enum": ["up", "down", "left", "right"]}
        fields |= {"start_coordinate": {**_PLACE, "description": "Where a drag begins."}}
        fields |= {"scroll_direction": directions, "scroll_amount": _NUMBER, "duration": {"type": "number"}}
    if zooms:
        corners = {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4}
        fields["region"] = {**corners, "description": "`zoom`: x0, y0, x1, y1 of what is to be seen closely."}
    return "Uses a mouse and a keyboard, and takes screenshots.", _closed(fields, "action")


_OLD_COMPUTER: Final = _computer(*_MOVES, *_LOOKS)
_COMPUTER: Final = _computer(*_MOVES, *_LOOKS, *_MORE_MOVES)
_ZOOMING_COMPUTER: Final = _computer(*_MOVES, *_LOOKS, *_MORE_MOVES, "zoom", zooms=True)

_TOOLS: Final[Mapping[str, tuple[str, tuple[str, Mapping[str, Any]]]]] = {
    "bash_20241022": ("bash", _BASH),
    "bash_20250124": ("bash", _BASH),
    "text_editor_20241022": ("str_replace_editor", _UNDOING_EDITOR),
    "text_editor_20250124": ("str_replace_editor", _UNDOING_EDITOR),
    "text_editor_20250429": ("str_replace_based_edit_tool", _EDITOR),
    "text_editor_20250728": ("str_replace_based_edit_tool", _EDITOR),
    "memory_20250818": ("memory", _MEMORY),
    "computer_20241022": ("computer", _OLD_COMPUTER),
    "computer_20250124": ("computer", _COMPUTER),
    "computer_20251124": ("computer", _ZOOMING_COMPUTER),
}
"""The name, description and parameters of each, as Anthropic documents them."""


def is_client_run(kind: str | None) -> bool:
    return kind in _TOOLS


def as_function(kind: str, *, width: int | None = None, height: int | None = None) -> dict[str, Any]:
    """Return the function that stands for a tool. `width`, `height`: of the client's display in pixels."""
    name, (description, parameters) = _TOOLS[kind]
    if width is not None and height is not None:
        description = f"{description} The display has {width} by {height} pixels."
    return {"name": name, "description": description, "parameters": parameters}
