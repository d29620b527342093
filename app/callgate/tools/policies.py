"""Builds what entries of all kinds of tools have in common: policy, approval rules, secrets and fingerprint."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from pydantic import SecretStr

from callgate.config.schema.select import by_name
from callgate.conversation.prices import NANO
from callgate.tools.approvals.rules import NO_RULE, ApprovalRule
from callgate.tools.approvals.settings import ApprovalLists
from callgate.tools.executor import Executor, Policy, Safety, Tool
from callgate.tools.parameters import closed
from callgate.tools.settings import ToolSection
from callgate.tools.shaped_results import ResultRules

if TYPE_CHECKING:
    from callgate.tools.kinds.command.settings import CommandTool
    from callgate.tools.kinds.http.settings import HttpTool

POLICY_FIELDS = ("timeout", "concurrency", "max_result_bytes", "retries", "in_order", "untrusted")


def approval_rule(lists: ApprovalLists | None) -> ApprovalRule:
    if lists is None:
        return NO_RULE
    return ApprovalRule(lists.always, lists.never)


def policy_of(entry: ToolSection) -> dict[str, Any]:
    """Return the policy that an entry sets; for the rest the tool's own declaration or the default counts."""
    settings = {name: value for name in POLICY_FIELDS if (value := getattr(entry, name)) is not None}
    if entry.safety is not None:
        settings["safety"] = Safety(entry.safety)
        settings["safety_is_given"] = True
    return settings


def tool_of(entry: "HttpTool | CommandTool", executor: Executor, defaults: Policy, source: str) -> Tool:
    """Return the tool of an entry that describes it itself."""
    return Tool(
        name=entry.name,
        description=entry.description,
        parameters=closed(entry.parameters),
        executor=executor,
        policy=replace(defaults, **policy_of(entry)),
        kind=entry.kind,
        source=source,
    )


def in_clear(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def result_rules(entry: ToolSection) -> ResultRules:
    """Return what an entry says about the results of its tools."""
    return ResultRules(
        selects=by_name(entry.select),
        form=entry.result,
        cache_seconds=entry.cache_seconds,
        cache_shared=entry.cache_shared,
        nano=round((entry.price or 0) * NANO),
    )


_NOT_OF_THE_SOURCE = {
    "require_approval",
    "concurrency",
    "disabled",
    "select",
    "result",
    "cache_seconds",
    "cache_shared",
    "price",
}
"""Settings of an entry that do not affect its source, so that changing them does not restart it."""


def fingerprint(entry: ToolSection) -> str:
    """Return a digest of all settings of a source, secrets included."""
    settings = entry.model_dump(exclude=_NOT_OF_THE_SOURCE)
    return sha256(repr(_revealed(settings)).encode("utf-8", "surrogatepass")).hexdigest()


def _revealed(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Mapping():
            return sorted((str(name), _revealed(inner)) for name, inner in value.items())
        case list() | tuple():
            return [_revealed(inner) for inner in value]
        case _:
            return value


def stamp_of(place: str) -> tuple[int, int] | None:
    """Return a stamp that changes when a file does; None for an address."""
    try:
        status = Path(place).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
