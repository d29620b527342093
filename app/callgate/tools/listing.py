"""Lists the server tools for people: their tokens in a prompt, and which cannot be used and why."""

from typing import Any

from callgate.tools.registry import NameClash, Quarantined, RegisteredTool
from callgate.tools.source_supervisor import SourceStatus

CHARS_PER_TOKEN = 4
"""A rule of thumb: tokenizers differ, and a bill is not made from this."""


def tool_facts(tool: RegisteredTool) -> dict[str, Any]:
    """One tool that can be used, as its users may see it. Where it really is stays with the operator."""
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
        "state": "ready",
    }


def operators_facts(tool: RegisteredTool) -> dict[str, Any]:
    """The same, and what only the operator should know."""
    policy = tool.tool.policy
    return {
        **tool_facts(tool),
        "from": tool.tool.source,
        "timeout": policy.timeout,
        "prompt_tokens": prompt_tokens(tool),
    }


def prompt_tokens(tool: RegisteredTool) -> int:
    """About how many tokens of every prompt the tool costs where it is offered."""
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
