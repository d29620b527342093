"""Who may do what by a config, as `callgate check` prints it: a row for each caller."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from callgate.access.building import access_of, allowance_of, caller_of_group, key_entry
from callgate.access.key_store import FILE, written_moment
from callgate.access.keys import KeyEntry
from callgate.access.keys import caller_of as caller_of_key
from callgate.callers.allowance import Allowance
from callgate.callers.caller import ANONYMOUS, Caller
from callgate.callers.rights import Access
from callgate.config.schema.whole import Config
from callgate.tools.executor import Safety
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.tool_filter import ToolFilter, narrowed

WIDTH: Final = 120
HEAD: Final = ("CALLER", "MODELS", "TOOLS", "APPROVE", "SEE", "ADMIN", "LIMITS")
WIDEST: Final = (26, 28, 22, 7, 4, 5, 16)
"""Characters of each column; the last one takes what is left of the line."""
MOST_ROWS: Final = 20
"""Callers who get a row each. Of more, those with the same rights share one."""
NOBODY: Final = Caller("nobody", models=(), tools=())
"""Who asks without a key where one is required: gets health and the page, and a 401 for all else."""
UNITS: Final = {
    "requests_per_minute": "{:g} req/min",
    "tokens_per_minute": "{:g} tok/min",
    "parallel": "{:g} at once",
    "budget_per_day": "${:g}/day",
    "budget_per_month": "${:g}/month",
}


def callers_of(config: Config, registry: Registry) -> list[dict[str, Any]]:
    """Return each caller with what it may."""
    access = access_of(config)
    rows = [_facts(config, registry, access, entry.name, caller_of_key(entry), entry) for entry in _entries(config)]
    stored = [
        _facts(config, registry, access, f"{entry.name} (store)", caller_of_key(entry), entry)
        for entry in _stored(config)
    ]
    people = list(_groups(config, registry, access))
    if config.auth.mode == "off" or not (rows or stored or people):
        return [_facts(config, registry, access, "anybody without a key", ANONYMOUS, None)]
    return [*rows, *stored, *people, _facts(config, registry, access, "without a key", NOBODY, None)]


def _groups(config: Config, registry: Registry, access: Access) -> Iterator[dict[str, Any]]:
    """Yield what the members of each group of the issuer may."""
    for name, group in config.groups().items():
        facts = _facts(config, registry, access, f"group:{name}", caller_of_group(name, group), None)
        yield {**facts, "each": _limits_of(allowance_of(group.per_member))}


def _entries(config: Config) -> Iterator[KeyEntry]:
    return map(key_entry, config.keys)


def _stored(config: Config) -> list[KeyEntry]:
    """Return the keys of the store that are in use, without making one."""
    from callgate.access.commands import key_store

    if config.ledger.url is None and (config.data_dir is None or not (Path(config.data_dir) / FILE).exists()):
        return []
    store = key_store(config)
    try:
        ours = {key.name for key in config.keys}
        return [key.entry for key in store.all() if key.revoked_at is None and key.entry.name not in ours]
    finally:
        store.close()


def _facts(
    config: Config, registry: Registry, access: Access, name: str, caller: Caller, entry: KeyEntry | None
) -> dict[str, Any]:
    models = [model for model in config.model_list if caller.may_ask(model.model_name)]
    usable: dict[str, RegisteredTool] = {}
    for model in models:
        for tool in narrowed(registry.tools(), [ToolFilter(model.tools), ToolFilter(caller.tools)]):
            usable[tool.name] = tool
    policies = [tool.tool.policy for tool in usable.values()]
    return {
        "name": name,
        "models": list(dict.fromkeys(model.model_name for model in models)),
        "tools": list(usable),
        "may_write": sorted(name for name, tool in usable.items() if tool.tool.policy.safety is not Safety.READ_ONLY),
        "wait_for_approval": sum(1 for policy in policies if policy.require_approval),
        "tools_of_sources": bool(registry.sources()) and caller.tools != (),
        "approve": access.may_approve(caller),
        "see": "all" if access.may_see_all(caller) else caller.see,
        "admin": access.may_administer(caller),
        "limits": _limits_of(caller.allowance),
        "expires": None if entry is None else written_moment(entry.expires_at),
    }


def _limits_of(allowance: Allowance) -> dict[str, Any]:
    return {field: value for field in UNITS if (value := getattr(allowance, field)) is not None}


def lines_of(callers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table, at most `WIDTH` wide."""
    yield from _lined([HEAD, *(_row(facts, names) for names, facts in _grouped(callers))])


def _grouped(callers: Sequence[dict[str, Any]]) -> Iterable[tuple[list[str], dict[str, Any]]]:
    if len(callers) <= MOST_ROWS:
        return [([facts["name"]], facts) for facts in callers]
    groups: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for facts in callers:
        rights = str({field: value for field, value in facts.items() if field != "name"})
        groups.setdefault(rights, ([], facts))[0].append(facts["name"])
    return groups.values()


def _row(facts: dict[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    caller = names[0]
    if len(names) > 1:
        more = f" and {len(names) - 1} more"
        caller = _cut(caller, WIDEST[0] - len(more)) + more
    tools = f"{len(facts['tools'])}"
    details = [f"{len(facts['may_write'])} write"] if facts["may_write"] else []
    details += [f"{facts['wait_for_approval']} wait"] if facts["wait_for_approval"] else []
    if details:
        tools += f" ({', '.join(details)})"
    if facts["tools_of_sources"]:
        tools += " + sources"
    limits = _limits_in_words(facts["limits"])
    limits += [f"each: {limit}" for limit in _limits_in_words(facts.get("each", {}))]
    limits += [f"until {facts['expires'][:10]}"] if facts["expires"] else []
    return (
        caller,
        ", ".join(facts["models"]) or "none",
        tools,
        _yes(facts["approve"]),
        facts["see"],
        _yes(facts["admin"]),
        ", ".join(limits) or "none",
    )


def _limits_in_words(limits: dict[str, Any]) -> list[str]:
    return [UNITS[field].format(value) for field, value in limits.items()]


def _yes(is_allowed: bool) -> str:
    if is_allowed:
        return "yes"
    return "-"


def _lined(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [min(most, max(len(row[column]) for row in rows)) for column, most in enumerate(WIDEST[:-1])]
    for row in rows:
        line = "  ".join(_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=False))
        yield f"{line}  {_cut(row[-1], WIDTH - len(line) - 2)}".rstrip()


def _cut(cell: str, width: int) -> str:
    if len(cell) <= width:
        return cell
    return cell[: width - 1] + "…"
