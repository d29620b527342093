"""Tool descriptions from MCP servers, cleaned of invisible characters. `pins` compares them with what they were."""

import fnmatch
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.calls.unseen import visible
from callgate.tools.executor import Safety

if TYPE_CHECKING:
    import mcp_types as types

_HEADER_KEY = "x-mcp-header"
MAX_TITLE = 200
_SAYS = frozenset({"description", "title", "$comment"})
"""Keywords of a schema with text for readers. All others are data, and not cleaned."""


class Descriptor(msgspec.Struct, frozen=True):
    """A tool as its server describes it, cleaned."""

    name: str
    """The server's own name for it."""
    description: str
    parameters: Mapping[str, Any]
    safety: Safety | None
    """The class that its annotations suggest; None where there are none."""
    direct: bool
    """Whether its calls can bypass the SDK."""
    digest: str
    """The digest of name, title, description, schema and annotations as received."""
    plain_digest: str
    """The digest of name, description and schema only."""
    output_schema: Mapping[str, Any] | None = None
    """What it says of its results for programs."""
    title: str = ""
    """Its name for people."""
    text: str = ""
    """What the first digest is of, as JSON."""


def described(tool: "types.Tool") -> Descriptor:
    annotations = tool.annotations
    words = tool.description or tool.title or (annotations.title if annotations else None) or ""
    # The protocol's default is destructive, which would make the class meaningless.
    if annotations is None:
        safety = None
    elif annotations.read_only_hint:
        safety = Safety.READ_ONLY
    elif annotations.destructive_hint:
        safety = Safety.DESTRUCTIVE
    elif (
        annotations.read_only_hint is False
        or annotations.destructive_hint is False
        or annotations.idempotent_hint is not None
    ):
        safety = Safety.WRITE
    else:
        safety = None
    shown_annotations = annotations and annotations.model_dump(mode="json")
    text = _written(tool.name, tool.description, tool.input_schema, tool.title, shown_annotations)
    return Descriptor(
        name=tool.name,
        description=visible(words),
        parameters=_visible_schema(tool.input_schema),
        safety=safety,
        direct=not _mentions(tool.input_schema, _HEADER_KEY),
        output_schema=tool.output_schema,
        digest=_digest(text),
        plain_digest=_digest(_written(tool.name, tool.description, tool.input_schema)),
        title=visible(tool.title or (annotations.title if annotations else None) or "")[:MAX_TITLE],
        text=text,
    )


def is_callable(tool: "types.Tool") -> bool:
    """True unless the tool runs only as an MCP task, which is not supported."""
    return tool.execution is None or tool.execution.task_support != "required"


def is_allowed(name: str, patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _visible_schema(value: Any, *, says: bool = False) -> Any:
    match value:
        case str():
            if says:
                return visible(value)
            return value
        case dict():
            return {key: _visible_schema(item, says=key in _SAYS) for key, item in value.items()}
        case list():
            return [_visible_schema(item) for item in value]
        case _:
            return value


def _mentions(value: Any, key: str) -> bool:
    match value:
        case dict():
            return key in value or any(_mentions(item, key) for item in value.values())
        case list():
            return any(_mentions(item, key) for item in value)
        case _:
            return False


def _written(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
