"""Describes the server tools for people: their tokens in a prompt, and the reasons for those that cannot be used."""

from typing import Any

from callgate.tools.registry import NameClash, Quarantined, RegisteredTool
from callgate.tools.source_supervisor import SourceStatus

CHARS_PER_TOKEN = 4
"""A rough estimate, not used for costs."""


def tool_facts(tool: RegisteredTool) -> dict[str, Any]:
    """Describe a usable tool for its users, without its location."""
    policy = tool.tool.policy
    return {
        "name": tool.name,
        "object": "tool",
        "description": tool.tool.description,
        "parameters": tool.tool.parameters,
        "kind": tool.tool.kind,
        "source": tool.source or "config",
        "origin": tool.address,
        "safety": str(policy.safety),
        "require_approval": policy.require_approval,
        "prompt_tokens": prompt_tokens(tool),
        "state": "ready",
    }


def operators_facts(tool: RegisteredTool) -> dict[str, Any]:
    """Describe a usable tool for the operator."""
    policy = tool.tool.policy
    return {
        **tool_facts(tool),
        "from": tool.tool.source,
        "timeout": policy.timeout,
    }


def prompt_tokens(tool: RegisteredTool) -> int:
    """Estimate the tokens of the tool in each prompt."""
    return -(-len(bytes(tool.schema)) // CHARS_PER_TOKEN)


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
        "state": "quarantined",
        "reason": broken.reason,
    }
