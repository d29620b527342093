"""The states of a tool call: what a model wrote becomes a `ReadyCall` or a `BrokenCall`, and nothing else.

Only a `ReadyCall` has arguments to run with, so running half a call is a type error. What can be wrong (`Flaw`) and what
can be noticed (`Finding`) are closed lists; `tests/corpus/README.md` defines when each applies.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias, final

import msgspec


class Flaw(StrEnum):
    """Why a call must not run."""

    TRUNCATED = "truncated"
    INVALID_JSON = "invalid_json"
    INVALID_MARKUP = "invalid_markup"
    NOT_AN_OBJECT = "not_an_object"
    ARGUMENTS_TOO_LARGE = "arguments_too_large"
    MISSING_NAME = "missing_name"
    UNKNOWN_TOOL = "unknown_tool"
    SCHEMA_MISMATCH = "schema_mismatch"
    CONTENT_FILTER = "content_filter"
    STREAM_ENDED = "stream_ended"
    UPSTREAM_ERROR = "upstream_error"
    NOT_ALONE = "not_alone"
    """It is whole, but written in a text that goes on behind it, so that it may only be shown. The model is asked."""


class Finding(StrEnum):
    """An observation about a turn, or about a call that runs all the same."""

    TOOL_CALLS_WITH_STOP = "tool_calls_with_stop"
    TOOL_CALLS_WITH_LENGTH = "tool_calls_with_length"
    FINISH_WITHOUT_TOOL_CALLS = "finish_without_tool_calls"
    MISSING_FINISH_REASON = "missing_finish_reason"
    NONSTANDARD_FINISH_REASON = "nonstandard_finish_reason"
    CONFLICTING_FINISH_REASONS = "conflicting_finish_reasons"
    UPSTREAM_ERROR = "upstream_error"
    DUPLICATE_CALL_DROPPED = "duplicate_call_dropped"
    EXTRA_CHOICES_IGNORED = "extra_choices_ignored"
    END_NOT_SEEN = "end_not_seen"

    ID_REPAIRED = "id_repaired"
    NAME_REPAIRED = "name_repaired"
    PARALLEL_UNWRAPPED = "parallel_unwrapped"
    ARGUMENTS_REPAIRED = "arguments_repaired"
    ARGUMENTS_COERCED = "arguments_coerced"
    LEGACY_FUNCTION_CALL = "legacy_function_call"


class FlawDetail(msgspec.Struct, frozen=True, gc=False):
    """The place and the kind of a mistake in arguments, for the model to correct it."""

    pointer: str = ""
    expected: str = ""
    got: str = ""
    note: str = ""
    rule: str = ""
    """The violated rule in the schema, as a JSON pointer. It may be stored where nothing that the model wrote may be."""


class Wrapping(msgspec.Struct, frozen=True, gc=False):
    """The call of a bridge that a call was written inside of: what goes back to the model in the history."""

    name: str
    text: str
    """Its arguments, one JSON object."""


@final
class ReadyCall(msgspec.Struct, frozen=True, gc=False):
    """A call that came whole: a tool that was offered, and arguments that satisfy its schema."""

    id: str
    name: str
    arguments: dict[str, Any]
    text: str
    """The arguments as the model wrote them; this is what goes back to it in the history."""
    findings: tuple[Finding, ...] = ()
    extras: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Provider fields (such as signatures) that must go back with this call unchanged."""
    custom: bool = False
    """A call of a custom tool: `text` is its input, free text and no JSON. Only clients have such tools."""
    wrapping: Wrapping | None = None
    """The call of a bridge that it was inside of, if it was."""


@final
class BrokenCall(msgspec.Struct, frozen=True, gc=False):
    """A call that did not come whole. It has a flaw and no arguments: there is nothing to run."""

    id: str
    name: str | None
    flaw: Flaw
    text: str
    """What the model wrote for arguments, for diagnostics; never parsed again."""
    problem: FlawDetail | None = None
    extras: Mapping[str, Any] = msgspec.field(default_factory=dict)
    wrapping: Wrapping | None = None
    """The call of a bridge that it was inside of, if that was whole."""


Call: TypeAlias = ReadyCall | BrokenCall
