"""Describes the server tools for people: their tokens in a prompt, and the reasons for those that cannot be used."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from callgate.tools.executor import Safety
from callgate.tools.own_tool import OWN_SOURCE
from callgate.tools.read_more import DESCRIPTION, NAME, PARAMETERS, read_more_apart_from
from callgate.tools.registry import NameClash, Quarantined, RegisteredTool, address
from callgate.tools.source_supervisor import SourceStatus

CHARS_PER_TOKEN = 4
"""A rough estimate, not used for costs."""


def ready_facts(tools: Sequence[RegisteredTool]) -> list[dict[str, Any]]:
    """Describe usable tools for their users, with `read_more`, which is offered beside them."""
    facts = [tool_facts(tool) for tool in tools]
    if tools:
        facts.append(read_more_facts(tool.name for tool in tools))
    return facts


def tool_facts(tool: RegisteredTool) -> dict[str, Any]:
    """Describe a usable tool for its users, without its location."""
    policy = tool.tool.policy
    return {
        "name": tool.name,
        "object": "tool",
        "title": tool.tool.title or None,
        "description": tool.tool.description,
        "parameters": tool.tool.parameters,
        "kind": tool.tool.kind,
        "source": tool.source or "config",
        "origin": tool.address,
        "safety": str(policy.safety),
        "require_approval": policy.require_approval,
        "untrusted": policy.untrusted,
        "prompt_tokens": prompt_tokens(tool.definition),
        "state": "ready",
        **_of_results(tool),
    }


def _of_results(tool: RegisteredTool) -> dict[str, Any]:
    """Say what of its results a model gets, where that is a part of them."""
    return {"select": tool.tool.select} if tool.tool.select else {}


def operators_facts(tool: RegisteredTool) -> dict[str, Any]:
    """Describe a usable tool for the operator."""
    policy = tool.tool.policy
    return {
        **tool_facts(tool),
        "from": tool.tool.source,
        "timeout": policy.timeout,
    }


def read_more_facts(names: Iterable[str]) -> dict[str, Any]:
    """Describe the tool `read_more` as it is offered beside tools of these names."""
    tool = read_more_apart_from(set(names))
    return {
        "name": tool.name,
        "object": "tool",
        "description": DESCRIPTION,
        "parameters": PARAMETERS,
        "kind": OWN_SOURCE,
        "source": OWN_SOURCE,
        "origin": address(OWN_SOURCE, NAME),
        "safety": str(Safety.READ_ONLY),
        "require_approval": False,
        "untrusted": False,
        "prompt_tokens": prompt_tokens(tool.definition),
        "state": "ready",
    }


def prompt_tokens(definition: msgspec.Raw) -> int:
    """Estimate the tokens of a tool in each prompt."""
    return -(-len(bytes(definition)) // CHARS_PER_TOKEN)


def clash_facts(clash: NameClash) -> dict[str, Any]:
    return {"name": clash.claimed, "object": "tool_name_clash", "tools": dict(clash.names)}


def source_facts(status: SourceStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "kind": status.kind,
        "state": str(status.state),
        "error": status.error or None,
        "since": round(status.since, 3) or None,
        "failures": status.failures,
        "open_ms": None if status.seconds is None else round(status.seconds * 1000, 1),
    }


def quarantined_facts(broken: Quarantined) -> dict[str, Any]:
    return {
        "name": broken.name,
        "object": "tool",
        "source": broken.source or "config",
        "state": "held" if broken.is_held else "quarantined",
        "reason": broken.reason,
    }
