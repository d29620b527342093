"""Prints the types of content blocks and of tools that the installed anthropic SDK knows, as one line of JSON."""

import json
import sys
import typing
from collections.abc import Iterator
from typing import Any

from anthropic.types import content_block_param, tool_result_block_param, tool_union_param
from anthropic.types.beta import beta_content_block_param, beta_tool_result_block_param, beta_tool_union_param


def kinds_in(union: Any) -> Iterator[tuple[str, str | None]]:
    """Type and name of each member; a union may hold unions."""
    for member in typing.get_args(union):
        if typing.get_args(member):
            yield from kinds_in(member)
            continue
        hints = _fields_of(member)
        name = next(iter(typing.get_args(hints.get("name"))), None)
        for kind in (hints.get("type"), *typing.get_args(hints.get("type"))):
            for each in typing.get_args(kind):
                if isinstance(each, str):
                    yield each, name if isinstance(name, str) else None


def _fields_of(member: Any) -> dict[str, Any]:
    """The types of its fields: a request's are dictionaries, an answer's models."""
    if hasattr(member, "model_fields"):
        return {name: field.annotation for name, field in member.model_fields.items()}
    return typing.get_type_hints(member)


def names(*unions: Any) -> list[str]:
    return sorted({kind for union in unions for kind, _ in kinds_in(union)})


sys.stdout.write(
    json.dumps(
        {
            "blocks": names(content_block_param.ContentBlockParam, beta_content_block_param.BetaContentBlockParam),
            "in_results": names(tool_result_block_param.Content, beta_tool_result_block_param.Content),
            "tools": dict(kinds_in(tool_union_param.ToolUnionParam | beta_tool_union_param.BetaToolUnionParam)),
        }
    )
)
