"""Builds the common parts of all kinds of tools: policy, approval rules, secrets and fingerprint."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from callgate.config.schema import ApprovalLists, ToolSection
from callgate.tools.approval_rules import NO_RULE, ApprovalRule
from callgate.tools.executor import Safety

POLICY_FIELDS = ("timeout", "concurrency", "max_result_bytes", "retries", "in_order")


def approval_rule(lists: ApprovalLists | None) -> ApprovalRule:
    return NO_RULE if lists is None else ApprovalRule(lists.always, lists.never)


def policy_of(entry: ToolSection) -> dict[str, Any]:
    """Return the policy that an entry sets; for the rest the tool's own declaration or the default counts."""
    given = {name: value for name in POLICY_FIELDS if (value := getattr(entry, name)) is not None}
    if entry.safety is not None:
        given["safety"] = Safety(entry.safety)
        given["safety_is_given"] = True
    return given


def in_clear(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


_NOT_OF_THE_SOURCE = {"require_approval", "concurrency", "disabled"}
"""Settings of an entry that do not affect its source, so that changing them does not restart it."""


def fingerprint(entry: ToolSection) -> str:
    """Return a digest of all settings of a source, secrets included."""
    given = entry.model_dump(exclude=_NOT_OF_THE_SOURCE)
    return sha256(repr(_revealed(given)).encode("utf-8", "surrogatepass")).hexdigest()


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
        found = Path(place).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
